"""Cut off anywhere, a run goes on: a seeded one to the same parameters, and the ledger never counts
less than was released.
"""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from harness import Cut, quietly, small_population, tiny_recipe
from taciturn import files
from taciturn.files import FolderExists
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import ReleaseError, Releases
from taciturn.recipe.recipe import Recipe
from taciturn.release.model_file import load_model
from taciturn.runs.folder import RunError
from taciturn.runs.loop import resume_run, train_run


def params_of(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_model(folder)[0])


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 3},
    "privacy": {"noise": "blt", "strategy": {"decay": [0.9, 0.5], "scale": [0.2, 0.2]}},
}


# Devices that come and go, a clip norm that adapts, rounds that fail, noise that restarts.
EVERYTHING = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {
        "clipping": "adaptive",
        "restart_rounds": [3],
        "clipped_count_stddev": 2.0,
        "strategy": {"decay": [0.9, 0.8], "scale": [0.2, 0.3]},
    },
    "fleet": {"kind": "check-in", "dropout_rate": 0.25, "over_selection": 1.4, "timer_hours": 5.0},
}
QUEUE = {**FTRL, "fleet": {"kind": "queue", "in_flight": 14}}
KINDS = {"dp-fedavg": {}, "dp-ftrl": FTRL, "everything": EVERYTHING, "queue": QUEUE}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def recipe(kind, population):
    return tiny_recipe(population, **KINDS[kind])


@pytest.fixture(scope="module")
def runs_to_the_end(tmp_path_factory, vocabulary):
    """A run of each kind that nothing cut off: trained once, in a population of its own, for all
    tests that compare with it.
    """

    @functools.cache
    def trained(kind: str) -> tuple[Recipe, Path]:
        folder = tmp_path_factory.mktemp("uninterrupted")
        recipe = tiny_recipe(small_population(folder / "population", vocabulary), **KINDS[kind])
        train_run(recipe, folder / "run", quietly)
        return recipe, folder / "run"

    return trained


@pytest.fixture
def uninterrupted(runs_to_the_end, kind) -> list[np.ndarray]:
    return params_of(runs_to_the_end(kind)[1])


def cut_after_charging(patch: pytest.MonkeyPatch, round: int) -> None:
    charge, where = Account.charge, round

    def cut(self: Account, round: int, record: str, log: str = "") -> None:
        charge(self, round, record, log)
        if round == where:
            raise Cut

    patch.setattr(Account, "charge", cut)


@pytest.mark.parametrize(
    "place",
    [
        "before the record",
        "before the charge",
        "after the charge",
        "after the release",
        "while saving",
    ],
)
@pytest.mark.parametrize(
    ("kind", "occurrence"),
    [
        *((kind, 4) for kind in KINDS if kind != "dp-ftrl"),
        ("everything", 1),
        pytest.param("dp-fedavg", 1, marks=pytest.mark.slow),
        *(
            pytest.param("dp-ftrl", one, marks=pytest.mark.slow) for one in (1, 4)
        ),  # of which "everything" has all
        pytest.param(
            "queue", 1, marks=pytest.mark.slow
        ),  # fleets/test_queue_crashes.py has the first round too
    ],
    indirect=["kind"],
)
def test_a_seeded_run_interrupted_anywhere_ends_with_the_same_parameters(
    population, recipe, tmp_path, uninterrupted, monkeypatch, place, occurrence
):
    count = 0

    def cut_here():
        nonlocal count
        count += 1
        if count == occurrence:
            raise Cut

    with monkeypatch.context() as patch:
        charge, mean, write = Account.charge, Curator.private_mean, files.write_atomically
        if place == "before the record":
            record = Releases.write
            patch.setattr(Releases, "write", lambda *a: (cut_here(), record(*a))[1])
        if place == "before the charge":
            patch.setattr(Account, "charge", lambda *a: (cut_here(), charge(*a)))
        if place == "after the charge":
            patch.setattr(Account, "charge", lambda *a: (charge(*a), cut_here()))
        if place == "after the release":
            patch.setattr(Curator, "private_mean", lambda *a: (mean(*a), cut_here())[0])
        if place == "while saving":
            for module in (
                "taciturn.runs.loop",
                "taciturn.runs.metrics",
                "taciturn.release.model_file",
            ):
                patch.setattr(
                    f"{module}.write_atomically", lambda *a, **k: (write(*a, **k), cut_here())[0]
                )
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "cut", quietly)
    started = (tmp_path / "cut" / "recipe.toml").exists()
    finished = (
        resume_run(tmp_path / "cut", quietly)
        if started
        else train_run(recipe, tmp_path / "cut", quietly)
    )
    assert same(params_of(tmp_path / "cut"), uninterrupted)
    # Nothing was lost, so nothing was paid twice: what had been charged was released again byte for
    # byte.
    assert finished.guarantee.releases == recipe.run.rounds


