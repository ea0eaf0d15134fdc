"""The infinite cache of columns hits what the one of single requests does."""

import json
import random

import pytest

from kvtwin.experiments.traces.facts import inspect_workload
from kvtwin.workloads import open_workload
from kvtwin.workloads.columns import NotPlainError
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache
from kvtwin.workloads.prefixes.infinite_columns import InfiniteColumns
from kvtwin.workloads.workload import Workload


def prompts_of_a_tree(rng, number):
    """Rows whose ids are nodes of a tree; the last one may stand for fewer tokens than it could."""
    children = {}
    for index in range(number):
        ids = []
        for _ in range(rng.randrange(1, 7)):
            child = (*ids[-1:], rng.randrange(3))
            ids.append(children.setdefault(child, len(children)))
        tokens = 512 * len(ids) - rng.choice([0, 0, 1, 17, 300, 511])
        yield {"timestamp": 10 * index, "input_length": tokens, "output_length": 3, "hash_ids": ids}


@pytest.mark.parametrize("block_size", [1, 16, 24, 512, 700])
def test_hits_are_those_of_single_requests(write, monkeypatch, block_size):
    monkeypatch.setattr("kvtwin.workloads.formats.text_lines._LARGE_CHUNK_BYTES", 2_000)
    path = write(*map(json.dumps, prompts_of_a_tree(random.Random(block_size), 400)))
    one, many = InfiniteCache(), InfiniteColumns(block_size)
    hits = []
    for columns in open_workload(path).columns():
        expected = [one.add(prefix_chain(record, block_size)) for record in columns.records()]
        assert many.add(columns).tolist() == expected
        hits += expected
    assert len(hits) == 400
    assert len(set(hits)) > 3


def test_an_id_behind_two_others_is_told(write, monkeypatch):
    """Such ids mean different prefixes, so they are looked up request by request."""
    rows = [{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ids} for ids in ([1, 2], [3, 2])]
    workload = open_workload(write(*map(json.dumps, rows)))
    with pytest.raises(NotPlainError):
        InfiniteColumns(16).add(*workload.columns())
    assert inspect_workload(workload)["sharing"]["hit_blocks"] == 0


def test_inspect_tells_the_same_of_columns(write, monkeypatch):
    workload = open_workload(write(*map(json.dumps, prompts_of_a_tree(random.Random(1), 100))))
    facts = inspect_workload(workload, max_model_len=1500)
    monkeypatch.setattr(Workload, "columns", lambda self: None)
    assert inspect_workload(workload, max_model_len=1500) == facts
    assert facts["sharing"]["hit_tokens"] > 0
