"""What the device can do at most: copy, read, multiply. ``python -m kvtwin.gpu.benchmark.ceilings --help``."""

from __future__ import annotations

from functools import partial

import torch

from kvtwin.gpu.benchmark.options import Options, parse_options
from kvtwin.gpu.benchmark.results import Results
from kvtwin.gpu.benchmark.timing import median_us

PHASE = "ceilings"
GIB = 1 << 30
MIB = 1 << 20


def main() -> None:
    """Measure and keep."""
    options = parse_options(__doc__)
    device, results = options.device, options.results
    if options.is_dry:
        results.add(PHASE, "device", name="cpu, dry run")
    else:
        name = torch.cuda.get_device_name(device)
        results.add(PHASE, "device", name=name, torch=str(torch.__version__), total_bytes=torch.cuda.mem_get_info()[1])
    _bandwidths(options, results)
    _multiplication(options, results)


def _bandwidths(options: Options, results: Results) -> None:
    device = options.device
    source = torch.ones((16 * MIB if options.is_dry else 4 * GIB) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copied_us = median_us([partial(target.copy_, source)], device)
    results.add(PHASE, "copy", us=copied_us, **options.rate("gb_per_s", 2 * source.nbytes / copied_us / 1e3))
    readers = {"sum": partial(torch.sum, source), "maximum": partial(torch.amax, source)}
    fastest_us = min(median_us([reader], device) for reader in readers.values())
    results.add(PHASE, "read", us=fastest_us, **options.rate("gb_per_s", source.nbytes / fastest_us / 1e3))


def _multiplication(options: Options, results: Results) -> None:
    size, dtype = (256, torch.float32) if options.is_dry else (8192, torch.bfloat16)
    left, right = (torch.randn(size, size, device=options.device).to(dtype) for _ in range(2))
    product_us = median_us([partial(torch.matmul, left, right)], options.device)
    results.add(PHASE, "multiply", us=product_us, **options.rate("tflop_per_s", 2 * size**3 / product_us / 1e6))


if __name__ == "__main__":
    main()
