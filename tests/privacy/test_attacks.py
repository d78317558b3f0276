"""Attempts to get more out of users' text than the ledger says, each of which must fail."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from harness import Cut, compiled_quickly, copied_ledger, copied_population, cut_at, exact, noise_key, quietly
from taciturn import randomness
from taciturn.core import Algorithm, Message, ServerState
from taciturn.data.layout import Layout, Unrolls
from taciturn.data.population import Population, build_population
from taciturn.data.users import position
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.simulation.in_process import CPU_CHUNK, SimulatedFleet
from taciturn.privacy.account import Account, BudgetExhausted, RunTerms
from taciturn.privacy.accounting import Budget, epsilon, event_from_json, repeated
from taciturn.privacy.clipping import flat_clip, per_layer_clip
from taciturn.privacy.curator import Curator
from taciturn.privacy.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.noise import gaussian, no_noise
from taciturn.privacy.participation import FixedSize, PoissonSampling
from taciturn.privacy.records import RecordError, Records
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, parse_recipe, save_recipe
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import load_model, save_model
from taciturn.runs import run
from taciturn.runs.finished import export_run
from taciturn.runs.folder import RunError

WORDS = Vocabulary(("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
DELTA = 1e-5
ZERO, OTHER = {"x": jnp.zeros(4)}, {"x": jnp.full(4, 0.1)}


def population(folder: Path, users: int = 12) -> Population:
    texts = {f"u{k}": [4 + k % 3] * 8 for k in range(users)}
    return build_population(folder, texts, {f"held out {k}": [4, 5, 6] for k in range(10)}, WORDS, {})


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return population(tmp_path_factory.mktemp("people"))


def algorithm(participation=None, private=None) -> Algorithm:
    """Every user's update is the message plus a sum over the text: it tells totals of different messages apart."""
    return Algorithm(
        init=lambda params: ServerState(params, ()),
        user_update=lambda message, user, key: {"x": message.params["x"] + 1e-3 * jnp.sum(user.batches)},
        server_update=lambda server, estimate: ServerState(estimate, ()),
        mechanism=private or mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(1.0)),
        participation=participation or PoissonSampling(0.5),
    )


def account(path: Path, of: Algorithm, name: str = "run", **declared) -> Account:
    usual = {
        "recipe": "recipe",
        "population": "people",
        "adjacency": of.participation.adjacency,
        "randomness": "operating system",
        "accountant": "rdp",
        "budget": Budget(DELTA),
        "rounds": 5,
    }
    terms = RunTerms(name=name, **(usual | declared))
    return Account(Ledger(path), terms, of.mechanism.event(of.participation))


def curator(people: Population, book: Account, of: Algorithm, root: bytes = bytes(32)) -> Curator:
    records = Records(book.ledger.path.with_suffix(".releases"), root)
    return Curator(of, SimulatedFleet(people, Layout(Unrolls(4), 2, 1)), book, root, records=records)


def opened(people: Population, path: Path, of: Algorithm | None = None, **declared) -> Curator:
    of = of or algorithm()
    book = account(path, of, **declared)
    book.open()
    return curator(people, book, of)


def is_constant(difference: jax.Array) -> bool:
    """Whether the same noise was in both: the updates are alike in all coordinates, so only noise can differ."""
    return bool(jnp.ptp(difference) < 1e-5)


def norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(tree))))


# --- one noise key, one total ------------------------------------------------------------------------------------


def test_a_second_call_with_other_params_gets_what_was_charged_and_nothing_else(people, tmp_path):
    door = opened(people, tmp_path / FILE_NAME)
    state = algorithm().mechanism.init(ZERO)
    given = [door.private_mean(params, state, 0)[0]["x"] for params in (ZERO, OTHER, ZERO)]
    assert np.array_equal(given[0], given[1])
    assert np.array_equal(given[0], given[2])
    assert len(door.account.charges) == 1


def test_rounds_whose_totals_differ_have_noise_of_their_own(people, tmp_path):
    """However the same noise met two totals, their difference would tell them: it is alike in all coordinates."""
    door = opened(people, tmp_path / FILE_NAME)
    first, state = door.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    second, state = door.private_mean(OTHER, state, 1)
    third, _ = door.private_mean(ZERO, state, 2)
    assert not is_constant(first["x"] - second["x"])
    assert not is_constant(first["x"] - third["x"])
    assert len(door.account.charges) == 3


