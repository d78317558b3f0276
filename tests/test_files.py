"""Files and folders that are whole or not there, locks, and JSON with infinities."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taciturn import files
from taciturn.errors import TaciturnError
from taciturn.files import (
    FolderExists,
    check_new_folder,
    from_json,
    lock_file,
    new_folder,
    next_folder,
    to_json,
)

HELD = """
import sys
from pathlib import Path
from taciturn.files import lock_file
with lock_file(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_new_folder_is_one_that_is_not_there_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    for name in ("none", "empty"):
        check_new_folder(tmp_path / name, "choose another")
    for name in ("full", "full/thesis.txt", "nowhere"):
        with pytest.raises(FolderExists, match=f"{name} exists already: choose another"):
            check_new_folder(tmp_path / name, "choose another")
    with pytest.raises(FolderExists, match="has no name, which a new folder needs: choose another"):
        check_new_folder(Path(), "choose another")


def half(folder: Path) -> None:
    with new_folder(folder, "choose another") as made:
        (made / "half").write_text("")
        raise KeyError("half done")


@pytest.mark.parametrize("there", [True, False])
def test_a_new_folder_comes_whole_or_not_at_all(tmp_path, there):
    folder = tmp_path / "a" / "b" / "new"
    if there:
        folder.mkdir(parents=True)
    with pytest.raises(KeyError, match="half"):
        half(folder)
    assert [path for path in tmp_path.rglob("*") if path.name not in "abnew"] == []
    with new_folder(folder, "choose another", mode=0o700) as made:
        (made / "file").write_text("whole")
        assert made.parent == folder.parent
        assert not (folder / "file").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["new"]
    assert (folder / "file").read_text() == "whole"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_every_new_name_on_the_way_is_synced_after_the_folder_is_in_place(tmp_path, monkeypatch):
    folder, synced = tmp_path / "a" / "b" / "new", []
    monkeypatch.setattr(files, "sync_folder", lambda one: synced.append((one, folder.exists())))
    with new_folder(folder, ""):
        pass
    assert synced == [(tmp_path / "a" / "b", True), (tmp_path / "a", True), (tmp_path, True)]


def test_of_two_that_begin_at_once_one_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "new"

    def begin(content):
        with new_folder(folder, "choose another") as made:
            (made / "file").write_text(content)
            yield

    first, second = begin("first"), begin("second")
    next(first), next(second)
    next(first, None)
    checks = iter(
        [lambda *where: None, check_new_folder]
    )  # it looks before the first is there, and again when it cannot follow
    monkeypatch.setattr(files, "check_new_folder", lambda *where: next(checks)(*where))
    with pytest.raises(FolderExists, match="exists already: choose another"):
        next(second)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (folder / "file").read_text() == "first"


def test_the_next_folder_is_the_first_that_is_not_there(tmp_path):
    assert next_folder(tmp_path / "runs", "mine-") == tmp_path / "runs" / "mine-1"
    (tmp_path / "1").mkdir()
    (tmp_path / "2").touch()
    assert next_folder(tmp_path) == tmp_path / "3"


def test_a_lock_goes_when_its_process_is_killed_and_not_before(tmp_path):
    path, busy = tmp_path / "lock", TaciturnError("somebody has it")
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TaciturnError, match="somebody has it"), lock_file(path, busy):
            pass
        other.kill()
    with lock_file(path, busy) as file:
        assert not os.get_inheritable(file.fileno())
        with pytest.raises(TaciturnError, match="somebody has it"), lock_file(path, busy):
            pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_json_has_words_for_numbers_that_are_not_finite():
    content = {
        "epsilon": math.inf,
        "rows": [(-math.inf, 1.5)],
        "margin": math.nan,
        "none": None,
        "name": "ε",
    }
    said = to_json(content, ensure_ascii=False)
    assert (
        said
        == '{"epsilon": "infinity", "rows": [["-infinity", 1.5]], "margin": null, "none": null,'
        ' "name": "ε"}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):  # the twin that must fail
        json.dumps(content, allow_nan=False)


@given(st.dictionaries(st.text(), st.lists(st.floats() | st.integers())))
def test_numbers_survive_being_written(content):
    read = from_json(to_json(content))
    assert str(read) == str(content)  # in which NaN is NaN
