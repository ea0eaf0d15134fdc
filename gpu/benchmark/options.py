"""What the measuring commands are told."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from kvtwin.gpu.benchmark.results import Results
from kvtwin.gpu.device_model import DEVICES, open_device
from kvtwin.gpu.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Options:
    """Where to measure, and what becomes of it."""

    device: torch.device
    results: Results
    peers: Path | None = None

    @property
    def is_dry(self) -> bool:
        """A CPU shows that everything runs, on small shapes; how fast a CPU is, is not the question."""
        return self.device.type == "cpu"

    def rate(self, name: str, value: float) -> dict[str, float]:
        """A figure that says something of a GPU only."""
        return {} if self.is_dry else {name: value}


def parse_options(description: str | None) -> Options:
    """From the command line. Exits with one line and 2 if there is no such device."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="cpu: a dry run on small shapes")
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines to add to")
    parser.add_argument("--peers", type=Path, help="Python file with more attention kernels to compare with")
    args = parser.parse_args()
    try:
        device = open_device(args.device)
    except DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    return Options(device, Results(args.results), args.peers)
