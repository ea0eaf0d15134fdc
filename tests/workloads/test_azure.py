import pytest

from kvtwin.workloads import WorkloadError, open_workload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize(
    ("name", "rows", "last_ns"), [("code", 8_819, 3_435_948_056_000), ("conv", 19_366, 3_501_721_937_000)]
)
def test_the_public_traces(public_trace, name, rows, last_ns):
    workload = open_workload(public_trace(f"azure/AzureLLMInferenceTrace_{name}.csv.gz"))
    assert (workload.format_name, len(workload), workload.num_unsorted) == ("azure", rows, 0)
    assert (workload.first_arrival_ns, workload.last_arrival_ns) == (0, last_ns)
    records = list(workload)
    assert (records[0].arrival_ns, records[-1].arrival_ns) == (0, last_ns)
    assert not any(record.knows_prefix for record in records)


def test_seven_digits_are_exact(write):
    path = write(HEADER, "2023-11-16 23:59:59.9999999,4808,10", "2023-11-17 00:00:00.0000001,1,0")
    first, second = open_workload(path)
    assert (first.prompt_tokens, first.output_tokens) == (4808, 10)
    assert second.arrival_ns - first.arrival_ns == 200


def test_zones_and_missing_fractions(write):
    path = write(HEADER, "2024-05-10 00:00:00+00:00,1,1", "2024-05-10 02:00:00.5+02:00,1,1", "2024-05-10 00:00:01Z,1,1")
    assert [record.arrival_ns for record in open_workload(path)] == [0, 500_000_000, 1_000_000_000]


def test_arrivals_count_from_the_smallest(write):
    path = write(HEADER, "2024-05-10 00:00:02,7,1", "2024-05-10 00:00:00,8,1", "2024-05-10 00:00:02,9,1")
    workload = open_workload(path)
    assert [(r.arrival_ns, r.prompt_tokens) for r in workload] == [(0, 8), (2 * 10**9, 7), (2 * 10**9, 9)]
    assert workload.num_unsorted == 1


def test_columns_are_found_by_name(write):
    (record,) = open_workload(write("GeneratedTokens,TIMESTAMP,ContextTokens", "3,2024-05-10 00:00:02,7"))
    assert (record.prompt_tokens, record.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("2024-05-10 00:00:02,0,1", "ContextTokens: expected an integer of at least 1, got 0"),
        ("2024-05-10 00:00:02,-3,1", "ContextTokens: expected an integer of at least 1, got -3"),
        ("2024-05-10 00:00:02,1_0,1", "ContextTokens: expected an integer of at least 1, got '1_0'"),
        ("2024-05-10 00:00:02,7.5,1", "ContextTokens: expected an integer of at least 1, got 7.5"),
        ("2024-05-10 00:00:02,7,", "GeneratedTokens: expected this column, but it is missing"),
        ("2024-05-10 00:00:02,7", "expected 3 columns, got 2"),
        (
            "2024-05-32 00:00:02,7,1",
            "TIMESTAMP: expected a date and time like 2023-11-16 18:17:03.9799600, got '2024-05-32 00:00:02'",
        ),
        ("1.5,7,1", "TIMESTAMP: expected a date and time like 2023-11-16 18:17:03.9799600, got '1.5'"),
        (
            "1969-05-10 00:00:02,7,1",
            "TIMESTAMP: expected a date and time like 2023-11-16 18:17:03.9799600, got '1969-05-10 00:00:02'",
        ),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(HEADER, "2024-05-10 00:00:01,7,1", bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:3: {message}"


def test_a_missing_column_is_named(write):
    path = write("TIMESTAMP,ContextTokens", "2024-05-10 00:00:02,7")
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, "azure")
    assert str(caught.value) == f"{path}:2: GeneratedTokens: expected this column, but it is missing"


def test_the_lmm_trace_has_images_among_its_tokens(public_trace):
    workload = open_workload(public_trace("format-examples/azure_lmm_2025.handwritten.csv"))
    assert [(record.prompt_tokens, record.output_tokens) for record in workload] == [(120, 15), (2310, 44)]
    assert "images count as tokens of the prompt" in workload.warnings[0]
