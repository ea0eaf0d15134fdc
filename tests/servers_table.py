"""Write the tables of servers side by side into docs/servers.md, and their picture: ``make servers [TRACES=DIR]``.

Every server of the list serves the same workloads on one H200 with Llama-3.1-8B: as it is without any flag, and with
equal memory. What is simulated is deterministic: the same figures come out anywhere.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import kvtwin as kv
from kvtwin.experiments.pictures.figure import drawn_in_style
from tests.accuracy import REPOSITORY, replace_part

MOONCAKE, NUM_REQUESTS = "mooncake/conversation_trace.jsonl.gz", 3000
WEKA, NUM_SESSIONS = "weka/kv-cache-tester-710.jsonl.xz", 10
MAX_TOKENS = 131_072
EQUAL_TOKENS = 240_000
"""Tokens that every cache holds where memory is equal: 29 GiB."""
OPTIONS = {"model": "Llama-3.1-8B", "gpu": "h200"}


@dataclass(frozen=True)
class Contender:
    """A server, and what its flags are called."""

    server: str
    title: str
    length_option: str
    equal_memory: Mapping[str, Any]
    always: Mapping[str, Any] = field(default_factory=dict)
    """Flags without which it does not serve these workloads."""
    with_equal_memory_too: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Further settings, which tell where a difference comes from."""


