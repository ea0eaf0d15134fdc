"""The figures of the documents that step times or the memory budget move: ``make document-figures [TRACES=DIR]``.

Runs the command of each figure, or takes what it left in ``--kept DIR`` before, and writes the figure into its
document, between comments that name it. ``FIGURES`` is the list of all of them. Those that ``make figures`` and
``make accuracy`` write are not here.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tests.accuracy import REPOSITORY, replace_part

CONFIGS = REPOSITORY / "experiments" / "configs"
MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
AZURE = "azure/AzureLLMInferenceTrace_conv.csv.gz"
SHAREGPT = "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz"
WEKA, WEKA_SAMPLE = "weka/kv-cache-tester-710.jsonl.xz", "weka-12.jsonl"
LIMIT = "limit demo --gpu rtx-4090 --max-model-len 8192 --memory-fractions 0.85,0.9,0.95 --goodput ttft:500 tpot:50"

Row = Any
"""A point of a sweep: its options and figures."""


class Column(NamedTuple):
    """One column of a table, and what it shows of a point."""

    title: str
    text: Callable[[Row], str]


def shown(title: str, name: str, digits: str = ",.0f", scale: float = 1.0) -> Column:
    """A figure by its key; a dash where there is none."""

    def text(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None or pd.isna(value) else format(scale * value, digits)

    return Column(title, text)


def percent(title: str, name: str) -> Column:
    return shown(title, name, ".1f", 100)


def words(title: str, *texts: str) -> Column:
    """What the points are, in their order."""
    return Column(title, lambda row: texts[int(row["number"])])


def table(points: pd.DataFrame, columns: Sequence[Column], texts: int) -> list[str]:
    """Markdown; the first ``texts`` columns are words."""
    marks = ["---"] * texts + ["--:"] * (len(columns) - texts)
    lines = [[column.title for column in columns], marks]
    for number, (_, row) in enumerate(points.iterrows()):
        lines.append([column.text({**row.to_dict(), "number": number}) for column in columns])
    return [f"| {' | '.join(cells)} |" for cells in lines]


_LATENCY = (shown("mean TTFT (ms)", "mean_ttft_ms"), shown("mean E2EL (ms)", "mean_e2el_ms"))
_CACHE = (
    shown("hit rate (device)", "prefix_cache_hit_rate", ".3f"),
    shown("hit in the host, of the rest", "external_prefix_cache_hit_rate", ".3f"),
    shown("copying (s)", "host_transfer_s", ".2f"),
)
_PREEMPTED = (shown("preemptions", "num_preemptions"), shown("recomputed tokens", "recomputed_tokens"))
_FALLBACKS = shown("recomputed instead", "swap_fallbacks")
_SWAPS = ("recompute", "swap, 4 GiB", "swap, 0.25 GiB")


def host_memory_demo(points: pd.DataFrame) -> list[str]:
    caching = words("prefix caching", *["off"] * 3, *["on"] * 6)
    mode = words("preempted requests", *_SWAPS, *_SWAPS[:2], *["recompute"] * 4)
    tier = shown("offload tier (GiB)", "kv-offloading-size")
    return table(points, (caching, mode, tier, *_PREEMPTED, _FALLBACKS, *_CACHE, *_LATENCY), 2)


def host_memory_mooncake(points: pd.DataFrame) -> list[str]:
    mode = words("preempted requests", "recompute", "swap, 64 GiB", "recompute", "recompute")
    tier = shown("offload tier (GiB)", "kv-offloading-size", ".0f")
    return table(points, (mode, tier, *_PREEMPTED, *_CACHE, *_LATENCY), 1)


def speculation(points: pd.DataFrame) -> list[str]:
    drafts = words(
        "drafts",
        "none",
        "eagle3, accepted 0.8, 0.6, 0.4",
        "the same, hits drop their last block",
        "eagle3, accepted 0.2, 0, 0",
    )
    hits = shown("hit rate", "prefix_cache_hit_rate", ".3f"), shown("possible", "possible_hit_rate", ".3f")
    tpot = shown("mean TPOT (ms)", "mean_tpot_ms", ".1f")
    return table(points, (drafts, *hits, *_PREEMPTED, shown("steps", "steps"), _LATENCY[0], tpot), 1)


def waste(title: str) -> Callable[[pd.DataFrame], list[str]]:
    """The table of one trace, which ``title`` names."""
    names = ("contiguous-max", "the same, `--max-model-len 8192`", "contiguous-pow2", "contiguous-oracle")
    columns = (
        words(title, *names, *(f"paged, block {size}" for size in (1, 8, 16, 32, 64, 128, 256))),
        *(
            percent(part, f"kv_memory_{part}_mean_while_waiting")
            for part in ("live", "reserved", "internal", "external", "free")
        ),
        shown("most running", "max_running_requests"),
        shown("mean", "mean_running_while_waiting", ".1f"),
        shown("preemptions", "num_preemptions"),
        shown("req/s", "request_throughput", ".2f"),
    )
    return lambda points: table(points, columns, 1)


def retention(points: pd.DataFrame) -> list[str]:
    columns = (
        shown("think_time_s", "think-time", ".0f"),
        Column("policy", lambda row: str(row["retention"])),
        shown("hit_rate", "prefix_cache_hit_rate", ".4f"),
        shown("survival", "history_survival", ".4f"),
        shown("preemptions", "num_preemptions", ".0f"),
        shown("pinned_blocks_mean", "pinned_blocks_mean", ".0f"),
        shown("forced", "pins_released_by_force", ".0f"),
        shown("given_up", "pins_released_under_pressure", ".0f"),
        shown("mean_ttft_s", "mean_ttft_ms", ".2f", 0.001),
        shown("mean_queue_of_later_turns_s", "mean_queue_ms_later_turns", ".2f", 0.001),
    )
    rows = [",".join(column.text(row.to_dict()) for column in columns) for _, row in points.iterrows()]
    return ["```text", ",".join(column.title for column in columns), *rows, "```"]


def block_sizes(points: pd.DataFrame) -> list[str]:
    fraction, size = "gpu-memory-utilization", "block-size"
    sizes = sorted(points[size].unique())
    lines = [f"| fraction | blocks of 16 | {' | '.join(f'{int(each)}' for each in sizes)} |"]
    lines.append(f"| --: | --: | {' | '.join('--:' for _ in sizes)} |")
    for share, rows in points.groupby(fraction, sort=True):
        by_size = rows.set_index(size)
        cells = [_hits(by_size.loc[each]) for each in sizes]
        lines.append(f"| {share:g} | {int(by_size.loc[16].num_gpu_blocks):,} | {' | '.join(cells)} |")
    return lines


def _hits(row: Row) -> str:
    preempted = f" ({int(row.num_preemptions)})" if row.num_preemptions else ""
    return f"{100 * row.prefix_cache_hit_rate:.2f}{preempted}"


def curve(points: pd.DataFrame) -> list[str]:
    """The replays' hit rates beside those of the curve at the same sizes."""
    trace = points.attrs["trace"]
    sizes = ",".join(f"{size}" for size in points["num-gpu-blocks-override"])
    facts = json.loads(run_command(["curve", trace, "--max-model-len", "131072", "--at", sizes, "--json"]))
    known = {point["blocks"]: point["hit_rate"] for point in facts["points"]}
    columns = (
        shown("blocks", "num_gpu_blocks"),
        Column("curve", lambda row: f"{known[row['num_gpu_blocks']]:.4f}"),
        shown("replay at 0.48", "prefix_cache_hit_rate", ".4f"),
        Column("error", lambda row: f"{known[row['num_gpu_blocks']] - row['prefix_cache_hit_rate']:+.4f}"),
    )
    return table(points, columns, 0)


