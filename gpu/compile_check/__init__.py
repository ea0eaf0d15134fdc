"""Compiles the kernels for GPUs that are not here, and looks at what came out: ``python -m kvtwin.gpu.compile_check``.

A kernel that spills, or that lost the fact that its rows are aligned, still computes the right thing, many times
slower; no test of results sees it. The compiler's output shows it, on any machine.
"""
