"""More attempts to get more out of users' text than the ledger says: across runs, files, and in the last digits."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant

from harness import Cut, copied_population, cut_at, exact, made_up_users, nobody, noise_key, quietly, tiny_recipe
from taciturn.data.population import Population, build_population
from taciturn.privacy import wide
from taciturn.privacy.clipping import MOST_REPORTS, Whole, encode, flat_clip, per_layer_clip
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.noise import gaussian
from taciturn.recipe import build
from taciturn.recipe.text import save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs import finished, run
from taciturn.runs.finished import export_run

pytestmark = pytest.mark.compiled_quickly

SHORT = {"rounds": 2, "save_every": 1, "evaluate_every": 2, "seed": None}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population with a seeded run, `seeded`, and a run that started from it with secret noise, `after`."""
    from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary

    folder = tmp_path_factory.mktemp("made")
    words = Vocabulary(SPECIAL + PUNCTUATION + tuple(f"word{k}" for k in range(40 - len(SPECIAL + PUNCTUATION))))
    people = build_population(folder / "people", made_up_users(50), made_up_users(12, seed=1), words, {})
    run.train_run(tiny_recipe(people, run={**SHORT, "seed": 1}), folder / "seeded", quietly)
    after = tiny_recipe(people, model={"warm_start": str(folder / "seeded")}, run=SHORT)
    run.train_run(after, folder / "after", quietly)
    return folder


def people_of(made: Path, to: Path) -> Population:
    return copied_population(made / "people", to / "people")


def test_a_run_that_starts_from_a_simulation_is_declared_as_one(made):
    guarantee = Ledger(made / "people" / FILE_NAME).guarantee("after")
    assert guarantee.randomness == "seeded simulation"
    assert "SIMULATION" in (made / "after" / "guarantee.txt").read_text()


def test_a_model_can_still_be_measured_and_exported_after_another_run_started_from_it(made, tmp_path):
    before = Ledger(made / "people" / FILE_NAME).guarantee("seeded")
    assert export_run(made / "seeded", tmp_path / "out", non_private=False).guarantee.epsilon == before.epsilon
    assert finished.evaluate_run(made / "seeded")[1].releases == before.releases


def test_a_model_saved_while_an_export_is_under_way_does_not_leave_with_the_older_guarantee(
    made, tmp_path, monkeypatch
):
    people = people_of(made, tmp_path)
    folder = tmp_path / "going-on"
    with pytest.raises(Cut):
        run.train_run(tiny_recipe(people, run=SHORT), folder, cut_at(1))

    class Slow(Ledger):
        """While it works out what the model cost, the run goes on and saves another."""

        def guarantee(self, *which):
            stated = super().guarantee(*which)
            monkeypatch.undo()
            run.resume_run(folder, quietly)
            return stated

    monkeypatch.setattr(build, "open_ledger", lambda population: Slow(population.folder / FILE_NAME))
    guarantee = export_run(folder, tmp_path / "out").guarantee
    exported = load_model(tmp_path / "out")[1]
    assert (exported.round, exported.ledger_head) == (guarantee.releases, guarantee.head)


def test_two_runs_with_one_root_never_share_noise(made, tmp_path):
    """A folder copied before its first save, with another noise multiplier in it, is another run with the same root."""
    people = people_of(made, tmp_path)
    plain = {"server": {"optimizer": "sgd", "momentum": 0.0}, "run": {**SHORT, "rounds": 1}}
    with pytest.raises(Cut):
        run.train_run(tiny_recipe(people, **plain), tmp_path / "one", cut_at(0))
    (tmp_path / "two" / "private").mkdir(parents=True)
    shutil.copy(tmp_path / "one" / "private" / "root", tmp_path / "two" / "private" / "root")
    save_recipe(tiny_recipe(people, privacy={"noise_multiplier": 2.0}, **plain), tmp_path / "two" / "recipe.toml")
    start = load_model(tmp_path / "one")[0]
    one, two = (
        jax.tree.map(lambda end, begin: np.asarray(end - begin), run.resume_run(tmp_path / name, quietly).params, start)
        for name in ("one", "two")
    )
    left = jax.tree.map(lambda a, b: 2 * a - b, one, two)  # the total alone, if the noise is the same but for its size
    assert norm(left) > norm(one)


