"""From the functions marked ``compilable`` to an object file, by numba and LLVM."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kvtwin.engine.compiled.entry_points import NUM_PARAMETERS, entry_points
from kvtwin.engine.compiled.marks import COMPILABLE
from kvtwin.engine.compiled.target import target_machine

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

_REFERENCE_COUNTING = re.compile(r"^.*\bcall void @NRT_(?:inc|dec)ref\(.*$", re.MULTILINE)
"""What numba does for arrays that own their memory. None of these does, and it would cost most of the time."""


def compile_all() -> tuple[dict[str, str], bytes]:
    """The symbol of each entry point, and an object file with them all."""
    os.environ["NUMBA_OPT"] = "0"  # all is optimised once, at the end, and not also in whatever calls it
    import llvmlite.binding as llvm
    import numba

    functions = entry_points()
    for function in COMPILABLE:
        numba.extending.register_jitable(**_OPTIONS)(function)
    symbols, modules = {}, []
    with _nothing_loaded():
        for name, function in functions.items():
            signature = numba.int64(*[numba.int64] * NUM_PARAMETERS[name])
            native: Any = numba.njit(signature, **_OPTIONS)(function)
            (result,) = native.overloads.values()
            symbols[name] = result.fndesc.llvm_func_name
            modules.append(_REFERENCE_COUNTING.sub("", result.library.get_llvm_str()))
    machine = target_machine()
    module = llvm.parse_assembly(modules[0])
    for other in modules[1:]:
        module.link_in(llvm.parse_assembly(other))
    for each in module.functions:
        if not each.is_declaration and each.name not in symbols.values():
            each.linkage = "internal"  # so that what is inlined everywhere goes, and whatever that would need
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return symbols, machine.emit_object(module)


@contextmanager
def _nothing_loaded() -> Iterator[None]:
    """numba makes LLVM's assembly only: no machine code, which it would else make and load for every function."""
    context = import_module("numba.core.registry").cpu_target.target_context
    library = import_module("numba.core.codegen").JITCodeLibrary
    finalize = library._finalize_specific
    # The result stands for the function, so it must be another one each time: a method of a new list is.
    context.get_executable = lambda made, *_arguments: made._ensure_finalized() or [].append
    library._finalize_specific = lambda _library: None
    try:
        yield
    finally:
        del context.get_executable
        library._finalize_specific = finalize
