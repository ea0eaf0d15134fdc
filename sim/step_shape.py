"""What a step-time model may look at: the few sums that a step's duration depends on."""

from __future__ import annotations

from typing import NamedTuple

from kvtwin.engine.executor import Step


class StepShape(NamedTuple):
    """Sums over the requests of one step.

    A request with ``c`` tokens computed before and ``q`` tokens scheduled in the step, ``d`` of them drafts, counts as
    *decode* when ``q - d == 1`` and it has at least one output token behind it, else as *prefill*. Drafts to verify are
    computed like a prompt: ``d`` tokens behind ``c + 1``.
    """

    num_sequences: int
    """Requests that run in the step."""
    decode_sequences: int
    """Requests of them that decode: one token each, besides drafts."""
    prefill_tokens: int
    """Tokens scheduled for the others (sum of q), and drafts of those that decode (sum of d)."""
    context_tokens: int
    """KV entries read: sum over all requests of c + q."""
    prefill_attention_pairs: int
    """Query-key pairs of these tokens under a causal mask: sum of q*c + q*(q+1)/2, for drafts d*(c+1) + d*(d+1)/2."""
    sampled_tokens: int
    """Tokens that need logits: the last known token of a request, and drafts."""
    longest_decode_context: int = 0
    """KV entries read for the longest of the requests that decode; 0 where all are to count as equally long."""

    @property
    def total_tokens(self) -> int:
        """All tokens scheduled in the step."""
        return self.decode_sequences + self.prefill_tokens

    @property
    def decode_context_tokens(self) -> float:
        """KV entries read for the sequences that decode, as far as sums tell.

        Exact with one other sequence at most; several are taken to be equally long.
        """
        others = self.num_sequences - self.decode_sequences
        if not others or not self.prefill_tokens:
            return self.context_tokens
        seen = self.prefill_attention_pairs / self.prefill_tokens  # by a token, in the mean
        read = others * max(seen + (self.prefill_tokens / others - 1) / 2, self.prefill_tokens / others)
        return max(self.context_tokens - read, 0.0)


def step_shape(step: Step) -> StepShape:
    """The sums of ``step`` that a step-time model looks at."""
    decode_sequences = prefill_tokens = context_tokens = attention_pairs = longest = 0
    for request, num_tokens, num_computed in zip(step.requests, step.num_tokens, step.num_computed_tokens, strict=True):
        context_tokens += num_computed + num_tokens
        num_drafts = step.num_drafts.get(request, 0) if step.num_drafts else 0
        if num_tokens - num_drafts == 1 and num_computed >= request.num_prompt_tokens:
            decode_sequences += 1
            longest = max(longest, num_computed + num_tokens)
            if num_drafts:
                prefill_tokens += num_drafts
                attention_pairs += num_drafts * (num_computed + 1) + num_drafts * (num_drafts + 1) // 2
        else:
            prefill_tokens += num_tokens
            attention_pairs += num_tokens * num_computed + num_tokens * (num_tokens + 1) // 2
    return StepShape(
        num_sequences=len(step.requests),
        decode_sequences=decode_sequences,
        prefill_tokens=prefill_tokens,
        context_tokens=context_tokens,
        prefill_attention_pairs=attention_pairs,
        sampled_tokens=sum(step.samples) + sum(step.num_drafts.values()),
        longest_decode_context=longest,
    )
