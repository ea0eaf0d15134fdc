"""Configuration files with a mistake: each gives one clear line and exit code 2, whatever the mistake is."""

import json
import random
from pathlib import Path

import pytest

from kvtwin.experiments.catalogue.models import load_model_config

WRONG = (None, 0, -1, 1.5, "many", [], {}, [None], {"a": 1}, True, 10**12, "", ["x"] * 3)
NOT_READ = {"_name", "_aliases", "_source", "_checked_against", "_unconfirmed"}
NUM_FILES = 60
TABLE = json.loads((Path(__file__).parents[1] / "parity" / "model_table.json").read_text("utf-8"))
CONFIGS = [case["config"] if "config" in case else load_model_config(case["model"])[0] for case in TABLE]


def mutated(seed):
    """A model's config.json with one field missing, of another type, not positive, or of an unknown kind."""
    rng = random.Random(seed)
    config = json.loads(json.dumps(rng.choice(CONFIGS)))
    part = config["text_config"] if "text_config" in config and rng.random() < 0.8 else config
    key = rng.choice(sorted(set(part) - NOT_READ))
    if rng.random() < 0.3:
        del part[key]
    elif key in ("layer_types", "hybrid_override_pattern") and rng.random() < 0.5:
        part[key] = [*part[key][:-1], "nobody_knows"]
    else:
        part[key] = rng.choice(WRONG)
    return config, key


@pytest.mark.parametrize("seed", range(NUM_FILES))
def test_a_mistake_is_one_line_or_makes_no_difference(kvtwin, write, seed):
    config, key = mutated(seed)
    path = write(config, name="config.json")
    outcome = kvtwin("size", "--model", path, "--kv-cache-memory-bytes", "200GiB", "--max-model-len", "1024")
    assert outcome.code in (0, 2), (key, outcome)
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        assert outcome.err.count("\n") == 1
        assert outcome.err.startswith("kvtwin: error: ")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "8", [8], True])
def test_sizes_that_cannot_be_are_named(kvtwin, write, key, value):
    config = {**load_model_config("Qwen3-8B")[0], key: value}
    path = write(config, name="config.json")
    kvtwin("size", "--model", path, "--gpu", "h200").complains(str(path), key)
