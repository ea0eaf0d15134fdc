"""Places of ids against a dict of all beginnings."""

from random import Random

import pytest

from kvtwin.engine.prefix_tree import PrefixTree


def places(tree, name, ids, id_places):
    """The place of each id."""
    found = []
    for first_id, num_ids, place in tree.stretches(name, ids, id_places):
        assert first_id == len(found)
        assert num_ids > 0
        found += [place + index * id_places for index in range(num_ids)]
    assert len(found) == len(ids)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_equal_beginnings_and_only_they_have_equal_places(seed):
    random = Random(seed)
    tree, place_of, taken = PrefixTree(), {}, set()
    for _ in range(200):
        name, id_places = random.choice([("a", 3), ("b", 1), ("c", 2**32)])
        ids = [random.choice([0, 0, 0, 1, "x", (1, 2)]) for _ in range(random.randrange(12))]
        found = places(tree, name, ids, id_places)
        for count, place in enumerate(found, 1):
            beginning = (name, *ids[:count])
            if beginning not in place_of:
                place_of[beginning] = place
                new = range(place, place + id_places)
                assert all(new[-1] < other or new[0] > other_end for other, other_end in taken)
                taken.add((new[0], new[-1]))
            assert place_of[beginning] == place
        place = tree.take(5)
        taken.add((place, place + 4))
    assert len(set(place_of.values())) == len(place_of)


def test_what_was_new_together_is_one_stretch():
    tree = PrefixTree()
    assert tree.stretches("a", list(range(100)), 16) == [(0, 100, 0)]
    assert tree.stretches("a", [*range(60), -1, *range(50)], 16) == [(0, 60, 0), (60, 51, 1600)]
    assert tree.stretches("a", list(range(70)), 16) == [(0, 70, 0)]
    assert tree.stretches("a", [*range(60), -1, 0], 16) == [(0, 60, 0), (60, 2, 1600)]
    assert tree.stretches("a", [], 16) == []
