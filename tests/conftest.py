"""Small real objects for tests: text that the tests make up themselves, and runs of a few seconds."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax._src import compiler

# The command line makes every core a device, and compiles for each; here one is enough. That more come to the same total, to the bit, is
# shown where the command line is killed again and again (contracts/test_killed.py).
jax.config.update("jax_num_cpu_devices", 1)
# Many tests compile the same small programs; they share what was compiled, and so do the processes that they start.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"taciturn-tests-{os.getuid()}")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

import numpy as np
import pytest

from taciturn import randomness, trees
from taciturn.core import Mechanism, Params, Report
from taciturn.data.population import Population, build_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.fleets.simulation import in_process
from taciturn.privacy import sampler, wide
from taciturn.privacy.chacha20 import key_words
from taciturn.privacy.clipping import Whole
from taciturn.privacy.ledger import FILE_NAME
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import parse_recipe

WORDS = 40
# Modules about formulas, files, records and commands, whose tests say the same of machine code that was not optimised: it is compiled in a
# quarter of the time. All others, and first of all those about bounds, sums and noise, get the arithmetic that users get.
NOT_OPTIMISED = (
    *("evaluation", "experiments", "papers", "release"),
    *(f"models/test_{name}.py" for name in ("local_steps", "models")),
    *(f"contracts/test_{name}.py" for name in ("fine_tuning", "queue", "resume", "transfer_learning")),
    *(f"fleets/test_{name}.py" for name in ("attacks_fleet_pace", "devices", "fleet_folders")),
    *(f"privacy/test_{name}.py" for name in ("attacks_again", "attacks_keyboard", "participation_log")),
    *(f"test_{name}.py" for name in ("audit", "benchmark", "personal", "planning", "planting", "pretraining", "runs")),
    "cli/test_keyboard_commands.py",
)
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
in_process.one_stream_per_core = lambda: None  # for tests that call the command line's main() in this process


@contextmanager
def compiled_quickly() -> Iterator[None]:
    usual = compiler.get_compile_options

    def quick(*arguments, **settings):
        options = usual(*arguments, **settings)
        options.env_option_overrides = [*options.env_option_overrides, *QUICKLY.items()]
        return options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", quick)
        yield
    jax.clear_caches()  # none of these programs is left for tests of arithmetic


@pytest.fixture
def not_optimised() -> Iterator[None]:
    """For tests beside those of arithmetic."""
    with compiled_quickly():
        yield


@pytest.fixture(autouse=True, scope="module")
def programs_of_this_module(request) -> Iterator[None]:
    """Every run compiles programs of its own, which JAX keeps for good: gigabytes, over all tests."""
    tests = Path(__file__).parent
    quickly = any(request.path.is_relative_to(tests / place) for place in NOT_OPTIMISED)
    with compiled_quickly() if quickly else nullcontext():
        yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(fixed + tuple(f"word{index}" for index in range(WORDS - len(fixed))))


def made_up_users(count: int, seed: int = 0, least: int = 5, most: int = 60) -> dict[str, list[int]]:
    """Users of unequal length who count upwards from a word of their own, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    users = {}
    for index in range(count):
        length, first = int(generator.integers(least, most)), int(generator.integers(0, WORDS))
        users[f"user {seed} {index}"] = [4 + (first + step) % (WORDS - 4) for step in range(length)]
    return users


def small_population(folder: Path, vocabulary: Vocabulary) -> Population:
    return build_population(folder, made_up_users(50), made_up_users(12, seed=1), vocabulary, {"source": "made up"})


def copied_population(folder: Path, to: Path) -> Population:
    """A copy of a population that passes for one of its own, for tests that change it and want the first as it was."""
    shutil.copytree(folder, to)
    if (folder / FILE_NAME).exists():
        copied_ledger(folder / FILE_NAME, to / FILE_NAME)
    return Population(to)


def copied_ledger(path: Path, to: Path) -> None:
    shutil.copy(path, to)
    head = json.loads(path.with_suffix(".head").read_text())
    head |= {"file": to.stat().st_ino, "changed": to.stat().st_ctime_ns, "place": str(to.resolve())}
    to.with_suffix(".head").write_text(json.dumps(head))


def cut_off_rows(path: Path, rows: int = 1) -> None:
    """A ledger as it was some rows before, and its head with it: as a crash leaves them, or a hand that knows both."""
    lines = path.read_bytes().splitlines(keepends=True)[:-rows]
    path.write_bytes(b"".join(lines))
    head = json.loads(path.with_suffix(".head").read_text())
    path.with_suffix(".head").write_text(json.dumps(head | {"rows": len(lines), "head": json.loads(lines[-1])["hash"]}))


@pytest.fixture
def population(tmp_path, vocabulary) -> Population:
    return small_population(tmp_path / "population", vocabulary)


@pytest.fixture
def recipe(population) -> Recipe:
    return tiny_recipe(population)


class Cut(BaseException):
    """Stands for the power going off."""


def cut_at(round: int):
    """A run's progress that ends it there."""

    def progress(done: int, rounds: int, row: dict) -> None:
        if done == round:
            raise Cut

    return progress


def tiny_recipe(population: Population, **sections) -> Recipe:
    """A run of a few seconds; `sections` are merged into it, e.g. privacy={"noise_multiplier": 2.0}."""
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
            content[section] = {key: value for key, value in content[section].items() if value is not None}
        else:
            content[section] = values
    return parse_recipe(content)


def exact(report, clip_norm):
    """What a report stands for, in float64: an update, and a weight."""

    def layer(one):
        if not isinstance(one, Whole):
            return np.asarray(one, np.float64)
        whole = np.asarray(one.high, np.float64) * 2**15 + np.asarray(one.low, np.float64)
        return whole * np.float64(np.float32(clip_norm)) * 2.0**-30

    update = jax.tree.map(layer, report.update, is_leaf=lambda node: isinstance(node, Whole))
    return update, float(report.weight) / 2**15


def noise_key(number: int, seed: int = 0) -> np.ndarray:
    """For the noise of one row."""
    return key_words(randomness.derive(randomness.root_from_seed(seed), "noise", number))


def nobody(mechanism: Mechanism, like: Params) -> Report:
    """The total of an empty cohort."""
    public = mechanism.public(mechanism.init(like))
    return trees.zeros_like(jax.eval_shape(mechanism.bound, public, like, jnp.float32(0), jax.random.key(0)))


@pytest.fixture
def one_deviation(monkeypatch) -> None:
    """In place of noise exactly one standard deviation of it, for all coordinates alike."""
    monkeypatch.setattr(
        sampler, "white", lambda spread, key, stream, size: wide.from_numpy(np.full(size, int(spread.deviation)))
    )