def test_noise_that_meets_two_totals_would_be_noticed():
    """The twin that must fail."""
    private = algorithm().mechanism
    state = private.init(ZERO)
    totals = [private.bound(jnp.float32(1), params, jnp.float32(1), jax.random.key(0)) for params in (ZERO, OTHER)]
    first, second = (private.release(state, total, noise_key(0))[0].estimate["x"] for total in totals)
    assert is_constant(first - second)
    assert not is_constant(first - private.release(state, totals[1], noise_key(1))[0].estimate["x"])


def test_a_call_with_another_state_releases_nothing(people, tmp_path):
    falling = algorithm(private=mechanism(flat_clip([(0, 1.0), (1, 0.5)]), fixed_denominator(6.0), gaussian(1.0)))
    door = opened(people, tmp_path / FILE_NAME, falling)
    state = falling.mechanism.init(ZERO)
    later = state._replace(round=jnp.int32(1))
    for wrong, round in ((later, 0), (later, 1)):
        with pytest.raises(ValueError, match=r"does not go on from the state|cannot come before"):
            door.private_mean(ZERO, wrong, round)
    assert len(door.account.charges) == 0
    first, after = door.private_mean(ZERO, state, 0)
    with pytest.raises(ValueError, match="does not go on from the state"):
        door.private_mean(ZERO, later, 0)
    with pytest.raises(ValueError, match="does not go on from the state"):
        door.private_mean(ZERO, state, 1)
    second, _ = door.private_mean(ZERO, after, 1)  # the twin
    assert not is_constant(first["x"] - second["x"])
    assert not is_constant(first["x"] - 2 * second["x"])
    assert len(door.account.charges) == 2


@pytest.mark.parametrize("spelling", ["0", 0.0])
def test_another_spelling_of_a_round_does_not_bring_its_noise_back(people, tmp_path, spelling):
    door = opened(people, tmp_path / FILE_NAME)
    state = algorithm().mechanism.init(ZERO)
    first = door.private_mean(ZERO, state, 0)[0]
    try:
        second = door.private_mean(OTHER, state, spelling)[0]
    except (TypeError, ValueError):
        return
    assert not is_constant(first["x"] - second["x"])


def test_a_copy_of_the_ledger_does_not_bring_noise_back_for_another_total(people, tmp_path):
    first_door = opened(people, tmp_path / "first.jsonl")
    copied_ledger(tmp_path / "first.jsonl", tmp_path / "copy.jsonl")
    book = account(tmp_path / "copy.jsonl", algorithm())
    book.reopen(None)
    second_door = curator(people, book, algorithm())
    state = algorithm().mechanism.init(ZERO)
    first, second = first_door.private_mean(ZERO, state, 0)[0], second_door.private_mean(OTHER, state, 0)[0]
    assert not is_constant(first["x"] - second["x"])


def test_a_round_charged_and_lost_is_released_again_byte_for_byte(people, tmp_path):
    door = opened(people, tmp_path / FILE_NAME)
    state = algorithm().mechanism.init(ZERO)
    before, state_before = door.private_mean(ZERO, state, 0)
    for params in (ZERO, OTHER):  # whatever it would be computed from now
        book = account(tmp_path / FILE_NAME, algorithm())
        book.reopen(None)
        after, state_after = curator(people, book, algorithm()).private_mean(params, state, 0)
        assert np.array_equal(before["x"], after["x"])
        assert int(state_before.round) == int(state_after.round) == 1
        assert len(book.charges) == 1


def test_a_round_whose_record_is_lost_is_not_computed_again(people, tmp_path):
    door = opened(people, tmp_path / FILE_NAME)
    door.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    shutil.rmtree((tmp_path / FILE_NAME).with_suffix(".releases"))
    book = account(tmp_path / FILE_NAME, algorithm())
    book.reopen(None)
    with pytest.raises(RecordError, match="record is gone"):
        curator(people, book, algorithm()).private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    assert len(book.charges) == 1


