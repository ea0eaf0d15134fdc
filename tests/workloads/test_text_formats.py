"""Readers of texts: which tokens, which prompts, which outputs."""

import json

import pytest

from kvtwin.experiments.traces.facts import inspect_workload
from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.text_tokens import ChatTokens, Message, approximate_tokens
from tests.workloads.test_format_table import DATA, DOCUMENT


def records(path, **options):
    return {record.request_id: record for record in open_workload(path, **options)}


def test_equal_texts_have_equal_tokens_and_prefixes_stay_prefixes():
    one, other = approximate_tokens("hello there, you"), approximate_tokens("hello there, me")
    assert one[:3] == other[:3]
    assert one[3] != other[3]
    assert len(approximate_tokens("ä" * 8)) == 4
    assert approximate_tokens("") == []
    tokens = ChatTokens(None)
    question, answer = Message("user", "what?"), Message("assistant", "this")
    first = tokens.prompt([question])
    later = tokens.prompt([question, answer, Message("user", "why?")])
    assert later[: len(first)] == first
    said = tokens.answer("this")
    assert later[len(first) : len(first) + len(said)] == said


def test_a_turn_repeats_what_was_said(write):
    path = DATA / "lmsys.handwritten.jsonl"
    found = records(path)
    first, second = found["c0/0"], found["c0/1"]
    whole = [*first.token_ids, *first.output_token_ids]
    assert second.token_ids[: len(whole)] == whole
    assert (first.think_time_ns, second.think_time_ns) == (None, 0)
    assert first.session == second.session == "c0"
    row = json.loads(path.read_text().splitlines()[0])
    again = records(write(*[json.dumps(row)] * 2))
    assert {record.session for record in again.values()} == {"c0", "c0#1"}


def test_conversations_without_a_question_and_an_answer(write):
    rows = [
        {"id": "a", "conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "who?"}]},
        {"id": "b", "conversations": []},
        {"id": "c", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
    ]
    workload = open_workload(write(json.dumps(rows)))
    assert [record.request_id for record in workload] == ["c/0"]
    assert workload.warnings[0] == "left out 2 rows: no question with an answer"
    assert "one per 4 bytes" in workload.warnings[1]


def test_openai_outputs(write):
    ask = [{"role": "user", "content": "hello"}]
    answer = {"role": "assistant", "content": "four letters"}
    rows = [
        {"messages": ask, "usage": {"prompt_tokens": 9, "completion_tokens": 3}, "max_tokens": 50},
        {"messages": [*ask, answer]},
        {"messages": ask, "max_tokens": 50},
        {"custom_id": "x", "body": {"messages": ask, "max_completion_tokens": 7, "n": 3}},
        {"messages": ask, "response": {"body": {"usage": {"completion_tokens": 11}}}},
    ]
    found = list(open_workload(write(*map(json.dumps, rows))))
    assert [record.output_tokens for record in found] == [3, 4, 50, 7, 11]
    assert [record.output_token_ids is not None for record in found] == [False, True, False, False, False]
    assert [record.n for record in found] == [1, 1, 1, 3, 1]
    assert found[3].request_id == "x"
    assert len({tuple(record.token_ids) for record in found}) == 1
    path = write(json.dumps({"messages": ask}))
    with pytest.raises(
        WorkloadError, match=r":1: max_tokens: nothing tells how long the output is.*--custom-output-len"
    ):
        open_workload(path)
    assert [record.output_tokens for record in open_workload(path, output_tokens=20)] == [20]


def test_what_is_no_text_is_refused(write):
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    path = write(json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 5}))
    with pytest.raises(WorkloadError, match="expected text only, got 'image_url'"):
        open_workload(path)


def test_lengths_that_the_service_counted_otherwise_are_told(write):
    row = {"messages": [{"role": "user", "content": "hello"}], "usage": {"prompt_tokens": 900, "completion_tokens": 3}}
    assert (
        "prompts have 10 tokens here, 900 as the service counted them" in open_workload(write(json.dumps(row))).warnings
    )


def test_aiperf_turns_repeat_answers_that_nobody_knows():
    found = records(DATA / "aiperf-turns.handwritten.jsonl")
    first, second, other = found["s0/0"], found["s0/1"], found["s1/0"]
    whole = [*first.token_ids, *first.output_token_ids]
    assert list(second.token_ids[: len(whole)]) == whole
    assert (second.think_time_ns, first.arrival_ns, other.arrival_ns) == (1_500_000_000, 100_000_000, 200_000_000)
    assert first.token_ids == other.token_ids
    assert set(first.output_token_ids).isdisjoint(other.output_token_ids)


def test_a_tokenizer_of_the_user(tmp_path, write):
    """Trained here: the numbers of tokens are its own, and the hit rate changes little without it: by 0.022."""
    tokenizers = pytest.importorskip("tokenizers", reason="extra text")
    text = DOCUMENT.read_text()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    paragraphs = [part for part in text.split("\n") if len(part) > 60]
    turns = [{"from": "gpt" if index % 2 else "human", "value": part} for index, part in enumerate(paragraphs[:12])]
    path = write(json.dumps([{"id": str(n), "conversations": turns[: 4 + 2 * n]} for n in range(5)]))
    found = {}
    for name in (None, str(tmp_path), str(tmp_path / "tokenizer.json")):
        workload = open_workload(path, **({"tokenizer": name} if name else {}))
        found[name] = inspect_workload(workload, 16)["sharing"]["hit_token_share"]
        if name:
            (last,) = [record for record in workload if record.request_id == "4/5"]
            said = sum(len(tokenizer.encode(turn["value"]).ids) for turn in turns[:11])
            assert last.prompt_tokens == said + 11 * 5 + 3
            assert not workload.warnings
    assert found[str(tmp_path)] == found[str(tmp_path / "tokenizer.json")]
    assert found[None] == pytest.approx(found[str(tmp_path)], abs=0.03)


def test_a_tokenizer_that_is_none(write, tmp_path):
    pytest.importorskip("tokenizers", reason="extra text")
    path = write('{"prompt": "hello", "output_tokens": 3}')
    with pytest.raises(WorkloadError, match="not a tokenizer"):
        open_workload(path, tokenizer=str(tmp_path))
    with pytest.raises(WorkloadError, match="format mooncake has no setting 'tokenizer'"):
        open_workload(write('{"timestamp": 0, "input_length": 5, "output_length": 4}'), tokenizer=str(tmp_path))
