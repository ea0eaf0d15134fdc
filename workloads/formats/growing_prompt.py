"""Prompts of conversations whose later turns tell only what is new."""

from __future__ import annotations

from collections.abc import Sequence


class GrowingPrompt:
    """A conversation: the prompt of each turn is the prompt before, its output, and new tokens.

    ``first_ids`` name the first prompt, in stretches of ``id_tokens``, the last of which may be shorter. Everything
    behind it, outputs and new tokens alike, belongs to this conversation alone, and is named ``own_id``.
    """

    def __init__(self, first_ids: Sequence[int], id_tokens: int, own_id: int) -> None:
        self._first_ids = first_ids
        self._id_tokens = id_tokens
        self._own_id = own_id
        self._first_ends: list[int] = []
        self._num_tokens = 0
        """Prompt and output of the latest turn."""

    def add_turn(self, num_new_tokens: int, num_output_tokens: int) -> tuple[int, list[int], list[int]]:
        """The next turn: tokens of its prompt, and the ids that name prompt and output, with their ends."""
        if not self._num_tokens:
            number = len(self._first_ids)
            self._first_ends = [min((index + 1) * self._id_tokens, num_new_tokens) for index in range(number)]
        prompt_tokens = self._num_tokens + num_new_tokens
        self._num_tokens = prompt_tokens + num_output_tokens
        ids, ends = list(self._first_ids), list(self._first_ends)
        if self._num_tokens > (ends[-1] if ends else 0):
            ids.append(self._own_id)
            ends.append(self._num_tokens)
        return prompt_tokens, ids, ends
