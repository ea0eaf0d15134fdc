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


class Traffic:
    """What GPUs that compute together send each other.

    With tensor parallelism, all-reduces of one activation per token: two per layer, one for the embedding; and the
    logits of sampled tokens, which are gathered. Where ranks of data parallelism share experts, a layer of experts
    gathers the tokens of all ranks, and scatters the sums: together an all-reduce of all their tokens. vLLM pads ranks
    to the one with most tokens, so each is taken to have as many.

    A gather sends half of what an all-reduce of the same tensor sends, and is taken to last half as long. Nothing is
    overlapped with arithmetic: vLLM does that for some models on some GPUs only.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        layers: Interconnect | None = None,
        experts: Interconnect | None = None,
        data_parallel_size: int = 1,
    ) -> None:
        """``layers``: between the GPUs of tensor parallelism. ``experts``: between all that share experts."""
        num_expert_layers = sum(layer.num_experts > 0 for layer in shape.layers) if experts else 0
        # An MLP that is a layer of its own (Nemotron-H) counts with the layer before it.
        num_layers = sum(layer.spec.kind != "mlp" for layer in shape.layers)
        self._all_reduces = 1 + 2 * num_layers - num_expert_layers if layers else 0
        self._expert_all_reduces = num_expert_layers
        self._token_bytes = shape.hidden_size * shape.dtype_bytes
        self._logit_bytes = shape.vocab_size * shape.dtype_bytes
        self._data_parallel_size = data_parallel_size
        self._layers = layers
        self._experts = experts

    def duration_ns(self, tokens: int, sampled_tokens: int) -> int:
        """Nanoseconds of a step of ``tokens`` tokens, of which ``sampled_tokens`` need logits; one at least."""
        return self.tokens_ns(tokens) + self.sampled_ns(sampled_tokens)

    def tokens_ns(self, tokens: int) -> int:
        """The all-reduces."""
        num_bytes, total_ns = tokens * self._token_bytes, 0.0
        if self._layers:
            total_ns += self._all_reduces * self._layers.all_reduce_ns.at(num_bytes)
        if self._experts:
            total_ns += self._expert_all_reduces * self._experts.all_reduce_ns.at(num_bytes * self._data_parallel_size)
        return round(total_ns)

    def sampled_ns(self, sampled_tokens: int) -> int:
        """Gathering the logits."""
        if not sampled_tokens or not self._layers:
            return 0
        return round(self._layers.all_reduce_ns.at(sampled_tokens * self._logit_bytes) / 2)

    def describe(self) -> dict[str, float | int | str]:
        """Kind and source of the links, and the number of all-reduces."""
        links = self._layers or self._experts
        assert links
        facts: dict[str, float | int | str] = {"interconnect": links.name, "interconnect_source": links.source}
        if self._layers:
            facts["all_reduces_per_step"] = self._all_reduces
        if self._experts:
            facts["expert_all_reduces_per_step"] = self._expert_all_reduces
            facts["expert_interconnect_source"] = self._experts.source
        return facts
