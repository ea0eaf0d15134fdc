"""From the functions marked ``compilable`` to an object file, by numba and LLVM."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.compiled.entry_points import NUM_PARAMETERS, entry_points
from kvtwin.engine.compiled.marks import COMPILABLE
from kvtwin.engine.compiled.target import target_machine

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": False}
_ENTRY_OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_OPTIONS}


def compile_all() -> tuple[dict[str, str], bytes]:
    """The symbol of each entry point, and an object file with them all."""
    import llvmlite.binding as llvm
    import numba

    functions = entry_points()
    for function in COMPILABLE:
        numba.extending.register_jitable(**_OPTIONS)(function)
    symbols, modules = {}, []
    for name, function in functions.items():
        signature = numba.int64(*[numba.int64] * NUM_PARAMETERS[name])
        native: Any = numba.njit(signature, **_ENTRY_OPTIONS)(function)
        (result,) = native.overloads.values()
        symbols[name] = result.fndesc.llvm_func_name
        modules.append(result.library.get_llvm_str())
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
