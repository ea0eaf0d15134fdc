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
    from kvtwin.experiments.display.tables import show, table

    headings = ("gpu", "GiB", "GB/s", "BF16 TFLOP/s", "FP8", "NVLink GB/s", "source")
    rows = [
        (
            name,
            f"{gpu.memory_bytes / GIB:.2f}",
            f"{gpu.memory_bytes_per_s / 1e9:.0f}",
            f"{gpu.bf16_flops_per_s / 1e12:.0f}",
            f"{gpu.fp8_flops_per_s / 1e12:.0f}",
            f"{gpu.nvlink_bytes_per_s / 1e9:.0f}",
            gpu.source,
        )
        for name, gpu in ((name, load_gpu(name)) for name in gpu_names())
    ]
    show(table(headings, rows, left=(0, 6)))
    return 0
