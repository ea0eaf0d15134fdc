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
    from kvtwin.experiments.catalogue.models import load_model, model_names, unconfirmed
    from kvtwin.experiments.display.tables import show, table

    headings = ("model", "parameters", "active", "layers", "KV bytes/token")
    shapes = ((name, load_model(name)) for name in model_names())
    rows = [
        (name, f"{of.total_params:,}", f"{of.active_params:,}", f"{of.num_layers}", f"{of.token_bytes():,}")
        for name, of in shapes
    ]
    show(table(headings, rows))
    for name, what in unconfirmed().items():
        print(f"unconfirmed of {name}: {what}")
    return 0
