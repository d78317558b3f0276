"""The examples in core.py are complete: each is run as it stands, where its type is used."""

import inspect
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from curators import opened
from taciturn import core
from taciturn.core import END, Message, UserData
from taciturn.data.vocabulary import DataError, public_vocabulary
from taciturn.keyboard.predictor import Predictor
from taciturn.privacy.accounting.events import event_from_json
from taciturn.privacy.curator import Curator, UsersInMemory, device_program
from taciturn.training import rounds

NAMES = ["Algorithm", "Fleet", "Participation", "WordModel"]
USERS = [
    UserData(
        batches=jnp.full((1, 1, 60), 5, jnp.int32),
        weight=jnp.float32(1),
        steps=jnp.int32(1),
    )
    for _ in range(20)
]
START = {"length": jnp.float32(0)}


def example_of(name: str) -> str:
    documentation = inspect.getdoc(getattr(core, name)) or ""
    _, _, example = documentation.partition("Example:\n")
    return textwrap.dedent(example)


def run_example(name: str, broken: tuple[str, str] | None = None) -> dict:
    """Run an example and return what it defines; or break it first."""
    example = example_of(name)
    if broken is not None:
        right, wrong = broken
        assert example.count(right) == 1
        example = example.replace(right, wrong)
    defined: dict = {}
    exec(compile(example, f"core.{name}", "exec"), defined)
    return defined


def state_after(curator: Curator, algorithm, last: int):
    for state in rounds(algorithm, curator, START):
        if state.round == last:
            return state
    raise AssertionError


def train_toy(toy, folder) -> None:
    """Learn the length of texts that all have 60 words."""
    curator = Curator.for_simulation(toy, USERS, folder / "ledger.jsonl", rounds=2, seed=1)
    state = state_after(curator, toy, 2)
    # A cohort of two users, of the 20 that the denominator is fixed to.
    assert float(state.server.params["length"]) > 0
    assert curator.account.guarantee().releases == 2


def ask_everyone(everyone, folder) -> None:
    """Train with everybody in every round, and pay for that."""
    toy = run_example("Algorithm")["toy"]._replace(participation=everyone)
    curator = Curator.for_simulation(toy, USERS, folder / "ledger.jsonl", rounds=2, seed=1)
    present = np.arange(20)
    assert np.array_equal(everyone.select(present, row=0, coins=None), present)
    state = state_after(curator, toy, 2)
    # The noise of a sum clipped to 100, over 20 users: 5.
    assert abs(float(state.server.params["length"]) - 60) < 25
    declared = event_from_json(curator.account.rows[0]["release"])
    assert declared == GaussianDpEvent(1.0)


def sum_in_a_loop(fleet, folder) -> None:
    """Train on the fleet, whose sums are those of the curator's own."""
    toy = run_example("Algorithm")["toy"]
    curator = opened(toy, fleet, folder / "ledger.jsonl")
    assert state_after(curator, toy, 1).round == 1
    message = Message(START, toy.mechanism.public(toy.mechanism.init(START)))
    asked = device_program(toy), message, np.array([3, 5, 8]), jax.random.key(7)
    total = fleet.sum_reports(*asked)
    jax.tree.map(np.testing.assert_array_equal, total, UsersInMemory(USERS).sum_reports(*asked))
    assert int(total.weight) > 0


def type_with(model) -> None:
    """Give the model to a keyboard."""
    predictor = Predictor(model, public_vocabulary(10_000))
    assert len(predictor.suggest("see you ").words) == 3
    scores = model.scores(model.read(model.start(), END))
    assert np.sum(np.exp(scores)) == pytest.approx(1.0, rel=1e-4)


def assert_example_works(name: str, folder, broken: tuple[str, str] | None = None) -> None:
    defined = run_example(name, broken)
    match name:
        case "Algorithm":
            train_toy(defined["toy"], folder)
        case "Participation":
            ask_everyone(defined["Everyone"](), folder)
        case "Fleet":
            sum_in_a_loop(defined["PlainLoop"](USERS), folder)
        case "WordModel":
            type_with(defined["Alike"]())


@pytest.mark.parametrize("name", NAMES)
def test_an_example_of_core_is_complete(name, tmp_path):
    assert_example_works(name, tmp_path)


def test_every_example_of_core_is_run():
    assert [name for name in sorted(vars(core)) if example_of(name)] == NAMES


@pytest.mark.parametrize(
    ("name", "right", "wrong", "error", "words"),
    [
        ("Algorithm", "user_update=", "update=", TypeError, "unexpected keyword"),
        ("Algorithm", "ServerState(estimate, optimizer=())", "estimate", AttributeError, "params"),
        ("Fleet", "trees.zeros_like", "tree.zeros_like", NameError, "tree"),
        ("Fleet", "total = trees.add(total, report)", "pass", AssertionError, "."),
        ("Participation", "limits = None", "", AttributeError, "limits"),
        ("Participation", "return available", "return available[1:]", AssertionError, "."),
        ("WordModel", "10_000", "9_999", DataError, "words"),
    ],
)
def test_a_broken_example_is_noticed(name, right, wrong, error, words, tmp_path):
    """The twins that must fail."""
    with pytest.raises(error, match=words):
        assert_example_works(name, tmp_path, (right, wrong))
