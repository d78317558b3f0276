#!/usr/bin/env python
"""Show that a change moved nothing: make the same things with another commit's code and with this
tree's, on this machine, and compare their bytes.

    python tests/same_bytes/compare.py 694c84f                  # everything; a quarter of an hour
    python tests/same_bytes/compare.py 694c84f noise messages   # only these parts
    python tests/same_bytes/compare.py 694c84f --keep DIFFERENT # keep what differs, to look at

What is made, and what of it is left out because it only says when and how fast, is in
make_bytes.py. Exit status 1 if anything differs or is missing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PARTS = ("noise", "runs", "messages", "exports", "help", "page")
# How many names of what differs are printed of each part.
SHOWN = 20


class Comparison(NamedTuple):
    """What two trees made in one part."""

    part: str
    equal: int
    different: list[str]
    only_before: list[str]
    only_now: list[str]
    seconds: float

    @property
    def is_equal(self) -> bool:
        return not (self.different or self.only_before or self.only_now)


def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="taciturn-same-bytes-") as name:
        folder = Path(name)
        with checked_out(options.commit, folder / "before") as before:
            comparisons = [compare(part, before, folder) for part in options.parts or PARTS]
        for comparison in comparisons:
            print_comparison(comparison, options.commit)
        if options.keep:
            keep_different(comparisons, folder, options.keep)
    return 0 if all(comparison.is_equal for comparison in comparisons) else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all of them")
    parser.add_argument("--keep", type=Path, help="a new folder for what differs")
    return parser.parse_args()


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check out a commit beside this tree, for as long as it is needed."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def compare(part: str, before: Path, folder: Path) -> Comparison:
    """Make a part with both trees, one after the other."""
    began = time.perf_counter()
    old = make(part, before, folder / "made-before")
    new = make(part, REPOSITORY, folder / "made-now")
    return compare_digests(part, old, new, time.perf_counter() - began)


def compare_digests(
    part: str, old: dict[str, str], new: dict[str, str], seconds: float = 0.0
) -> Comparison:
    both = sorted(old.keys() & new.keys())
    different = [name for name in both if old[name] != new[name]]
    return Comparison(
        part=part,
        equal=len(both) - len(different),
        different=different,
        only_before=sorted(old.keys() - new.keys()),
        only_now=sorted(new.keys() - old.keys()),
        seconds=seconds,
    )


def make(part: str, tree: Path, out: Path) -> dict[str, str]:
    """Return the digests of what a tree makes in a part, by name.

    Raises:
        SystemExit: if the tree cannot make it.
    """
    # Both work in a folder of one name, so that no name of a folder differs.
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    digests = out / f"{part}.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "JAX_PLATFORMS": "cpu",
        # One order of names in sets, and one thread for sums of matrix products.
        "PYTHONHASHSEED": "0",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    command = [sys.executable, str(HERE / "make_bytes.py"), str(tree), part, str(digests)]
    finished = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    shutil.rmtree(work)
    if finished.returncode:
        raise SystemExit(f"{part} cannot be made with {tree}:\n{finished.stderr[-3000:]}")
    return json.loads(digests.read_text())


def print_comparison(comparison: Comparison, commit: str) -> None:
    verdict = "equal" if comparison.is_equal else "NOT EQUAL"
    print(
        f"{comparison.part:<10} {comparison.equal:>6} equal,"
        f" {len(comparison.different)} different,"
        f" {len(comparison.only_before)} only at {commit},"
        f" {len(comparison.only_now)} only here: {verdict} ({comparison.seconds:.0f} s)",
        flush=True,
    )
    print_names("differs", comparison.different)
    print_names(f"only at {commit}", comparison.only_before)
    print_names("only here", comparison.only_now)


def print_names(what: str, names: Sequence[str]) -> None:
    for name in names[:SHOWN]:
        print(f"    {what}: {name}")
    if len(names) > SHOWN:
        print(f"    … and {len(names) - SHOWN} more")


def keep_different(comparisons: Sequence[Comparison], folder: Path, to: Path) -> None:
    """Copy both versions of what differs."""
    for comparison in comparisons:
        for name in comparison.different:
            for side in ("before", "now"):
                made = folder / f"made-{side}" / comparison.part / name
                kept = to / comparison.part / name / side
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made, kept)


if __name__ == "__main__":
    raise SystemExit(main())
