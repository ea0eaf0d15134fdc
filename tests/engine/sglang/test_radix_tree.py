"""SGLang's radix tree: what its own class answered to random operations, and the rules one by one."""

import gzip
import json
import os
from array import array

import pytest

from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from kvtwin.engine.sglang.radix_tree import RadixTree, num_equal
from tests.engine.sglang.ask import ask
from tests.engine.sglang.operations import GOLDEN, PAGE_SIZES, our_answers, random_case

RECORDED = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


@pytest.mark.parametrize(("case", "recorded"), RECORDED, ids=[f"{c['policy']}-{c['page_size']}" for c, _ in RECORDED])
def test_equals_what_the_real_class_answered(case, recorded):
    assert our_answers(case) == recorded


def test_every_policy_and_page_size_was_recorded_and_evicts():
    cases = {(case["policy"], case["page_size"]) for case, _ in RECORDED}
    assert cases == {(policy, page_size) for policy in EVICTION_POLICIES for page_size in PAGE_SIZES}
    for _, (rows, tree) in RECORDED:
        assert tree
        assert any(isinstance(answer, list) and answer for answer, _ in rows)


@pytest.mark.slow
def test_equals_the_real_class_on_fresh_operations():
    if not os.environ.get("SGLANG_DIR"):
        pytest.skip("SGLANG_DIR names no unpacked wheel of sglang 0.5.23 (tests/engine/sglang/real_cache.py)")
    cases = [random_case(7, policy, page_size, 100) for policy in EVICTION_POLICIES for page_size in PAGE_SIZES]
    assert [our_answers(case) for case in cases] == ask(cases)


def make_tree(policy="lru"):
    return RadixTree(EVICTION_POLICIES[policy])


def put(tree, names, first_page, **how):
    return tree.insert(array("q", names), array("q", range(first_page, first_page + len(names))), **how)


def test_a_node_is_split_where_a_prompt_leaves_it():
    tree = make_tree()
    put(tree, [1, 2, 3, 4], 10)
    known, leaf = put(tree, [1, 2, 5], 20)
    assert known == 2
    assert leaf.pages.tolist() == [22]
    assert leaf.parent.pages.tolist() == [10, 11]
    assert [node.names.tolist() for node in leaf.parent.children.values()] == [[3, 4], [5]]
    tree.check()


def test_whole_leaves_are_evicted_so_more_may_go_than_was_asked_for():
    tree = make_tree()
    put(tree, [1, 2, 3, 4], 10)
    put(tree, [1, 2, 5], 20)
    assert [node.pages.tolist() for node in tree.evict(2)] == [[12, 13]]
    assert [node.pages.tolist() for node in tree.evict(2)] == [[22], [10, 11]]
    assert tree.evict(1) == []


def test_what_is_locked_stays_with_all_before_it():
    tree = make_tree()
    put(tree, [1, 2, 3, 4], 10)
    tree.lock(tree.match(array("q", [1, 2])))
    assert (tree.num_evictable_pages, tree.num_locked_pages) == (2, 2)
    assert [node.pages.tolist() for node in tree.evict(9)] == [[12, 13]]
    tree.unlock(tree.match(array("q", [1, 2])))
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(tree.match(array("q", [1, 2])))


def test_the_checker_sees_a_page_in_two_nodes():
    tree = make_tree()
    put(tree, [1], 10)
    put(tree, [2], 10)
    with pytest.raises(AssertionError):
        tree.check()


@pytest.mark.parametrize(("left", "right", "start", "equal"), [([1, 2], [1, 2, 3], 0, 2), ([2, 9, 9], [1, 2, 3], 1, 1)])
def test_leading_equal_items(left, right, start, equal):
    assert num_equal(left, right, start) == equal
