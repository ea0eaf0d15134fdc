"""``kvtwin models`` and ``kvtwin gpus``: what the catalogue holds."""

from __future__ import annotations

import argparse

from experiments.catalogue import gpu_names, load_gpu, load_model, model_names


def run_models(args: argparse.Namespace) -> int:
    """Print the catalogue's models with their sizes."""
    print(f"{'model':<46} {'parameters':>16} {'active':>16} {'layers':>6} {'KV bytes/token':>14}")
    for name in model_names():
        shape = load_model(name)
        print(
            f"{name:<46} {shape.total_params:>16,} {shape.active_params:>16,} {shape.num_layers:>6} "
            f"{shape.token_bytes():>14,}"
        )
    return 0


def run_gpus(args: argparse.Namespace) -> int:
    """Print the catalogue's GPUs with the figures that the simulator uses."""
    print(f"{'gpu':<18} {'GiB':>7} {'GB/s':>6} {'BF16 TFLOP/s':>13} {'FP8':>7} {'NVLink GB/s':>12}  source")
    for name in gpu_names():
        gpu = load_gpu(name)
        print(
            f"{name:<18} {gpu.memory_bytes / 2**30:>7.2f} {gpu.memory_bytes_per_s / 1e9:>6.0f} "
            f"{gpu.bf16_flops_per_s / 1e12:>13.0f} {gpu.fp8_flops_per_s / 1e12:>7.0f} "
            f"{gpu.nvlink_bytes_per_s / 1e9:>12.0f}  {gpu.source}"
        )
    return 0
