"""``kvtwin report``: pages as a browser shows them, what stands on them, and which folders are refused."""

import io
import itertools
import json
import re
import shlex
import shutil
import time
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from matplotlib.image import imread

from kvtwin.experiments.command_line import main
from kvtwin.experiments.command_line.application import read_words
from kvtwin.experiments.commands.demo import DEMO_OPTIONS
from kvtwin.experiments.options.reading import command_line, command_words
from kvtwin.experiments.records.options import options_of_run
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.report_page import block_map as block_maps
from kvtwin.experiments.report_page.block_holders import block_holders
from kvtwin.experiments.report_page.block_map import CACHED, FREE, PRIVATE, SHARED, pool_states
from tests.experiments.conftest import SMALL_SERVER

DEMO_WORDS = list(command_words(DEMO_OPTIONS))


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "run"
    assert main(["replay", *DEMO_WORDS, "--events", "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    spec = {
        "description": "Blocks of <b>two sizes</b>",
        "trace": "demo",
        "options": {"max-model-len": 8192, "num-prompts": 40},
        "axes": {"block-size": [16, 32], "num-gpu-blocks-override": [10, 600, 1200]},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert main(["sweep", str(folder / "spec.yaml"), "--out", str(folder / "sweep")]) == 1  # ten blocks are too few
    return folder / "sweep"


@pytest.fixture
def page(kvtwin, tmp_path):
    def text(folder):
        (tmp_path / "page.html").unlink(missing_ok=True)
        outcome = kvtwin("report", folder, "--out", tmp_path / "page.html")
        assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'page.html'}\n"), outcome
        return (tmp_path / "page.html").read_text()

    return text


class Reader(HTMLParser):
    """What a page loads from elsewhere, and the data in it."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.scripts = [], []
        self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._inside = tag
        self.loads += [v for k, v in attributes if k in ("src", "href") and v != "data:,"]

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)


def shown(element):
    """Pixels of an element, as they are on the screen."""
    return imread(io.BytesIO(element.screenshot_as_png))[..., :3]


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def demo_page(demo_run):
    assert main(["report", str(demo_run)]) == 0
    return demo_run / "report.html"


@pytest.fixture
def opened(browser, demo_page):
    """The page of the demo in a browser: 1200 pixels wide, in the light theme."""
    show_as(browser, "light", 1200)
    browser.get(demo_page.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def show_as(browser, theme, width):
    """Choose a theme and a width, as a reader's device does."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def told(browser, script):
    """What an expression of the page's script says."""
    return browser.execute_script(f"return {script}")


def text_of(browser, name):
    return browser.find_element("id", name).text


def wait_for(condition):
    """Until something holds that the page does a little later."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_in_a_browser(opened):
    browser = opened
    assert browser.find_elements("css selector", "#token-sources .bars path")
    for name in ("timeline", "hit-rate", "ttft", "tpot", "e2el"):
        figure = browser.find_element("id", name)
        assert figure.find_elements("css selector", "svg.main-svg .scatterlayer path.js-line"), name
        assert len(np.unique(shown(figure).reshape(-1, 3), axis=0)) > 20
    marks = [mark.text for mark in browser.find_elements("css selector", "#ttft .textpoint text")]
    assert [mark.split()[0] for mark in marks] == ["p50", "p90", "p99"]
    buttons = [button.get_attribute("data-title") for button in browser.find_elements("class name", "modebar-btn")]
    assert "Reset axes" in buttons
    assert not [title for title in buttons if "Share" in title or "loud" in title]  # would upload the figure
    canvas, slider = browser.find_element("id", "pool"), browser.find_element("id", "slider")
    choices = browser.find_elements("css selector", "#films input")
    assert len(choices) == 2
    for choice in choices:
        choice.click()
        captions, pictures = [], []
        for key in ("\ue011", "\ue014", "\ue010"):  # home, right, end
            canvas.send_keys(key)
            captions.append(text_of(browser, "caption"))
            pictures.append(shown(canvas))
        assert len(set(captions)) == 3
        assert (pictures[0] != pictures[2]).any()
        assert slider.get_property("value") == slider.get_attribute("max")
    canvas.send_keys("\ue00e")  # page up
    assert int(slider.get_property("value")) == int(slider.get_attribute("max")) - 10
    last = pictures[2]
    assert {tuple(round(float(c) * 255) for c in colour) for colour in np.unique(last.reshape(-1, 3), axis=0)} >= {
        (0x00, 0x72, 0xB2),  # private
        (0xE6, 0x9F, 0x00),  # shared
    }
    canvas.send_keys(" ")
    assert "pause" in text_of(browser, "play")
    browser.find_element("id", "play").click()
    assert "play" in text_of(browser, "play")
    kinds = [span.text for span in browser.find_elements("css selector", "#legend span")]
    starts = ("free: ", "cached", "held by one", "shared", "pinned", "the null block", "evicted", "released")
    assert [text.startswith(start) for text, start in zip(kinds, starts, strict=True)] == [True] * 8
    assert sum(int(text.rpartition(": ")[2]) for text in kinds[:6]) == 1800
    assert "One cell = 1 block." in text_of(browser, "block-map")


@pytest.mark.slow
def test_one_zoom_for_all_times_and_a_film_that_follows(opened):
    browser = opened
    webdriver = pytest.importorskip("selenium.webdriver")
    plot = browser.find_element("css selector", "#timeline .nsewdrag")
    webdriver.ActionChains(browser).move_to_element(plot).click_and_hold().move_by_offset(200, 0).release().perform()
    ranges = "['timeline', 'hit-rate'].map((name) => document.getElementById(name).layout.xaxis.range)"
    wait_for(lambda: told(browser, ranges)[0] == told(browser, ranges)[1])
    start, end = told(browser, ranges)[1]
    assert 0 < end - start < 40
    webdriver.ActionChains(browser).double_click(browser.find_element("css selector", "#hit-rate .nsewdrag")).perform()
    wait_for(lambda: told(browser, ranges)[0][1] > 70)
    cursors = "['timeline', 'hit-rate'].map((name) => document.getElementById(name).layout.shapes[0].x0)"
    before = text_of(browser, "caption")
    webdriver.ActionChains(browser).move_to_element(plot).pause(0.3).click().perform()
    wait_for(lambda: text_of(browser, "caption") != before)
    seconds = float(text_of(browser, "caption").partition(" s,")[0])
    wait_for(lambda: told(browser, cursors) == [pytest.approx(seconds, abs=0.001)] * 2)
    assert 30 < seconds < 46  # the middle


@pytest.mark.slow
def test_requests_are_sorted_and_filtered_and_show_their_life_and_blocks(opened, demo_run):
    browser = opened
    heads = browser.find_elements("css selector", "#requests th button")
    assert len(heads) == 11
    rows = lambda: browser.find_elements("css selector", "#requests tbody tr")  # noqa: E731
    assert len(rows()) == 100
    heads[9].click()
    heads[9].click()  # most preemptions first
    most = int(Run(demo_run).requests["preemptions"].max())
    assert rows()[0].find_elements("tag name", "td")[9].text == str(most) != "0"
    name = rows()[0].find_element("tag name", "td").text
    box = browser.find_element("id", "filter")
    box.send_keys("preemptions>0, length")
    preempted = int((Run(demo_run).requests["preemptions"] > 0).sum())
    assert text_of(browser, "shown") == f"{preempted} shown, {preempted} of 300 match"
    rows()[0].click()
    assert text_of(browser, "life-of") == f"The life of {name}"
    phases = "document.getElementById('waterfall').data.map((kind) => kind.x.length)"
    queued, prefills, decodes, preemptions = told(browser, phases)
    assert (queued, preemptions) == (1, most)
    assert prefills > most
    assert decodes >= 1
    assert re.search(rf"{name} holds [1-9]\d* blocks\.", text_of(browser, "caption"))
    canvas = browser.find_element("id", "pool")
    lit = shown(canvas)
    rows()[0].send_keys("\ue007")  # enter: let go
    assert not browser.find_element("id", "life").is_displayed()
    assert "holds" not in text_of(browser, "caption")
    assert (shown(canvas) != lit).mean() > 0.1
    box.clear()
    box.send_keys("no such request")
    assert text_of(browser, "shown") == "0 shown, 0 of 300 match"


@pytest.mark.slow
def test_pointing_at_a_block_names_references_requests_and_prefix(opened, demo_run):
    browser = opened
    webdriver = pytest.importorskip("selenium.webdriver")
    step = 400
    frames = told(browser, "data.block_map.films[0].frames.map((frame) => frame.time_s)")
    run = Run(demo_run)
    frame = max(index for index, seconds in enumerate(frames) if seconds <= run.steps["scheduled_ns"][step] / 1e9)
    step = int(np.searchsorted(run.steps["scheduled_ns"], round(frames[frame] * 1e9) - 1000))
    state = next(state for at, state in block_holders(run) if at == step)
    block = next(block for block, holders in state.holders.items() if len(holders) > 1)
    told(browser, f"map.seek({frame})")
    size, columns = told(browser, "map.size"), told(browser, "map.columns")
    canvas = browser.find_element("id", "pool")
    told(browser, "document.getElementById('pool').scrollIntoView({block: 'center'})")
    x, y = (block % columns + 0.5) * size, (block // columns + 0.5) * size
    box = canvas.size
    at = webdriver.ActionChains(browser)
    at.move_to_element_with_offset(canvas, round(x - box["width"] / 2), round(y - box["height"] / 2)).perform()
    pointed = text_of(browser, "pointed")
    request, position = state.content[block]
    assert pointed == (
        f"block {block}: shared by requests; {state.references[block]} references; held by "
        f"{', '.join(state.holders[block])}; prefix: tokens {16 * position + 1} to {16 * position + 16} of {request}"
    )


@pytest.mark.slow
def test_the_page_in_both_themes_and_three_widths(opened):
    browser = opened
    for theme, width in itertools.product(("light", "dark"), (400, 800, 1200)):
        show_as(browser, theme, width)
        wait_for(lambda: told(browser, "window.innerWidth") == width)  # noqa: B023
        wait_for(lambda: told(browser, "document.documentElement.scrollWidth") <= width)  # noqa: B023
        for name in ("timeline", "ttft", "pool", "slider"):
            box = browser.find_element("id", name).rect
            assert box["x"] >= 0, (name, width)
            assert box["x"] + box["width"] <= width, (name, width)
        corner = shown(browser.find_element("tag name", "h1"))[0, -1]
        assert (corner.mean() < 0.2) == (theme == "dark")
        text = told(browser, "document.querySelector('#timeline .xtitle').style.fill")
        assert (int(re.findall(r"\d+", text)[0]) > 200) == (theme == "dark")


@pytest.mark.slow
def test_a_cell_of_several_blocks_says_so(browser, kvtwin, page, mooncake, tmp_path):
    server = ("--num-gpu-blocks-override", "20000", "--max-model-len", "2048")
    kvtwin("replay", mooncake(3), *server, "--events", "--out", tmp_path / "run")
    page(tmp_path / "run")
    browser.get((tmp_path / "page.html").as_uri())
    assert "One cell = 3 blocks." in text_of(browser, "block-map")
    webdriver = pytest.importorskip("selenium.webdriver")
    webdriver.ActionChains(browser).move_to_element(browser.find_element("id", "pool")).perform()
    assert re.fullmatch(r"blocks \d+ to \d+, most of them: free; held by nobody", text_of(browser, "pointed"))


@pytest.mark.slow
def test_a_sweep_in_a_browser(browser, page, sweep_folder, tmp_path):
    page(sweep_folder)
    browser.get((tmp_path / "page.html").as_uri())
    figures = [figure.get_attribute("id") for figure in browser.find_elements("class name", "figure")]
    assert figures == [
        "over-block-size",
        "over-num-gpu-blocks-override",
        "block-size-by-num-gpu-blocks-override",
        "token-sources",
    ]
    assert browser.find_elements("css selector", "#over-block-size .points path.point")
    assert browser.find_elements("css selector", ".heatmaplayer image")
    assert "<b>two sizes</b>" in browser.find_element("tag name", "body").text
    column = "tbody td:nth-child(3)"
    head = browser.find_elements("css selector", "th button")[2]
    for downwards in (False, True):
        head.click()
        rates = [cell.text for cell in browser.find_elements("css selector", column) if cell.text != "-"]
        assert rates == sorted(rates, reverse=downwards)
        assert len(set(rates)) > 1
    assert browser.get_log("browser") == []


# ---------------------------------------------------------------- what stands there


@pytest.mark.slow
def test_a_page_loads_nothing_and_comes_out_the_same(page, demo_run):
    text = page(demo_run)
    assert text == page(demo_run)
    read = Reader(text)
    assert read.loads == []
    data = json.loads(read.scripts[0], parse_constant=pytest.fail)
    assert set(data["figures"]) == {"timeline", "hit-rate", "token-sources", "ttft", "tpot", "e2el"}
    assert len(text.encode()) < 8_000_000
    summary = json.loads((demo_run / "summary.json").read_text())
    assert re.search(rf"{summary['num_preemptions']} preemptions of \d+ requests, first after ", text)
    assert re.search(rf"Recomputed tokens: +{summary['recomputed_tokens']} \(", text)


def test_verdicts_stand_on_the_page(page, kvtwin, native, tmp_path):
    kvtwin("replay", native({}, {}), *SMALL_SERVER, "--out", tmp_path / "run")
    (verdict,) = json.loads((tmp_path / "run" / "summary.json").read_text())["verdicts"]
    text = page(tmp_path / "run")
    assert verdict in text
    assert "replay with --events" in text
    assert "hit-rate" not in json.loads(Reader(text).scripts[0])["figures"]


def test_what_the_user_wrote_is_text(page, kvtwin, mooncake, tmp_path):
    trace = mooncake(3, name="a</script><script>alert(1)</script>.jsonl".replace("/", "\u2215"))
    kvtwin("replay", trace, *SMALL_SERVER, "--out", tmp_path / "run")
    assert "<script>alert" not in page(tmp_path / "run")


def test_the_command_leads_to_the_same_options(demo_run):
    speculation = '{"method": "ngram", "num_speculative_tokens": 2}'
    for words in (
        [*DEMO_WORDS, "--events"],
        ["a file.jsonl", "--no-enable-prefix-caching", "--goodput", "ttft:500", "tpot:50", "--request-rate=inf"],
        ["t", "--speculative-config", speculation, "--kv-cache-memory-bytes=1GiB"],
        ["t", "--prefix-cache-retention-interval", "None", "--async-scheduling", "--seed", "3"],
    ):
        options = read_words("replay", words)
        command = shlex.split(command_line("replay", options))
        assert command[:2] == ["kvtwin", "replay"]
        assert read_words("replay", command[2:]) == options
    options = options_of_run(Run(demo_run).configuration)
    assert command_line("replay", options).startswith("kvtwin replay demo --gpu=rtx-4090")


# ---------------------------------------------------------------- the block map


def test_the_pool_of_every_step_has_as_many_free_blocks_as_the_run_says(demo_run):
    run = Run(demo_run)
    wanted = list(range(len(run.steps["end_ns"])))
    states = list(pool_states(run, wanted))
    assert [state.step for state in states] == wanted
    free = [int(np.isin(state.states, (FREE, CACHED)).sum()) for state in states]
    assert free == run.steps["free_blocks"].tolist()
    evictions = [row["evictions"] for row in pyarrow.parquet.read_table(demo_run / "events.parquet").to_pylist()]
    evicted = [int(state.evicted.sum()) for state in states]
    assert all(seen <= all_of_them for seen, all_of_them in zip(evicted, evictions, strict=True))
    assert sum(evicted) > 0.99 * sum(evictions)  # the others became hit-able and were evicted between two states
    seen = set(np.concatenate([np.unique(state.states) for state in states]).tolist())
    assert seen == {FREE, CACHED, PRIVATE, SHARED}
    some = [3, 1500, 1501, 2885]
    for state in pool_states(run, some):  # whatever else is looked at
        assert (state.states == states[state.step].states).all()


def test_a_warm_up_is_not_shown_and_what_it_left_is(kvtwin, page, export, demo_run, tmp_path):
    """A run whose tables begin with step 500: events before it tell what the pool holds then."""
    whole, copy = Run(demo_run), tmp_path / "copy"
    shutil.copytree(demo_run, copy)
    steps = pyarrow.parquet.read_table(copy / "steps.parquet")
    pyarrow.parquet.write_table(steps.slice(500), copy / "steps.parquet")
    kvtwin("report", copy).complains("events.parquet: not the events of this run's steps")
    (copy / "summary.json").write_text(json.dumps(whole.summary | {"num_warmup_requests": 40}))
    run = Run(copy)
    for state, counted in zip(pool_states(whole, [500, 700]), pool_states(run, [0, 200]), strict=True):
        assert (state.states == counted.states).all()
        assert (counted.states == PRIVATE).any()
    trace = json.loads(export(copy, "perfetto"))["traceEvents"]
    admitted = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert 0 < len(admitted) < 300
    assert min(event["ts"] for event in trace if event["name"] == "prefill") * 1000 >= run.steps["start_ns"][0]
    assert "step 0: 30 of" not in page(copy)


def test_cells_of_several_blocks_show_what_most_of_them_are(monkeypatch, demo_run):
    fine = block_maps.block_map(Run(demo_run), {})
    assert (fine["num_cells"], fine["blocks_per_cell"]) == (1800, 1)
    monkeypatch.setattr(block_maps, "MOST_CELLS", 600)
    coarse = block_maps.block_map(Run(demo_run), {})
    assert (coarse["num_cells"], coarse["blocks_per_cell"]) == (600, 3)
    for film, coarse_film in zip(fine["films"], coarse["films"], strict=True):
        for frame, coarse_frame in zip(film["frames"], coarse_film["frames"], strict=True):
            for cell in range(0, 600, 37):
                states = [int(digit, 36) % 8 for digit in frame["cells"][3 * cell : 3 * cell + 3]]
                shown_state = int(coarse_frame["cells"][cell], 36) % 8
                assert states.count(shown_state) == max(map(states.count, states))


def test_the_close_film_shows_the_first_preemption(demo_run):
    overview, close = block_maps.block_map(Run(demo_run), {})["films"]
    assert 100 < len(overview["frames"]) <= block_maps.NUM_FRAMES
    assert len(close["frames"]) == block_maps.STEPS_BEFORE + 1 + block_maps.STEPS_AFTER
    frame = close["frames"][close["start"]]
    assert re.fullmatch(r"\d+ preempted: c.*", frame["preempted"])
    assert all("preempted" not in before for before in close["frames"][: close["start"]])
    assert not any(set(each["cells"]) - set("01235") for each in overview["frames"])
    evicted = [sum(int(digit, 36) // 8 % 2 for digit in each["cells"]) for each in close["frames"]]
    told = [int(re.search(r"([\d,]+) blocks? evicted\.", each["text"])[1].replace(",", "")) for each in close["frames"]]
    assert sum(told) > 20
    assert all(seen <= all_of_them for seen, all_of_them in zip(evicted, told, strict=True))
    assert sum(evicted) > 0.9 * sum(told)


@pytest.mark.parametrize(("blocks", "name"), [("2000", None), ("130", "eviction")])
def test_films_of_runs_without_preemptions(kvtwin, mooncake, page, tmp_path, blocks, name):
    server = ("--num-gpu-blocks-override", blocks, "--max-model-len", "2048", "--max-num-seqs", "1")
    kvtwin("replay", mooncake(10), *server, "--events", "--out", tmp_path / "run")
    films = json.loads(Reader(page(tmp_path / "run")).scripts[0])["block_map"]["films"]
    assert [film["name"] for film in films[1:]] == ([f"step by step around the first {name}"] if name else [])


# ---------------------------------------------------------------- what is refused


def test_bad_input(kvtwin, demo_run, sweep_folder, tmp_path):
    kvtwin("report", tmp_path).complains("not the folder of a run")
    kvtwin("report", tmp_path / "absent").complains("absent")
    kvtwin("report", demo_run, "--out", tmp_path / "a" / "b").complains("--out", "a/b")
    copy = tmp_path / "copy"
    shutil.copytree(demo_run, copy)
    summary = json.loads((copy / "summary.json").read_text())
    del summary["num_evictions"]
    (copy / "summary.json").write_text(json.dumps(summary))
    kvtwin("report", copy).complains("copy", "num_evictions", "another version")
    outcome = kvtwin("export", copy, "--to", "prometheus", "--out", tmp_path / "x")
    assert outcome.code == 0, "num_evictions is not exported"
    (tmp_path / "x").unlink()
    del summary["num_preemptions"]
    (copy / "summary.json").write_text(json.dumps(summary))
    outcome = kvtwin("export", copy, "--to", "prometheus", "--out", tmp_path / "x")
    outcome.complains("copy", "num_preemptions", "another version")
    (copy / "summary.json").write_text("[1")
    kvtwin("report", copy).complains("summary.json: not JSON")
    shutil.copytree(sweep_folder, tmp_path / "sweep")
    (tmp_path / "sweep" / "sweep.yaml").write_text("points: 3")
    kvtwin("report", tmp_path / "sweep").complains("sweep.yaml: not the plan of a sweep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "sweep"]