class Figure(NamedTuple):
    """A table that a sweep makes."""

    name: str
    """In the comments of the document."""
    document: str
    spec: str
    trace: str
    """In the folder of traces, or ``demo``."""
    lines: Callable[[pd.DataFrame], list[str]]


_SHAREGPT_TITLE = "ShareGPT, LLMServingSim's Llama-3.1-8B file (300 requests, 857 + 653 tokens)"

FIGURES = (
    Figure("host memory, demo", "host-memory.md", "host-memory-demo.yaml", "demo", host_memory_demo),
    Figure("host memory, Mooncake", "host-memory.md", "host-memory-mooncake.yaml", MOONCAKE, host_memory_mooncake),
    Figure("speculation", "speculation.md", "speculation.yaml", "demo", speculation),
    Figure("waste, ShareGPT", "waste.md", "contiguous-vs-paged.yaml", SHAREGPT, waste(_SHAREGPT_TITLE)),
    Figure(
        "waste, Azure",
        "waste.md",
        "contiguous-vs-paged.yaml",
        AZURE,
        waste("Azure conversation 2023 (19,366 requests, 1,155 + 211 tokens)"),
    ),
    Figure("block sizes", "sweeps.md", "block-size-by-memory-fraction.yaml", MOONCAKE, block_sizes),
    Figure("curve", "curve.md", "curve-against-replay.yaml", MOONCAKE, curve),
    Figure("retention", "retention.md", "retention.yaml", WEKA_SAMPLE, retention),
)

