"""docs/traces.md: every format with a file, how many rows it has, and what they become. The table is made here.

``python -m tests.workloads.test_format_table`` prints it.
"""

from pathlib import Path

import pytest

from kvtwin.workloads import FORMATS, open_workload
from kvtwin.workloads.formats.rows import Rows

DATA = Path(__file__).parent / "data"
TRACES = Path(__file__).parents[3] / "shared" / "traces"
DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"

FILES = {
    "Mooncake": "dynamo/mooncake_tiny.jsonl",
    "AIPerf, Mooncake with sessions": "aiperf/agentic_code_60s_seed42.jsonl",
    "Dynamo, Mooncake delta": "dynamo/mooncake-delta.jsonl",
    "Dynamo, agentic Mooncake": "dynamo/agentic-mooncake.jsonl",
    "Dynamo, request traces": "dynamo/dynamo-agentic.jsonl",
    "Applied Compute": "dynamo/applied-compute-agentic.jsonl",
    "Azure 2023": "azure/AzureLLMInferenceTrace_code.csv.gz",
    "Azure 2024": "azure-2024.handwritten.csv",
    "Azure LMM 2025": "format-examples/azure_lmm_2025.handwritten.csv",
    "Qwen-Bailian": "format-examples/qwen_bailian.handwritten.jsonl",
    "BurstGPT": "burstgpt/BurstGPT_1.head42.csv",
    "BurstGPT with sessions": "format-examples/burstgpt_v2_sessions.handwritten.csv",
    "Vidur": "vidur/splitwise_code.csv.gz",
    "Vidur, lengths only": "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz",
    "TraceLab, replay files": "tracelab/replay_multi_session_large.csv",
    "TraceLab, rounds": "tracelab/round_trace.sanitized.jsonl",
    "Weka": "weka/trace_0291.json",
    "LLMServingSim": "llmservingsim/workload_me2_01_mixed.jsonl",
    "LLMServingSim, measured requests": "llmservingsim/measured/RTX4090_Llama-3.1-8B/requests.jsonl",
    "`vllm bench serve --save-detailed`": "format-examples/vllm_bench_save_detailed.derived.json.gz",
    "vLLM's KV events": "format-examples/vllm_kv_events.handwritten.jsonl",
    "vLLM's `custom` dataset": "vllm-custom.handwritten.jsonl",
    "SGLang's prompts": "sglang.handwritten.jsonl",
    "AIPerf, `text_input`": "aiperf-text.handwritten.jsonl",
    "AIPerf, `turns`": "aiperf-turns.handwritten.jsonl",
    "OpenAI, chats": "format-examples/openai_requests.handwritten.jsonl",
    "OpenAI, batches": "openai-batch.handwritten.jsonl",
    "ShareGPT": "format-examples/sharegpt.handwritten.json",
    "LMSYS-Chat-1M": "lmsys.handwritten.jsonl",
    "WildChat": "wildchat.handwritten.jsonl",
    "OpenTelemetry, files of spans": "otel/prefix_sharing_example.json",
    "OpenTelemetry, a collector's export": "otlp.handwritten.json",
}
"""A file of each: in `data` beside this test, handwritten here from the source that its reader names, or public."""


def path_of(name):
    return DATA / name if (DATA / name).exists() else TRACES / name


def cells_of(what, name):
    """A row of the table."""
    path = path_of(name)
    num_rows = sum(1 for _ in Rows((path,)))
    workload = open_workload(path)
    records = list(workload)
    known = {"tokens": 0, "ids": 0, "length": 0}
    for record in records:
        known["tokens" if record.token_ids is not None else "ids" if record.hash_ids is not None else "length"] += 1
    by = ", ".join(f"{key} {number:,}" for key, number in known.items() if number)
    tokens = sum(record.prompt_tokens for record in records), sum(record.output_tokens for record in records)
    sessions = len({record.session for record in records if record.session is not None})
    return [
        what,
        f"`{workload.format_name}`",
        f"`{name}`",
        f"{num_rows:,}",
        f"{len(records):,}",
        f"{sessions:,}" if sessions else "-",
        f"{tokens[0]:,} / {tokens[1]:,}",
        by,
        "yes" if workload.has_starts else "no",
    ]


def table():
    """The rows of the table by the first cell, as the document has them."""
    lines = DOCUMENT.read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in rows if row[0] in FILES}


@pytest.mark.parametrize("what", FILES)
def test_every_format_gives_what_the_table_says(what):
    if not path_of(FILES[what]).exists():
        pytest.skip(f"shared/traces/{FILES[what]} is not here")
    assert table()[what] == cells_of(what, FILES[what])


@pytest.mark.parametrize("what", FILES)
def test_every_format_takes_arrays_for_lists_of_integers(what, monkeypatch):
    """As of long lists: here of all."""
    monkeypatch.setattr("kvtwin.workloads.formats.json_lines._LONG", 1)
    test_every_format_gives_what_the_table_says(what)


def test_every_format_is_in_the_table():
    assert list(table()) == list(FILES)
    listed = {row[1].strip("`") for row in table().values()}
    assert listed == set(FORMATS) - {"kvtwin"}


if __name__ == "__main__":
    for what, name in FILES.items():
        print(f"| {' | '.join(cells_of(what, name))} |")
