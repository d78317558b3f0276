#!/usr/bin/env python
"""Tests of the tests: breaks the mechanism on purpose, one promise at a time, and shows which test
notices, and how fast.

    python tests/mutations/run.py                       # all of them; exit status 1 if one survives
    python tests/mutations/run.py "no clip"             # only those named
    python tests/mutations/run.py --markdown docs/mutations.md

Each mutation (of the *.toml files here) is an edit of a copy of the source in a temporary folder,
which tests import in its place. They are run on an unbroken copy first: tests that fail there as
well would notice nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from catalogue import MUTATIONS, DoesNotFit, Edit, Mutation

REPOSITORY = Path(__file__).resolve().parents[2]
# after which a mutation counts as not noticed, and ten times that for all tests on the unbroken
# source
SECONDS = 120
# In the process that runs the tests, so that what is printed is what they test.
PYTEST = (
    "import sys, pytest, taciturn; print(taciturn.__file__, flush=True);"
    " sys.exit(pytest.main(sys.argv[1:]))"
)
# A test that fails by one of these says only that the edit is no program: whoever used it would
# notice without a test.
MISTAKES = (
    *("AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError"),
    *("NameError", "SyntaxError", "TypeError", "UnboundLocalError"),
)
SURVIVES = "survives"


class Outcome(NamedTuple):
    test: str | None  # the first that failed
    why: str  # as it says itself; or why nothing can be said
    seconds: float

    @property
    def caught(self) -> bool:
        return self.test is not None and not self.why.startswith(MISTAKES)


def outcome(edits: Sequence[Edit], tests: Sequence[str], limit: float = SECONDS) -> Outcome:
    """What the tests say of a copy of the source with these edits, within so many seconds."""
    with tempfile.TemporaryDirectory(prefix="taciturn-mutation-") as name:
        folder = Path(name)
        package = folder / "src" / "taciturn"
        shutil.copytree(
            REPOSITORY / "src" / "taciturn", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        try:
            for edit in edits:
                path = package / edit.file
                path.write_text(edit.rewritten(path.read_text()))
        except DoesNotFit as error:
            return Outcome(None, str(error), 0.0)
        return _tested(folder, package, tests, limit)


def _tested(folder: Path, package: Path, tests: Sequence[str], limit: float) -> Outcome:
    results = folder / "results.xml"
    options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    places = [f"--basetemp={folder / 'tests'}", f"--junit-xml={results}"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),  # comes before the editable installation
        "HYPOTHESIS_STORAGE_DIRECTORY": str(
            folder / "hypothesis"
        ),  # counterexamples to broken code are not kept
    }
    began = time.perf_counter()
    try:
        process = subprocess.run(
            [sys.executable, "-c", PYTEST, *options, *places, *tests],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, f"no answer within {limit:.0f} s", time.perf_counter() - began)
    seconds = time.perf_counter() - began
    if not process.stdout.startswith(str(package)):
        return Outcome(None, "the tests did not import the copy", seconds)
    if process.returncode not in (0, 1):
        return Outcome(
            None,
            f"the tests did not run: {(process.stdout + process.stderr).strip()[-500:]}",
            seconds,
        )
    return Outcome(*_first_failure(results), seconds)


def _first_failure(results: Path) -> tuple[str | None, str]:
    for case in xml.parse(results).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            file = case.get("classname", "").replace(".", "/")
            return f"{file}.py::{case.get('name')}", failure.get("message", "")
        error = case.find("error")
        if error is not None:
            return None, f"{case.get('name')} could not be set up: {error.get('message')}"
    return None, SURVIVES


def chosen(names: Sequence[str]) -> list[Mutation]:
    unknown = set(names) - {one.name for one in MUTATIONS}
    if unknown:
        raise SystemExit(
            f"there is no mutation {', '.join(sorted(unknown))}; the files beside run.py have"
            " them all"
        )
    return [one for one in MUTATIONS if not names or one.name in names]


def check_unbroken(mutations: Sequence[Mutation]) -> None:
    tests = sorted({test for mutation in mutations for test in mutation.caught_by})
    whole = outcome((), tests, limit=10 * SECONDS)
    if whole.test or whole.why != SURVIVES:
        raise SystemExit(
            f"the tests fail on the unbroken source, so they would notice nothing: {whole.test}"
            f" {whole.why}"
        )
    print(f"{len(tests)} tests pass on the unbroken source, in {whole.seconds:.0f} s\n", flush=True)


def line(mutation: Mutation, found: Outcome) -> str:
    by = (
        found.test.split("::")[1]
        if found.caught
        else f"NOT CAUGHT ({found.test or ''} {found.why})"
    )
    return f"{mutation.name:<64} {found.seconds:5.1f} s   {by}"


PAGE = """# Tests of the tests

What if the mechanism were broken? Each row is an edit of the source that breaks one promise, what
that would cost people, the first test to notice, and how long that takes, from the start of Python.
Tests that are said to *measure* look at a distribution; the others compare with what must come out.

The edits are in [`tests/mutations`](../tests/mutations). `make test` checks that they still fit the
source, `make mutations` tries them all, and this page is written by

```
python tests/mutations/run.py --markdown docs/mutations.md
```

| mutation | what it would cost people | caught by | seconds |
|---|---|---|---:|
{rows}

{count} mutations, all of them caught, in {minutes:.0f} minutes if tried one after another.
"""


def page(found: list[tuple[Mutation, Outcome]]) -> str:
    rows = []
    for mutation, one in found:
        file, _, test = (one.test or "").partition("::")
        shown = f"[`{test.split('[')[0]}`](../{file})" + (
            " (measures)" if mutation.statistical else ""
        )
        rows.append(f"| {mutation.name} | {mutation.harm} | {shown} | {one.seconds:.0f} |")
    minutes = sum(one.seconds for _, one in found) / 60
    return PAGE.format(rows="\n".join(rows), count=len(found), minutes=minutes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break the mechanism on purpose, and see which test notices."
    )
    parser.add_argument("names", nargs="*", help="of mutations; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--markdown", type=Path, help="a file for the table, if all are caught")
    options = parser.parse_args()
    if options.markdown and options.names:
        parser.error("the table has all mutations; give --markdown without names")
    mutations = chosen(options.names)
    check_unbroken(mutations)
    print(f"{'mutation':<64} {'':7}   caught by")
    found = []
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda mutation: outcome(mutation.edits, mutation.caught_by), mutations)
        for mutation, one in zip(mutations, outcomes, strict=True):
            found.append((mutation, one))
            print(line(mutation, one), flush=True)
    survivors = [mutation.name for mutation, one in found if not one.caught]
    print(f"\n{len(found) - len(survivors)} of {len(found)} caught")
    if options.json:
        rows = [
            {"mutation": mutation.name, **one._asdict(), "caught": one.caught}
            for mutation, one in found
        ]
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    if options.markdown and not survivors:
        options.markdown.write_text(page(found))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
