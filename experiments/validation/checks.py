"""The two checks of a validation, which are exact rather than a matter of accuracy: same decisions, and same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtwin.experiments.runs.facts import request_progress
from kvtwin.experiments.validation.runs import MeasuredRun
from kvtwin.experiments.validation.settings import Setting
from kvtwin.sim.decision_check import check_decisions

if TYPE_CHECKING:
    from kvtwin.gpu.executor import DeviceExecutor

_MOST_SHOWN = 20
"""Differences that are listed."""

Check = dict[str, Any]
"""``passed``, ``words`` that say it, and figures."""


def same_decisions(setting: Setting, measured: MeasuredRun) -> Check:
    """A simulation that is given the measured times and tokens makes every decision of the measured run."""
    check = check_decisions(setting.simulation, setting.records, measured.decided, measured.executed)
    num_differences = len(check.differences)
    if not check.num_steps:
        words = "no step was run"
    elif num_differences:
        words = f"{num_differences:,} differences in {check.num_steps:,} steps, first {check.differences[0]}"
    else:
        words = f"{check.num_steps:,} steps, all decisions, block tables and slots are equal"
    return {
        "passed": check.passed,
        "words": words,
        "steps": check.num_steps,
        "num_differences": num_differences,
        "differences": [str(difference) for difference in check.differences[:_MOST_SHOWN]],
    }


def same_tokens(setting: Setting, executor: DeviceExecutor, measured: MeasuredRun) -> Check:
    """Every request got the tokens that it gets alone, without any cache; ``executor`` has served all of them."""
    from kvtwin.gpu.token_check import check_tokens

    options, model = setting.options, setting.model
    transcripts = measured.transcripts.transcripts
    with request_progress("checking tokens", len(transcripts)) as advance:
        check = check_tokens(
            model.decoder,
            executor,
            setting.config,
            transcripts,
            poisons=options.debug,
            on_progress=advance,
        )
    found = check.found
    if not found.num_tokens:
        words = "no token was generated"
    elif not check.is_rounding:
        words = (
            f"proves nothing: even alone, logits differ by {check.noise:.1e} from those without a cache, "
            "too much for rounding"
        )
    elif not check.notices_loss:
        words = "proves nothing: it does not detect a wrong block"
    elif found.first_wrong is not None:
        num_wrong = max(found.num_wrong_tokens, found.num_wrong_logits)
        words = (
            f"{num_wrong:,} of {found.num_tokens:,} tokens differ from those of the request alone: {found.first_wrong}"
        )
    elif not found.allowed:
        words = f"{found.num_ties:,} of {found.num_tokens:,} tokens are ties, too many to be rounding"
    else:
        words = (
            f"{found.num_tokens:,} tokens of {check.num_requests:,} requests equal those of each alone, "
            f"{found.num_ties} ties; logits are within {found.largest_difference:.1e} (alone {check.noise:.1e}); "
            "a wrong block is detected"
        )
    return {
        "passed": check.passed,
        "words": words,
        "requests": check.num_requests,
        "tokens": found.num_tokens,
        "ties": found.num_ties,
        "wrong_tokens": found.num_wrong_tokens,
        "wrong_logits": found.num_wrong_logits,
        "largest_logit_difference": _finite(found.largest_difference),
        "noise": _finite(check.noise),
        "notices_loss": check.notices_loss,
        "first_wrong": found.first_wrong,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None  # JSON has no other numbers