PICTURES = {
    "block-size-by-memory-fraction": "sweep block-size-by-memory-fraction.yaml; plot",
    "curve": "sweep curve-against-replay.yaml; then as in docs/curve.md",
    "memory-fraction": "sweep memory-fraction.yaml; plot",
    "validate": "validate experiments/configs/validate-smoke.yaml --out DIR: its validate.png",
}
"""Pictures in docs/pictures, and the commands that draw them; they are looked at by hand, and not drawn here."""

TEXTS = {
    "limits": ("limits.md", LIMIT),
    "isolation": ("isolation.md", "isolation"),
}
"""What a command prints, by name: the document, and the command. Of the isolation a document shows some lines."""

_ISOLATION_LINES = (
    "block ",
    "   16             0",
    "   16            10",
    " tenants",
    "no salts",
    "       2",
    "       8",
)


def run_command(arguments: Sequence[str]) -> str:
    """What `kvtwin` prints."""
    command = [sys.executable, "-m", "kvtwin.experiments.command_line", *arguments, "--quiet"]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def swept(kept: Path, figure: Figure, traces: Path) -> pd.DataFrame:
    """The points of a figure's sweep, in order."""
    folder = kept / figure.name.replace(" ", "-").replace(",", "")
    if not (folder / "results.parquet").is_file():
        trace = figure.trace
        if trace == WEKA_SAMPLE:
            trace = str(weka_sample(kept, traces))
        elif trace != "demo":
            trace = str(traces / trace)
        resume = ["--resume"] if folder.exists() else []
        run_command(["sweep", str(CONFIGS / figure.spec), trace, "--out", str(folder), *resume])
    points = pd.read_parquet(folder / "results.parquet")
    points.attrs["trace"] = str(traces / figure.trace)
    return points


def weka_sample(kept: Path, traces: Path) -> Path:
    """Twelve of Weka's sessions, as docs/retention.md draws them."""
    path = kept / WEKA_SAMPLE
    if not path.exists():
        with lzma.open(traces / WEKA, "rt", encoding="utf-8") as file:
            lines = file.readlines()
        chosen = sorted(random.Random(0).sample(range(len(lines)), 12))
        path.write_text("".join(lines[index] for index in chosen), encoding="utf-8")
    return path


def printed(kept: Path, name: str) -> list[str]:
    """The text of one of ``TEXTS``, as it stands in its document."""
    document, command = TEXTS[name]
    path = kept / f"{name}.txt"
    if not path.is_file():
        path.write_text(run_command(command.split()), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if document == "isolation.md":
        cells = (line for line in lines if line.startswith(_ISOLATION_LINES))
        return ["```text", *(("\n" if line.startswith(" tenants") else "") + line for line in cells), "```"]
    return ["```text", f"$ kvtwin {command}", *lines, "```"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder of public traces")
    parser.add_argument("--kept", type=Path, required=True, help="folder for what the commands leave")
    parser.add_argument("--only", nargs="*", help="names of figures (default: all)")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    for name, (document, _) in TEXTS.items():
        if not options.only or name in options.only:
            replace_part(REPOSITORY / "docs" / document, name, printed(options.kept, name))
    for figure in FIGURES:
        if not options.only or figure.name in options.only:
            points = swept(options.kept, figure, options.traces)
            replace_part(REPOSITORY / "docs" / figure.document, figure.name, figure.lines(points))
            print(f"docs/{figure.document}: {figure.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
