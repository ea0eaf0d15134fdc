"""Options: one dataclass per subject, read alike from a command line, a YAML file and Python."""

from dataclasses import FrozenInstanceError
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.command_line.application import read_words
from kvtwin.experiments.commands.registry import COMMANDS
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.kinds import Bytes, Choice, Number, Several, Switch, Whole
from kvtwin.experiments.options.output import ServiceLevel
from kvtwin.experiments.options.reading import as_plain, command_words, read_options
from kvtwin.experiments.options.replay import ReplayCommandOptions
from kvtwin.experiments.options.server import OWNERS
from kvtwin.workloads.formats.names import FORMAT_NAMES
from kvtwin.workloads.formats.registry import FORMATS


def replay_options(**values):
    return read_options(ReplayCommandOptions, {"trace": "demo"} | values, "kvtwin replay")


def test_names_of_formats_are_those_of_the_registry():
    assert tuple(FORMATS) == FORMAT_NAMES


def test_options_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        replay_options().block_size = 32


@pytest.mark.parametrize("name", ["block_size", "block-size", "--block-size", "--block_size"])
def test_every_spelling_of_a_name(name):
    assert read_options(ReplayCommandOptions, {"trace": "t", name: "32"}, "kvtwin replay").block_size == 32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_size": 0}, "--block-size: expected a whole number from 1 to 2147483647, got 0"),
        ({"block_size": 16.0}, "--block-size: expected a whole number from 1 to 2147483647, got 16.0"),
        ({"block_size": True}, "--block-size: expected a whole number from 1 to 2147483647, got True"),
        ({"watermark": float("nan")}, "--watermark: expected a number of at least 0 and at most 1, got nan"),
        ({"enable_lora": "yes"}, "--enable-lora: expected true or false, got 'yes'"),
        ({"model": ["a"]}, "--model: expected one text, got ['a']"),
        (
            {"goodput": "itl:3"},
            "--goodput: expected ttft, tpot or e2el and milliseconds, such as ttft:500, got 'itl:3'",
        ),
        ({"blocksize": 16}, "--blocksize: kvtwin replay has no such option; nearest: --block-size"),
        ({"data_parallel_rank": 2}, "--data-parallel-rank: all replicas are simulated together"),
        ({"scheduling_policy": "lifo"}, "--scheduling-policy: expected one of fcfs, priority, got 'lifo'"),
    ],
)
def test_a_mistake_is_one_line_with_the_flag(values, message):
    with pytest.raises(UserError) as caught:
        replay_options(**values)
    assert str(caught.value).removesuffix(" (see kvtwin replay --help)") == message


def test_what_is_needed_is_asked_for():
    with pytest.raises(UserError, match=r"^TRACE: is needed"):
        read_options(ReplayCommandOptions, {}, "kvtwin replay")


_VALUES = {
    Whole: lambda kind: st.integers(kind.least, kind.most) | (st.none() if kind.or_none else st.nothing()),
    Number: lambda kind: st.floats(max(kind.least, 1e-9), min(kind.most, 1e9), exclude_min=kind.above),
    Bytes: lambda kind: st.integers(0, 1 << 50),
    Choice: lambda kind: st.sampled_from(kind.choices),
    Switch: lambda kind: st.booleans() if kind.has_off else st.just(True),
    Several: lambda kind: st.none(),
}


@given(st.data())
def test_options_survive_every_way_of_writing_them(data):
    """A command line, plain data as in YAML, and keyword arguments come to the same options."""
    values = {"trace": "a trace.jsonl"}
    for field in data.draw(st.lists(st.sampled_from(fields_of(ReplayCommandOptions)), max_size=8, unique=True)):
        strategy = _VALUES.get(type(field.kind), lambda kind: st.none())(field.kind)
        value = data.draw(strategy)
        if not field.is_argument and (value is not None or getattr(field.kind, "or_none", False)):
            values[field.name] = value
    server = values.get("server", "vllm")
    values = {name: value for name, value in values.items() if OWNERS.get(name, server) == server}
    options = replay_options(**values)
    assert read_words("replay", list(command_words(options))) == options
    plain = {name: value for name, value in as_plain(options).items() if value is not None}
    if server == "vllm":
        plain |= {"prefix_cache_retention_interval": options.prefix_cache_retention_interval}
    assert replay_options(**plain) == options


