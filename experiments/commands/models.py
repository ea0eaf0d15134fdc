"""``kvtwin models``: the models that the catalogue knows by name."""

from __future__ import annotations

import argparse

from kvtwin.experiments.catalogue.catalogue import load_model, model_names

EPILOGUE = """\
example:
  kvtwin models
  kvtwin size --model Qwen3-8B --gpu l40s
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(args: argparse.Namespace) -> int:
    """Print the catalogue's models with their sizes."""
    print(f"{'model':<46} {'parameters':>16} {'active':>16} {'layers':>6} {'KV bytes/token':>14}")
    for name in model_names():
        shape = load_model(name)
        print(
            f"{name:<46} {shape.total_params:>16,} {shape.active_params:>16,} {shape.num_layers:>6} "
            f"{shape.token_bytes():>14,}"
        )
    return 0
