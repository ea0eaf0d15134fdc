"""How many drafts of a speculating server are right: drawn from rates, or as a workload tells."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord

_DRAW_BYTES = 8


class DraftAcceptance:
    """Tells, of each verification, how many of the drafts are accepted. All drafts are always made: k per output.

    ``rates`` are vLLM's ``synthetic_acceptance_rates``: rate ``i`` is the probability that the first ``i + 1`` drafts
    are all right. A draw depends on the seed, the request's id and the number of its output tokens so far, so that
    scheduling does not change it. A record with ``accepted_drafts`` says the counts itself, in the order of its
    verifications; behind the last of them nothing is accepted.
    """

    def __init__(self, num_drafts: int, rates: Sequence[float] | None, seed: int) -> None:
        self.num_drafts = num_drafts
        self._rates = rates
        self._seed = seed
        self._told: dict[Request, Sequence[int]] = {}
        self._num_verified: dict[Request, int] = {}

    def expect(self, request: Request, record: RequestRecord) -> None:
        """Remember what ``record`` tells. WorkloadError: it tells nothing, and there are no rates."""
        if record.accepted_drafts is not None:
            self._told[request] = record.accepted_drafts
        elif self._rates is None:
            raise WorkloadError(
                record.source, "accepted_drafts: missing, and --speculative-config has no synthetic_acceptance_rates"
            )

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._told.pop(request, None)
        self._num_verified.pop(request, None)

    def num_accepted(self, step: Step) -> dict[Request, int]:
        """Per request whose drafts ``step`` verifies, how many are accepted; none of padding."""
        padded = {admission.request for admission in step.admitted}
        return {
            request: 0 if request in padded else min(number, self._num_right(request))
            for request, number in step.num_drafts.items()
        }

    def _num_right(self, request: Request) -> int:
        told = self._told.get(request)
        if told is not None:
            index = self._num_verified.get(request, 0)
            self._num_verified[request] = index + 1
            return told[index] if index < len(told) else 0
        name = f"{self._seed}/{request.num_output_tokens}/{request.request_id}".encode("utf-8", "surrogatepass")
        draw = int.from_bytes(blake2b(name, digest_size=_DRAW_BYTES).digest()) / 256**_DRAW_BYTES
        return sum(draw < rate for rate in self._rates or ())
