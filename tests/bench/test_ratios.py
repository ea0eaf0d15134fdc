"""What is fast stays fast: ratios of processor times of one process, in turn, with 30 % of slack."""

import time

import pytest

from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.server import Server
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads import RequestRecord
from kvtwin.workloads.columns import NotPlainError
from kvtwin.workloads.formats.azure import AzureReader
from kvtwin.workloads.formats.mooncake import MooncakeReader
from kvtwin.workloads.workload import Workload

SLACK = 0.7
REPEATS = 3

COMPILED = 11
COLUMNS = {AzureReader: 10, MooncakeReader: 4}
"""Ratios as they were measured on two shared cores, of small files."""


def ratio_of(slow, fast):
    """How many times the CPU seconds of ``fast`` the ones of ``slow`` are; of each the fastest of several in turn."""
    best = {slow: float("inf"), fast: float("inf")}
    for _ in range(REPEATS):
        for call in best:
            before_s = time.process_time()
            call()
            best[call] = min(best[call], time.process_time() - before_s)
    return best[slow] / best[fast]


@pytest.mark.slow
@pytest.mark.skipif(machine_code() is None, reason="nothing is compiled here")
def test_the_compiled_loop_beside_the_plain_scheduler():
    server = Server.of(ReplayOptions(trace="", num_gpu_blocks_override=6000, max_model_len=8192))
    requests = [
        RequestRecord(
            request_id=str(index),
            arrival_ns=index * 10**8,
            prompt_tokens=1600,
            output_tokens=150,
            hash_ids=[index % 9, 100 + index % 50, 1000 + index, 9000 + index],
            hash_block_tokens=512,
        )
        for index in range(200)
    ]

    def replay(compiled):
        executor = SimulatedExecutor(server.step_time, server.link, None)
        return lambda: ServerSimulation(server.config, executor, compiled=compiled).run(requests)

    assert ratio_of(replay(False), replay(True)) > SLACK * COMPILED


@pytest.mark.slow
@pytest.mark.parametrize("reader", [AzureReader, MooncakeReader])
def test_columns_beside_rows(tmp_path, monkeypatch, reader):
    path = tmp_path / "trace"
    if reader is AzureReader:
        rows = [f"2024-05-10 00:{index // 60 % 60:02}:{index % 60:02}.5,{index % 900 + 1},5" for index in range(3000)]
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    else:
        row = '{{"timestamp": {}, "input_length": 10000, "output_length": 5, "hash_ids": {}}}'
        path.write_text("\n".join(row.format(index, list(range(index, index + 20))) for index in range(3000)))

    def raise_not_plain(self, rows):
        raise NotPlainError

    columns = reader.columns

    def read(method):
        def call():
            monkeypatch.setattr(reader, "columns", method)
            Workload.of(path, reader())

        return call

    assert ratio_of(read(raise_not_plain), read(columns)) > SLACK * COLUMNS[reader]
