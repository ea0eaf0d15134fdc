from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtwin.workloads import open_workload
from kvtwin.workloads.formats import rows


def row(timestamp, length=5):
    return f'{{"timestamp": {timestamp}, "input_length": {length}, "output_length": 1, "hash_ids": [{length}]}}'


def row_that_is_not_plain(timestamp):
    return row(timestamp).replace("}", ', "priority": 0}')


def count_parsed_rows(monkeypatch):
    """A list that grows by one with every row that is parsed from now on."""
    parsed, row_type = [], rows.JsonRow

    def make_row(source, values):
        parsed.append(source)
        return row_type(source, values)

    monkeypatch.setattr(rows, "JsonRow", make_row)
    return parsed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_iteration_is_a_stable_sort_by_arrival(write, times):
    workload = open_workload(write(*(row(time) for time in times)))
    expected = sorted(range(len(times)), key=lambda index: times[index])
    assert [int(record.request_id) for record in workload] == expected
    assert [record.source.rsplit(":", 1)[1] for record in workload] == [str(index + 1) for index in expected]
    assert len(workload) == workload.num_requests == len(times)
    assert workload.num_unsorted == sum(time < max(times[:index]) for index, time in enumerate(times) if index)
    assert (workload.first_arrival_ns, workload.last_arrival_ns) == (min(times) * 10**6, max(times) * 10**6)


def test_sorted_files_are_streamed(write, monkeypatch):
    """While the first record of the second pass is in hand, the rows behind it were not parsed."""
    path = write(*(row_that_is_not_plain(time) for time in range(100)))
    workload = open_workload(path)
    parsed = count_parsed_rows(monkeypatch)
    next(iter(workload))
    assert len(parsed) == 1


def test_unsorted_files_hold_back_only_what_is_out_of_place(write, monkeypatch):
    times = [1, 0, *range(2, 100)]
    workload = open_workload(write(*(row_that_is_not_plain(time) for time in times)))
    parsed = count_parsed_rows(monkeypatch)
    next(iter(workload))
    assert len(parsed) == 2
