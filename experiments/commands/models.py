"""``kvtwin models``: the models that the catalogue knows by name."""

from __future__ import annotations

from kvtwin.experiments.options.results import NoOptions

OPTIONS = NoOptions

EPILOGUE = """\
example:
  kvtwin models
  kvtwin size --model Qwen3-8B --gpu l40s
"""


def run(options: NoOptions) -> int:
    """Print the catalogue's models with their sizes."""
    from kvtwin.experiments.catalogue.models import load_model, model_names

    print(f"{'model':<46} {'parameters':>16} {'active':>16} {'layers':>6} {'KV bytes/token':>14}")
    for name in model_names():
        shape = load_model(name)
        print(
            f"{name:<46} {shape.total_params:>16,} {shape.active_params:>16,} {shape.num_layers:>6} "
            f"{shape.token_bytes():>14,}"
        )
    return 0
