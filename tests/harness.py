"""Small real objects for tests: text that the tests make up themselves, and runs of a few seconds.
Fixtures are in conftest.py.
"""

import inspect
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiling import compiler, quickly
from taciturn import randomness, trees
from taciturn.core import Algorithm, Mechanism, Params, Report
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.fleets import assemble
from taciturn.fleets.simulation import in_process
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.privacy.bounding.clipping import Digits
from taciturn.privacy.curator import device_program
from taciturn.privacy.ledger.ledger import FILE_NAME
from taciturn.privacy.noise.chacha20 import key_words
from taciturn.privacy.noise.int64 import Int64
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe, parse_recipe
from taciturn.runs.loop import train_run

lowers_for_gpus = pytest.mark.skipif(
    jax.__version_info__ >= (0, 12),
    reason="from 0.12 on JAX compiles for a GPU only where there is one",
)
WORDS = 40


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def mostly_slow(values, *quick):
    """Parameters of which only some are tried with every change, the others by `make test-slow`."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]


def compile_with(options) -> None:
    """From now on. Programs that were compiled otherwise are forgotten: none that was not optimised
    is left for tests of arithmetic.
    """
    if compiler.get_compile_options is not options:
        compiler.get_compile_options = options
        forget_programs()


def forget_programs() -> None:
    """All that was traced or compiled in this process."""
    for kept in (
        build._shared_model,
        build._shared_algorithm,
        device_program,
        in_process._adder,
        assemble._compile_messages,
    ):
        getattr(kept, "cache_clear", lambda: None)()  # a test may have put something else there
    jax.clear_caches()


@contextmanager
def compiled_quickly() -> Iterator[None]:
    before = compiler.get_compile_options
    compile_with(quickly)
    yield
    compile_with(before)


class TracedAnew(pytest.MonkeyPatch):
    """Runs of one recipe share what was compiled: where a part of it is replaced, nothing from
    before the change or from under it stays.
    """

    def setattr(self, target, *more, **settings):
        module = (
            target
            if isinstance(target, str)
            else target.__name__
            if inspect.ismodule(target)
            else ""
        )
        self.traced = getattr(self, "traced", False) or module.startswith(TRACED)
        _setattr(self, target, *more, **settings)
        if self.traced:
            forget_programs()

    def undo(self):
        _undo(self)
        if getattr(self, "traced", False):
            forget_programs()


# Modules whose functions are traced into programs: what is patched in them changes nothing that was
# compiled before.
TRACED = tuple(
    f"taciturn.{name}"
    for name in (
        "models",
        "algorithms",
        "recipe.build",
        "fleets.simulation.in_process",
        "trees",
        "privacy.curator",
        "privacy.bounding",
        "privacy.noise",
    )
)
_setattr, _undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo
pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo = TracedAnew.setattr, TracedAnew.undo


def made_up_users(
    count: int, seed: int = 0, least: int = 5, most: int = 60
) -> dict[str, list[int]]:
    """Users of unequal length who count upwards from a word of their own, so that there is
    something to learn.
    """
    generator = np.random.default_rng(seed)
    users = {}
    for index in range(count):
        length, first = int(generator.integers(least, most)), int(generator.integers(0, WORDS))
        users[f"user {seed} {index}"] = [4 + (first + step) % (WORDS - 4) for step in range(length)]
    return users


def small_population(folder: Path, vocabulary: Vocabulary) -> Population:
    return write_population(
        folder, made_up_users(50), made_up_users(12, seed=1), vocabulary, {"source": "made up"}
    )


def copied_population(folder: Path, to: Path) -> Population:
    """A copy of a population that passes for one of its own, for tests that change it and want the
    first as it was.
    """
    shutil.copytree(folder, to)
    if (folder / FILE_NAME).exists():
        copied_ledger(folder / FILE_NAME, to / FILE_NAME)
    return Population(to)


def carried_away(run: Path, to: Path) -> Path:
    """A copy of a run's folder from which its people cannot be reached, as on another machine."""
    shutil.copytree(run, to)
    recipe = to / "recipe.toml"
    there = load_recipe(recipe).data.population
    recipe.write_text(recipe.read_text().replace(there, "people-of-another-machine"))
    return to


def copied_ledger(path: Path, to: Path) -> None:
    shutil.copy(path, to)
    head = json.loads(path.with_suffix(".head").read_text())
    head |= {"file": to.stat().st_ino, "changed": to.stat().st_ctime_ns, "place": str(to.resolve())}
    to.with_suffix(".head").write_text(json.dumps(head))