def test_a_warm_start_does_not_make_a_lost_ledger_anew(made, tmp_path):
    people = people_of(made, tmp_path)
    run.train_run(tiny_recipe(people, run={**SHORT, "rounds": 1}), tmp_path / "lost", quietly)
    (people.folder / FILE_NAME).unlink()
    elsewhere = tiny_recipe(Population(made / "people"), model={"warm_start": str(tmp_path / "lost")})
    with pytest.raises(Exception, match=r"gone|no ledger knows"):
        run.Run(tmp_path / "next", elsewhere, bytes(32))
    assert not (people.folder / FILE_NAME).exists()


def test_a_warm_start_is_not_believed_from_a_ledger_that_was_replaced(made, tmp_path):
    people = people_of(made, tmp_path)
    run.train_run(tiny_recipe(people, run={**SHORT, "rounds": 1}), tmp_path / "dear", quietly)
    rows = Ledger(people.folder / FILE_NAME).run_rows("dear")
    (people.folder / FILE_NAME).unlink()
    (people.folder / FILE_NAME).with_suffix(".head").unlink()
    forged = Ledger(people.folder / FILE_NAME)
    for row in rows:
        if row["kind"] != "charge":
            forged.append({name: value for name, value in row.items() if name not in ("hash", "previous")})
    elsewhere = tiny_recipe(Population(made / "people"), model={"warm_start": str(tmp_path / "dear")})
    with pytest.raises(LedgerError):
        run.Run(tmp_path / "next", elsewhere, bytes(32))


def test_what_a_run_states_covers_its_lineage_as_the_library_composes_it(made):
    ledger = Ledger(made / "people" / FILE_NAME)
    stated = ledger.guarantee("after")
    direct = RdpAccountant()
    direct.compose(SelfComposedDpEvent(PoissonSampledDpEvent(10 / 50, GaussianDpEvent(1.0)), 4))
    assert stated.releases == 2
    assert stated.epsilon >= direct.get_epsilon(stated.delta) * (1 - 1e-9)
    assert stated.rho == pytest.approx(4 / 2)


def test_a_model_saved_before_its_run_released_anything_costs_what_it_started_from(made):
    ledger = Ledger(made / "people" / FILE_NAME)
    first = next(row for row in ledger.run_rows("after") if row["kind"] == "model")
    assert ledger.guarantee("after", first["hash"]).epsilon == ledger.guarantee("seeded").epsilon
    assert ledger.cost("after", first["hash"]) == ledger.cost("seeded")


@pytest.mark.parametrize("clip_norm", [1e-6, 0.3, 0.8, 1.0, 3.3333, 1e6])
@pytest.mark.parametrize("clip", [flat_clip, per_layer_clip])
def test_no_report_stands_for_more_than_its_weight_times_the_clip_norm(clip, clip_norm):
    generator, users = np.random.default_rng(0), 120
    directions = {"a": generator.normal(size=(users, 3)), "b": generator.normal(size=(users, 40))}
    lengths = np.sqrt(sum((part**2).sum(1) for part in directions.values()))
    wanted = clip_norm * np.concatenate(
        [1 + generator.uniform(-4e-7, 4e-7, 60), 10 ** generator.uniform(-6, 8, users - 60)]
    )
    updates = {name: (part * (wanted / lengths)[:, None]).astype(np.float32) for name, part in directions.items()}
    weights = np.where(np.arange(users) % 3 == 0, 1.0, generator.uniform(0, 1, users)).astype(np.float32)
    bound = clip(clip_norm)
    report = jax.vmap(lambda u, w: encode(bound, bound.public(0), u, w, jax.random.key(0)))
    reports = jax.device_get(jax.jit(report)(updates, weights))
    for user in range(users):
        update, weight = exact(jax.tree.map(lambda leaf: leaf[user], reports), clip_norm)  # noqa: B023
        assert weight <= weights[user]
        assert norm(update) <= weight * float(np.float32(clip_norm))


