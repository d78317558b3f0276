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
from taciturn.data.public import ingest_public
from taciturn.data.sources import Source
from taciturn.people import vocabulary_of
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
    "ramaswamy2020/headline-gboard-1",  # DP-FTRL from a public start
    "mcmahan2018/cohorts-100-1",
    "ramaswamy2020/server-adam-1e-5-1",
    "ramaswamy2020/clip-0.1-3",  # counts whom it clips
    "mcmahan2018/noise-none-1",  # counts common words
    "mcmahan2018/later-5-1",  # a clip norm that falls
    "mcmahan2018/estimators-drawn-clipped-1",  # no noise, and an estimator all the same
    "mcmahan2018/sgd-clip-0.5-1",
    "ramaswamy2020/canaries-private-1",
    "xu2023/starts-adaptive-1",
    "xu2023/sums-modular-1",
    "keyboard/blogs-4-1",  # a clip norm for each layer
)


def shrunk(one: run_lists.ListedRun, people: Path, starts: Path) -> tuple[str, ...]:
    """Settings that make a run small, and of the same shapes as the others wherever that leaves it
    what it is.
    """
    recipe = one.loaded()
    more = [*SHRUNK, f"data.population={people}"]
    if recipe.model.warm_start:
        more.append(
            f"model.warm_start={starts / recipe.model.kind}{'-tied' if recipe.model.tied else ''}.safetensors"
        )
    if recipe.canaries.text:
        more += [
            f"canaries.text={starts / 'public'}",
            "canaries.copies=[1]",
            "canaries.per_cell=1",
            "canaries.sentences=5",
        ]
    if recipe.participation.kind == "min-separation":
        more += ["participation.min_separation=1", "participation.max_participations=1"]
    if recipe.privacy.noise == "blt":
        more.append("privacy.strategy={decay = [0.5], scale = [0.1]}")
        more.append("privacy.buffers=1")
    return tuple(more)


def made_up(folder: Path) -> tuple[Path, Path]:
    """People and public text that say what a small grammar says, and starts that have learned
    nothing yet.
    """
    words = vocabulary_of(300)
    synthetic = runpy.run_path(
        str(Path(__file__).parents[1] / "benchmarks" / "synthetic_corpus.py")
    )
    for _ in synthetic["write_shards"](
        synthetic["synthetic_messages"](words.words[20:], 90, 100), folder / "text"
    ):
        pass
    people = build_population(folder / "text", folder / "people", vocabulary=words, held_out=0.25)
    source = Source(paths=[folder / "text"], with_user=False)
    ingest_public(
        source,
        folder / "public",
        vocabulary=words,
        name="simulated text",
        language="en",
        progress=lambda *_: None,
    )
    for kind, tied in (("lstm", False), ("cifg", False), ("cifg", True)):
        settings = ModelSection(kind=kind, width=16, units=24, tied=tied)
        params = build.language_model(settings, len(people.vocabulary)).init(jax.random.key(0))
        about = settings.model_dump(mode="json", exclude={"warm_start"})
        card = ModelCard(
            architecture=about,
            vocabulary=people.vocabulary.words,
            text=people.vocabulary.about,
            public_sources=("made up",),
        )
        save_model(folder / f"{kind}{'-tied' if tied else ''}.safetensors", params, card)
    return folder / "people", folder


def main(names: Sequence[str] = CHECKED) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        train.WORK, train.REFERENCES = work / "runs", 1000
        here = work / "experiments"
        shutil.copytree(
            run_lists.HERE, here, ignore=shutil.ignore_patterns("*.png", "figures", "__pycache__")
        )
        run_lists.HERE = page.HERE = here
        people, starts = made_up(work)
        runs = [one for paper in run_lists.papers() for one in run_lists.read_list(paper)]
        for one in runs:  # runs of two rounds and of a thousand are not drawn in one figure
            one.result.unlink(missing_ok=True)
        for one in [one for one in runs if f"{one.paper}/{one.id}" in names]:
            took = time.monotonic()
            results.save(one, train.train(one, *shrunk(one, people, starts)))
            print(f"{one.paper}/{one.id}: {time.monotonic() - took:.1f} s", flush=True)
        made = page.page()
    print(f"{len(made)} files of a page; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or CHECKED))