def test_of_two_processes_at_one_run_the_one_that_did_not_go_on_with_it_releases_nothing(people, tmp_path):
    second = opened(people, tmp_path / FILE_NAME)
    book = account(tmp_path / FILE_NAME, algorithm())
    book.reopen(None)
    first = curator(people, book, algorithm())
    state = algorithm().mechanism.init(ZERO)
    given, _ = first.private_mean(ZERO, state, 0)
    with pytest.raises(LedgerError, match="another process"):
        second.private_mean(OTHER, state, 0)
    # Nor does it take the release of the other away, which is charged.
    book = account(tmp_path / FILE_NAME, algorithm())
    book.reopen(None)
    again, _ = curator(people, book, algorithm()).private_mean(ZERO, state, 0)
    assert np.array_equal(again["x"], given["x"])


# --- what one user can do ----------------------------------------------------------------------------------------


HARD = [1e-45, 1e-39, 1e-20, 1.0, 1e20, 8e37, 9e37, 2e38, 3.4e38]


@pytest.mark.parametrize("side_by_side", [False, True], ids=["alone", "side by side"])
@pytest.mark.parametrize("bound", [flat_clip(1.0), per_layer_clip(1.0)], ids=["flat", "per layer"])
def test_no_finite_update_passes_the_clip_norm(bound, side_by_side):
    private = mechanism(bound, fixed_denominator(1.0), gaussian(1.0))
    public = private.public(private.init({"a": jnp.zeros(5), "b": jnp.zeros(2)}))
    values = np.array(HARD, np.float32)
    updates = {"a": np.repeat(values[:, None], 5, axis=1), "b": np.stack([values, np.ones_like(values)], axis=1)}

    def report(update):
        return private.bound(public, update, jnp.float32(1.0), jax.random.key(0))

    if side_by_side:
        reports = jax.jit(jax.vmap(report))(updates)
    else:
        each = [report({name: leaf[user] for name, leaf in updates.items()}) for user in range(len(HARD))]
        reports = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    norms = [norm(exact(jax.tree.map(lambda leaf: leaf[user], reports), 1.0)[0]) for user in range(len(HARD))]  # noqa: B023
    assert all(one <= 1.0 for one in norms), norms  # NaN fails as well


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_no_number_leaves_as_zero(value):
    private = mechanism(flat_clip(1.0), fixed_denominator(1.0), gaussian(1.0))
    report = private.bound(jnp.float32(1.0), {"a": jnp.array([1.0, value])}, jnp.float32(1.0), jax.random.key(0))
    assert norm(exact(report, 1.0)[0]) == 0.0


@pytest.mark.parametrize("weight", [7.0, -3.0, np.nan, np.inf, 1e-40])
def test_a_weight_out_of_range_gives_nobody_more_than_the_clip_norm(weight):
    private = mechanism(flat_clip(1.0), fixed_denominator(1.0), gaussian(1.0))
    report = private.bound(jnp.float32(1.0), {"a": jnp.full(9, 50.0)}, jnp.float32(weight), jax.random.key(0))
    assert 0.0 <= exact(report, 1.0)[1] <= 1.0
    assert norm(exact(report, 1.0)[0]) <= 1.0


def test_a_million_small_values_behind_a_large_one_do_not_escape_the_norm():
    values = np.full(1_000_000, 2.4e-4, np.float32)  # each square is lost when it is added to 1 in float32
    values[0] = 1.0
    private = mechanism(flat_clip(1.0), fixed_denominator(1.0), gaussian(1.0))
    report = jax.jit(private.bound)(jnp.float32(1.0), {"a": values}, jnp.float32(1.0), jax.random.key(0))
    assert norm(exact(report, 1.0)[0]) <= 1.0


