"""``kvtwin calibrate``: from real steps on a CPU to a file that predicts them. No test asks how long a step takes."""

from dataclasses import replace

import pytest
import yaml

from kvtwin.experiments.records.executed_steps import NAME, executed_file
from kvtwin.experiments.records.folder import run_files, write_run_folder
from kvtwin.experiments.setup.step_time import load_step_time
from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.step_shape import StepShape
from tests.sim.measured_run import measure

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvtwin[gpu]'")

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.calibration import command as calibrate
from kvtwin.experiments.calibration.calibration import Effort, measured_steps, progress_bar, quick_calibration
from kvtwin.experiments.calibration.fit import calibrate as fit
from kvtwin.experiments.command_line import main
from kvtwin.gpu.decoder_config import TINY
from kvtwin.gpu.device_model import DeviceModel, open_device
from tests.gpu.device_run import SMALL as SMALL_MODEL
from tests.gpu.device_run import DeviceRun, small_decoder
from tests.gpu.test_cuda_graphs import Rerun

SMALL = ("--max-num-seqs", 4, "--max-num-batched-tokens", 32, "--max-model-len", 200, "--num-gpu-blocks-override", 40)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file that the command wrote."""
    path = tmp_path_factory.mktemp("calibrated") / "steps.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "FULL", Effort(num_levels=3, num_visits=2, num_repeats=2))
        assert main(["calibrate", "--out", str(path), *map(str, SMALL)]) == 0
    return path


@pytest.mark.slow
def test_the_file_predicts_steps_of_the_size_that_was_measured(written):
    data = yaml.safe_load(written.read_text())
    assert list(data["decode"]["base_ns"]) == [1, 2, 4]
    assert data["decode"]["padded_up_to"] == 0
    assert data["decode"]["base_ns"][1] > 0
    assert min(data["prefill"]["base_ns"]) == 1
    assert max(data["prefill"]["base_ns"]) == data["measured"]["most_tokens"] == 32
    measured = data["measured"]
    assert (measured["model"], measured["block_size"], measured["most_sequences"]) == ("tiny", 16, 4)
    assert measured["shapes"] > 40
    assert measured["steps"] > measured["shapes"]
    assert measured["decode_median_error"] < 0.5
    assert measured["prefill_median_error"] < 0.5
    model = load_step_time(written)
    assert isinstance(model, CalibratedStepTime)
    assert model.duration_ns(StepShape(1, 0, 32, 32, 528, 1)) > model.duration_ns(StepShape(1, 1, 0, 2, 0, 1)) > 0


def test_the_head_of_the_file_tells_the_errors(written):
    lines = [line for line in written.read_text().splitlines() if line.startswith("# ")]
    assert "held out" in lines[1]
    assert lines[2].startswith("# steps that only decode")
    assert lines[3].startswith("# steps with prompt tokens")
    shown = float(lines[2].split()[-3].rstrip("%")) / 100
    assert shown == pytest.approx(yaml.safe_load(written.read_text())["measured"]["decode_median_error"], abs=1e-3)


def test_a_replay_takes_the_file(kvtwin, mooncake, written):
    server = ("--model", "tiny", "--num-gpu-blocks-override", 2000, "--max-model-len", 8192)
    outcome = kvtwin("replay", mooncake(), *server, "--step-time", written)
    assert (outcome.code, outcome.err) == (0, "")
    assert "step time calibrated (tiny on cpu), async" in outcome.out


def test_a_measurement_that_is_cut_off_says_so(capsys):
    for num_done in (10, 7):
        with progress_bar(2.5) as show:
            show(num_done, 10)
    assert capsys.readouterr().err.count("warning: step times: 7 of 10 measurements fitted into 2.5 s") == 1


def test_without_a_file_the_yaml_is_printed(kvtwin, monkeypatch):
    monkeypatch.setattr(calibrate, "FULL", Effort(num_levels=2, num_visits=1, num_repeats=1))
    outcome = kvtwin("calibrate", *SMALL)
    assert outcome.code == 0
    assert yaml.safe_load(outcome.out)["model"] == "calibrated"


def test_the_steps_of_a_measured_run_are_fitted(kvtwin, tmp_path):
    """Of a run whose steps follow a linear rule; those that copy blocks take a second longer."""
    truth = LinearStepTime({"step_ns": 1_000_000, "prefill_token_ns": 20_000, "context_token_ns": 500})
    measured = measure("swap")
    executed = [
        replace(done, duration_ns=truth.duration_ns(step.shape) + 10**9 * bool(step.saves or step.loads or step.copies))
        for step, done in zip(measured.decided, measured.executed, strict=True)
    ]
    assert any(done.duration_ns > 10**9 for done in executed)
    config = {"options": {}, "engine": {"block_size": 4}, "model": "some", "gpu": "a GPU", "kvtwin_version": "0.1.0"}
    files = run_files(measured.recorder, config, {}, {"date": "20261129-200000"})
    run, fitted = tmp_path / "run", tmp_path / "fitted.yaml"
    write_run_folder(run, files | {NAME: executed_file(measured.decided, executed)})
    assert kvtwin("calibrate", "--from", run, "--out", fitted).code == 0
    data = yaml.safe_load(fitted.read_text())
    assert (data["measured"]["model"], data["measured"]["device"], data["measured"]["run"]) == (
        "some",
        "a GPU",
        f"{tmp_path.name}/run",
    )
    assert data["measured"]["prefill_median_error"] < 0.05
    assert data["measured"]["decode_median_error"] < 0.05
    (run / NAME).unlink()
    kvtwin("calibrate", "--from", run).complains("it was not measured")
    kvtwin("calibrate", "--from", tmp_path).complains("not the folder of a run")


def test_nothing_is_overwritten(kvtwin, written, tmp_path):
    before = written.read_text()
    kvtwin("calibrate", "--out", written).complains(f"--out {written}: already exists")
    kvtwin("calibrate", "--out", tmp_path / "none" / "a.yaml").complains("none is not a folder")
    assert written.read_text() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "tinny"], "no model 'tinny'"),
        (["--model", "gpt-oss-20b"], "model_type must be one of"),
        (["--max-model-len", 9000], "--max-model-len 9000 is more than the model's 8192 tokens"),
        (["--max-num-batched-tokens", 8], "max_num_batched_tokens: expected at least max_num_seqs (32), got 8"),
        (["--num-gpu-blocks-override", 2, "--max-num-seqs", 1, "--block-size", 1], "too little was measured"),
        (["--limit-s", 0], "--limit-s"),
        (["--num-gpu-blocks-override", 2**31 - 1], "no memory for 2,147,483,647 blocks"),
    ],
)
def test_bad_input(kvtwin, words, message):
    kvtwin("calibrate", *words).complains(message)


@pytest.mark.slow
def test_a_quick_calibration_with_an_executor_at_hand():
    config = EngineConfig(num_blocks=40, max_model_len=200, max_num_seqs=4, max_num_batched_tokens=32)
    executor = DeviceModel.load(TINY, open_device("cpu")).executor(config, records=True)
    calibration = quick_calibration(executor, config, TINY.vocab_size, limit_s=100.0)
    model = calibration.step_time()
    assert model.duration_ns(StepShape(4, 4, 0, 500, 0, 4)) >= model.duration_ns(StepShape(1, 1, 0, 100, 0, 1)) > 0
    assert executor.executed == []
    tiny = EngineConfig(num_blocks=2, block_size=1, max_model_len=8, max_num_seqs=1, max_num_batched_tokens=1)
    executor = DeviceModel.load(TINY, open_device("cpu")).executor(tiny, records=True)
    with pytest.raises(ValueError, match="at least 5 different steps"):
        quick_calibration(executor, tiny, TINY.vocab_size)


def test_a_device_that_pads_its_batches():
    """Steps that decode run as graphs of 1, 2, 4 or 8 sequences; a batch of 3 costs what one of 4 does."""
    config = EngineConfig(num_blocks=60, max_model_len=128, max_num_seqs=6, max_num_batched_tokens=32)
    executor = DeviceRun(small_decoder(), config, make_graph=Rerun).executor
    steps = measured_steps(executor, config, SMALL_MODEL.vocab_size, Effort(3, 1, 2), limit_s=100.0)
    decodes = [step for step in steps if step.shape.prefill_tokens == 0]
    assert {(step.shape.num_sequences, step.num_padded_sequences) for step in decodes} == {
        (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (6, 8)
    }  # fmt: skip
    decode = fit(steps).coefficients["decode"]
    assert (decode["padded_up_to"], list(decode["base_ns"])) == (8, [1, 2, 4, 8])
