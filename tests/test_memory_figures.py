"""What docs/accuracy.md says of start-up logs is so."""

import pytest

from tests.memory_figures import DOCUMENT, compare, median_error, page, read_logs


@pytest.fixture(scope="module")
def compared():
    return [compare(log) for log in read_logs()]


def test_the_aims_are_reached(compared):
    """Of the untouched set they are not: docs/accuracy.md says so."""
    tuned = [each for each in compared if each.log["set"] != "untouched"]
    assert len(tuned) >= 25
    for part in (tuned, [each for each in tuned if each.log["set"] == "fresh"]):
        assert median_error(part) <= 0.02
        assert sum(each.is_inside for each in part) >= 0.9 * len(part)


def test_a_third_of_the_logs_decided_nothing(compared):
    assert 3 * sum(each.log["set"] != "read" for each in compared) >= len(compared)


def test_every_log_can_be_found_again(compared):
    sources = [each.log["source"] for each in compared]
    assert len(set(sources)) == len(sources)
    assert all(len(source) > 20 for source in sources)


def test_the_document_has_these_tables():
    """``python -m tests.memory_figures`` puts them there."""
    assert "\n".join(page()) in DOCUMENT.read_text("utf-8")


@pytest.mark.parametrize(
    "log",
    [log for log in read_logs() if "weights" in log["logged"] and log["set"] != "untouched"],
    ids=lambda log: log["model"],
)
def test_weights_are_what_servers_load(log):
    """Within 3 %, or 0.6 GiB, which gemma-3-4b-it is short of; all others are nearer than 0.4."""
    budget = compare(log).budget
    counted = sum(item.num_bytes for item in budget.items if item.name in ("weights", "vision tower"))
    assert counted / 2**30 == pytest.approx(log["logged"]["weights"], rel=0.03, abs=0.6)