CONTENDERS = (
    Contender("vllm", "vLLM", "max_model_len", {"num_gpu_blocks_override": EQUAL_TOKENS // 16 + 1}),
    Contender(
        "sglang",
        "SGLang",
        "context_length",
        {"max_total_tokens": EQUAL_TOKENS},
        with_equal_memory_too=(
            ("SGLang, pages of 16", {"page_size": 16}),
            ("SGLang, lpm", {"schedule_policy": "lpm"}),
        ),
    ),
    Contender(
        "trtllm",
        "TensorRT-LLM",
        "max_seq_len",
        {"max_tokens": EQUAL_TOKENS},
        always={"enable_chunked_prefill": True},
        with_equal_memory_too=(
            ("TensorRT-LLM, whole blocks", {"enable_partial_reuse": False}),
            ("TensorRT-LLM, MAX_UTILIZATION", {"capacity_scheduler_policy": "MAX_UTILIZATION"}),
        ),
    ),
)


@dataclass(frozen=True)
class Workload:
    """What all servers serve."""

    name: str
    title: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    in_detail: bool = True
    """Whether the further settings are tried too."""


def workloads(traces: Path, kept: Path) -> list[Workload]:
    """The beginnings of two public traces, and a generated one; what is made for them is written into ``kept``."""
    sessions = kept / f"weka-{NUM_SESSIONS}.jsonl"
    if not sessions.exists():
        with lzma.open(traces / WEKA, "rt", encoding="utf-8") as file:
            sessions.write_text("".join(islice(file, NUM_SESSIONS)), encoding="utf-8")
    chat = kept / "chat.jsonl.gz"
    if not chat.exists():
        words = ["--num-prompts=1500", "--conversations-per-s=4", "--turns=4", "--think-time-s=8", "--quiet"]
        _command("trace", "generate", str(chat), *words)
    return [
        Workload("chat", "Generated chat, 1,500 requests of known tokens", chat),
        Workload(
            "mooncake",
            f"Mooncake conversation, first {NUM_REQUESTS:,} requests",
            traces / MOONCAKE,
            {"num_prompts": NUM_REQUESTS},
        ),
        Workload("weka", f"Weka, first {NUM_SESSIONS} sessions", sessions, {"session_rate": 0.02}, in_detail=False),
    ]


def _command(*words: str) -> None:
    from kvtwin.experiments.command_line.entry import main as run

    if code := run(list(words)):
        raise SystemExit(code)


def runs(workload: Workload, kept: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Memory, server, figures. What is in ``kept`` is not run again."""
    found = []
    for one in CONTENDERS:
        further = one.with_equal_memory_too if workload.in_detail else ()
        ways: list[tuple[str, str, Mapping[str, Any]]] = [
            ("defaults", one.title, {}),
            ("equal", one.title, one.equal_memory),
            *(("equal", title, {**one.equal_memory, **extra}) for title, extra in further),
        ]
        for memory, title, extra in ways:
            file = kept / f"{workload.name}-{memory}-{title.replace(' ', '-').replace(',', '')}.json"
            if not file.exists():
                options = OPTIONS | workload.options | {"server": one.server, one.length_option: MAX_TOKENS}
                options |= {**one.always, **extra}
                run = kv.replay(workload.path, **options)
                file.write_text(json.dumps(run.summary, default=str), encoding="utf-8")
                print(f"{file.name}: {run.summary['prefix_cache_hit_rate']:.4f}", file=sys.stderr)
            found.append((memory, title, json.loads(file.read_text(encoding="utf-8"))))
    return found


def table(found: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
    """A row per run, those with equal memory below."""
    lines = [
        "| memory | server | tokens in the cache | hit rate | evicted before reuse | preemptions | usage, mean / peak "
        "| steps | mean TPOT (ms) | p99 TTFT (s) | served / rejected |",
        f"| --- | --- {'| --: ' * 9}|",
    ]
    for memory, title, figures in sorted(found, key=lambda row: row[0]):
        queries = figures["prefix_cache_queries"]
        evicted = figures["miss_evicted_tokens"]
        cells = [
            memory,
            title,
            f"{(figures['num_gpu_blocks'] - 1) * figures['block_size']:,}",
            f"{figures['prefix_cache_hit_rate']:.2%}",
            "-" if evicted is None else f"{evicted / queries:.2%}",
            f"{figures['num_preemptions']:,}",
            f"{figures['kv_cache_usage_mean']:.1%} / {figures['kv_cache_usage_peak']:.1%}",
            f"{figures['steps']:,}",
            f"{figures['mean_tpot_ms']:.1f}",
            f"{figures['p99_ttft_ms'] / 1000:.2f}",
            f"{figures['completed']:,} / {figures['rejected']:,}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@drawn_in_style
def picture(found: Mapping[str, list[tuple[str, str, dict[str, Any]]]], path: Path) -> None:
    """A line per run: how much it hits, and how long the first token takes, of every workload."""
    figure = Figure(figsize=(1 + 5 * len(found), 3.6), layout="constrained")
    panels = figure.subplots(1, 2 * len(found), sharey=True, squeeze=False)[0]
    for (title, rows), (hits, waits) in zip(found.items(), panels.reshape(-1, 2), strict=True):
        names = [f"{name} ({memory})" for memory, name, _ in rows]
        hits.plot([100 * row["prefix_cache_hit_rate"] for *_, row in rows], names, "o", color="C0")
        hits.set(xlabel="hit rate, tokens (%)")
        waits.plot([row["p99_ttft_ms"] / 1000 for *_, row in rows], names, "o", color="C1")
        waits.set(xlabel="p99 TTFT (s)", xlim=(0, None))
        hits.locator_params(axis="x", nbins=4)
        waits.locator_params(axis="x", nbins=4)
        hits.set_title(title, loc="left", fontsize=9)
    panels[0].invert_yaxis()
    figure.suptitle("Servers side by side, Llama-3.1-8B on H200")
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    parser.add_argument("--keep", type=Path, help="keep figures in this folder, and go on with those that are there")
    parser.add_argument("--only", help="only the workload of this name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        kept = options.keep or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        chosen = [each for each in workloads(options.folder, kept) if options.only in (None, each.name)]
        found = {each.title: runs(each, kept) for each in chosen}
    lines = [line for title, rows in found.items() for line in (f"### {title}", "", *table(rows), "")]
    if options.only is None:
        picture(found, REPOSITORY / "docs" / "pictures" / "servers.png")
        replace_part(REPOSITORY / "docs" / "servers.md", "table of servers", lines[:-1])
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
