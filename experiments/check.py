"""Shrunken runs of the lists, end to end: `make papers-check`, or `python experiments/check.py
PAPER/RUN …` for others.

A dozen runs, of which no two are of one kind, train for two rounds on simulated people and leave
results, and a page is drawn of all of it, in a folder of its own. What it shows is that lists,
recipes, measures and drawing work; its figures mean nothing.
"""

import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

import train
from lib import page, results, run_lists
from taciturn import build_population
from taciturn.data.population import Population
from taciturn.data.public import ingest_public
from taciturn.data.sources import Source
from taciturn.data.vocabulary import Vocabulary
from taciturn.people import vocabulary_of
from taciturn.progress import ignore_progress
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.model_file import ModelCard, save_model

SHRUNK = (
    "model.width=16",
    "model.units=24",
    "data.tokens_per_user=80",
    "local.batch_size=4",
    "local.unroll=5",
    "participation.users=50",
    "participation.cohort=10",
    "run.rounds=2",
    "run.evaluate_every=1",
    "run.save_every=1",
)
CHECKED = (
    # DP-FTRL from a public start.
    "ramaswamy2020/headline-gboard-1",
    "mcmahan2018/cohorts-100-1",
    "ramaswamy2020/server-adam-1e-5-1",
    # Counts whom it clips.
    "ramaswamy2020/clip-0.1-3",
    # Counts common words.
    "mcmahan2018/noise-none-1",
    # A clip norm that falls.
    "mcmahan2018/later-5-1",
    # No noise, and an estimator all the same.
    "mcmahan2018/estimators-drawn-clipped-1",
    "mcmahan2018/sgd-clip-0.5-1",
    "ramaswamy2020/canaries-private-1",
    "xu2023/starts-adaptive-1",
    "xu2023/sums-modular-1",
    # A clip norm for each layer.
    "keyboard/blogs-4-1",
)
# What runs of the lists start from.
STARTS = (("lstm", False), ("cifg", False), ("cifg", True))


def shrink(run: run_lists.ListedRun, people: Path, starts: Path) -> tuple[str, ...]:
    """Return settings that make a run small, and of the same shapes as the others wherever that
    leaves it what it is.
    """
    recipe = run.load_recipe()
    settings = [*SHRUNK, f"data.population={people}"]
    if recipe.model.warm_start:
        start = starts / start_name(recipe.model.kind, recipe.model.tied)
        settings.append(f"model.warm_start={start}")
    if recipe.canaries.text:
        settings += [
            f"canaries.text={starts / 'public'}",
            "canaries.copies=[1]",
            "canaries.per_cell=1",
            "canaries.sentences=5",
        ]
    if recipe.participation.kind == "min-separation":
        settings += ["participation.min_separation=1", "participation.max_participations=1"]
    if recipe.privacy.noise == "blt":
        settings.append("privacy.strategy={decay = [0.5], scale = [0.1]}")
        settings.append("privacy.buffers=1")
    return tuple(settings)


def start_name(kind: str, is_tied: bool) -> str:
    return f"{kind}-tied.safetensors" if is_tied else f"{kind}.safetensors"


def simulate_people(folder: Path) -> Path:
    """Make people and public text that say what a small grammar says, and starts that have learned
    nothing yet. Return the people.
    """
    words = vocabulary_of(300)
    text = folder / "text"
    _write_text(words, text)
    people = build_population(text, folder / "people", vocabulary=words, held_out=0.25)
    ingest_public(
        Source(paths=[text], with_user=False),
        folder / "public",
        vocabulary=words,
        name="simulated text",
        language="en",
        progress=ignore_progress,
    )
    for kind, is_tied in STARTS:
        path = folder / start_name(kind, is_tied)
        _save_start(path, ModelSection(kind=kind, width=16, units=24, tied=is_tied), people)
    return folder / "people"


def _write_text(words: Vocabulary, folder: Path) -> None:
    program = Path(__file__).parents[1] / "benchmarks" / "synthetic_corpus.py"
    synthetic = runpy.run_path(str(program))
    messages = synthetic["synthetic_messages"](words.words[20:], users=90, tokens=100)
    for _ in synthetic["write_shards"](messages, folder):
        pass


def _save_start(path: Path, settings: ModelSection, people: Population) -> None:
    model = build.language_model(settings, len(people.vocabulary))
    card = ModelCard(
        architecture=settings.model_dump(mode="json", exclude={"warm_start"}),
        vocabulary=people.vocabulary.words,
        text=people.vocabulary.about,
        public_sources=("simulated",),
    )
    save_model(path, model.init(jax.random.key(0)), card)


def main(names: Sequence[str] = CHECKED) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        train.WORK = work / "runs"
        train.REFERENCES = 1000
        _copy_experiments(work / "experiments")
        people = simulate_people(work)
        _train_and_save(names, people, starts=work)
        files = page.page()
    print(f"{len(files)} files of a page; {time.monotonic() - began:.0f} s")
    return 0


def _copy_experiments(copy: Path) -> None:
    """Copy the lists and results, and let every module use the copy."""
    left_out = shutil.ignore_patterns("*.png", "figures", "__pycache__")
    shutil.copytree(run_lists.HERE, copy, ignore=left_out)
    run_lists.HERE = copy
    page.HERE = copy


def _train_and_save(names: Sequence[str], people: Path, starts: Path) -> None:
    runs: list[run_lists.ListedRun] = []
    for paper in run_lists.papers():
        runs += run_lists.read_list(paper)
    # Runs of two rounds and of a thousand are not drawn in one figure.
    for run in runs:
        run.result.unlink(missing_ok=True)
    for run in runs:
        title = f"{run.paper}/{run.id}"
        if title in names:
            began = time.monotonic()
            results.save(run, train.train(run, *shrink(run, people, starts)))
            print(f"{title}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or CHECKED))
