"""Nothing that a run publishes tells how long anything took, which depends on what people wrote."""

import itertools
import json
import os
import re
import time

import pytest

from harness import Cut, copied_population, cut_at, quietly, tiny_recipe
from taciturn.errors import TaciturnError
from taciturn.privacy.ledger.account import Account
from taciturn.runs import folder as folder_of_a_run
from taciturn.runs import loop, metrics
from taciturn.runs.loop import resume_run, train_run
from taciturn.runs.metrics import Metrics

HASH_OR_KEY = rb"[0-9a-f]{10,}|([0-9a-f]{4}-){7}[0-9a-f]{4}"


def train_with_pace(population, folder, monkeypatch, seconds):
    """Train as on people with whom every round takes so many seconds."""
    clock = itertools.count(0.0, seconds)
    with monkeypatch.context() as slower:
        slower.setattr(loop.time, "perf_counter", lambda: next(clock))
        people = copied_population(population.folder, folder / "people")
        return train_run(tiny_recipe(people), folder / "run", quietly)


def published(run):
    """Return what a run publishes, by name, without the hashes, the key and the place of its
    ledger, which is another.
    """
    home = str(run.parent).encode()
    files = {path.name: path.read_bytes().replace(home, b"") for path in run.iterdir()}
    return {name: re.sub(HASH_OR_KEY, b"", content) for name, content in files.items()}


@pytest.fixture
def two_paces(population, tmp_path, monkeypatch):
    quick = train_with_pace(population, tmp_path / "quick", monkeypatch, 0.25)
    slow = train_with_pace(population, tmp_path / "slow", monkeypatch, 90.0)
    return quick, slow


def test_a_slow_run_and_a_quick_one_publish_the_same(two_paces):
    quick, slow = two_paces
    files = published(quick.folder)
    assert {"metrics.csv", "metrics.jsonl", "report.html", "guarantee.json"} <= set(files)
    assert files == published(slow.folder)
    # The whole minutes of all rounds, to the person who trained, and to nobody else.
    assert (quick.minutes, slow.minutes) == (0, 9)


def test_the_twin_with_seconds_in_its_metrics_publishes_them(population, tmp_path, monkeypatch):
    add = Metrics.add

    def with_seconds(self, row):
        add(self, row)
        with open(self.folder / "metrics.csv", "a") as file:
            file.write(f"{loop.time.perf_counter()}\n")

    monkeypatch.setattr(Metrics, "add", with_seconds)
    quick = train_with_pace(population, tmp_path / "quick", monkeypatch, 0.25)
    slow = train_with_pace(population, tmp_path / "slow", monkeypatch, 90.0)
    assert published(quick.folder) != published(slow.folder)


def test_all_files_of_a_run_that_ended_have_one_date(two_paces):
    """Else that of the recipe and that of the model tell how long the run took."""
    for finished in two_paces:
        folder = finished.folder
        dates = {os.stat(path).st_mtime for path in (folder, *folder.rglob("*"))}
        (date,) = dates
        assert date % 60 == 0
        assert time.time() - date < 3600


@pytest.mark.parametrize("killed_at", ["page", "closing"])
def test_a_run_that_is_killed_while_it_ends_has_one_date_too(
    population, tmp_path, monkeypatch, killed_at
):
    """Its page takes seconds to write, and nobody has to resume what is finished."""
    with monkeypatch.context() as crash:
        where = {"page": (loop, "_write_page"), "closing": (Account, "close")}
        crash.setattr(*where[killed_at], kill)
        with pytest.raises(KeyboardInterrupt):
            train_run(tiny_recipe(population), tmp_path / "run", quietly)
    assert len(dates_of(tmp_path / "run")) == 1
    with pytest.raises(TaciturnError, match="finished"):
        resume_run(tmp_path / "run", quietly)
    assert len(dates_of(tmp_path / "run")) == 1


def kill(*arguments):
    raise KeyboardInterrupt


def dates_of(folder):
    return {os.lstat(path).st_mtime for path in folder.rglob("*")}


def test_a_date_that_cannot_be_changed_is_no_reason_to_lose_a_finished_run(
    population, tmp_path, monkeypatch, caplog
):
    """The file of another account, say, or a folder of a cluster that keeps no dates."""

    def refuse(path, times, **how):
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(folder_of_a_run.os, "utime", refuse)
    finished = train_run(tiny_recipe(population), tmp_path / "run", quietly)
    assert finished.guarantee.releases
    assert "tell how long the run took" in caplog.text


def test_a_link_in_a_run_that_leads_nowhere_is_dated_like_the_rest(population, tmp_path):
    def link(done, rounds, row):
        place = tmp_path / "run" / "notes"
        if not place.is_symlink():
            place.symlink_to("nowhere")

    train_run(tiny_recipe(population), tmp_path / "run", link)
    assert len(dates_of(tmp_path / "run")) == 1


def test_an_interrupted_run_keeps_its_seconds_where_nobody_reads_them(population, tmp_path):
    recipe = tiny_recipe(population)
    run = tmp_path / "run"
    with pytest.raises(Cut):
        train_run(recipe, run, cut_at(4))
    kept = run / "private" / metrics.SECONDS
    assert kept.stat().st_mode & 0o077 == 0
    assert all("seconds" in json.loads(line) for line in kept.open())
    for path in run.iterdir():
        assert path.is_dir() or b"seconds" not in path.read_bytes()
    resume_run(run, quietly)
    assert not (run / "private").exists()


def test_seconds_of_older_versions_are_read_and_not_written_again(population, tmp_path):
    """They stood in the metrics."""
    recipe = tiny_recipe(population)
    run = tmp_path / "run"
    with pytest.raises(Cut):
        train_run(recipe, run, cut_at(4))
    (run / "private" / metrics.SECONDS).unlink()
    path = run / metrics.FILE_NAME
    rows = [json.loads(line) for line in path.open()]
    path.write_text("".join(json.dumps(row | {"seconds": 600.0}) + "\n" for row in rows))
    finished = resume_run(run, quietly)
    assert finished.minutes >= 10
    assert b"seconds" not in path.read_bytes()
    assert b"seconds" not in (run / "metrics.csv").read_bytes()
    assert all("seconds" not in row for row in metrics.read_rows(run))
