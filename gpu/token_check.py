"""Whether requests that shared a cache said what each of them says alone, without any cache.

The reference is one dense pass over a request's prompt and its output. If every token of the output is the one that is
sampled behind those before it, then, by induction, the request alone says the same, token by token. Where tokens are
drawn, so is the reference's: the noise of a draw is a function of the request and the position alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.alone import Transcript, say_alone
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.errors import memory_for
from kvtwin.gpu.executor import DeviceExecutor
from kvtwin.gpu.request_rows import request_seed
from kvtwin.gpu.sampling import scores

MOST_TIES = 0.001
"""Share of the tokens that may be ties in float32; a single one always may. In 16 bits many are."""


class Rounding(NamedTuple):
    """What rounding may do to logits."""

    tolerance: int
    """How many times the measured noise two logits may differ. The noise of a few requests is known, and a crowd's is a
    little larger."""
    most_noise: int
    """Noise, in units of the dtype's precision at the largest logit, that can still be rounding."""


FLOAT32 = Rounding(tolerance=20, most_noise=256)
BITS_16 = Rounding(tolerance=5, most_noise=16)
"""Noise in 16 bits is so large that 20 times as much would hide a wrong block, and 256 units any mistake."""

_NOISE_TOKENS = 48
_CONTROL_TOKENS = 24
_ROWS = 64
"""Tokens whose noise is in memory at once."""


class _Reference:
    """What the decoder computes for a whole transcript at once, each distinct one once."""

    def __init__(self, decoder: Decoder, temperature: float, seed: int) -> None:
        self._decoder = decoder
        self._temperature = temperature
        self._seed = seed
        self._known: dict[tuple[bytes, bytes, int], tuple[Tensor, Tensor]] = {}
        self.largest_logit = 0.0

    def look_up(self, said: Transcript) -> tuple[Tensor, Tensor]:
        """Per output token, in float64: its logit, and how far that would have to be above to win, if it does not."""
        seed = request_seed(self._seed, said.request_id) if self._temperature else 0
        key = array("q", said.prompt).tobytes(), array("q", said.output).tobytes(), seed
        if key not in self._known:
            weights = self._decoder.weights
            tokens = torch.tensor([*said.prompt, *said.output[:-1]], device=weights.embedding.device)
            output = torch.tensor(said.output, device=tokens.device)
            with memory_for(f"{len(tokens):,} tokens without a cache"), torch.inference_mode():
                logits = self._decoder.dense_logits(tokens, first=len(said.prompt) - 1)
                logit = logits.gather(1, output[:, None])[:, 0]
                behind = self._behind(logits, output, seed, len(said.prompt))
            self.largest_logit = max(self.largest_logit, float(logits.abs().max()))
            self._known[key] = logit.double().cpu(), behind.double().cpu()
        return self._known[key]

    def _behind(self, logits: Tensor, output: Tensor, seed: int, first_position: int) -> Tensor:
        positions = torch.arange(first_position, first_position + len(output), device=output.device)
        parts = []
        for rows, tokens, at in zip(logits.split(_ROWS), output.split(_ROWS), positions.split(_ROWS), strict=True):
            of_all = scores(rows, self._temperature, torch.full_like(at, seed), at)
            parts.append(of_all.amax(dim=1) - of_all.gather(1, tokens[:, None])[:, 0])
        return torch.cat(parts)

    def differences(self, said: Transcript) -> Tensor:
        """How far the executor's logits are from these."""
        return (torch.tensor(said.logits, dtype=torch.float64) - self.look_up(said)[0]).abs()

    def largest_difference(self, said: Transcript) -> float:
        """Infinity if one is no number."""
        return float(self.differences(said).nan_to_num(torch.inf).max())


