"""Machine code of the functions marked ``compilable``: numba makes it once, a cache keeps it, LLVM loads it.

numba is imported only to compile: importing it takes longer than many runs. What it made is kept as an object file,
named by a hash of everything that it depends on, so that no change of a function, library or processor meets old code.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvtwin.engine.compiled.entry_points import NUM_PARAMETERS
from kvtwin.engine.compiled.target import target_machine

INTERPRETED = "KVTWIN_INTERPRETED"
"""Set to 1, this variable keeps everything interpreted."""

_SOURCES = Path(__file__).parent


class MachineCode:
    """The compiled entry points, by name: functions of ints that return an int."""

    def __init__(self, symbols: dict[str, str], code: bytes) -> None:
        import llvmlite.binding as llvm

        machine = target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # it owns the code
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._result = array("q", [0, 0])
        for name, symbol in symbols.items():
            setattr(self, name, self._callable(name, self._engine.get_function_address(symbol)))

    def __getattr__(self, name: str) -> Callable[..., int]:
        raise AttributeError(f"no machine code for {name}")

    def _callable(self, name: str, address: int) -> Callable[..., int]:
        """A function from numba's calling convention: where to put the result and what was raised, then the arguments.

        Nothing is ever raised, and there is no time for checks.
        """
        result = self._result
        where = result.buffer_info()[0]
        kinds = [ctypes.c_int64] * (2 + NUM_PARAMETERS[name])
        native = ctypes.PYFUNCTYPE(ctypes.c_int32, *kinds)(address)
        raised = where + result.itemsize

        def call(*arguments: int) -> int:
            native(where, raised, *arguments)
            return result[0]

        return call


@cache
def machine_code() -> MachineCode | None:
    """The machine code, made if need be; None where nothing is to be compiled, or numba is missing."""
    if os.environ.get(INTERPRETED) == "1":
        return None
    try:
        name = f"kvtwin-{_key()}.o"
    except (PackageNotFoundError, ImportError):
        return None
    for folder in _folders():
        with suppress(OSError, ValueError, KeyError):
            return MachineCode(*_unpack((folder / name).read_bytes()))
    print("kvtwin: compiling for this computer, once ...", file=sys.stderr, flush=True)
    from kvtwin.engine.compiled.compiler import compile_all

    symbols, code = compile_all()
    for folder in _folders():
        with suppress(OSError):
            _write(folder / name, _pack(symbols, code))
            break
    return MachineCode(symbols, code)


def _key() -> str:
    """A hash of everything that the code depends on. PackageNotFoundError, ImportError: numba or LLVM is missing."""
    import llvmlite.binding as llvm

    parts = [version("numba"), version("llvmlite"), sys.version, llvm.get_host_cpu_name()]
    parts.append(llvm.get_host_cpu_features().flatten())
    digest = hashlib.sha256("\n".join(parts).encode())
    for source in sorted(_SOURCES.rglob("*.py")):
        digest.update(str(source.relative_to(_SOURCES)).encode() + source.read_bytes())
    return digest.hexdigest()[:32]


def _folders() -> Iterator[Path]:
    """Where code is kept: the user's cache, or beside the sources if there is none to write to."""
    cached = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # no home
        yield (Path(cached) if cached else Path.home() / ".cache") / "kvtwin"
    yield _SOURCES / "__pycache__"


def _pack(symbols: dict[str, str], code: bytes) -> bytes:
    body = json.dumps(symbols).encode() + b"\n" + code
    return hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> tuple[dict[str, str], bytes]:
    """ValueError: the file is not whole."""
    body = data[32:]
    if hashlib.sha256(body).digest() != data[:32]:
        raise ValueError("damaged")
    head, _, code = body.partition(b"\n")
    return json.loads(head), code


def _write(path: Path, data: bytes) -> None:
    """All at once, whoever else does the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(partial, path)
