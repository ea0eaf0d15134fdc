"""The settings of speculative decoding (specification, section 9)."""

from __future__ import annotations

from dataclasses import dataclass

EAGLE_METHODS = ("eagle", "eagle3", "mtp")
"""Drafters that read the model's hidden states: what is cached must fit the token behind it."""

SPECULATION_METHODS = ("ngram", "ngram_gpu", "suffix", "medusa", "draft_model", "dflash", *EAGLE_METHODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The settings of speculative decoding that decide, named as in vLLM's ``--speculative-config``.

    ValueError, when it is made, names the setting and what it may be.
    """

    method: str
    num_speculative_tokens: int
    """Drafts per step and request (k in the specification)."""
    num_nextn_predict_layers: int = 1
    """mtp: modules of the model that draft, from its config.json; each reads one token further ahead."""
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False

    def __post_init__(self) -> None:
        if self.method not in SPECULATION_METHODS:
            raise ValueError(f"method: expected one of {', '.join(SPECULATION_METHODS)}, got {self.method}")
        if self.num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens: expected at least 1, got {self.num_speculative_tokens}")
        if self.num_nextn_predict_layers < 1:
            raise ValueError(f"num_nextn_predict_layers: expected at least 1, got {self.num_nextn_predict_layers}")

    @property
    def lookahead_slots(self) -> int:
        """Slots behind the scheduled tokens that the drafter writes."""
        if self.method in EAGLE_METHODS or self.method == "draft_model":
            return self.num_speculative_tokens
        return self.num_speculative_tokens + 1 if self.method == "dflash" else 0

    @property
    def prefill_lookahead_tokens(self) -> int:
        """Known tokens behind a chunk of a prompt that the drafter reads."""
        if self.method == "mtp" and min(self.num_nextn_predict_layers, self.num_speculative_tokens) > 1:
            return self.num_speculative_tokens
        return int(self.method in EAGLE_METHODS or self.method == "dflash")

    @property
    def hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers too."""
        is_off = self.disable_lookahead_block_hashes or self.disable_eagle_block_drop or self.method == "dflash"
        return 0 if is_off else self.prefill_lookahead_tokens

    @property
    def drops_last_block(self) -> bool:
        """Whether a hit gives its last block away, whose keys and values the drafter may have made for other tokens."""
        is_eagle = self.method in EAGLE_METHODS
        return is_eagle and self.disable_lookahead_block_hashes and not self.disable_eagle_block_drop
