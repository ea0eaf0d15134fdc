"""What GPUs send each other in a step that several of them compute together, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.sim.tabulated import Curve


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Links between a number of GPUs."""

    name: str
    num_gpus: int
    all_reduce_ns: Curve
    """Time of one all-reduce, by the bytes of the tensor."""
    source: str
    """What was measured where; says so where it was not measured for this number of GPUs."""


class TensorParallelTraffic:
    """The all-reduces of a step: two per layer and one for the embedding, of one activation per token each; and the
    logits of sampled tokens, which are gathered.

    A gather sends half of what an all-reduce of the same tensor sends, and is taken to last half as long. Nothing is
    overlapped with arithmetic: vLLM does that for some models on some GPUs only.
    """

    def __init__(self, shape: ModelShape, interconnect: Interconnect) -> None:
        # An MLP that is a layer of its own (Nemotron-H) counts with the layer before it.
        self._all_reduces = 1 + 2 * sum(layer.spec.kind != "mlp" for layer in shape.layers)
        self._token_bytes = shape.hidden_size * shape.dtype_bytes
        self._logit_bytes = shape.vocab_size * shape.dtype_bytes
        self.interconnect = interconnect

    def duration_ns(self, tokens: int, sampled_tokens: int) -> int:
        """Nanoseconds of a step of ``tokens`` tokens, of which ``sampled_tokens`` need logits; one at least."""
        return self.tokens_ns(tokens) + self.sampled_ns(sampled_tokens)

    def tokens_ns(self, tokens: int) -> int:
        """The all-reduces."""
        return round(self._all_reduces * self.interconnect.all_reduce_ns.at(tokens * self._token_bytes))

    def sampled_ns(self, sampled_tokens: int) -> int:
        """Gathering the logits."""
        if not sampled_tokens:
            return 0
        return round(self.interconnect.all_reduce_ns.at(sampled_tokens * self._logit_bytes) / 2)

    def describe(self) -> dict[str, float | int | str]:
        """Kind and source of the links, and the number of all-reduces."""
        return {
            "interconnect": self.interconnect.name,
            "interconnect_source": self.interconnect.source,
            "all_reduces_per_step": self._all_reduces,
        }