def test_a_total_that_would_come_out_differently_is_not_released_a_second_time(
    population, recipe, tmp_path, uninterrupted, monkeypatch
):
    """A sum that differs in one bit (another machine, another library) must not meet the old noise:
    what was charged is given out from its record, and only the rounds after it are summed.
    """
    with monkeypatch.context() as patch:
        cut_after_charging(patch, round=4)
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "cut", quietly)
    summed = []
    with monkeypatch.context() as patch:
        total = Curator._sum_reports

        def otherwise(self, params, state, cohort, round, attempt):
            summed.append(round)
            return jax.tree.map(
                lambda leaf: leaf + 1, total(self, params, state, cohort, round, attempt)
            )

        patch.setattr(Curator, "_sum_reports", otherwise)
        finished = resume_run(tmp_path / "cut", quietly)
    assert finished.guarantee.releases == recipe.run.rounds
    rows = Ledger(population.folder / "ledger.jsonl").run_rows("cut")
    assert [row["round"] for row in rows if row["kind"] == "charge"] == list(
        range(recipe.run.rounds)
    )
    assert set(summed) == {5}
    assert not same(
        params_of(tmp_path / "cut"), uninterrupted
    )  # the twin: a sum that is otherwise would have shown


def test_a_run_whose_record_is_gone_does_not_go_on(population, recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        cut_after_charging(patch, round=4)
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "cut", quietly)
    for path in (tmp_path / "cut" / "private" / "releases").iterdir():
        path.unlink()
    with pytest.raises(ReleaseError, match="record is gone"):
        resume_run(tmp_path / "cut", quietly)


def test_a_run_with_fresh_entropy_goes_on_soundly(population, tmp_path, monkeypatch):
    recipe = tiny_recipe(population, run={"seed": None})
    with monkeypatch.context() as patch:
        cut_after_charging(patch, round=3)
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "cut", quietly)
    finished = resume_run(tmp_path / "cut", quietly)
    assert finished.guarantee.releases == recipe.run.rounds
    assert finished.guarantee.randomness == "operating system"


def test_a_finished_run_has_no_secrets_left_and_is_not_resumed(runs_to_the_end, kind):
    recipe, done = runs_to_the_end(kind)
    assert not (done / "private").exists()
    with pytest.raises(RunError, match="finished"):
        resume_run(done, quietly)
    with pytest.raises(FolderExists, match="exists already"):
        train_run(recipe, done, quietly)


def test_secrets_are_readable_by_their_owner_alone(population, recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        cut_after_charging(patch, round=3)
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "cut", quietly)
    private = tmp_path / "cut" / "private"
    assert private.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in private.rglob("*") if path.is_dir())
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in private.rglob("*") if path.is_file()
    }
    devices = {
        "participation.log",
        "devices.npz",
        "queue.json",
        *(f"model-{number}.safetensors" for number in range(9)),
        *(f"release-{number}" for number in range(9)),
    }
    assert modes.keys() - devices == {"root", "state.safetensors", "seconds.jsonl"}
    assert set(modes.values()) == {0o600}
