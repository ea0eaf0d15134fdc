"""Our engine against logs of the real vLLM 0.33.0 scheduler, every field of every step."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from kvtwin.engine.compiled.machine_code import machine_code
from tests.parity import connector_cases, image_cases
from tests.parity.__main__ import case_names, log_file, main
from tests.parity.case import UnsupportedCaseError, read_jsonl, run_case
from tests.parity.compare import compare
from tests.parity.compiled_case import run_compiled_case, why_plain
from tests.parity.oracle.connector_oracle import DEFAULT_CONFIG
from tests.parts import slow_but

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
GOLDEN_RANDOM = HERE / "golden_random"
GOLDEN_IMAGES = HERE / "golden_images"
GOLDEN_CONNECTORS = HERE / "golden_connectors"
FOLDERS = (GOLDEN, GOLDEN_RANDOM, GOLDEN_IMAGES, GOLDEN_CONNECTORS, HERE / "golden_offloading")
CASES = [(folder, name) for folder in FOLDERS for name in case_names(folder)]
needs_machine_code = pytest.mark.skipif(machine_code() is None, reason="nothing is compiled here")


def load(folder, name):
    case = json.loads((folder / f"{name}.config.json").read_text())
    return case, list(read_jsonl(log_file(folder, name, "workload"))), list(read_jsonl(log_file(folder, name, "log")))


def loop_decides(folder, name):
    case = json.loads((folder / f"{name}.config.json").read_text())
    return not why_plain(case, list(read_jsonl(log_file(folder, name, "workload"))))


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[f"{folder.name}/{name}" for folder, name in CASES])
def test_every_field_of_every_step_agrees(folder, name):
    case, lines, log = load(folder, name)
    check = case["num_blocks"] <= 200
    differences = [found for _, found in compare(log, run_case(case, lines, check=check)) if found]
    assert not differences, "\n".join(str(one) for one in differences[0])
    assert len(log) > 3


@needs_machine_code
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["golden/preempt_priority_chunked", "golden/duplicates"],
        [f"{folder.name}/{name}" for folder, name in CASES if loop_decides(folder, name)],
    ),
)
def test_every_field_of_every_step_agrees_through_the_compiled_loop(name):
    case, lines, log = load(HERE / name.split("/")[0], name.split("/")[1])
    for record in log:
        record.pop("kv_events", None)
    differences = [found for _, found in compare(log, run_compiled_case(case, lines)) if found]
    assert not differences, "\n".join(str(one) for one in differences[0])


def test_the_loop_decides_the_cases_of_full_attention():
    """It leaves other groups, speculation, images, aborts and resets to the plain scheduler."""
    assert sum(loop_decides(folder, name) for folder, name in CASES) >= 32


def test_the_cases_in_scope_are_here():
    """All of the oracle's."""
    assert len(case_names(GOLDEN)) == 37


@pytest.mark.parametrize("cases", [image_cases, connector_cases])
def test_small_cases_are_as_they_are_written_down(cases):
    assert case_names(cases.FOLDER) == sorted(cases.CASES)
    for name, (config, lines) in cases.CASES.items():
        case, kept_lines, _ = load(cases.FOLDER, name)
        written = DEFAULT_CONFIG | cases.BASE | config | {"name": name}
        assert (DEFAULT_CONFIG | case, kept_lines) == (written, json.loads(json.dumps(lines)))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        pytest.param(GOLDEN, "ops", marks=pytest.mark.slow),
        (GOLDEN_IMAGES, "aborted"),
        (GOLDEN_CONNECTORS, "bad_block_fail"),
    ],
)
def test_the_comparison_sees_a_wrong_decision(folder, name):
    """A negative control: every kind of field, changed once, is noticed."""
    case, lines, log = load(folder, name)
    for field in {field for record in log for field in record} - {"step"}:
        forged = copy.deepcopy(log)
        record = next(record for record in forged if field in record)
        record[field] = "forged"
        found = [one for _, differences in compare(forged, run_case(case, lines)) for one in differences]
        assert [one.field for one in found] == [field]


def test_the_comparison_sees_a_log_that_ends_early():
    case, lines, log = load(GOLDEN, "cache_salt")
    assert [one for _, differences in compare(log[:-1], run_case(case, lines)) for one in differences]


def test_a_changed_setting_makes_a_difference():
    case, lines, log = load(GOLDEN, "watermark")
    assert any(found for _, found in compare(log, run_case(case | {"watermark": 0.0}, lines)))


def test_what_is_not_modelled_is_named():
    case, lines, _ = load(GOLDEN, "async")
    with pytest.raises(UnsupportedCaseError, match="method: expected one of"):
        run_case(case | {"num_speculative_tokens": 2, "spec_method": "dspark"}, lines)
    with pytest.raises(UnsupportedCaseError, match="cache groups of kind cross"):
        run_case(case | {"groups": [{"type": "full"}, {"type": "cross"}]}, lines)


def test_what_a_configuration_leaves_out_is_the_oracles_default():
    case, lines, log = load(GOLDEN, "shared_prefix")
    case = DEFAULT_CONFIG | case
    assert {name: case[name] for name in DEFAULT_CONFIG if case[name] != DEFAULT_CONFIG[name]} == {
        "num_blocks": 400,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "max_model_len": 512,
    }
    short = {name: value for name, value in case.items() if value != DEFAULT_CONFIG.get(name)}
    assert not any(found for _, found in compare(log, run_case(short, lines)))


def test_command_line(capsys):
    assert main([str(GOLDEN), "--only", "cache_salt"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "cases 1 steps 41 differences 0"
