"""The design's import arrows, the one name that a machine gets, and what the wheel carries."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("engine", "workloads", "sim", "gpu", "experiments")
STANDARD_LIBRARY = sys.stdlib_module_names

ALLOWED = {
    "engine": set(),
    "workloads": {"numpy"},
    "sim": {"kvtwin.engine", "kvtwin.workloads", "simpy"},
    "gpu": {"kvtwin.engine", "torch", "triton"},
    "experiments": {
        "kvtwin.engine",
        "kvtwin.workloads",
        "kvtwin.sim",
        "kvtwin.gpu",
        "numpy",
        "yaml",
        "tqdm",
        "typer",
        "rich",
    },
}
"""What a room may import at the top of a file, beside itself and the standard library."""

ALLOWED_LATER = {
    "workloads": {"pyarrow", "tokenizers"},
    "engine": {"xxhash", "cbor2", "llvmlite", "numba", "numpy"},
    "sim": {"numpy"},
    "gpu": {"gguf", "safetensors"},
    "experiments": {
        "aiconfigurator_core",
        "distributed",
        "jinja2",
        "matplotlib",
        "msgpack",
        "pandas",
        "plotly",
        "prometheus_client",
        "pyarrow",
        "rich",
        "scipy",
        "torch",
        "triton",
    },
}
"""What a room may import where it is needed only: in a function, or in a try that does without."""


PICTURES = "experiments/pictures"
"""This corner may import matplotlib anywhere, and nobody else may import it but where it is needed."""

FLOORS = (
    {"errors"},
    {"files", "display"},
    {"catalogue"},
    {"operator_tables"},
    {"options"},
    {"setup"},
    {"sizes", "traces", "misses", "records"},
    {"server_runs"},
    {"runs"},
    {"sweeps"},
    {"pictures"},
    {"curves", "limits", "comparison", "narration", "isolation", "calibration", "exports", "report_page"},
    {"validation", "server_validation"},
    {"api"},
    {"commands"},
    {"command_line"},
)
"""The rooms inside experiments/ from the ground upwards: each may import from floors below its own, and itself."""


class Import(NamedTuple):
    module: str
    line: int
    at_top: bool

    @property
    def package(self) -> str:
        """The distribution's name; for our own modules, the room too."""
        parts = self.module.split(".")
        return ".".join(parts[: 2 if parts[0] == "kvtwin" else 1])