def test_the_most_reports_there_may_be_do_not_overflow():
    one = encode(flat_clip(1.0), jnp.float32(1.0), {"x": jnp.array([-9.0])}, jnp.float32(1.0), jax.random.key(0))
    low = encode(flat_clip(1.0), jnp.float32(1.0), {"x": jnp.array([1 / 3])}, jnp.float32(1.0), jax.random.key(0))
    for report in (one, low):
        for leaf in jax.tree.leaves(report):
            assert abs(int(np.max(np.abs(leaf)))) * MOST_REPORTS < 2**31
    assert 2**15 * MOST_REPORTS < 2**31


def test_one_more_user_moves_what_is_noised_by_the_report_and_by_nothing_else():
    """A total of whole numbers is exact, and so is what noise is added to; in floats it would not be."""
    cohort, size = 65_000, 64
    bound, per = flat_clip(0.3), 2**30 // 8 - 12_345  # less than one user's share of S in each of 64 coordinates
    unpack = jax.jit(bound.unpack)

    def steps(whole: np.ndarray) -> np.ndarray:
        layer = Whole(jnp.asarray(whole >> 15, jnp.int32), jnp.asarray(whole & (2**15 - 1), jnp.int32))
        return wide.to_numpy(unpack(bound.public(jnp.int32(0)), {"x": layer})["x"])

    generator, in_floats = np.random.default_rng(0), np.zeros(size, np.float32)
    for _ in range(200):
        others = per * (cohort - 1) - generator.integers(0, 2**21, size)
        np.testing.assert_array_equal(steps(others + per) - steps(others), np.full(size, per))
        moved = (others + per).astype(np.float32) - others.astype(np.float32)
        in_floats = np.maximum(in_floats, moved)
    assert np.linalg.norm(np.full(size, per)) <= bound.reach
    assert np.all(in_floats > per)  # the twin


@pytest.mark.usefixtures("one_deviation")
def test_noise_is_made_for_the_longest_report_whatever_the_cohort():
    for cohort in (1, 1000, 65_000):
        layer, private = {"x": jnp.zeros(64)}, mechanism(flat_clip(0.3), fixed_denominator(1.0), gaussian(1e-3), cohort)
        released, _ = private.release(private.init(layer), nobody(private, layer), noise_key(0))
        np.testing.assert_allclose(released.estimate["x"], 1e-3 * 0.3, rtol=1e-6)


def test_all_runs_together_have_no_privacy_under_any_adjacency_once_one_run_had_none(made, tmp_path):
    people = people_of(made, tmp_path)
    fixed = {"participation": {"kind": "fixed", "users": 50, "cohort": 10}, "run": {**SHORT, "rounds": 1}}
    run.train_run(tiny_recipe(people, **fixed), tmp_path / "fixed", quietly)
    bare = tiny_recipe(people, algorithm="fedavg", privacy={"noise_multiplier": None}, run={**SHORT, "rounds": 1})
    run.train_run(bare, tmp_path / "bare", quietly)
    assert all(np.isinf(epsilon) for _, epsilon, _ in Ledger(people.folder / FILE_NAME).totals(1e-3))


def test_nothing_private_makes_a_mixture_private():
    from taciturn.privacy.accounting import epsilon, rho

    mixture = ComposedDpEvent([NonPrivateDpEvent(), SelfComposedDpEvent(GaussianDpEvent(9.0), 1)])
    assert epsilon(mixture, 1e-5, "rdp") == epsilon(mixture, 1e-5, "pld") == rho(mixture) == float("inf")


def test_private_counts_of_a_population_are_not_for_everyone_to_read(made):
    assert (made / "people" / "manifest.json").stat().st_mode & 0o077 == 0


def norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(tree))))
