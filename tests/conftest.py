"""How tests run, and fixtures for all of them; what they are made of is in harness.py."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# The command line makes every core a device, and compiles for each; here one is enough. That more
# come to the same total, to the bit, is shown where the command line is killed again and again
# (contracts/test_killed.py).
jax.config.update("jax_num_cpu_devices", 1)
# Many tests compile the same small programs; they share what was compiled, and so do the processes
# that they start.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
    Path(tempfile.gettempdir()) / f"taciturn-tests-{os.getuid()}"
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
# Programs name the lines of Python that they come from, which a compiler carries along for a tenth
# of its time.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
jax.config.update("jax_traceback_in_locations_limit", 0)

# Tracing leaves much for the collector, which looks through all of JAX each time: a tenth of the
# time, unless it comes more rarely.
gc.set_threshold(200_000, 20, 100)

if not os.environ.get("TACITURN_OPTIMISED"):  # `make test-slow` waits for the disk, as users do
    # tests kill processes and pull no plug: whether a file was synced shows in calls of this, and
    # in nothing else
    os.fsync = os.fstat

import numpy as np
import pytest

from compiling import optimised, quickly
from harness import (
    WORDS,
    compile_with,
    compiled_quickly,
    copied_population,
    from_numpy,
    lettered_words,
    made_up_users,
    small_population,
    tiny_recipe,
    trained,
)
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.noise import sampler
from taciturn.recipe.recipe import Recipe
from taciturn.runs.ngram_baselines import count_population

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    " --disable-sync --no-first-run"
)


@pytest.fixture
def not_optimised() -> Iterator[None]:
    """For tests beside those of arithmetic."""
    with compiled_quickly():
        yield


@pytest.fixture(autouse=True, scope="module")
def programs_of_this_module(request) -> None:
    """Most tests say the same of machine code that was not optimised, and that is compiled in a
    quarter of the time. Modules about bounds, sums and noise say `pytestmark =
    pytest.mark.optimised`: they get the arithmetic that users get.
    """
    everything = os.environ.get("TACITURN_OPTIMISED")  # `make test-slow`
    compile_with(
        optimised if everything or request.node.get_closest_marker("optimised") else quickly
    )


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(words=fixed + tuple(f"word{index}" for index in range(WORDS - len(fixed))))


@pytest.fixture
def population(tmp_path, vocabulary) -> Population:
    return small_population(tmp_path / "population", vocabulary)


@pytest.fixture
def recipe(population) -> Recipe:
    return tiny_recipe(population)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`people`; a run with noise, `private`; one without, `plain`; and n-grams counted on their
    text, `counted`.

    Tests add runs of other names at most; whoever changes anything takes `copied_runs`.
    """
    folder = tmp_path_factory.mktemp("finished")
    words = lettered_words()
    people = write_population(
        folder / "people", made_up_users(50), made_up_users(12, seed=1), words, {}
    )
    with compiled_quickly():
        trained(people, folder / "private", run={"rounds": 6, "evaluate_every": 6, "save_every": 6})
        trained(people, folder / "plain", algorithm="fedavg", privacy={"noise_multiplier": None})
    count_population(folder / "people", folder / "counted", "katz", 3, non_private=True)
    return folder


@pytest.fixture
def copied_runs(finished_runs: Path, tmp_path: Path) -> Path:
    """All of it, to change at will; the folders still name the population they came from."""
    copied_population(finished_runs / "people", tmp_path / "made" / "people")
    ignored = shutil.ignore_patterns("people")
    return shutil.copytree(finished_runs, tmp_path / "made", dirs_exist_ok=True, ignore=ignored)


@pytest.fixture
def one_deviation(monkeypatch) -> None:
    """In place of noise exactly one standard deviation of it, for all coordinates alike."""
    monkeypatch.setattr(
        sampler,
        "white",
        lambda spread, key, stream, size: from_numpy(np.full(size, int(spread.deviation))),
    )


@pytest.fixture
def log_of(monkeypatch):
    """Every cohort that was recorded, and all who were in a total, by the fleet's folder."""
    asked, summed = [], []
    record, total = CohortLog.record, ServerRound.total
    monkeypatch.setattr(
        CohortLog, "record", lambda log, cohort: asked.append(cohort) or record(log, cohort)
    )

    def noted(server):
        done = total(server)
        summed.append(done.devices)
        return done

    monkeypatch.setattr(ServerRound, "total", noted)
    return asked, summed


@pytest.fixture(scope="module")
def browser():
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES.split())
        yield browser
        browser.close()
