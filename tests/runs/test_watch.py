"""A run that gets worse stops, and ends with its last good model."""

import json
import math

import numpy as np
import pytest

from harness import Cut, cut_at, quietly, tiny_recipe
from taciturn.data.population import HeldOutUsers
from taciturn.errors import TaciturnError
from taciturn.files import from_json
from taciturn.release.model_file import load_model, params_digest
from taciturn.runs import loop
from taciturn.runs.loop import resume_run, train_run
from taciturn.runs.watch import KeptModel, Sightings, judge

START = 5.0
ROUNDS = 40
# Noise that outshouts everybody.
LOUD = {
    "privacy": {"clip_norm": 50.0, "noise_multiplier": 5.0},
    "server": {"learning_rate": 2.0},
    "run": {"rounds": ROUNDS, "evaluate_every": 8, "save_every": 3},
}


def look_at(losses):
    """Return what looks find that see these losses, by round, up to the one that ends the run."""
    seen = Sightings(KeptModel(0, None))
    for round, loss in losses.items():
        seen = judge(seen, KeptModel(round, None), loss=loss, loss_of_start=START)
        if seen.has_seen_enough:
            return round, seen.kept.round
    return None, seen.kept.round


@pytest.mark.parametrize(
    ("losses", "stopped_at", "kept"),
    [
        ({1: 4.9, 2: 4.8, 4: 4.5}, None, 4),
        # An overshoot, after which it learns: nobody is alarmed.
        ({1: 40.0, 2: 30.0, 4: 9.0, 8: 4.0}, None, 8),
        ({20: 4.0, 21: 9.0, 22: 9.0, 23: 9.0, 24: 3.9}, None, 24),
        # A little above the start, for ever: that may yet learn, but is not a model to return to.
        ({1: 4.9, 2: 5.5, 4: 5.5, 64: 5.9}, None, 1),
        ({1: 4.9, 2: 6.5, 4: 7.0, 8: 8.0, 16: 9.0}, 8, 1),
        ({1: 4.9, 8: 6.5, 16: 7.0}, 16, 1),
        # It was measured every round.
        ({1: 9.0, 2: 9.0, 3: 9.0, 4: 9.0, 5: 9.0, 6: 9.0}, 5, 0),
        ({60: 4.0, 80: 8.0, 90: 8.0, 100: 8.0, 110: 8.0}, 100, 60),
        ({500: 4.0, 520: 8.0, 540: 8.0}, 540, 500),
        ({1: 4.9, 2: math.nan}, 2, 1),
        ({1: 4.9, 2: math.inf}, 2, 1),
    ],
)
def test_a_run_has_the_time_to_come_back_and_no_more(losses, stopped_at, kept):
    assert look_at(losses) == (stopped_at, kept)


def test_a_run_that_gets_worse_stops_early_and_keeps_the_good_model(population, tmp_path):
    recipe = tiny_recipe(population, **LOUD)
    finished = train_run(recipe, tmp_path / "run", quietly)
    releases = finished.guarantee.releases
    assert releases < ROUNDS / 2
    assert finished.stopped is not None
    assert f"after {releases} of {ROUNDS} rounds" in finished.stopped
    assert "noise, which is too loud for so few people" in finished.stopped
    assert f"the other {ROUNDS - releases} rounds would have cost is not spent" in finished.stopped
    # What it promises is what all rounds would have cost: it ended for what they showed.
    early = finished.guarantee.ended_early
    assert early is not None
    assert early.declared == ROUNDS
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epsilon"] == early.epsilon_of_made < finished.guarantee.epsilon
    stated = from_json((tmp_path / "run" / "guarantee.json").read_text())
    assert stated["epsilon"] == finished.guarantee.epsilon
    assert f"after {releases} of the {ROUNDS} releases" in " ".join(
        (tmp_path / "run" / "guarantee.txt").read_text().split()
    )
    assert finished.scores["loss"].value <= finished.before["loss"].value
    params, card = load_model(tmp_path / "run")
    kept = f"the model of round {card.round}" if card.round else "the model it started from"
    assert f"Kept is {kept}" in finished.stopped
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").open()]
    released = [row["params"] for row in rows if row["kind"] == "model"]
    assert released[-1] == params_digest(params)
    assert (tmp_path / "run" / "stopped.txt").read_text() == f"{finished.stopped}.\n"
    # What was charged stays charged, and the run is closed.
    assert sum(row["kind"] == "charge" for row in rows) == releases
    with pytest.raises(TaciturnError, match="finished"):
        resume_run(tmp_path / "run", quietly)


