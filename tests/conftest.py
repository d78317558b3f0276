"""How tests run, and fixtures for all of them; what they are made of is in harness.py."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

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

from harness import WORDS, compiled_quickly, small_population, tiny_recipe
from taciturn.data.population import Population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.fleets.simulation import in_process
from taciturn.privacy import sampler, wide
from taciturn.recipe.recipe import Recipe

in_process.one_stream_per_core = lambda: None  # for tests that call the command line's main() in this process


@pytest.fixture
def not_optimised() -> Iterator[None]:
    """For tests beside those of arithmetic."""
    with compiled_quickly():
        yield


@pytest.fixture(autouse=True, scope="module")
def programs_of_this_module(request) -> Iterator[None]:
    """Every run compiles programs of its own, which JAX keeps for good: gigabytes, over all tests.

    Modules about formulas, files, records and commands say `pytestmark = pytest.mark.compiled_quickly`: their tests say the same of machine
    code that was not optimised, and that is compiled in a quarter of the time. All others, and first of all those about bounds, sums and
    noise, get the arithmetic that users get.
    """
    quickly = request.node.get_closest_marker("compiled_quickly")
    with compiled_quickly() if quickly else nullcontext():
        yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(fixed + tuple(f"word{index}" for index in range(WORDS - len(fixed))))


@pytest.fixture
def population(tmp_path, vocabulary) -> Population:
    return small_population(tmp_path / "population", vocabulary)


@pytest.fixture
def recipe(population) -> Recipe:
    return tiny_recipe(population)


@pytest.fixture
def one_deviation(monkeypatch) -> None:
    """In place of noise exactly one standard deviation of it, for all coordinates alike."""
    monkeypatch.setattr(
        sampler, "white", lambda spread, key, stream, size: wide.from_numpy(np.full(size, int(spread.deviation)))
    )
