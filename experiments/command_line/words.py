"""One pass over the words of a command line, for what vLLM's parser takes and typer does not.

* ``--a_b`` means ``--a-b``.
* An option of several values takes several words: ``--goodput ttft:500 tpot:50``.
* ``--help=GROUP`` shows one group of the options, or those with a word in their names.

>>> from kvtwin.experiments.options.replay import ReplayOptions
>>> vllm_words(["--block_size=32", "--goodput", "ttft:500", "tpot:50", "--json"], ReplayOptions)
['--block-size=32', '--goodput=ttft:500,tpot:50', '--json']
>>> asked_help(["demo", "--help=load"])
'load'
"""

from __future__ import annotations


def vllm_words(words: list[str], options: type) -> list[str]:
    """``words`` as typer takes them."""
    from kvtwin.experiments.options.fields import fields_of
    from kvtwin.experiments.options.kinds import Several

    many = {field.flag for field in fields_of(options) if isinstance(field.kind, Several) and field.kind.many_words}
    left = [_with_dashes(word) for word in words]
    taken = []
    while left:
        word = left.pop(0)
        if word in many:
            values = []
            while left and not left[0].startswith("-"):
                values.append(left.pop(0))
            if values:
                word = f"{word}={','.join(values)}"
        taken.append(word)
    return taken


def asked_help(words: list[str]) -> str | None:
    """The group that ``--help=GROUP`` asks for; empty for all of them, None where no help is asked for."""
    for word in words:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.partition("=")[2]
    return None


def _with_dashes(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word