def test_several_words_or_commas_or_a_list():
    wanted = (ServiceLevel("ttft", 500), ServiceLevel("tpot", 50))
    for words in (
        ["--goodput", "ttft:500", "tpot:50"],
        ["--goodput=ttft:500,tpot:50"],
        ["--goodput", "ttft:500,tpot:50"],
    ):
        assert read_words("replay", ["demo", *words]).goodput == wanted
    assert replay_options(goodput=["ttft:500", "tpot:50"]).goodput == wanted


@pytest.mark.parametrize(
    "words",
    [
        ["-tp", "4", "--max_model_len=100", "--no-enable-chunked-prefill", "-pp=2"],
        ["--tensor_parallel_size", "4", "--max-model-len", "100", "--no_enable_chunked_prefill", "-pp", "2"],
    ],
)
def test_flags_are_spelled_as_vllm_allows(words):
    options = read_words("size", ["--model", "m", "-tp", "4", "--max_model_len=100", "-pp", "2"])
    assert (options.tensor_parallel_size, options.max_model_len, options.pipeline_parallel_size) == (4, 100, 2)
    options = read_words("replay", ["demo", *words])
    assert (options.tensor_parallel_size, options.max_model_len, options.pipeline_parallel_size) == (4, 100, 2)
    assert options.enable_chunked_prefill is False


def test_a_value_may_begin_with_a_dash():
    assert read_words("replay", ["demo", "--max-model-len", "-1"]).max_model_len == -1


# ---------------------------------------------------------------- --config


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "server.yaml"
        path.write_text(text)
        return path

    return write


def test_a_configuration_file_has_flags_of_vllm(config):
    path = config("block-size: 32\nmax_num_seqs: 7\nno-enable-prefix-caching: true\ngoodput: [ttft:5]\ngpu: l4\n")
    options = read_words("replay", ["demo", "--config", str(path), "--max-num-seqs", "9"])
    assert (options.block_size, options.max_num_seqs, options.gpu) == (32, 9, "l4")
    assert options.enable_prefix_caching is False
    assert options.goodput == (ServiceLevel("ttft", 5),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "expected a mapping of flags"),
        ("block-sise: 3", "nearest: --block-size"),
        ("data-parallel-rank: 2", "all replicas are simulated together"),
        ("block-size: x", "--block-size: expected a whole number"),
        ("a: [", "not YAML"),
    ],
)
def test_a_mistake_in_a_configuration_file(kvtwin, config, text, words):
    kvtwin("replay", "demo", "--config", config(text)).complains(words)


def test_every_command_with_flags_takes_a_configuration_file(kvtwin, tmp_path):
    for name, command in COMMANDS.items():
        module = import_module(f"kvtwin.experiments.commands.{command.module}")
        if any(not field.is_argument for field in fields_of(module.OPTIONS)):
            kvtwin(*name.split(), "--config", tmp_path / "none.yaml").complains("none.yaml: No such file")


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("columns", [80, 140])
def test_help_is_as_wide_as_the_terminal(kvtwin, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = kvtwin("replay", "--help").out.splitlines()
    panels = [line for line in lines if line.startswith(("╭", "│", "╰"))]
    assert len(panels) > 100
    assert {len(line) for line in panels} == {columns}


@pytest.mark.parametrize("word", ["load", "Load", "LOAD (as"])
def test_help_of_one_group(kvtwin, word):
    out = kvtwin("replay", f"--help={word}").out
    assert "--rate-scale" in out
    assert "--block-size" not in out
    assert out.count("╭") == 1


def test_help_of_one_flag(kvtwin):
    out = kvtwin("replay", "--help=max-num-seqs").out
    assert "--max-num-seqs" in out
    assert "--block-size" not in out
    kvtwin("replay", "--help=no-such-thing").complains("--help=no-such-thing", "kvtwin replay")


def test_colours_are_for_terminals(kvtwin, monkeypatch):
    assert "\x1b" not in kvtwin("replay", "--help").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in kvtwin("replay", "--help").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in kvtwin("replay", "--help").out


# ---------------------------------------------------------------- shells


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kvtwin re", {"replay", "report"}),
        ("kvtwin replay --max-num-s", {"--max-num-seqs", "--max-num-scheduled-tokens"}),
        ("kvtwin replay demo --scheduling-policy ", {"fcfs", "priority"}),
        ("kvtwin trace ", {"inspect", "generate", "convert", "sample", "merge"}),
    ],
)
def test_a_shell_is_told_how_a_word_may_go_on(script, monkeypatch, line, offered):
    words = line.split(" ")
    monkeypatch.setenv("_KVTWIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    out, err = script().communicate()
    assert (set(out.split()), err) == (offered, "")
