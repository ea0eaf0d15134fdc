"""SGLang's settings beside the engine's, under its own names."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.sglang.eviction import EVICTION_POLICIES

SGLANG_VERSION = "0.5.23"
SCHEDULE_POLICY_NAMES = ("fcfs", "lpm")
_REASONS = {"tlru": ", which is not modelled: SGLang's RadixCache itself cannot do it"} | dict.fromkeys(
    ("dfs-weight", "lof", "random", "hrrn", "shortest-prefill-first", "routing-key", "priority"),
    ", which is not modelled",
)
"""What SGLang has and is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """Settings under SGLang's names. Pages are the configuration's blocks, ``max_running_requests`` its sequences.

    ValueError names the setting and what it may be.
    """

    chunked_prefill_size: int | None = 8192
    """None: prompts are not split."""
    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    radix_eviction_policy: str = "lru"

    name = "sglang"
    title = f"SGLang {SGLANG_VERSION}"
    has_null_block = True
    evidence = "scheduling from SGLang's sources, not run; its radix cache was run (docs/sglang.md)"

    def __post_init__(self) -> None:
        _one_of("schedule_policy", self.schedule_policy, SCHEDULE_POLICY_NAMES)
        _one_of("radix_eviction_policy", self.radix_eviction_policy, tuple(EVICTION_POLICIES))
        for name in ("chunked_prefill_size", "max_prefill_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.schedule_conservativeness <= 0:
            raise ValueError(f"schedule_conservativeness: expected more than 0, got {self.schedule_conservativeness}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected {', '.join(choices)}, got {value}{_REASONS.get(value, '')}")
