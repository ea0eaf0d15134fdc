"""Which step-time model options choose, what it is told, and what is refused."""

import os

import pytest
import yaml

from kvtwin.experiments.catalogue.gpus import gpu_names, load_gpu
from kvtwin.experiments.catalogue.interconnects import interconnect_names, load_interconnect
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.operator_tables.kept import aic_step_time
from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.setup.sizing import resolve_sizing
from kvtwin.experiments.setup.step_time import step_time_model, step_time_notes, step_time_title
from kvtwin.sim.step_shape import StepShape

DECODE = StepShape(64, 64, 0, 64_000, 0, 64)
PREFILL = StepShape(1, 0, 100, 100, 5050, 1)


def chosen(**options):
    read = read_options(ReplayOptions, {"trace": "demo", **options}, "kvtwin replay")
    return step_time_model(read, resolve_sizing(read).inputs)


@pytest.fixture
def aic(tmp_path, monkeypatch):
    """Tables are kept in a folder of the test's own."""
    pytest.importorskip("aiconfigurator_core", reason="the extra aic is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_links(name):
    link = load_interconnect(load_gpu(name).interconnect, 2)
    assert link.all_reduce_ns.at(1 << 20) > link.all_reduce_ns.at(1024) > 1000


@pytest.mark.parametrize("name", interconnect_names())
def test_times_grow_with_bytes_and_gpus(name):
    small, large = (load_interconnect(name, num_gpus) for num_gpus in (2, 16))
    assert list(small.all_reduce_ns.times_ns) == sorted(small.all_reduce_ns.times_ns)
    assert large.all_reduce_ns.at(1 << 24) > small.all_reduce_ns.at(1 << 24)
    assert "16 assumed to take" in large.source


def test_the_links_of_the_gpu_are_used_unless_others_are_asked_for(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("SLOW:\n  all_reduce_us:\n    2: {1024: 1000, 1048576: 1000}\n")
    pair = {"gpu": "rtx-pro-6000", "tensor_parallel_size": 2}
    usual, host, own = chosen(**pair), chosen(**pair, interconnect="pcie-host"), chosen(**pair, interconnect=str(file))
    assert usual.describe()["interconnect"] == "pcie-gen5"
    assert usual.duration_ns(DECODE) < host.duration_ns(DECODE) < own.duration_ns(DECODE)
    assert step_time_notes(host)[0].startswith("interconnect pcie-host (--interconnect): RTX PRO 6000")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interconnect": "pcie-gen5"}, "--interconnect: needs --tensor-parallel-size above 1"),
        ({"interconnect": "usb", "tensor_parallel_size": 2}, "--interconnect: expected nvlink-a100, "),
        ({"interconnect": "pcie-gen5", "step_time": "zero"}, "--interconnect: needs --step-time roofline or aic"),
        ({"step_time": "fast"}, "--step-time: expected roofline, aic, zero, linear or a YAML file, got 'fast'"),
    ],
)
def test_what_cannot_be_is_refused(options, complaint):
    with pytest.raises(UserError, match=complaint):
        chosen(**options)


@pytest.mark.parametrize(
    "table", ["3", "{1024: 5}", "{1024: 5, many: 6}", "{1024: 5, 2048: -1}", "{1024: true, 2048: 1}"]
)
def test_a_bad_file_of_links_is_named(tmp_path, table):
    file = tmp_path / "mine.yaml"
    file.write_text(f"MINE:\n  all_reduce_us:\n    2: {table}\n")
    with pytest.raises(UserError, match=r"mine\.yaml: MINE"):
        load_interconnect(str(file), 2)


def test_the_host_is_waited_for_only_without_asynchronous_scheduling():
    apart, together = chosen(gpu="h200", async_scheduling=False), chosen(gpu="h200")
    assert apart.duration_ns(DECODE) - together.duration_ns(DECODE) == 80_000 + 64 * 31_000


def test_a_model_can_be_adjusted(tmp_path):
    file = tmp_path / "fitted.yaml"
    file.write_text(yaml.safe_dump({"model": "adjusted", "base": "roofline", "decode_scale": 1.5, "prefill_scale": 2}))
    base, adjusted = chosen(gpu="h200"), chosen(gpu="h200", step_time=str(file))
    assert adjusted.duration_ns(DECODE) == round(1.5 * base.duration_ns(DECODE))
    assert adjusted.duration_ns(PREFILL) == 2 * base.duration_ns(PREFILL)
    assert adjusted.duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0
    assert step_time_title(adjusted) == "roofline, adjusted"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"base": "zero"}, "base: expected roofline or aic, got 'zero'"),
        ({"decode_scale": 0}, "decode_scale: expected a number above 0"),
        ({"prefill_scale": "fast"}, "prefill_scale: expected a number, got 'fast'"),
        ({"steps": 1}, "unknown field steps"),
    ],
)
def test_a_bad_adjustment_is_named(tmp_path, change, complaint):
    file = tmp_path / "fitted.yaml"
    file.write_text(
        yaml.safe_dump({"model": "adjusted", "base": "roofline", "decode_scale": 1.5, "prefill_scale": 2} | change)
    )
    with pytest.raises(UserError, match=complaint):
        chosen(gpu="h200", step_time=str(file))


