"""What is published: a wheel with all that the program reads, versions that agree, and an
installation that works by itself.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import taciturn

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules of the standard library that 3.12 and 3.13 have no more (PEP 594, PEP 632).
GONE = {
    "aifc",
    "asynchat",
    "asyncore",
    "audioop",
    "cgi",
    "cgitb",
    "chunk",
    "crypt",
    "distutils",
    "imghdr",
    "imp",
    "lib2to3",
    "mailcap",
    "msilib",
    "nis",
    "nntplib",
    "ossaudiodev",
    "pipes",
    "smtpd",
    "sndhdr",
    "spwd",
    "sunau",
    "telnetlib",
    "uu",
    "xdrlib",
}


def built(folder, *kinds):
    """By the build backend itself, so that nothing is fetched."""
    program = (
        f"from hatchling import build; [getattr(build, 'build_' + kind)({str(folder)!r}) for kind"
        f" in {kinds!r}]"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    (made,) = built(tmp_path_factory.mktemp("wheel"), "wheel")
    return made


def test_the_wheel_has_all_that_the_program_reads(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("taciturn/")}
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} == inside
    assert {
        "taciturn/py.typed",
        "taciturn/starts/english.safetensors",
        "taciturn/fleets/wire/live.html",
    } <= inside
    assert {
        f"taciturn/keyboard/page/{name}"
        for name in ("index.html", "keys.js", "page.js", "style.css")
    } <= inside


def test_nothing_but_the_package_is_in_the_wheel(wheel):
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert top == {"taciturn", f"taciturn-{PROJECT['version']}.dist-info"}


def test_versions_agree():
    newest = re.findall(
        r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[0]
    assert newest[0] == PROJECT["version"] == taciturn.__version__
    assert f"version: {newest[0]}" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_keeps_its_form():
    headings = set(re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert headings


def test_supported_versions_of_python_are_named_once_and_tried():
    listed = [
        line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)
    ]
    assert listed == ["3.11", "3.12", "3.13"]
    assert json.dumps(listed) in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_nothing_is_used_that_later_pythons_have_no_more():
    files = [
        path
        for folder in ("src", "experiments", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 150
    imports = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
    assert [
        (str(path), name)
        for path in files
        for name in imports.findall(path.read_text())
        if name in GONE
    ] == []


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demonstration(wheel, tmp_path):
    """In an environment of its own, with what pip finds as it is set up here."""
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [
        str(tmp_path / "venv" / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    subprocess.run([*pip, str(wheel)], check=True)
    alone = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR")
    }
    run = [str(tmp_path / "venv" / "bin" / "taciturn"), "demo", "--out", "demo"]
    said = subprocess.run(
        run, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    ).stdout
    assert "points of AccuracyTop1 over the warm start" in " ".join(said.split())
    assert list(tmp_path.glob("demo/*/private/guarantee.json"))


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(wheel, tmp_path):
    (archive,) = built(tmp_path, "sdist")
    subprocess.run(["tar", "xzf", archive.name], cwd=tmp_path, check=True)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    (tmp_path / "again").mkdir()
    program = f"from hatchling import build; build.build_wheel({str(tmp_path / 'again')!r})"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
    (again,) = (tmp_path / "again").iterdir()
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())
