import json

import pytest

from kvtwin.workloads import Predecessor, WorkloadError, open_workload
from kvtwin.workloads.time_units import SECOND_NS


def row(chat, parent=-1, **fields):
    values = {"chat_id": chat, "parent_chat_id": parent, "timestamp": chat, "input_length": 20, "output_length": 3}
    return json.dumps(values | {"type": "text", "turn": 1, "hash_ids": [1, 2]} | fields)


def test_a_conversation_is_a_chain_of_parents(write):
    workload = open_workload(write(row(0), row(1), row(2, 0, timestamp=2.5), row(3, 99), row(4, 2)))
    records = list(workload)
    assert workload.format_name == "bailian"
    assert [record.session for record in records] == ["0", "1", "0", "3", "0"]
    assert [[of.request_id for of in record.after] for record in records] == [[], [], ["0"], [], ["2"]]
    assert records[4].after == (Predecessor(request_id="2", delay_ns=0),)
    assert [record.arrival_ns / SECOND_NS for record in records] == [0, 1, 2.5, 3, 4]
    assert {record.hash_block_tokens for record in records} == {16}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1), "chat_id: expected a new id, got 1 again"),
        (row(2, -2), "parent_chat_id: expected an integer of at least -1, got -2"),
        (row("2"), "chat_id: expected an integer of at least 0, got '2'"),
        (row(2, hash_ids=[1, 2, 3]), "hash_ids: expected 20/16 = 1 or 2 ids, got 3"),
        (row(2, 1, timestamp=0.5), "after: expected a turn that arrives earlier, got '1'"),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(row(1), bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:2: {message}"