def test_rounding_in_a_large_sum_does_not_let_one_user_move_it_by_more_than_the_clip_norm(tmp_path):
    # 2,047 users report 1, one more lifts the sum to 2,048, where floats lie twice as far apart, and 2,000 users
    # report a little more than half that distance: after the one, each of them counts for more than it is.
    many, few = 2048, 2000
    stream = CPU_CHUNK * jax.local_device_count()  # users of one stream come CPU_CHUNK at a time; others are silent
    names = sorted((f"u{k}" for k in range((many + few) * jax.local_device_count())), key=position)
    ours = [user for position, user in enumerate(names) if position % stream < CPU_CHUNK]
    tiny = np.float32(2.0**-13 * (1 + 2.0**-20))
    private = mechanism(flat_clip(1.001), fixed_denominator(1.0), no_noise())
    state = private.init({"x": jnp.zeros(1)})

    def program(message, user, key):
        update = {"x": jnp.where(user.batches[0, 0, 1] == 6, tiny, 1.0) * jnp.ones(1)}
        return private.bound(message.public, update, user.weight, key)

    def estimate(folder: Path, users: dict[str, list[int]]) -> float:
        people = build_population(folder, users, {"held out": [5]}, WORDS, {})
        said = [int(text[0]) for text in people.texts if len(text)]
        assert said == sorted(said)  # those who lift the sum come first, or nothing is tried here
        fleet = SimulatedFleet(people, Layout(Unrolls(1), 1, 1))
        message = Message({"x": jnp.zeros(1)}, private.public(state))
        total = fleet.sum_reports(program, message, fleet.users(lambda users: users), jax.random.key(0))
        return float(private.release(state, total, noise_key(0))[0].estimate["x"][0])

    everyone = {user: [] for user in names} | {user: [5] for user in ours[:many]} | {user: [6] for user in ours[many:]}
    without = everyone | {ours[many - 1]: []}
    moved = estimate(tmp_path / "with", everyone) - estimate(tmp_path / "without", without)
    assert abs(moved) <= 1.002  # the clip norm, and the noise's own rounding


def test_a_sum_of_floats_would_let_one_user_move_it_by_far_more():
    """The twin that must fail: the same reports, added as float32."""
    tiny = np.float32(2.0**-13 * (1 + 2.0**-20))

    def total(ones: int) -> float:
        return float(np.cumsum(np.r_[np.ones(ones), np.full(2000, tiny)], dtype=np.float32)[-1])

    assert total(2048) - total(2047) > 1.2


def test_an_empty_cohort_is_released_as_noise_and_charged(people, tmp_path):
    for name, estimator in (("fixed", fixed_denominator(6.0)), ("clipped", clipped_denominator(6.0))):
        of = algorithm(PoissonSampling(1e-12), mechanism(flat_clip(1.0), estimator, gaussian(1.0)))
        door = opened(people, tmp_path / FILE_NAME, of, name=name)
        estimate, _ = door.private_mean(ZERO, of.mechanism.init(ZERO), 0)
        assert np.all(np.isfinite(estimate["x"]))
        assert np.all(np.asarray(estimate["x"]) != 0)
        assert len(door.account.charges) == 1


@pytest.mark.parametrize(("expected_weight", "multiplier"), [(8e37, 0.9), (1e37, 1e-2), (1.0, 1e-40)])
def test_where_a_float_has_no_room_for_noise_it_has_none_for_what_is_noised(expected_weight, multiplier):
    """Noise is added before anything is a float: what a float cannot hold is lost of both, and never of noise alone."""
    try:
        private = mechanism(flat_clip(1.0), fixed_denominator(expected_weight), gaussian(multiplier))
        state = private.init(ZERO)
    except ValueError:
        return
    update = {"x": jnp.array([1.0, 0.0, 0.0, 0.0])}
    for weight in (0.0, 1.0):
        total = private.bound(private.public(state), update, jnp.float32(weight), jax.random.key(0))
        released, _ = jax.jit(private.release)(state, total, noise_key(0))
        seen = np.asarray(released.estimate["x"]) != 0
        assert np.all(seen) or not np.any(seen)


# --- the account -------------------------------------------------------------------------------------------------


def test_nothing_is_released_on_an_account_that_was_never_opened(people, tmp_path):
    door = curator(people, account(tmp_path / FILE_NAME, algorithm()), algorithm())
    with pytest.raises(LedgerError):
        door.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)


def test_an_account_for_a_cheaper_mechanism_than_the_one_that_runs_is_refused(people, tmp_path):
    of = algorithm()
    louder = algorithm(private=mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(5.0)))
    with pytest.raises(ValueError, match="another mechanism"):
        curator(people, account(tmp_path / FILE_NAME, louder), of)