@dataclass(slots=True)
class Findings:
    """What is wrong with transcripts, given a tolerance for logits. What is not a number is wrong."""

    tolerance: float
    """Of a logit. A token that is sampled may have one that is too large by it, beside one that is too small."""
    ties_are_rare: bool
    num_tokens: int = 0
    num_ties: int = 0
    """Tokens that the reference would not have sampled, by no more than twice the tolerance."""
    num_wrong_tokens: int = 0
    num_wrong_logits: int = 0
    largest_difference: float = 0.0
    """Between logits of the executor and of the reference."""
    first_wrong: str | None = None
    """Where the first wrong token or logit is."""

    @property
    def allowed(self) -> bool:
        """Whether nothing is wrong, and few tokens are ties where these are rare."""
        ties_allowed = max(1, int(MOST_TIES * self.num_tokens)) if self.ties_are_rare else self.num_tokens
        return self.num_wrong_tokens + self.num_wrong_logits == 0 and self.num_ties <= ties_allowed

    def add(self, said: Transcript, reference: _Reference) -> None:
        """Compare what was said with the reference."""
        behind, differences = reference.look_up(said)[1], reference.differences(said)
        wrong_logits = ~(differences <= self.tolerance)
        wrong_tokens = ~(behind <= 2 * self.tolerance)
        self.num_ties += int(((behind > 0) & ~wrong_tokens).sum())
        self.num_tokens += len(said.output)
        self.num_wrong_tokens += int(wrong_tokens.sum())
        self.num_wrong_logits += int(wrong_logits.sum())
        self.largest_difference = max(self.largest_difference, reference.largest_difference(said))
        wrong = (wrong_tokens | wrong_logits).nonzero()
        if len(wrong) and self.first_wrong is None:
            self.first_wrong = f"request {said.request_id}, output token {int(wrong[0])}"


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """What came of the check."""

    num_requests: int
    noise: float
    """Largest difference between logits of a request alone on the executor and of the reference."""
    is_rounding: bool
    """Whether the noise is small enough to be that: else the executor computes something else, even alone."""
    found: Findings
    notices_loss: bool
    """Whether the same check fails for a request that loses its first block: else it proves nothing."""

    @property
    def passed(self) -> bool:
        """Whether all that was said is right, and the check would have noticed if not."""
        return self.found.num_tokens > 0 and self.found.allowed and self.is_rounding and self.notices_loss


def check_tokens(
    decoder: Decoder,
    executor: DeviceExecutor,
    config: EngineConfig,
    transcripts: Sequence[Transcript],
    *,
    poisons: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> TokenCheck:
    """Check what the requests that ``executor`` served said. ``on_progress`` is told how many of them are checked.

    Logits must agree within a multiple of the noise, which is measured with some of these very requests.

    Raises OutOfDeviceMemory: a request does not fit beside the cache, which stays where it is.
    """
    said = sorted((one for one in transcripts if one.output), key=lambda one: len(one.prompt) + len(one.output))
    reference = _Reference(decoder, executor.temperature, executor.seed)
    is_float32 = decoder.weights.embedding.dtype == torch.float32
    if not said:
        return TokenCheck(0, 0.0, True, Findings(0.0, is_float32), notices_loss=False)
    alone = partial(say_alone, executor, config, poisons=poisons)
    middle = said[len(said) // 2]
    heard = [alone(one.prompt, min(len(one.output), _NOISE_TOKENS)) for one in (said[0], middle, said[-1])]
    noise = max(reference.largest_difference(one) for one in heard)
    rounding = FLOAT32 if is_float32 else BITS_16
    precision = torch.finfo(decoder.weights.embedding.dtype).eps * reference.largest_logit
    most_noise = rounding.most_noise * precision
    tolerance = rounding.tolerance * min(max(noise, precision), most_noise)
    control = Findings(tolerance, is_float32)
    control.add(_control(alone, middle, config), reference)
    found = Findings(tolerance, is_float32)
    for number, one in enumerate(said, 1):
        found.add(one, reference)
        if on_progress:
            on_progress(number)
    return TokenCheck(len(said), noise, noise <= most_noise, found, notices_loss=control.num_wrong_logits > 0)


def _control(alone: Callable[..., Transcript], said: Transcript, config: EngineConfig) -> Transcript:
    """A request that loses a block; its prompt is cut where that leaves no room to decode."""
    prompt = said.prompt[: max(1, config.max_model_len - _CONTROL_TOKENS)]
    return alone(prompt, min(_CONTROL_TOKENS, config.max_model_len - len(prompt)), loses_block=True)