def test_the_twin_that_does_not_look_spends_everything(population, tmp_path, monkeypatch):
    monkeypatch.setattr(loop.Watch, "has_seen_enough", property(lambda self: False))
    monkeypatch.setattr(loop.Watch, "kept_model", property(lambda self: None))
    finished = train_run(tiny_recipe(population, **LOUD), tmp_path / "run", quietly)
    assert finished.guarantee.releases == ROUNDS
    assert finished.guarantee.ended_early is None
    assert finished.scores["loss"].value > finished.before["loss"].value + 1


def test_where_all_rounds_are_charged_with_the_first_it_says_so(population, tmp_path):
    correlated = {
        **LOUD,
        "algorithm": "dp-ftrl",
        "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    }
    correlated["privacy"] = {**LOUD["privacy"], "noise": "tree"}
    finished = train_run(tiny_recipe(population, **correlated), tmp_path / "run", quietly)
    assert finished.guarantee.releases < ROUNDS
    assert finished.stopped is not None
    assert "rounds were charged with the first" in finished.stopped
    assert "is not spent" not in finished.stopped


def test_a_rate_that_is_too_high_is_not_blamed_on_noise(population, tmp_path):
    fast = {
        "algorithm": "fedavg",
        "privacy": {"noise_multiplier": None, "clip_norm": None},
        "local": {"learning_rate": 200.0},
        "run": {"rounds": ROUNDS, "evaluate_every": 8},
    }
    finished = train_run(tiny_recipe(population, **fast), tmp_path / "run", quietly)
    assert finished.stopped is not None
    assert "a learning rate is probably too high" in finished.stopped


@pytest.fixture
def interrupted(population, tmp_path):
    """Return how a run ends that is interrupted after a round, and resumed."""

    def end(name, round):
        recipe = tiny_recipe(population, **LOUD)
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / name, cut_at(round))
        return ending(resume_run(tmp_path / name, quietly), tmp_path / name)

    return end


def ending(finished, folder):
    params, card = load_model(folder)
    return finished.guarantee.releases, card.round, params_digest(params)


@pytest.mark.parametrize("round", [2, 4, 7])
def test_an_interrupted_run_stops_where_it_would_have_with_the_same_model(
    interrupted, population, tmp_path, round
):
    whole = train_run(tiny_recipe(population, **LOUD), tmp_path / "whole", quietly)
    assert interrupted("cut", round) == ending(whole, tmp_path / "whole")


def kill_at_the_end(monkeypatch, name):
    """Kill the run where it does this for the last time: its last state is saved then."""

    def kill_where_it_ended(run, *arguments):
        if (run.folder / "stopped.txt").exists():
            raise KeyboardInterrupt
        return do(run, *arguments)

    do = getattr(loop, name)
    monkeypatch.setattr(loop, name, kill_where_it_ended)


@pytest.mark.parametrize("name", ["_write_own_rows", "_write_statements"])
def test_a_run_that_is_killed_while_it_ends_has_ended(population, tmp_path, monkeypatch, name):
    """Else it spends more after it was seen that it gets worse, and forgets its good model."""
    recipe = tiny_recipe(population, **LOUD)
    whole = train_run(recipe, tmp_path / "whole", quietly)
    with monkeypatch.context() as crash:
        kill_at_the_end(crash, name)
        with pytest.raises(KeyboardInterrupt):
            train_run(recipe, tmp_path / "cut", quietly)
    finished = resume_run(tmp_path / "cut", quietly)
    assert ending(finished, tmp_path / "cut") == ending(whole, tmp_path / "whole")


def test_the_twin_that_forgets_what_it_saw_ends_otherwise(
    interrupted, population, tmp_path, monkeypatch
):
    whole = train_run(tiny_recipe(population, **LOUD), tmp_path / "whole", quietly)
    monkeypatch.setattr(loop, "_save_sightings", lambda run, state, sightings: None)
    assert interrupted("cut", 7) != ending(whole, tmp_path / "whole")


def test_looks_read_held_out_users_only(population, tmp_path, monkeypatch):
    """To stop says nothing about anyone who has a guarantee."""
    read = []
    measure = loop.Watch._measure

    def note(watch, params):
        read.append(watch._texts)
        return measure(watch, params)

    monkeypatch.setattr(loop.Watch, "_measure", note)
    train_run(tiny_recipe(population, **LOUD), tmp_path / "run", quietly)
    held_out = HeldOutUsers(population.folder).texts
    assert read
    for texts in read:
        for user in range(len(texts)):
            assert np.array_equal(texts[user], held_out[user])
