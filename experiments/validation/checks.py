"""The two checks of a validation, which are exact rather than a matter of accuracy: same decisions, and same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kvtwin.engine.executor import Executor
from kvtwin.experiments.runs.facts import request_progress
from kvtwin.experiments.validation.runs import MeasuredRun
from kvtwin.experiments.validation.serving import Serving
from kvtwin.experiments.validation.settings import Setting
from kvtwin.sim.decision_check import DecisionCheck, Run, check_replicas
from kvtwin.sim.serving import ServerSimulation

if TYPE_CHECKING:
    from kvtwin.gpu.executor import DeviceExecutor
    from kvtwin.gpu.token_check import TokenCheck

_MOST_SHOWN = 20
"""Differences that are listed."""

Check = dict[str, Any]
"""``passed``, ``words`` that say it, and figures."""


def same_decisions(setting: Setting, measured: MeasuredRun) -> Check:
    """A simulation that is given the measured times and tokens makes every decision of the measured run."""

    def servers_on(executors: Sequence[Executor[Any]]) -> tuple[Sequence[ServerSimulation], Run]:
        serving = Serving(setting, executors)
        return serving.simulations, serving.run

    records = [(server.decided, server.executed) for server in measured.servers]
    checks = check_replicas(servers_on, setting.records, records)
    return _of_all([_same_decisions(check) for check in checks], measured)


def _same_decisions(check: DecisionCheck) -> Check:
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


def same_tokens(setting: Setting, executors: Sequence[DeviceExecutor], measured: MeasuredRun) -> Check:
    """Every request got the tokens that it gets alone, without any cache; the executors have served all of them."""
    from kvtwin.gpu.token_check import check_tokens

    checks, num_done = [], 0
    with request_progress("checking tokens", sum(len(server.transcripts) for server in measured.servers)) as advance:
        for server, executor, own in zip(setting.servers, executors, measured.servers, strict=True):
            check = check_tokens(
                setting.model.decoder,
                executor,
                server.config,
                own.transcripts,
                poisons=setting.options.debug,
                on_progress=partial(lambda before, done: advance(before + done), num_done),
            )
            num_done += len(own.transcripts)
            checks.append(_same_tokens(check))
    return _of_all(checks, measured)


def _of_all(checks: list[Check], measured: MeasuredRun) -> Check:
    """The only server's check; of replicas those of each, and whether all passed to which requests came."""
    if len(checks) == 1:
        return checks[0]
    idle = {"passed": True, "words": "no request came here"}
    checks = [check if server.served_any else idle for check, server in zip(checks, measured.servers, strict=True)]
    failed = [str(number) for number, check in enumerate(checks) if not check["passed"]]
    passed = not failed and any(server.served_any for server in measured.servers)
    if failed:
        words = f"at replica {', '.join(failed)} of {len(checks)}"
    else:
        words = f"at each of {len(checks)} replicas" if passed else "no request could be served"
    return {"passed": passed, "words": words, "replicas": checks}


def _same_tokens(check: TokenCheck) -> Check:
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
