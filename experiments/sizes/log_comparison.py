"""A server's start-up log beside what is predicted for it, line by line."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.cache_plan import CachePlan, plan_cache
from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.engine.sizing.memory_budget import (
    GIB,
    BudgetItem,
    MemoryBudget,
    Server,
    default_max_num_batched_tokens,
    default_max_num_seqs,
    memory_budget,
    rules_of,
)
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.engine.speculation import Speculation
from kvtwin.experiments.catalogue.gpus import load_gpu
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.experiments.display.tables import Part, facts_table, table
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.size import SizeOptions
from kvtwin.experiments.options.sizing import GPU_MEMORY_UTILIZATION
from kvtwin.experiments.setup.drafter import drafter_of
from kvtwin.experiments.setup.speculation import Drafting
from kvtwin.experiments.sizes.start_up_log import StartUpLog, read_start_up_log


def log_facts(options: SizeOptions) -> dict[str, Any]:
    """Predicted and logged as plain data. ``--model`` and ``--gpu`` stand in for what the log does not say.

    UserError: no log, or one that leaves out the model or the GPU's memory.
    """
    assert options.log is not None
    log = read_start_up_log(options.log)
    name = options.model or log.settings.get("model")
    if name is None:
        raise UserError(f"--log {options.log}: does not say the model: add --model")
    try:
        shape = load_model(name)
    except UserError as error:
        hint = "" if options.model else " (add --model: the path of its config.json)"
        raise UserError(f"--log {options.log}: {error}{hint}") from None
    gpu = load_gpu(options.gpu) if options.gpu else None
    if gpu is None and "total_gib" not in log.settings:
        raise UserError(f"--log {options.log}: does not say the GPU's memory: add --gpu")
    total_bytes = round(log.settings["total_gib"] * GIB) if "total_gib" in log.settings else gpu.memory_bytes
    server = _server(log, total_bytes, gpu.name if gpu else "")
    try:
        return _facts(log, shape, server, total_bytes, _utilization(log, options))
    except ValueError as error:  # weights of unknown size, too
        raise UserError(f"--log {options.log}: {error}") from None


def _server(log: StartUpLog, total_bytes: int, gpu_name: str) -> Server:
    settings = log.settings
    tokens = settings.get("max_num_batched_tokens") or default_max_num_batched_tokens(total_bytes, gpu_name)
    return Server(
        max_num_batched_tokens=tokens,
        max_num_seqs=settings.get("max_num_seqs") or default_max_num_seqs(total_bytes, gpu_name, tokens),
        tensor_parallel_size=settings.get("tensor_parallel_size", 1),
        pipeline_parallel_size=settings.get("pipeline_parallel_size", 1),
        num_drafts=settings.get("num_drafts", 0),
        enforce_eager=log.enforce_eager,
        reads_images=log.reads_images,
        gpu_name=gpu_name,
    )


def _utilization(log: StartUpLog, options: SizeOptions) -> float:
    """As logged, or as given, or the default of the version: 0.9 before 0.20."""
    given = options.gpu_memory_utilization
    is_old = log.version is not None and log.version < (0, 20) and given == GPU_MEMORY_UTILIZATION
    return float(log.settings.get("gpu_memory_utilization", 0.9 if is_old else given))


def _facts(log: StartUpLog, shape: ModelShape, server: Server, total_bytes: int, utilization: float) -> dict[str, Any]:
    drafting = _drafting(log)
    drafter, _ = drafter_of(drafting, shape)
    budgets = [
        memory_budget(
            shape,
            server,
            total_bytes=total_bytes,
            utilization=utilization,
            rank=rank,
            drafter=drafter,
            rules=rules_of(log.version) if log.version else None,
        )
        for rank in range(server.pipeline_parallel_size)
    ]
    budget = min(budgets, key=lambda each: each.available_bytes)
    layers = cache_layers(
        shape,
        block_size=16,
        kv_cache_dtype=log.settings.get("kv_cache_dtype", "auto"),
        tensor_parallel_size=server.tensor_parallel_size,
        pipeline_parallel_size=server.pipeline_parallel_size,
        drafter=drafter,
        num_drafts=server.num_drafts,
    )

    def plan(available: list[int]) -> CachePlan | None:
        try:
            return plan_cache(
                layers,
                available,
                max_model_len=log.settings.get("max_model_len", shape.max_position_tokens),
                in_flight_tokens=server.max_num_batched_tokens * (server.pipeline_parallel_size + 1),
                mamba_blocks=(2 if log.enable_prefix_caching else 1) + server.num_drafts,
            )
        except SizingError:
            return None

    logged = log.logged.get("available_gib")
    in_logged = plan([round(logged * GIB)] * len(budgets)) if logged is not None else None
    predicted = plan([each.available_bytes for each in budgets])
    settings = {key: value for key, value in log.settings.items() if key != "model"} | {
        "max_num_batched_tokens": server.max_num_batched_tokens,
        "max_num_seqs": server.max_num_seqs,
        "gpu_memory_utilization": utilization,
        "total_gib": round(total_bytes / GIB, 2),
        "enforce_eager": log.enforce_eager,
    }
    lines = _memory_lines(budget, log) + _plan_lines(predicted, in_logged, log)
    return {"model": shape.name, "settings": settings, "lines": lines}


def _drafting(log: StartUpLog) -> Drafting | None:
    method, num_drafts = log.settings.get("draft_method", "mtp"), log.settings.get("num_drafts")
    if not num_drafts:
        return None
    speculation = Speculation(method="mtp" if method.endswith("mtp") else method, num_speculative_tokens=num_drafts)
    return Drafting(speculation, None, None, None, None, ())


_PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "weights_gib": ("Model loading took (GiB)", ("weights", "vision tower", "drafter's weights")),
    "activation_gib": ("peak activation (GiB)", ("activation peak",)),
    "cuda_graphs_gib": ("Estimated CUDA graph memory (GiB)", ("CUDA graphs",)),
    "activation_and_graphs_gib": ("peak activation, with CUDA graphs (GiB)", ("activation peak", "CUDA graphs")),
    "other_gib": ("non-torch memory (GiB)", ("other (non-torch)",)),
}
"""Lines of a log, and the items of the budget that they hold."""


def _memory_lines(budget: MemoryBudget, log: StartUpLog) -> list[dict[str, Any]]:
    apart = "activation_and_graphs_gib" not in log.logged
    left_out = {"activation_and_graphs_gib"} if apart else {"activation_gib", "cuda_graphs_gib"}
    lines = []
    for key, (words, names) in _PARTS.items():
        items = [item for item in budget.items if item.name in names]
        if items and key not in left_out:
            lines.append(_line(words, _sum(items), log.logged.get(key), _interval(items)))
    low, high = budget.available_interval
    available, logged = budget.available_bytes / GIB, log.logged.get("available_gib")
    return [*lines, _line("Available KV cache memory (GiB)", available, logged, (low / GIB, high / GIB))]


def _sum(items: list[BudgetItem]) -> float:
    return sum(item.num_bytes for item in items) / GIB


def _interval(items: list[BudgetItem]) -> tuple[float, float]:
    return sum(item.low_bytes for item in items) / GIB, sum(item.high_bytes for item in items) / GIB


def _plan_lines(predicted: CachePlan | None, in_logged: CachePlan | None, log: StartUpLog) -> list[dict[str, Any]]:
    logged = log.logged
    block_size = in_logged or predicted
    lines = []
    if "block_size" in logged and block_size:
        sizes = max(group.block_size for group in block_size.groups)
        lines.append(_line("attention block size (tokens)", sizes, logged["block_size"]))
    tokens, concurrency = logged.get("capacity_tokens"), logged.get("max_concurrency")
    for plan, where in ((predicted, ""), (in_logged, ", in the logged memory")):
        if plan:
            lines.append(_line(f"GPU KV cache size (tokens){where}", plan.capacity_tokens, tokens))
            reached = round(plan.concurrency_at(plan.max_model_len), 2)
            lines.append(_line(f"Maximum concurrency{where}", reached, concurrency))
    return lines


def _line(
    name: str, predicted: float, logged: float | None, interval: tuple[float, float] | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "predicted": predicted if isinstance(predicted, int) else round(predicted, 2),
        "logged": logged,
        "interval": [round(bound, 2) for bound in interval] if interval and interval[0] != interval[1] else None,
        "inside": None if logged is None or interval is None else interval[0] - 0.005 <= logged <= interval[1] + 0.005,
    }


def log_parts(facts: dict[str, Any]) -> list[Part]:
    """The settings, and a row per line."""
    settings = [(name.replace("_", "-"), str(value)) for name, value in facts["settings"].items()]
    rows = [
        (
            line["name"],
            _shown(line["predicted"]),
            "-" if line["logged"] is None else _shown(line["logged"]),
            "-" if line["logged"] is None else f"{line['predicted'] - line['logged']:+,.2f}".removesuffix(".00"),
            "" if line["interval"] is None else f"{line['interval'][0]:.2f} to {line['interval'][1]:.2f}",
        )
        for line in facts["lines"]
    ]
    headings = ("line", "predicted", "logged", "difference", "expected between")
    return [facts_table([("model", facts["model"]), *settings]), "", table(headings, rows, left=(0, 4))]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 100 else f"{value:,.2f}"
