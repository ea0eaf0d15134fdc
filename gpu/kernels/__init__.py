"""Triton kernels, one per file, each with the plain function that launches it.

A launcher takes tensors and launch constants and asks no device anything. All kernels take strides, and compute the
offsets of blocks in 64 bits: a cache is larger than 2**31 elements.
"""