def test_an_account_under_another_adjacency_is_refused(people, tmp_path):
    of = algorithm(FixedSize(6, 12))
    with pytest.raises(ValueError, match="adjacency"):
        opened(people, tmp_path / FILE_NAME, of, adjacency=PoissonSampling(0.5).adjacency)


def test_a_cheap_row_added_behind_does_not_lower_epsilon(tmp_path):
    book = account(tmp_path / FILE_NAME, algorithm())
    book.open()
    for round in range(3):
        book.charge(round, "record")
    before = book.guarantee().epsilon
    cheap = {"kind": "charge", "run": "run", "round": 9, "record": ""}
    Ledger(tmp_path / FILE_NAME).append({**cheap, "cost": {"event": "gaussian", "noise_multiplier": 1e6}})
    try:
        after = Ledger(tmp_path / FILE_NAME).guarantee("run").epsilon
    except LedgerError:
        return
    assert after >= before


def test_a_run_is_not_gone_on_with_from_another_warm_start(tmp_path):
    account(tmp_path / FILE_NAME, algorithm()).open()
    elsewhere = account(tmp_path / FILE_NAME, algorithm(), lineage=(NonPrivateDpEvent(),))
    with pytest.raises(LedgerError):
        elsewhere.reopen(None)


def test_the_budget_holds_when_every_round_is_cut_off_and_redone(people, tmp_path):
    of = algorithm()
    limit = epsilon(repeated(of.mechanism.event(of.participation), 3), DELTA, "rdp")
    door = opened(people, tmp_path / FILE_NAME, of, budget=Budget(DELTA, epsilon=limit))
    state = of.mechanism.init(ZERO)
    for round in range(3):
        for attempt in range(4):
            _, after = door.private_mean({"x": jnp.full(4, 0.01 * attempt)}, state, round)
        state = after
    with pytest.raises(BudgetExhausted):
        door.private_mean(ZERO, state, 3)
    assert len(door.account.charges) == 3
    assert door.account.guarantee().epsilon <= limit


def test_a_run_cannot_be_opened_twice(people, tmp_path):
    opened(people, tmp_path / FILE_NAME)
    with pytest.raises(LedgerError, match="already has a run"):
        opened(people, tmp_path / FILE_NAME)


@pytest.mark.parametrize("harm", ["cheaper", "removed", "shorter"])
def test_a_ledger_changed_by_hand_releases_nothing(tmp_path, harm):
    path = tmp_path / FILE_NAME
    book = account(path, algorithm())
    book.open()
    book.charge(0, "record")
    book.charge(1, "record")
    head = book.head
    lines = path.read_text().splitlines(keepends=True)
    if harm == "cheaper":
        lines[1] = lines[1].replace('"noise_multiplier": 1.0', '"noise_multiplier": 9.0')
    elif harm == "removed":
        del lines[2]
    else:
        del lines[-1]
    path.write_text("".join(lines))
    with pytest.raises(LedgerError):
        account(path, algorithm()).reopen(head)


def test_a_row_torn_by_a_crash_is_cut_off_and_the_chain_goes_on(people, tmp_path):
    path = tmp_path / FILE_NAME
    opened(people, path)
    with open(path, "ab") as file:
        file.write(b'{"kind": "charge", "run": "ru')
    book = account(path, algorithm())
    book.reopen(None)
    curator(people, book, algorithm()).private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    assert [row["kind"] for row in Ledger(path).rows] == ["ledger", "open", "torn", "resume", "charge"]


