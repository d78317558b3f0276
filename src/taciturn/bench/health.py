"""Check whether this machine can train, and what is missing for which command: for `taciturn
doctor`.
"""

import os
import platform
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from taciturn.errors import TaciturnError
from taciturn.progress import Progress, ignore_progress

# GiB of memory and of disk: a run of the usual size takes about as much
LEAST = 2.0
# what an extra of the package is for
FOR = {
    "onnx": "taciturn export --to onnx",
    "fleet": "taciturn fleet, over a network",
    "fleet-redis": "taciturn fleet serve --store",
    "ray": "taciturn train --engine ray",
}


class Finding(NamedTuple):
    """One thing that was examined. What is broken prevents training; what is missing, some other
    command.
    """

    name: str
    state: Literal["ok", "missing", "broken"]
    said: str
    to_do: str = ""


def examine(progress: Progress = ignore_progress) -> list[Finding]:
    """Examine everything, one part after another: the last of them takes seconds."""
    found, parts = (
        [],
        {
            "packages": _packages,
            "room": _room,
            "programs": _programs,
            "devices": _devices,
            "additivity": _additivity,
        },
    )
    for number, (name, part) in enumerate(parts.items()):
        progress(number, len(parts))
        try:
            found += part()
        except (TaciturnError, ImportError, RuntimeError, OSError) as error:
            found.append(
                Finding(
                    name,
                    "broken",
                    str(error),
                    "see docs/scale.md; JAX_PLATFORMS=cpu trains on CPUs",
                )
            )
    return found


def _finding(
    name: str, good: bool, said: str, to_do: str, worst: Literal["missing", "broken"] = "missing"
) -> Finding:
    return Finding(name, "ok" if good else worst, said, "" if good else to_do)


def _packages() -> Iterator[Finding]:
    """Check what must be there, with the versions that pyproject.toml asks for; then every extra as
    a whole.
    """
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield _finding(
        "Python",
        sys.version_info >= (3, 11),
        python,
        "install Python 3.11 or newer, and taciturn into it",
        "broken",
    )
    yield Finding("taciturn", "ok", metadata.version("taciturn"))
    wanted = [Requirement(line) for line in metadata.requires("taciturn") or ()]
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    lacking = list(filter(None, map(_lacking, needed)))
    yield _finding(
        "packages",
        not lacking,
        "; ".join(lacking) or f"{len(needed)} packages",
        "pip install -e .",
        "broken",
    )
    for extra, use in FOR.items():
        parts = [
            one
            for one in wanted
            if one not in needed and one.marker and one.marker.evaluate({"extra": extra})
        ]
        lacking = [_lacking(one) for one in parts if one.name != "taciturn" and _lacking(one)]
        yield _finding(
            extra,
            not lacking,
            "; ".join([f"for {use}", *lacking]),
            f"pip install 'taciturn[{extra}]'",
        )


def _lacking(wanted: Requirement) -> str:
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is not installed"
    return (
        ""
        if wanted.specifier.contains(found, prereleases=True)
        else f"{wanted.name} is {found}, and {wanted.specifier} is needed"
    )


def _room() -> Iterator[Finding]:
    page, all, free = (
        os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
    )
    said = f"{page * free / 2**30:.1f} of {page * all / 2**30:.1f} GiB free"
    yield _finding(
        "memory", page * all / 2**30 >= LEAST, said, "take a smaller model, or another machine"
    )
    space, writable = shutil.disk_usage(".").free / 2**30, os.access(".", os.W_OK)
    said = f"{space:.1f} GiB free here" + ("" if writable else ", where you may not write")
    yield _finding(
        "disk", space >= LEAST and writable, said, "free some space, or work in another folder"
    )


def _programs() -> Iterator[Finding]:
    yield _finding(
        "Node",
        bool(shutil.which("node")),
        "for taciturn export --to js, which it checks",
        "install Node.js",
    )
    to_do = "open the address that they print in any browser"
    yield _finding("browser", _browser(), "for taciturn report and taciturn keyboard open", to_do)


def _browser() -> bool:
    try:
        return webbrowser.get() is not None
    except webbrowser.Error:
        return False


def _devices() -> Iterator[Finding]:
    import jax

    found = jax.local_devices()
    memory = (found[0].memory_stats() or {}).get("bytes_limit")
    said = (
        f"{len(found)} × {found[0].device_kind}"
        + (f", {memory / 2**30:.0f} GiB each" if memory else "")
        + f"; JAX {jax.__version__}"
    )
    unused = found[0].platform == "cpu" and Path("/dev/nvidia0").exists()
    yield _finding(
        "devices",
        not unused,
        said,
        "there is an NVIDIA GPU that JAX does not use: pip install 'taciturn[gpu]'",
    )


def _additivity() -> Iterator[Finding]:
    """Run a round of a small model, which tests first, as every run does, whether a user's report
    has the same bits beside any others.
    """
    import jax

    from taciturn.bench.round_speed import WORDS, paper_recipe, random_users
    from taciturn.fleets import assemble
    from taciturn.recipe import build
    from taciturn.runs.timing import round_seconds

    with tempfile.TemporaryDirectory() as folder:
        users = random_users(Path(folder) / "users", 2)
        recipe = paper_recipe(users, 2, "cifg", "float32").with_settings("model", width=8, units=12)
        params = build.language_model(recipe.model, WORDS).init(jax.random.key(0))
        round_seconds(recipe, assemble.fleet(recipe, users, users.folder), params, WORDS, 1)
    yield Finding(
        "additivity",
        "ok",
        "a user's report has the same bits whoever is trained beside them, as privacy needs",
    )
