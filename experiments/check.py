"""Shrunken runs of the lists, end to end: `make papers-check`.

The first run of a dozen groups trains for two rounds on made-up people, leaves a result, and a page is drawn of all of it, in a folder of
its own. What it shows is that lists, recipes, measures and drawing work; its figures mean nothing.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import jax

import listed
import page
import results
import train
from taciturn import build_population
from taciturn.data.synthetic_corpus import synthetic_messages, write_shards
from taciturn.populations import vocabulary_of
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.model_file import ModelCard, save_model

SHRUNK = (
    "model.width=16", "model.units=24", "data.tokens_per_user=80", "local.batch_size=4", "local.unroll=5", "participation.users=50",
    "participation.cohort=10", "run.rounds=2", "run.evaluate_every=1", "run.save_every=1",
)  # fmt: skip
MOST = 12


def shrunk(one: listed.ListedRun, people: Path, starts: Path) -> tuple[str, ...]:
    """Settings that make a run small, and of the same shapes as the others wherever that leaves it what it is."""
    recipe = one.loaded()
    more = [*SHRUNK, f"data.population={people}"]
    if recipe.model.warm_start:
        more.append(f"model.warm_start={starts / recipe.model.kind}.safetensors")
    if recipe.participation.kind == "min-separation":
        more += ["participation.min_separation=1", "participation.max_participations=1"]
    if recipe.privacy.noise == "blt":
        more.append("privacy.strategy={decay = [0.5], scale = [0.1]}")
        more.append("privacy.buffers=1")
    return tuple(more)


def groups() -> list[listed.ListedRun]:
    """The first run of every group, the papers taking turns."""
    by_paper = [list({one.group: one for one in reversed(listed.listed(paper))}.values())[::-1] for paper in listed.papers()]
    turns = [one for turn in range(max(map(len, by_paper))) for runs in by_paper for one in runs[turn : turn + 1]]
    return turns[:MOST]


def made_up(folder: Path) -> tuple[Path, Path]:
    """People who say what a small grammar says, and starts that have learned nothing yet."""
    words = vocabulary_of(300)
    for _ in write_shards(synthetic_messages(words.words[20:], 90, 100), folder / "text"):
        pass
    people = build_population(folder / "text", folder / "people", vocabulary=words, held_out=0.25)
    for kind in ("lstm", "cifg"):
        settings = ModelSection(kind=kind, width=16, units=24)
        params = build.language_model(settings, len(people.vocabulary)).init(jax.random.key(0))
        about = settings.model_dump(mode="json", exclude={"warm_start"})
        card = ModelCard(about, people.vocabulary.words, people.vocabulary.about, public_sources=("made up",))
        save_model(folder / f"{kind}.safetensors", params, card)
    return folder / "people", folder


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        train.WORK = work / "runs"
        here = work / "experiments"
        shutil.copytree(listed.HERE, here, ignore=shutil.ignore_patterns("*.png", "figures", "__pycache__"))
        listed.HERE = page.HERE = here
        people, starts = made_up(work)
        for one in groups():
            took = time.monotonic()
            results.save(one, train.train(one, *shrunk(one, people, starts)))
            print(f"{one.paper}/{one.id}: {time.monotonic() - took:.1f} s", flush=True)
        made = page.page()
    print(f"{len(made)} files of a page; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