@pytest.mark.parametrize(
    "row",
    [
        {"event": "repeated", "count": -1000, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
        {"event": "poisson", "probability": -0.5, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
        {"event": "gaussian", "noise_multiplier": -1.0},
        {"event": "fixed size", "users": 10, "size": -1, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
    ],
    ids=["count", "probability", "multiplier", "size"],
)
def test_an_event_that_would_give_budget_back_is_not_read(row):
    with pytest.raises(ValueError, match=r"."):
        event_from_json(row)


def test_a_population_of_one_does_not_get_delta_one():
    try:
        chosen = recipe(Path("nowhere"), participation={"users": 1, "cohort": 1})
    except RecipeError:
        return
    assert chosen.delta < 0.5


def test_fixed_size_rounds_cost_at_least_what_one_exchanged_user_can_be_seen_by():
    # One user's report is +S in one world and −S in the other, all others are silent.
    size, users, multiplier = 50, 100, 1.0
    stated = epsilon(FixedSize(size, users).event(multiplier), DELTA)
    x = np.linspace(-15, 15, 100_001)

    def density(shift: float) -> np.ndarray:
        share = size / users
        return (1 - share) * np.exp(-(x**2) / 2) + share * np.exp(-((x - shift) ** 2) / 2)

    beyond = np.maximum(density(1.0) - np.exp(stated) * density(-1.0), 0.0).sum() * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    assert beyond <= DELTA


# --- files of a run ----------------------------------------------------------------------------------------------


def recipe(folder: Path, **sections) -> Recipe:
    content = {
        "data": {"population": str(folder), "tokens_per_user": 8},
        "model": {"kind": "gru", "width": 2, "units": 2},
        "local": {"batch_size": 2, "unroll": 4},
        "participation": {"users": 12, "cohort": 6},
        "privacy": {"noise_multiplier": 1.0, "accountant": "rdp"},
        "run": {"rounds": 1},
    }
    for name, section in sections.items():
        content[name] = {**content[name], **section} if isinstance(section, dict) else section
    return parse_recipe(content)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a population and one finished private run."""
    folder = tmp_path_factory.mktemp("finished")
    population(folder / "people")
    with compiled_quickly():
        run.train_run(recipe(folder / "people"), folder / "private-run", quietly)
    return folder


def test_a_finished_run_leaves_no_secrets(finished):
    assert not (finished / "private-run" / "private").exists()


def test_other_parameters_under_a_private_card_are_not_exported(finished, tmp_path):
    shutil.copytree(finished / "private-run", tmp_path / "private-run")
    params, card = load_model(finished / "private-run")
    swapped = jax.tree.map(lambda leaf: leaf + 1.0, params)
    save_model(tmp_path / "private-run" / "model.safetensors", swapped, card)
    with pytest.raises(ExportRefused):
        export_run(tmp_path / "private-run", tmp_path / "out", non_private=False)


def test_a_model_moved_to_an_earlier_row_is_not_exported(finished, tmp_path):
    shutil.copytree(finished / "private-run", tmp_path / "private-run")
    params, card = load_model(finished / "private-run")
    first = Ledger(finished / "people" / FILE_NAME).run_rows("private-run")[0]["hash"]
    save_model(tmp_path / "private-run" / "model.safetensors", params, replace(card, ledger_head=first))
    with pytest.raises(ExportRefused):
        export_run(tmp_path / "private-run", tmp_path / "out", non_private=False)


def test_a_warm_start_is_asked_of_the_ledger_by_its_parameters_not_by_what_it_says(finished, tmp_path):
    params, card = load_model(finished / "private-run")
    save_model(tmp_path / "model.safetensors", params, replace(card, run=None, ledger_head=None))
    disguised = recipe(finished / "people", model={"warm_start": str(tmp_path)})
    assert run.Run(tmp_path / "next", disguised, bytes(32)).account.terms.lineage != ()


def test_a_warm_start_of_unknown_parameters_under_a_runs_name_is_refused(finished, tmp_path):
    params, card = load_model(finished / "private-run")
    save_model(tmp_path / "model.safetensors", jax.tree.map(lambda leaf: leaf + 1.0, params), card)
    with pytest.raises(RecipeError, match="no ledger knows"):
        run.Run(tmp_path / "next", recipe(finished / "people", model={"warm_start": str(tmp_path)}), bytes(32))


def test_a_run_whose_ledger_was_deleted_does_not_start_a_new_one(finished, tmp_path):
    copied_population(finished / "people", tmp_path / "people")
    (tmp_path / "people" / FILE_NAME).unlink()
    with pytest.raises(LedgerError):
        run.Run(tmp_path / "next", recipe(tmp_path / "people"), bytes(32))


def test_a_refused_run_cannot_be_resumed_from_a_non_private_model(finished, tmp_path):
    """The same name, other parameters to start from: refused as a new run, and then also with --resume."""
    copied_population(finished / "people", tmp_path / "people")
    twin = recipe(tmp_path / "people", privacy={"noise_multiplier": None}, run={"rounds": 1}, algorithm="fedavg")
    run.train_run(twin, tmp_path / "twin", quietly)
    from_twin = recipe(tmp_path / "people", model={"warm_start": str(tmp_path / "twin")})
    with pytest.raises(LedgerError, match="already has a run"):
        run.train_run(from_twin, tmp_path / "private-run", cut_at(0))
    with pytest.raises(RunError):
        run.resume_run(tmp_path / "private-run", cut_at(0))


def test_what_comes_from_a_non_private_model_is_exported_as_non_private_alone(finished, tmp_path):
    copied_population(finished / "people", tmp_path / "people")
    twin = recipe(tmp_path / "people", privacy={"noise_multiplier": None}, algorithm="fedavg")
    run.train_run(twin, tmp_path / "twin", quietly)
    from_twin = recipe(tmp_path / "people", model={"warm_start": str(tmp_path / "twin")})
    assert not run.train_run(from_twin, tmp_path / "laundered", quietly).guarantee.is_private
    with pytest.raises(ExportRefused, match="no privacy"):
        export_run(tmp_path / "laundered", tmp_path / "out", non_private=False)


def test_a_root_made_from_a_seed_is_never_declared_as_entropy(tmp_path):
    """Cut off before the run was declared; then the seed is taken out of the recipe."""
    population(tmp_path / "people")
    folder = tmp_path / "seeded"
    (folder / "private").mkdir(parents=True)
    (folder / "private" / "root").write_bytes(randomness.root_from_seed(5))
    save_recipe(recipe(tmp_path / "people"), folder / "recipe.toml")
    with contextlib.suppress(Cut, LedgerError, RecipeError, RunError):
        run.resume_run(folder, cut_at(0))
    declared = [row["randomness"] for row in Ledger(tmp_path / "people" / FILE_NAME).run_rows("seeded")]
    root = (folder / "private" / "root").read_bytes()
    assert declared in ([], ["seeded simulation"]) or root != randomness.root_from_seed(5)


def test_secrets_half_deleted_by_a_crash_are_deleted_when_the_run_is_next_touched(tmp_path):
    population(tmp_path / "people")
    folder = tmp_path / "half"
    (folder / "private").mkdir(parents=True)
    (folder / "private" / "state.safetensors").write_bytes(b"noise that is not yet used up")
    save_recipe(recipe(tmp_path / "people"), folder / "recipe.toml")
    with pytest.raises(RunError, match="finished"):
        run.resume_run(folder, cut_at(0))
    assert not (folder / "private").exists()


def test_the_name_of_a_population_cannot_be_worked_out_from_guessed_text(tmp_path):
    assert population(tmp_path / "one", users=1).id != population(tmp_path / "two", users=1).id


def test_a_model_without_privacy_leaves_only_by_name(finished, tmp_path):
    copied_population(finished / "people", tmp_path / "people")
    twin = recipe(tmp_path / "people", privacy={"noise_multiplier": None}, algorithm="fedavg")
    run.train_run(twin, tmp_path / "twin", quietly)
    with pytest.raises(ExportRefused, match="no privacy"):
        export_run(tmp_path / "twin", tmp_path / "out", non_private=False)
    assert not (tmp_path / "out").exists()
    assert not export_run(tmp_path / "twin", tmp_path / "out", non_private=True).guarantee.is_private
    assert "NO privacy" in (tmp_path / "out" / "guarantee.txt").read_text()


def test_a_model_with_the_name_of_another_run_is_not_exported(finished, tmp_path):
    copied_population(finished / "people", tmp_path / "people")
    twin = recipe(tmp_path / "people", privacy={"noise_multiplier": None}, algorithm="fedavg")
    run.train_run(twin, tmp_path / "twin", quietly)
    params, card = load_model(tmp_path / "twin")
    save_model(tmp_path / "twin" / "model.safetensors", params, replace(card, run="private-run"))
    with pytest.raises(ExportRefused):
        export_run(tmp_path / "twin", tmp_path / "out", non_private=False)


def test_what_a_non_private_start_cost_is_never_forgotten(tmp_path):
    book = account(tmp_path / FILE_NAME, algorithm(), lineage=(NonPrivateDpEvent(),))
    book.open()
    book.charge(0, "record")
    assert not book.guarantee().is_private
