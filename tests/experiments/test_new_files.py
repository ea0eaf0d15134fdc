"""No command overwrites what a user names; what a command puts into the folder it reads, it makes anew."""

import pytest

from tests.experiments.conftest import SMALL_SERVER

FILES = {
    "export": ("export", "RUN", "--to", "prometheus", "--out", "TAKEN"),
    "report": ("report", "RUN", "--out", "TAKEN"),
    "curve --plot": ("curve", "TRACE", "--plot", "TAKEN.png"),
    "calibrate": ("calibrate", "--out", "TAKEN"),
    "trace generate": ("trace", "generate", "TAKEN"),
    "trace convert": ("trace", "convert", "TRACE", "TAKEN"),
    "trace sample": ("trace", "sample", "TRACE", "--num-sessions", "1", "TAKEN"),
    "trace merge": ("trace", "merge", "TRACE", "TRACE", "--out", "TAKEN"),
}
FOLDERS = {
    "replay": ("replay", "TRACE", "--out", "TAKEN"),
    "sweep": ("sweep", "SPEC", "--out", "TAKEN"),
    "curve": ("curve", "TRACE", "--out", "TAKEN"),
    "limit": ("limit", "TRACE", "--out", "TAKEN"),
    "isolation": ("isolation", "--out", "TAKEN"),
    "validate": ("validate", "TRACE", "--out", "TAKEN"),
}


@pytest.fixture
def run_folder(kvtwin, mooncake, tmp_path):
    assert kvtwin("replay", mooncake(), *SMALL_SERVER, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def words_of(words, tmp_path):
    (tmp_path / "spec.yaml").write_text("trace: demo\naxes: {block-size: [16]}\n")
    places = {"RUN": tmp_path / "run", "TRACE": tmp_path / "trace.jsonl", "SPEC": tmp_path / "spec.yaml"}
    return [str(places.get(word, word.replace("TAKEN", str(tmp_path / "taken")))) for word in words]


@pytest.mark.parametrize("words", FILES.values(), ids=FILES)
def test_a_file_is_not_overwritten(kvtwin, run_folder, tmp_path, words):
    taken = tmp_path / words[-1].lower()
    taken.write_text("before")
    kvtwin(*words_of(words, tmp_path)).complains(f"{taken}: already exists; name a new file")
    assert taken.read_text() == "before"


@pytest.mark.parametrize("words", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_is_not_overwritten(kvtwin, mooncake, tmp_path, words):
    mooncake()
    (tmp_path / "taken").mkdir()
    kvtwin(*words_of(words, tmp_path)).complains(f"--out {tmp_path / 'taken'}: already exists; name a new folder")
    assert not list((tmp_path / "taken").iterdir())


def test_pictures_are_new_files_where_a_folder_is_named(kvtwin, run_folder, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "misses.svg").write_text("before")
    outcome = kvtwin("plot", run_folder, "--out", tmp_path / "pictures")
    outcome.complains("misses.svg: already exists; name a new file")
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["misses.svg"]


@pytest.mark.parametrize(
    ("command", "name"), [("report", "report.html"), pytest.param("plot", "plots/misses.svg", marks=pytest.mark.slow)]
)
def test_what_lies_in_the_folder_of_a_run_is_made_anew(kvtwin, run_folder, command, name):
    (run_folder / name).parent.mkdir(exist_ok=True)
    (run_folder / name).write_text("before")
    assert kvtwin(command, run_folder).code == 0
    assert "</" in (run_folder / name).read_text()
