"""``kvtwin gpus``: the GPUs that the catalogue knows by name."""

from __future__ import annotations

from kvtwin.experiments.options.results import NoOptions

OPTIONS = NoOptions

EPILOGUE = """\
example:
  kvtwin gpus
  kvtwin size --model Llama-3.1-8B --gpu a100-80gb
"""


def run(options: NoOptions) -> int:
    """Print the catalogue's GPUs with the figures that the simulator uses."""
    from kvtwin.engine.sizing.memory_budget import GIB
    from kvtwin.experiments.catalogue.gpus import gpu_names, load_gpu

    print(f"{'gpu':<18} {'GiB':>7} {'GB/s':>6} {'BF16 TFLOP/s':>13} {'FP8':>7} {'NVLink GB/s':>12}  source")
    for name in gpu_names():
        gpu = load_gpu(name)
        print(
            f"{name:<18} {gpu.memory_bytes / GIB:>7.2f} {gpu.memory_bytes_per_s / 1e9:>6.0f} "
            f"{gpu.bf16_flops_per_s / 1e12:>13.0f} {gpu.fp8_flops_per_s / 1e12:>7.0f} "
            f"{gpu.nvlink_bytes_per_s / 1e9:>12.0f}  {gpu.source}"
        )
    return 0