def imports_of(source: str) -> list[Import]:
    """Every import of a file, wherever it stands; relative ones are not allowed to be there."""
    found = []

    def walk(node: ast.AST, at_top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, child.lineno, at_top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = "." * child.level + (child.module or "")
                if module in ("kvtwin", "kvtwin.experiments"):
                    found.extend(Import(f"{module}.{alias.name}", child.lineno, at_top) for alias in child.names)
                else:
                    found.append(Import(module, child.lineno, at_top))
            if not isinstance(child, ast.expr):  # no import stands in one
                walk(child, at_top and not _is_lazy(child))

    walk(ast.parse(source), True)
    return found


def _is_lazy(node: ast.AST) -> bool:
    """Whether what stands inside is not run, or may fail, when the file is imported."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)


def breaches(room: str, source: str) -> list[Import]:
    """Imports of a file that the room may not have."""
    allowed = ALLOWED[room] | {f"kvtwin.{room}"} | STANDARD_LIBRARY
    later = allowed | ALLOWED_LATER.get(room, set())
    return [each for each in imports_of(source) if each.package not in (allowed if each.at_top else later)]


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_one_way(room):
    pictures = REPOSITORY / PICTURES
    files = [file for file in sorted((REPOSITORY / room).rglob("*.py")) if not file.is_relative_to(pictures)]
    assert files
    found = [(str(file), breach) for file in files for breach in breaches(room, file.read_text("utf-8"))]
    assert found == []


def floor_of(name: str) -> int:
    (floor,) = [index for index, names in enumerate(FLOORS) if name in names]
    return floor


def rises(name: str, source: str) -> list[Import]:
    """Imports of a file in the room ``name`` of experiments/ that do not point downwards."""
    ours = [each for each in imports_of(source) if each.module.startswith("kvtwin.experiments.")]
    return [each for each in ours if each.module.split(".")[2] != name and not _is_below(each, name)]


def _is_below(each: Import, name: str) -> bool:
    return floor_of(each.module.split(".")[2]) < floor_of(name)


def test_arrows_inside_experiments_point_downwards():
    folder = REPOSITORY / "experiments"
    found = []
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder).parts[0].removesuffix(".py")
        if name != "__init__":
            found += [(str(file.relative_to(folder)), each) for each in rises(name, file.read_text("utf-8"))]
    assert found == []


def test_every_room_inside_experiments_has_its_floor():
    folder = REPOSITORY / "experiments"
    rooms = {file.relative_to(folder).parts[0].removesuffix(".py") for file in folder.rglob("*.py")}
    assert sorted(rooms - {"__init__"}) == sorted(name for names in FLOORS for name in names)


def test_files_of_experiments_have_one_subject_each():
    """None is longer than 300 lines, and none so short that it belongs into another."""
    files = [file for file in (REPOSITORY / "experiments").rglob("*.py") if not file.name.startswith("__")]
    lengths = {str(file): len(file.read_text("utf-8").splitlines()) for file in files}
    assert {file: length for file, length in lengths.items() if not 15 <= length <= 300} == {}


def test_pictures_are_imported_only_where_they_are_needed():
    pictures = REPOSITORY / PICTURES
    for file in sorted((REPOSITORY / "experiments").rglob("*.py")):
        for each in imports_of(file.read_text("utf-8")):
            if file.is_relative_to(pictures):
                assert each.package in ALLOWED["experiments"] | STANDARD_LIBRARY | {"kvtwin.experiments", "matplotlib"}
            else:
                assert not (each.at_top and each.module.startswith("kvtwin.experiments.pictures")), file


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("engine", "import simpy"),
        ("engine", "def f():\n    import kvtwin.workloads.formats"),
        ("engine", "import xxhash"),
        ("engine", "from kvtwin.sim.serving import ServerSimulation"),
        ("engine", "from engine.block_pool import BlockPool"),
        ("workloads", "from kvtwin.engine import config"),
        ("workloads", "from kvtwin import engine"),
        ("sim", "import kvtwin.gpu.executor"),
        ("sim", "import torch.nn"),
        ("gpu", "if x:\n    from kvtwin.sim import serving"),
        ("experiments", "import pandas as pd"),
        ("experiments", "from tests.parity import case"),
        ("sim", "from . import serving"),
    ],
)
def test_a_breach_is_seen(room, source):
    assert len(breaches(room, source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("options", "from kvtwin.experiments.records.folder import run_files"),
        ("curves", "from kvtwin.experiments.limits import search"),
        ("sweeps", "def f():\n    from kvtwin.experiments import commands"),
    ],
)
def test_a_rise_is_seen(room, source):
    assert len(rises(room, source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("engine", "try:\n    import xxhash\nexcept ImportError:\n    xxhash = None"),
        ("engine", "def f():\n    import cbor2"),
        ("sim", "import os.path, kvtwin.engine.core\nfrom kvtwin.workloads.errors import WorkloadError"),
        ("experiments", "def f():\n    import pyarrow.parquet"),
        ("experiments", "if TYPE_CHECKING:\n    from rich.table import Table"),
    ],
)
def test_what_is_allowed_is_not_seen(room, source):
    assert breaches(room, source) == []


def test_no_file_imports_a_room_by_its_bare_name():
    folders = [REPOSITORY / name for name in (*ROOMS, "kvtwin", "tests", "notebooks")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert len(files) > 300
    bare = [
        (str(file), each.line)
        for file in files
        for each in imports_of(file.read_text("utf-8"))
        if each.module.split(".")[0] in ROOMS
    ]
    assert bare == []


def test_files_import_what_they_mean_from_the_standard_library():
    """No file of ours has the name of one of Python's modules that it would hide."""
    assert {"kvtwin"}.isdisjoint(STANDARD_LIBRARY)


def test_no_other_distribution_has_our_name():
    assert set(packages_distributions().get("kvtwin", ())) <= {"kvtwin"}
    spec = find_spec("kvtwin")
    assert spec is not None
    assert spec.origin == str(REPOSITORY / "kvtwin" / "__init__.py")


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_linked_into_the_package(room):
    assert (REPOSITORY / "kvtwin" / room).resolve() == REPOSITORY / room


CARRIED = (
    "experiments/configs/step-time-linear.yaml",
    "experiments/catalogue/gpus.yaml",
    "experiments/catalogue/configs/llama-3.1-8b.json",
    "experiments/report_page/block_map.html",
    "experiments/report_page/macros.html.j2",
    "experiments/report_page/page.html.j2",
    "experiments/report_page/report.css",
    "experiments/report_page/report.js",
    "experiments/report_page/run.html.j2",
    "experiments/report_page/sweep.html.j2",
)


def test_the_project_is_one_package():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["kvtwin"]
    assert settings["project"]["scripts"] == {"kvtwin": "kvtwin.experiments.command_line:main"}


def test_what_the_wheel_must_carry_is_not_ignored():
    """The wheel leaves out what git ignores."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    paths = [str(path.relative_to(REPOSITORY)) for room in ROOMS for path in (REPOSITORY / room).rglob("*.*")]
    kept = [path for path in paths if "__pycache__" not in path]
    assert set(CARRIED) <= set(kept)
    command = ["git", "-C", str(REPOSITORY), "check-ignore", *kept]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


def test_the_wheel_carries_the_rooms_under_one_name_and_no_tests(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed; pip fetches it where it builds")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(REPOSITORY)) for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")}
    assert {f"kvtwin/{path}" for path in modules | set(CARRIED)} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"kvtwin"}