def cut_off_rows(path: Path, rows: int = 1) -> None:
    """A ledger as it was some rows before, and its head with it: as a crash leaves them, or a hand
    that knows both.
    """
    lines = path.read_bytes().splitlines(keepends=True)[:-rows]
    path.write_bytes(b"".join(lines))
    head = json.loads(path.with_suffix(".head").read_text())
    head |= {"rows": len(lines), "head": json.loads(lines[-1])["hash"]}
    path.with_suffix(".head").write_text(json.dumps(head))
    pass_for_untouched(path)


def pass_for_untouched(path: Path) -> None:
    """Make the head of a ledger say that the file was last changed when it was."""
    head = json.loads(path.with_suffix(".head").read_text())
    head |= {"changed": path.stat().st_ctime_ns}
    path.with_suffix(".head").write_text(json.dumps(head))


def quietly(*_) -> None:
    """A run's progress that nobody watches."""


class Cut(BaseException):
    """Stands for the power going off."""


def cut_at(round: int):
    """A run's progress that ends it there."""

    def progress(done: int, rounds: int, row: dict) -> None:
        if done == round:
            raise Cut

    return progress


def tiny_recipe(population: Population, **sections) -> Recipe:
    """A run of a few seconds; `sections` are merged into it, e.g. privacy={"noise_multiplier":
    2.0}.
    """
    content = {
        "algorithm": "dp-fedavg",
        "data": {"population": str(population.folder), "tokens_per_user": 60},
        "model": {"kind": "lstm", "width": 8, "units": 12},
        "local": {"learning_rate": 0.5, "batch_size": 3, "unroll": 5},
        "server": {"optimizer": "momentum", "learning_rate": 1.0, "momentum": 0.5},
        "participation": {"users": 50, "cohort": 10},
        "privacy": {"clip_norm": 0.5, "noise_multiplier": 1.0},
        "run": {"rounds": 6, "evaluate_every": 3, "save_every": 2, "seed": 1},
    }
    for section, values in sections.items():
        if isinstance(values, dict):
            content[section] = {**content.get(section, {}), **values}
            content[section] = {
                key: value for key, value in content[section].items() if value is not None
            }
        else:
            content[section] = values
    return parse_recipe(content)


def from_numpy(numbers) -> Int64:
    numbers = np.asarray(numbers, np.int64)
    return Int64(
        jnp.asarray((numbers >> 32).astype(np.int32)),
        jnp.asarray((numbers & 0xFFFFFFFF).astype(np.uint32)),
    )


def exact(report, clip_norm):
    """What a report stands for, in float64: an update, and a weight."""

    def layer(one):
        if not isinstance(one, Digits):
            return np.asarray(one, np.float64)
        whole = np.asarray(one.high, np.float64) * 2**15 + np.asarray(one.low, np.float64)
        return whole * np.float64(np.float32(clip_norm)) * 2.0**-30

    update = jax.tree.map(layer, report.update, is_leaf=lambda node: isinstance(node, Digits))
    return update, float(report.weight) / 2**15


class SideBySide(SimulatedFleet):
    """The accelerator's way, tried on the CPU."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self._on_cpu = False


def started(recipe: Recipe) -> tuple[Algorithm, Params]:
    """The algorithm of a recipe, and parameters to begin with."""
    return build.algorithm(recipe, WORDS), build.language_model(recipe.model, WORDS).init(
        jax.random.key(0)
    )


def true_norm(update) -> float:
    """In float64, over all layers."""
    return float(
        np.sqrt(
            sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(update))
        )
    )


def noise_key(number: int, seed: int = 0) -> np.ndarray:
    """For the noise of one row."""
    return key_words(randomness.derive(randomness.root_from_seed(seed), "noise", number))


def nobody(mechanism: Mechanism, like: Params) -> Report:
    """The total of an empty cohort."""
    public = mechanism.public(mechanism.init(like))
    return trees.zeros_like(
        jax.eval_shape(mechanism.bound, public, like, jnp.float32(0), jax.random.key(0))
    )


SHORT = {"rounds": 1, "save_every": 1, "evaluate_every": 1, "seed": None}
CIFG = {"kind": "cifg", "width": 8, "units": 12}


def lettered_words(count: int = WORDS) -> Vocabulary:
    """Words that survive being typed and split: worda, wordb, …"""
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(words=fixed + tuple(f"word{chr(97 + n)}" for n in range(count - len(fixed))))


def short_recipe(population: Population, **sections) -> Recipe:
    """A run of one round, with secret noise, of a model that every format can hold."""
    model, run = sections.pop("model", {}), sections.pop("run", {})
    return tiny_recipe(population, **sections, model={**CIFG, **model}, run={**SHORT, **run})


def trained(population: Population, folder: Path, **sections) -> Path:
    train_run(short_recipe(population, **sections), folder, quietly)
    return folder
