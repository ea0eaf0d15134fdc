import subprocess
import sys

import pytest

from kvtwin.workloads import FORMATS, RequestRecord, WorkloadError, open_workload, write_workload
from kvtwin.workloads.formats.reader import Reader

MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 4}'
KNOWN = (
    "kvtwin, mooncake-delta, mooncake, azure, llmservingsim, weka, bailian, dynamo-agentic, dynamo-requests, "
    "applied-compute, burstgpt, vidur, tracelab, tracelab-rounds, vllm-bench, measured-requests, vllm-kv-events, otel, "
    "openai, conversations, prompts"
)


def message_of(path, *arguments, **options):
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, *arguments, **options)
    return str(caught.value)


def test_the_formats():
    assert ", ".join(FORMATS) == KNOWN


def test_the_format_comes_from_the_content_not_the_name(write):
    assert open_workload(write(MOONCAKE, name="trace.csv")).format_name == "mooncake"


def test_a_reader_without_settings_needs_no_decorator(write, monkeypatch):
    class Lengths(Reader):
        name = "lengths"
        first_row_names = frozenset(("in", "out"))

        def read(self, rows):
            for row in rows:
                with rows.bad_lines:
                    lengths = [row.integer(name) for name in ("in", "out")]
                    yield RequestRecord(
                        request_id=row.source, arrival_ns=0, prompt_tokens=lengths[0], output_tokens=lengths[1]
                    )

    monkeypatch.setitem(FORMATS, "lengths", Lengths)
    workload = open_workload(write("in,out", "5,4", "3,2"))
    assert (workload.format_name, [record.prompt_tokens for record in workload]) == ("lengths", [5, 3])


def test_the_format_can_be_forced(write):
    path = write(MOONCAKE)
    assert open_workload(path, "mooncake").format_name == "mooncake"
    assert message_of(path, "llmservingsim") == f"{path}:1: input_toks: expected this key, but it is missing"
    assert message_of(path, "moncake") == f"unknown format 'moncake', expected one of {KNOWN}; nearest: mooncake"


def test_settings_belong_to_a_format(write):
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:02,7,1")
    assert message_of(path, hash_block_tokens=16) == f"{path}: format azure has no setting 'hash_block_tokens'"


def test_a_first_line_of_broken_json_is_called_that(write):
    for line in ('{"timestamp": 0, "input_length"', "{'timestamp': 0}", MOONCAKE + "]"):
        assert message_of(write("", line, MOONCAKE)).startswith(f"{write('', line)}:2: malformed JSON: ")


def test_unknown_files_are_told_what_their_first_row_holds(write):
    path = write('{"timestamp": 0, "input_length": 5}')
    start = f"{path}: not a known workload format: its first row has the"
    end = "; docs/traces.md lists what each format has, and --format forces one"
    assert message_of(path) == f"{start} keys timestamp, input_length{end}"
    assert message_of(write("hello", "you")) == f"{start} columns hello{end}"
    many = ",".join(f"c{index}" for index in range(20))
    assert message_of(write(many, many)).endswith(f"c10, c11 and 8 more{end}")


@pytest.mark.parametrize(
    ("name", "format_name", "requests"),
    [
        ("dynamo/mooncake.jsonl", "mooncake", 2),
        ("dynamo/mooncake_tiny.jsonl", "mooncake", 16),
        ("dynamo/mooncake-delta.jsonl", "mooncake-delta", 2),
        ("dynamo/agentic-mooncake.jsonl", "dynamo-agentic", 3),
        ("dynamo/dynamo-standard.jsonl", "dynamo-requests", 2),
        ("dynamo/dynamo-agentic.jsonl", "dynamo-requests", 4),
        ("dynamo/applied-compute-agentic.jsonl", "applied-compute", 3),
        ("aiperf/precise_schedule.jsonl", "mooncake", 8),
        ("aiperf/agentic_code_60s_seed42.jsonl", "mooncake-delta", 783),
        ("weka/trace_0504.json", "weka", 3),
        ("weka/trace_0291.json", "weka", 32),
        ("format-examples/qwen_bailian.handwritten.jsonl", "bailian", 6),
    ],
)
def test_public_files_are_recognised_read_and_kept(public_trace, tmp_path, written, name, format_name, requests):
    """What is read can be written in kvtwin's format, and read again."""
    workload = open_workload(public_trace(name))
    assert (workload.format_name, len(workload)) == (format_name, requests)
    records = list(workload)
    assert write_workload(tmp_path / "w.jsonl", records) == requests

    again = open_workload(tmp_path / "w.jsonl")
    assert list(map(written, again)) == sorted(map(written, records), key=lambda record: record.arrival_ns)


def test_increments_are_never_read_as_whole_prompts(write):
    row = '{"session_id": "s", "timestamp": 0, "input_length": 5, "output_length": 4}'
    path = write(row, row.replace('"timestamp"', '"delay"'))
    assert open_workload(path).format_name == "mooncake-delta"
    assert message_of(path, "mooncake") == (
        f"{path}:2: delay: found, as in multi-turn files whose later turns give only their new tokens: "
        "read it with --format mooncake-delta"
    )


def test_a_wrong_id_count_in_a_public_file(public_trace):
    path = public_trace("aiperf/production_trace.jsonl")
    assert message_of(path) == f"{path}:3: hash_ids: expected ceil(1024/512) = 2 ids, got 3"


@pytest.mark.parametrize("lines", [[], ["", " "], ["a,b"], ['{"kvtwin_workload": 1}']])
def test_empty_traces(write, lines):
    path = write(*lines)
    below = " below the columns a, b" if "a,b" in lines else ""
    assert message_of(path) == f"{path}: expected at least one request, found none{below}"


def test_import_is_light():
    program = (
        "import sys, kvtwin.workloads; print([name for name in ('pandas', 'pyarrow', 'tqdm') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
