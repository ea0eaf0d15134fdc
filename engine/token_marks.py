"""A number for every token of a request, for caches that compare tokens and not hashes of blocks."""

from __future__ import annotations

from array import array

from kvtwin.engine.block_keys import Content, KeySpace


class TokenMarks:
    """The marks of a request's tokens, made when they are asked for.

    Equal marks behind equal ones, in one namespace of contents, mean equal tokens. Where nothing is known that another
    request could share, marks are the request's own: negative and never given twice. They stay as they are, so a
    request finds its own tokens again.
    """

    def __init__(self, keys: KeySpace, content: Content) -> None:
        self.namespace = content.namespace
        self._keys = keys
        self._content = content
        self._marks = array("q")

    def upto(self, end: int) -> array[int]:
        """Marks of at least the first ``end`` tokens, which are known."""
        marks = self._marks
        if len(marks) < end:
            marks.extend(self._content.shared_marks(len(marks), end))
            missing = end - len(marks)
            if missing:
                first = self._keys.private_keys(missing)
                marks.extend(range(first, first - missing, -1))
        return marks

    def edges(self, num_tokens: int, tokens_per_block: int, *, partial: bool) -> list[bytes]:
        """The marks of the first ``num_tokens`` tokens block by block; with ``partial`` also of a last one not full."""
        data = self.upto(num_tokens)[:num_tokens].tobytes()
        size = tokens_per_block * self._marks.itemsize
        end = len(data) if partial else len(data) - len(data) % size
        return [data[start : start + size] for start in range(0, end, size)]
