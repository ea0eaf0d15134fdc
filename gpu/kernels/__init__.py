"""Triton kernels, one per file, each with the plain function that launches it.

A launcher takes tensors and launch constants and asks no device anything. All kernels take strides, and compute the
offsets of blocks in 64 bits: a cache is larger than 2**31 elements.

Triton compiles a kernel again for integers that are 1 or multiples of 16, and for tensors that are not aligned. What
differs from step to step is therefore not specialized (``do_not_specialize``): no step but the first waits for a
compiler.
"""
