"""``executed.parquet``: what a measured run leaves is read back as it was, and can be used without kvtwin."""

from dataclasses import fields, replace
from shutil import copytree

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.executed_steps import NAME, executed_file, read_executed_steps
from kvtwin.experiments.records.folder import run_files, write_run_folder
from kvtwin.experiments.records.reader import Run
from tests.parts import examples
from tests.sim.measured_run import Measured, configurations, measure, modes, settings_of_servers, workloads
from tests.sim.row_executor import FAULTS


def written(measured, folder):
    """The run's folder, read back."""
    config = {"options": {}, "engine": {}}
    files = run_files(measured.recorder, config, {}, {}) | {NAME: executed_file(measured.decided, measured.executed)}
    write_run_folder(folder, files)
    return Run(folder)


def plain(step):
    """An executed step with plain lists."""
    lists = {
        field.name: [list(each) if isinstance(each, (list, tuple)) else each for each in value]
        for field in fields(step)
        if isinstance(value := getattr(step, field.name), (list, tuple))
    }
    return replace(step, **lists)


@examples(60)
@given(configurations(), workloads(), settings_of_servers, st.sampled_from([None, None, 7]))
def test_a_run_is_read_back_as_it_was(tmp_path_factory, config, workload, server, stop_after):
    measured = Measured(config, workload, **server, stop_after=stop_after)
    decided, executed = read_executed_steps(written(measured, tmp_path_factory.mktemp("runs") / "run"))
    assert decided == measured.decided
    assert list(map(plain, executed)) == list(map(plain, measured.executed))
    check = measured.check(decided, executed)
    assert (check.differences, check.num_steps) == ([], len(executed))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_faults_of_a_device_are_read_back_too(tmp_path, fault):
    measured = measure("fork", fault=fault)
    check = measured.check(*read_executed_steps(written(measured, tmp_path / "run")))
    assert check.differences == measured.check().differences != []


@modes
def test_pandas_finds_every_table(tmp_path, mode):
    """As docs/output.md says."""
    measured = measure(mode)
    steps = pandas.read_parquet(written(measured, tmp_path / "run").path / NAME)
    tables, found = {}, []
    for step in steps.itertuples():
        found.append([])
        changes = zip(step.device_request_ids, step.device_kept_blocks, step.device_new_blocks, strict=True)
        for request, kept, new in changes:
            tables[request] = [*tables.get(request, [])[:kept], *new]
            found[-1].append(tables[request])
    assert found == [list(map(list, step.block_tables)) for step in measured.executed]
    new_blocks = sum(len(new) for step in steps.device_new_blocks for new in step)
    assert new_blocks < sum(len(table) for step in measured.executed for table in step.block_tables) / 3
    assert list(steps.duration_ns) == [step.duration_ns for step in measured.executed]
    rows = steps.explode(["request_ids", "num_tokens"]).dropna(subset="request_ids")
    by_request = rows.groupby("request_ids").num_tokens.sum()
    assert by_request.sum() == sum(step.shape.total_tokens for step in measured.decided)


def test_a_row_without_evidence_is_a_step_that_was_not_completed(tmp_path):
    measured = measure("async", stop_after=21)
    steps = pandas.read_parquet(written(measured, tmp_path / "run").path / NAME)
    assert list(steps.duration_ns.isna()) == [False] * 21 + [True] * (len(measured.decided) - 21)
    assert len(measured.decided) > 21


def test_what_is_no_such_file(tmp_path):
    run = written(measure("sync"), tmp_path / "run")
    path = run.path / NAME
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"executed\.parquet: not a table"):
        read_executed_steps(run)
    path.write_bytes((run.path / "steps.parquet").read_bytes())
    with pytest.raises(UserError, match=r"executed\.parquet: another version of kvtwin wrote it"):
        read_executed_steps(run)
    path.unlink()
    with pytest.raises(UserError, match=r"run: has no executed\.parquet: it was not measured"):
        read_executed_steps(run)


def test_all_fields_are_kept(tmp_path):
    """Also what a :class:`RowExecutor` leaves out."""
    measured = measure("sync")
    logits = [[1.5 + token for token in tokens] for tokens in measured.executed[3].tokens]
    measured.executed[3] = replace(measured.executed[3], logits=logits)
    _, executed = read_executed_steps(written(measured, tmp_path / "run"))
    assert executed[3].logits == logits
    assert {field.name for field in fields(ExecutedStep) if not getattr(executed[3], field.name)} == set()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return written(measure("fork"), tmp_path_factory.mktemp("runs") / "run")


COLUMNS = pyarrow.parquet.read_schema(pyarrow.BufferReader(executed_file([], []))).names


@pytest.mark.parametrize(
    ("column", "value"),
    [(name, None) for name in COLUMNS if name not in ("output_tokens", "duration_ns")]
    + [(name, []) for name in ("kept_blocks", "new_blocks", "device_kept_blocks", "request_ids")],
)
def test_a_damaged_file_is_one_line(tmp_path, whole_run, column, value):
    copytree(whole_run.path, tmp_path / "run")
    path = tmp_path / "run" / NAME
    table = pyarrow.parquet.read_table(path)
    damaged = table.to_pydict() | {column: [value] * len(table)}
    pyarrow.parquet.write_table(pyarrow.Table.from_pydict(damaged, schema=table.schema), path)
    with pytest.raises(UserError, match=f"{NAME}: damaged: row 1"):
        read_executed_steps(Run(path.parent))
