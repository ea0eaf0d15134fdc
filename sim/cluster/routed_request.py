"""A request on its way to a replica, as a router sees it."""

from __future__ import annotations

from kvtwin.workloads.prefixes.chains import Run, prefix_chain
from kvtwin.workloads.request_record import RequestRecord


class RoutedRequest:
    """The record, and its prompt cut into the router's own blocks: of tokens, or of text that is equally long."""

    __slots__ = ("_prompts", "cached_tokens", "record")

    def __init__(self, record: RequestRecord, cached_tokens: list[int]) -> None:
        self.record = record
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that each replica has cached when it is sent. For `View.cached_now` alone."""
        self._prompts: dict[int, list[Run]] = {}

    def prompt(self, block_tokens: int) -> list[Run]:
        """The prompt's leading full blocks of ``block_tokens`` tokens whose content is known, as named runs."""
        runs = self._prompts.get(block_tokens)
        if runs is None:
            runs, left = [], self.record.prompt_tokens // block_tokens
            for name, length in prefix_chain(self.record, block_tokens).runs:
                if left <= 0:
                    break
                runs.append((name, min(length, left)))
                left -= length
            self._prompts[block_tokens] = runs
        return runs

    def num_private_blocks(self, block_tokens: int) -> int:
        """The prompt's full blocks behind those of :meth:`prompt`: no other prompt has them."""
        return self.record.prompt_tokens // block_tokens - sum(length for _, length in self.prompt(block_tokens))

    def first_blocks(self, block_tokens: int, most_blocks: int) -> tuple[list[Run], int]:
        """Runs and private blocks, as above, of its first ``most_blocks`` blocks at most."""
        runs, left = [], most_blocks
        for name, length in self.prompt(block_tokens):
            if left <= 0:
                break
            runs.append((name, min(length, left)))
            left -= length
        return runs, min(max(left, 0), self.num_private_blocks(block_tokens))
