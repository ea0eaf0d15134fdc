"""No module of engine/ needs itself: imports under TYPE_CHECKING and inside functions count like any other."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "engine"


def module_name(path):
    parts = ("kvtwin", "engine", *path.relative_to(ENGINE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source, modules):
    """The ``modules`` that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & set(modules)


def circle_among(sources):
    """Modules each of which imports the next one, and the last the first; none if there is no circle."""
    try:
        TopologicalSorter({name: imports_of(source, sources) for name, source in sources.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_engine_has_no_import_circle():
    sources = {module_name(path): path.read_text("utf-8") for path in sorted(ENGINE.rglob("*.py"))}
    assert len(sources) > 40
    assert circle_among(sources) == []
    used = imports_of(sources["kvtwin.engine.scheduler"], sources)
    assert {"kvtwin.engine.observer", "kvtwin.engine.kv_cache", "kvtwin.engine.chunks"} <= used


@pytest.mark.parametrize(
    "back",
    [
        "import kvtwin.engine.a",
        "from kvtwin.engine import a",
        "from kvtwin.engine.a import f",
        "if TYPE_CHECKING:\n    from kvtwin.engine.a import f",
        "def g():\n    from kvtwin.engine.a import f",
    ],
)
def test_a_circle_is_seen(back):
    sources = {"kvtwin.engine.a": "from kvtwin.engine.b import g", "kvtwin.engine.b": back, "kvtwin.engine": ""}
    assert set(circle_among(sources)) == {"kvtwin.engine.a", "kvtwin.engine.b"}
    assert circle_among(sources | {"kvtwin.engine.b": "import math"}) == []
