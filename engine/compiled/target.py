"""The computer that machine code is made for and loaded on: this one."""

from __future__ import annotations

from typing import Any


def target_machine() -> Any:
    """What LLVM knows of this computer."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        reloc="default",
    )
