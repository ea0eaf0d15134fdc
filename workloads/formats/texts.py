"""What readers of texts share: their settings, and messages as services write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvtwin.workloads.formats.json_rows import JsonRow, is_list, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.text_tokens import BYTES_PER_TOKEN, Message

APPROXIMATE = (
    f"tokens are guessed, one per {BYTES_PER_TOKEN} bytes of text: shared prefixes stay shared, so that hit rates are "
    "about right, but lengths, numbers of blocks and evictions may be off by a third; --tokenizer counts them"
)

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
_ROLES |= {"model": "assistant", "developer": "system", "function": "tool"}


@dataclass(frozen=True)
class TextReader(Reader):
    """A reader of texts.

    ``tokenizer``: folder of a tokenizer, or its ``tokenizer.json``. ``output_tokens``: of requests whose rows do not
    tell (vLLM's ``--custom-output-len``).
    """

    tokenizer: str | None = field(default=None, kw_only=True)
    output_tokens: int | None = field(default=None, kw_only=True)

    def tell(self, rows: Rows) -> None:
        """That lengths are guessed, if so."""
        if self.tokenizer is None:
            rows.notes[APPROXIMATE] = None

    def given_output(self, row: JsonRow, *keys: str) -> int:
        """How long an output is that the row does not have: what one of ``keys`` says, else the setting."""
        for key in keys:
            if row.values.get(key) is not None:
                return row.integer(key, minimum=1)
        if self.output_tokens is None:
            raise row.error(keys[0], "nothing tells how long the output is: expected it here, or --custom-output-len")
        return self.output_tokens


def messages_of(row: JsonRow, key: str) -> list[Message]:
    """The messages under ``key``: role and content, from and value, or role and parts."""
    return [_message(message) for message in row.objects(key)]


def _message(row: JsonRow) -> Message:
    role = row.text("from" if "from" in row.values and "role" not in row.values else "role").lower()
    key = next((name for name in ("content", "value", "parts") if name in row.values), "content")
    text = "".join(_texts(row, key, row.values.get(key)))
    calls = row.values.get("tool_calls")
    return Message(_ROLES.get(role, role), text + (str(calls) if calls else ""))


def _texts(row: JsonRow, key: str, content: Any) -> Iterator[str]:
    """The text of a message's content: itself, or that of its parts."""
    if content is None:
        return
    if isinstance(content, str):
        yield row.text(key)
    elif is_list(content):
        for part in row.objects(key):
            kind = part.values.get("type", "text")
            if "image" in str(kind) or "audio" in str(kind) or "video" in str(kind):
                raise part.error("type", f"expected text only, got {shown(kind)}: its tokens cannot be counted")
            name = next((name for name in ("text", "content", "input_text") if name in part.values), None)
            yield part.text(name) if name and isinstance(part.values[name], str) else str(part.values)
    else:
        raise row.error(key, f"expected a text or a list of parts, got {shown(content)}")
