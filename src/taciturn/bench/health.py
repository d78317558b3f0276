"""Check whether this machine can train, and what is missing for which command.

This is what `taciturn doctor` prints.
"""

import os
import platform
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from taciturn.errors import TaciturnError
from taciturn.progress import Progress, ignore_progress

# GiB of memory and of disk: a run of the usual size takes about as much.
LEAST_GIB = 2.0
# What an extra of the package is for.
EXTRAS = {
    "onnx": "taciturn export --to onnx",
    "fleet": "taciturn fleet, over a network",
    "fleet-redis": "taciturn fleet serve --store",
    "ray": "taciturn train --engine ray",
}

State = Literal["ok", "missing", "broken"]


class Finding(NamedTuple):
    """One thing that was examined.

    What is broken prevents training; what is missing prevents some other command.
    """

    name: str
    state: State
    said: str
    to_do: str = ""


def examine(progress: Progress = ignore_progress) -> list[Finding]:
    """Examine everything, one part after another: the last of them takes seconds."""
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "packages": _examine_packages,
        "room": _examine_room,
        "programs": _examine_programs,
        "devices": _examine_devices,
        "additivity": _examine_additivity,
    }
    findings = []
    for number, (name, part) in enumerate(parts.items()):
        progress(number, len(parts))
        try:
            findings += part()
        except (TaciturnError, ImportError, RuntimeError, OSError) as error:
            findings.append(
                Finding(
                    name=name,
                    state="broken",
                    said=str(error),
                    to_do="see docs/scale.md; JAX_PLATFORMS=cpu trains on CPUs",
                )
            )
    return findings


def _judge(
    *, name: str, is_good: bool, said: str, to_do: str, otherwise: State = "missing"
) -> Finding:
    """Return what was found, with what to do about it only where it is not good."""
    if is_good:
        return Finding(name=name, state="ok", said=said)
    return Finding(name=name, state=otherwise, said=said, to_do=to_do)


def _examine_packages() -> Iterator[Finding]:
    """Check Python and the packages that pyproject.toml asks for; then every extra as a whole."""
    yield _judge(
        name="Python",
        is_good=sys.version_info >= (3, 11),
        said=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        to_do="install Python 3.11 or newer, and taciturn into it",
        otherwise="broken",
    )
    yield Finding(name="taciturn", state="ok", said=metadata.version("taciturn"))
    requirements = [Requirement(line) for line in metadata.requires("taciturn") or ()]
    needed = [requirement for requirement in requirements if _is_needed(requirement)]
    shortcomings = _describe_shortcomings(needed)
    yield _judge(
        name="packages",
        is_good=not shortcomings,
        said="; ".join(shortcomings) or f"{len(needed)} packages",
        to_do="pip install -e .",
        otherwise="broken",
    )
    for extra, use in EXTRAS.items():
        parts = [
            requirement
            for requirement in requirements
            if requirement not in needed and _is_part_of(requirement, extra)
        ]
        shortcomings = _describe_shortcomings(parts)
        yield _judge(
            name=extra,
            is_good=not shortcomings,
            said="; ".join([f"for {use}", *shortcomings]),
            to_do=f"pip install 'taciturn[{extra}]'",
        )


def _is_needed(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _is_part_of(requirement: Requirement, extra: str) -> bool:
    """Whether an extra asks for this package; one extra may ask for another of taciturn's own."""
    if requirement.name == "taciturn" or requirement.marker is None:
        return False
    return requirement.marker.evaluate({"extra": extra})


def _describe_shortcomings(requirements: Iterable[Requirement]) -> list[str]:
    """Return a few words for each package that is not installed, or in another version."""
    shortcomings = (_describe_shortcoming(requirement) for requirement in requirements)
    return [shortcoming for shortcoming in shortcomings if shortcoming]


def _describe_shortcoming(requirement: Requirement) -> str:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, and {requirement.specifier} is needed"


def _examine_room() -> Iterator[Finding]:
    yield _examine_memory()
    yield _examine_disk()


def _examine_memory() -> Finding:
    memory = _gib_of_pages("SC_PHYS_PAGES")
    free_memory = _gib_of_pages("SC_AVPHYS_PAGES")
    return _judge(
        name="memory",
        is_good=memory >= LEAST_GIB,
        said=f"{free_memory:.1f} of {memory:.1f} GiB free",
        to_do="take a smaller model, or another machine",
    )


def _gib_of_pages(name: str) -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) / 2**30


def _examine_disk() -> Finding:
    space = shutil.disk_usage(".")
    free_space = space.free / 2**30
    is_enough = free_space >= LEAST_GIB
    is_writable = os.access(".", os.W_OK)
    place = "here" if is_writable else "here, where you may not write"
    return _judge(
        name="disk",
        is_good=is_enough and is_writable,
        said=f"{free_space:.1f} GiB free {place}",
        to_do="free some space, or work in another folder",
    )


def _examine_programs() -> Iterator[Finding]:
    yield _judge(
        name="Node",
        is_good=shutil.which("node") is not None,
        said="for taciturn export --to js, which it checks",
        to_do="install Node.js",
    )
    yield _judge(
        name="browser",
        is_good=_has_browser(),
        said="for taciturn report and taciturn keyboard open",
        to_do="open the address that they print in any browser",
    )


def _has_browser() -> bool:
    try:
        return webbrowser.get() is not None
    except webbrowser.Error:
        return False


def _examine_devices() -> Iterator[Finding]:
    import jax

    devices = jax.local_devices()
    first = devices[0]
    memory = (first.memory_stats() or {}).get("bytes_limit")
    memory_of_each = f", {memory / 2**30:.0f} GiB each" if memory else ""
    has_unused_gpu = first.platform == "cpu" and Path("/dev/nvidia0").exists()
    yield _judge(
        name="devices",
        is_good=not has_unused_gpu,
        said=f"{len(devices)} × {first.device_kind}{memory_of_each}; JAX {jax.__version__}",
        to_do="there is an NVIDIA GPU that JAX does not use: pip install 'taciturn[gpu]'",
    )


def _examine_additivity() -> Iterator[Finding]:
    """Run a round of a small model.

    It tests first, as every run does, whether a user's report has the same bits beside any others.
    """
    import jax

    from taciturn.bench.round_speed import WORDS, paper_recipe, random_users
    from taciturn.fleets import assemble
    from taciturn.recipe import build
    from taciturn.runs.timing import round_seconds

    with tempfile.TemporaryDirectory() as folder:
        users = random_users(Path(folder) / "users", 2)
        usual = paper_recipe(
            users,
            users=2,
            model="cifg",
            precision="float32",
        )
        recipe = usual.with_settings("model", width=8, units=12)
        params = build.language_model(recipe.model, WORDS).init(jax.random.key(0))
        fleet = assemble.fleet(recipe, users, users.folder)
        round_seconds(
            recipe,
            fleet,
            params,
            words=WORDS,
            times=1,
        )
    yield Finding(
        name="additivity",
        state="ok",
        said="a user's report has the same bits beside any others, as privacy needs",
    )
