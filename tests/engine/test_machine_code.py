"""Machine code is made anew for whatever it depends on, kept where that is possible, and never loaded damaged."""

import os
import shutil
import subprocess
import sys

import pytest

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.compiled import compiler, machine_code
from tests.test_architecture import REPOSITORY

pytestmark = pytest.mark.skipif(machine_code.machine_code() is None, reason="nothing is compiled here")


def test_an_edit_of_any_function_makes_another_key(tmp_path, monkeypatch):
    """Also of one that is called from another file: numba's own cache would not see it."""
    sources = tmp_path / "compiled"
    shutil.copytree(machine_code._SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    before = machine_code._key()
    monkeypatch.setattr(machine_code, "_SOURCES", sources)
    assert machine_code._key() == before
    for callee in ("key_table.py", "loop/queue.py", "pool_functions.py"):
        text = (sources / callee).read_text()
        (sources / callee).write_text(text + "\nEDITED = True\n")
        assert machine_code._key() != before
        (sources / callee).write_text(text)


def test_another_numba_makes_another_key(monkeypatch):
    before = machine_code._key()
    monkeypatch.setattr(machine_code, "version", lambda name: "0.1")
    assert machine_code._key() != before


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A function that asks for machine code with an empty cache; what is compiled is what was compiled before."""
    folders = list(machine_code._folders())
    name = f"kvtwin-{machine_code._key()}.o"
    kept = next(folder / name for folder in folders if (folder / name).exists()).read_bytes()
    calls = []

    def compile_all():
        calls.append(1)
        return machine_code._unpack(kept)

    monkeypatch.setattr(compiler, "compile_all", compile_all)

    def make(*folders):
        monkeypatch.setattr(machine_code, "_folders", lambda: iter(folders))
        machine_code.machine_code.cache_clear()
        code = machine_code.machine_code()
        machine_code.machine_code.cache_clear()
        assert code is not None
        assert hasattr(code, "run")
        return len(calls)

    yield make
    machine_code.machine_code.cache_clear()


def test_it_is_compiled_once_and_said_so(made, tmp_path, capsys):
    assert made(tmp_path / "cache") == 1
    assert capsys.readouterr().err == "kvtwin: compiling for this computer, once ...\n"
    assert made(tmp_path / "cache") == 1
    assert capsys.readouterr().err == ""
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".o"]


def test_a_damaged_file_is_made_again(made, tmp_path):
    assert made(tmp_path) == 1
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert made(tmp_path) == 2
    path.write_bytes(data[:40])
    assert made(tmp_path) == 3
    assert made(tmp_path) == 3


def test_where_nothing_can_be_written_it_is_kept_elsewhere_or_not_at_all(made, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    assert made(file, tmp_path / "other") == 1
    assert made(file, tmp_path / "other") == 1
    assert made(file) == 2
    assert made(file) == 3


def test_a_variable_keeps_everything_interpreted():
    script = "from kvtwin.engine.compiled.machine_code import machine_code; print(machine_code())"
    environment = os.environ | {machine_code.INTERPRETED: "1", "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "None\n"


def test_loading_does_not_import_numba():
    script = (
        "import sys; from kvtwin.engine.compiled.machine_code import machine_code; machine_code();"
        " print('numba' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_few_and_many_blocks_meet_in_the_same_memory():
    pool = BlockPool(100)
    many = pool.allocate(60)
    few = pool.allocate(3)
    pool.register(many, list(range(1, 61)))
    pool.register(few, [7, 100, 101])
    assert pool.find.leading(list(range(1, 80)), 79) == many
    assert pool.blocks_with_key(7) == [many[6], few[0]]
    pool.free(many[::-1])
    pool.free(few)
    assert pool.free_queue()[-63:] == many[::-1] + few