def test_the_known_error_of_the_model_is_told():
    assert "roofline" in step_time_notes(chosen(gpu="h200"))[0]
    assert step_time_notes(chosen(step_time="zero")) == []


def test_without_the_package_aic_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "aiconfigurator_core", None)
    with pytest.raises(UserError, match=r"pip install 'kvtwin\[aic\]'"):
        chosen(gpu="h200", step_time="aic")


def test_tables_are_made_once_and_kept(aic, monkeypatch):
    first = chosen(gpu="h200", model="Llama-3.1-8B", step_time="aic")
    assert step_time_title(first).startswith("aic (aiconfigurator-core ")
    (kept,) = (path for path in aic.rglob("*.gz"))
    monkeypatch.setattr("kvtwin.experiments.operator_tables.kept.OperatorTimes", None)
    assert chosen(gpu="h200", model="Llama-3.1-8B", step_time="aic").duration_ns(DECODE) == first.duration_ns(DECODE)
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(TypeError):
        chosen(gpu="h200", model="Llama-3.1-8B", step_time="aic")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"gpu": "rtx-4090"}, "no tables for RTX-4090-24GB; there are some for A100-80GB, H100-80GB"),
        ({"model": "gpt-oss-20b"}, "no tables for models of type gpt_oss; there are some for llama"),
        ({"model": "Mistral-7B-v0.1"}, "no tables for models of type mistral with a sliding window"),
        ({"tensor_parallel_size": 3, "model": "Qwen3-32B"}, "divi|no tables"),
    ],
)
def test_what_has_no_tables_is_refused_with_what_has_some(aic, options, complaint):
    with pytest.raises(UserError, match=complaint):
        chosen(**{"gpu": "h200", "max_model_len": 8192, **options, "step_time": "aic"})


def test_the_network_is_never_asked(aic, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert chosen(gpu="h200", model="Qwen3-8B", step_time="aic").duration_ns(DECODE) > 0


def test_tables_say_what_the_package_says(aic, monkeypatch):
    """Steps of all sizes: between sizes, 99 of 100 within 1 %; where no time may fall, 98 of 100 within 1.5 %."""
    import numpy as np

    from kvtwin.experiments.catalogue.models import load_model_config
    from kvtwin.experiments.operator_tables import tables
    from kvtwin.experiments.operator_tables.aiconfigurator import OperatorTimes, Question
    from kvtwin.sim.tabulated import TabulatedStepTime

    config, name = load_model_config("Llama-3.1-8B")
    question = Question(name, config, "RTX-PRO-6000-Server-96GB", 1, "bfloat16", "auto")
    model, times = aic_step_time(question), OperatorTimes(question)
    monkeypatch.setattr(tables, "rising", list)
    monkeypatch.setattr(tables, "rising_both_ways", list)
    as_measured = TabulatedStepTime("as measured", tables.step_tables(times), {})
    floor = tables._KeysFromMemory.of(times)
    draw = np.random.default_rng(0)
    errors = []
    for _ in range(300):
        decodes, context = int(2 ** draw.uniform(0, 8)), int(2 ** draw.uniform(4, 13))
        tokens, before = int(2 ** draw.uniform(4, 11)), int(2 ** draw.uniform(0, 13))
        expected = times.tokens_ns(tables._padded(decodes + tokens)) + times.sampled_ns(decodes + 1)
        expected += max(times.decode_ns(decodes, context), floor.decode_ns(decodes, context))
        expected += times.prefill_ns(1, tokens, before)
        pairs = tokens * before + tokens * (tokens + 1) // 2
        step = StepShape(decodes + 1, decodes, tokens, decodes * context + tokens + before, pairs, decodes + 1)
        errors.append([abs(each.duration_ns(step) / expected - 1) for each in (model, as_measured)])
    assert np.median(errors, axis=0).max() < 0.003
    assert np.quantile(errors, 0.98, axis=0)[0] < 0.015
    assert np.quantile(errors, 0.99, axis=0)[1] < 0.01


def test_a_read_only_cache_is_no_error(aic, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert chosen(gpu="h200", model="Llama-3.1-8B", step_time="aic").duration_ns(DECODE) > 0
