"""The sentences of a privacy statement: each stands where it is true, and nowhere else."""

import itertools
import json
import math
import textwrap
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.guarantee import EarlyEnd, Guarantee, SignedElsewhere
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.release import privacy_statement
from taciturn.release.privacy_statement import (
    ONE_DEVICE,
    PEOPLE,
    WORDS,
    is_reliable,
    personal_statement,
    plain_words,
    statement,
    statement_json,
)

PIECES = "one simulated user (pieces of a book play the users)"
ODD = "{two} %s {0}"  # a name that is not a gap to be filled in
KINDS = {
    "sampled": (True, False),
    "accountant": tuple(WORDS["accountant"]),
    "adjacency": tuple(WORDS["adjacency"]),
    "randomness": ("operating system", "seeded simulation"),
    "continued": (True, False),
    "unit": ("one user", ONE_DEVICE, PIECES),
    "epsilon": (0.5, 11.0, 2000.0, math.inf, None),  # None: there was no noise
    "distance": (0.0, 1e-9),
}
# It made three, and declared forty.
EARLY = EarlyEnd(declared=40, epsilon_of_made=0.1, epsilon_ex_post=0.2)


def guarantee(epsilon, sampled, **about):
    release = (
        PoissonSampledDpEvent(0.01, GaussianDpEvent(5.0)) if sampled else GaussianDpEvent(30.0)
    )
    noisy = {"epsilon": epsilon, "rho": 0.3, "release": release}
    none = {"epsilon": math.inf, "rho": math.inf, "release": NonPrivateDpEvent()}
    named = {"run": ODD, "claim": ODD, "releases": 3, "delta": 1e-6, "head": "0" * 64}
    return Guarantee(**(none if epsilon is None else noisy), **named, sampled=sampled, **about)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def belongs(name: str, of: Guarantee) -> bool:
    """Whether a sentence is true of a run, and should be said, by its name in statement.toml."""
    private, epsilon = of.rho < math.inf, of.epsilon
    return {
        "simulation": private and of.randomness != "operating system",
        "no_privacy": not private,
        "infinite": private and epsilon == math.inf,
        "meaningless": private and 1000 < epsilon < math.inf,
        "weak": private and 10 < epsilon <= 1000,
        "personal": False,
        "ended_early": private and of.ended_early is not None,
        "ex_post": private and of.ended_early is not None and epsilon > 0.2,
        "over_devices": private and of.unit == ONE_DEVICE,
        "lying_server": private and of.unit == ONE_DEVICE,
        "gaussian": private and not of.sampled,
        "distance": private and of.distance > 0,
        "no_distance": private and not of.distance,
        "assumes_sampled": private and of.sampled,
        "assumes_turns": private and not of.sampled,
        "not_covered": True,
        "to_delete": True,
        "standing stated": of.standing == "stated",
        "standing trusted": of.standing == "trusted",
        **{
            f"accountant {one}": private and of.sampled and of.accountant == one
            for one in WORDS["accountant"]
        },
        **{f"adjacency {one}": private and of.adjacency == one for one in WORDS["adjacency"]},
        **{
            f"otherwise {one}": belongs_to_people(of)["private"] and of.adjacency == one
            for one in WORDS["otherwise"]
        },
        **{f"people {of_people}": is_said for of_people, is_said in belongs_to_people(of).items()},
    }.get(name, private)


def belongs_to_people(of: Guarantee) -> dict[str, bool]:
    """Whether what is said to those whose text was used is true of a run."""
    noisy, epsilon = of.rho < math.inf and of.unit != PIECES, of.epsilon
    private = noisy and of.randomness == "operating system"
    promised = private and epsilon <= 1000
    return {
        "title": True,
        "in_full": True,
        "simulated": of.unit == PIECES,
        "seed": noisy and not private,
        "no_privacy": of.rho == math.inf and of.unit != PIECES,
        "infinite": private and epsilon == math.inf,
        "meaningless": private and 1000 < epsilon < math.inf,
        "weak": private and 10 < epsilon <= 1000,
        "private": private and epsilon <= 10,
        # Of an adjacency that these words do not know.
        "otherwise": False,
        "against": promised,
        # Their ε counts on it that nobody knows.
        "sampled": promised and of.sampled,
        "curator": promised and of.unit != ONE_DEVICE,
        "server": promised and of.unit == ONE_DEVICE,
        "not_covered": promised,
    }


def sentences():
    for name, text in WORDS.items():
        if name == "plain":  # for another reader
            continue
        inner = (
            {f"{name} {key}": one for key, one in text.items()}
            if isinstance(text, dict)
            else {name: text}
        )
        for key, one in inner.items():
            yield (
                key,
                in_one_line(max(textwrap.dedent(one).replace("}", "{").split("{"), key=len)),
            )  # the longest piece between gaps


def misplaced(of: Guarantee, public=("a book {two}",)) -> list[str]:
    said = in_one_line(statement(of, public))
    return [name for name, text in sentences() if (text in said) != belongs(name, of)]


@pytest.fixture(autouse=True)
def _groups_are_not_computed(monkeypatch):
    monkeypatch.setattr(Guarantee, "for_group", lambda self, users: 2.0 * users)


def test_every_sentence_stands_where_it_is_true_and_nowhere_else():
    seen = set()
    for values in itertools.product(*KINDS.values()):
        of = guarantee(**dict(zip(KINDS, values, strict=True)))
        assert misplaced(of) == [], of
        seen |= {name for name, _ in sentences() if belongs(name, of)}
        said = in_one_line(statement(of, (), "seen {x}"))
        assert said.count("{two}") == (
            2 if of.is_private else 1
        )  # what has braces of its own keeps them, and no gap is left
        assert ("Observed: seen {x}. The figures above are for the claim." in said) == of.is_private
        assert ("ε is exact for it" in said) == (
            of.is_private and not of.sampled and not of.continued
        )
        assert ("NO privacy" in said) == (not of.is_private)
    assert {name for name, _ in sentences()} - seen == {
        "personal",
        "people otherwise",
        "ended_early",
        "ex_post",
        "standing stated",
        "standing trusted",
    }
    assert WORDS["personal"] in in_one_line(personal_statement("r", "h"))


@pytest.mark.parametrize("epsilon", KINDS["epsilon"])
@pytest.mark.parametrize("ex_post", [0.2, math.inf])
def test_of_a_run_that_ended_early_the_statement_says_whose_figures_it_has(epsilon, ex_post):
    about = {"accountant": "pld", "adjacency": "add or remove one user"}
    ended = replace(EARLY, epsilon_ex_post=ex_post)
    of = guarantee(epsilon, True, randomness="operating system", ended_early=ended, **about)
    expected = ["ex_post"] if ex_post == math.inf and of.is_private else []
    assert misplaced(of) == expected
    said = in_one_line(statement(of, ()))
    assert ("Ended: after 3 of the 40 releases" in said) == of.is_private
    assert ("ε would be 0.10 at the same δ" in said) == of.is_private
    is_less = of.is_private and ex_post < of.epsilon
    assert ("ε = 0.20 at δ = 2.5e-08" in said) == is_less
    assert json.loads(statement_json(of, ()))["ended_early"]["declared"] == 40
    whole = replace(of, ended_early=None)
    # The twin: it is not said of a run that made all its releases.
    assert "Ended:" not in statement(whole, ())
    assert "ended_early" not in json.loads(statement_json(whole, ()))


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("epsilon", KINDS["epsilon"])
def test_away_from_its_ledger_a_guarantee_says_who_states_it_wherever_it_stands(
    epsilon, is_trusted
):
    about = {
        "accountant": "pld",
        "adjacency": "zero out one user",
        "randomness": "operating system",
    }
    signed = SignedElsewhere(row=7, date="2026-11-20", is_trusted=is_trusted)
    of = guarantee(epsilon, True, ledger_key="abcd-0123", elsewhere=signed, **about)
    assert misplaced(of) == []
    page = in_one_line(statement(of, ()))
    plain = " ".join(plain_words(of, "x"))
    for said in (page, plain):
        assert "igned by ledger abcd-0123, row 7, on 2026-11-20" in said
        assert "not compared with the ledger" in said
        assert ("As its maker states" in said) == (not is_trusted)
        assert "verified" not in said
    content = json.loads(statement_json(of, ()))
    assert content["standing"] == ("trusted" if is_trusted else "stated")
    assert content["signed"] == {"row": 7, "date": "2026-11-20"}
    assert is_reliable(of) == (is_trusted and of.epsilon <= 10)
    # The twin: of a run whose ledger was asked none of that is said.
    asked = replace(of, elsewhere=None)
    assert "maker" not in statement(asked, ())
    assert json.loads(statement_json(asked, ()))["standing"] == "ledger"


def test_every_plain_sentence_is_said_of_some_model():
    about = {"accountant": "pld", "adjacency": "zero out one user"}
    made = [
        guarantee(epsilon, True, randomness=kind, **about)
        for epsilon in (5.0, *KINDS["epsilon"])
        for kind in KINDS["randomness"]
    ]
    said = " ".join(
        sentence
        for one in [*made, None]
        for whose in ("x", None)
        for sentence in plain_words(one, whose)
    )
    unsaid = [
        name
        for name, text in WORDS["plain"].items()
        if isinstance(text, str) and text.split("}")[-1] not in said
    ]
    assert unsaid == []


@pytest.mark.parametrize(
    ("name", "other"),
    [("no_privacy", "weak"), ("assumes_sampled", "assumes_turns"), ("infinite", "meaningless")],
)
def test_sentences_that_changed_places_are_noticed(monkeypatch, name, other):
    right = dict(sentences())
    swapped = {**WORDS, name: WORDS[other], other: WORDS[name]}
    monkeypatch.setattr(privacy_statement, "WORDS", swapped)
    kinds = [
        guarantee(
            epsilon,
            sampled,
            accountant="pld",
            adjacency="zero out one user",
            randomness="operating system",
        )
        for epsilon in KINDS["epsilon"]
        for sampled in (True, False)
    ]
    assert any(misplaced(of) for of in kinds)
    assert dict(sentences()) == right


@pytest.mark.parametrize("adjacency", WORDS["adjacency"])
@pytest.mark.parametrize("epsilon", [0.5, 11.0, 2000.0])
def test_a_statement_begins_with_what_people_were_promised_in_plain_words(adjacency, epsilon):
    terms = {"accountant": "pld", "randomness": "operating system", "unit": "one user"}
    page = statement(guarantee(epsilon, True, adjacency=adjacency, **terms), ())
    words, _, full = page.partition(PEOPLE["in_full"])
    title, *promised = words.split("\n\n")
    assert title == f"Privacy of run {ODD}"
    assert promised[0] == PEOPLE["title"]
    # For one and for several, whatever is stated is stated with its δ.
    for sentence in in_one_line(words).split(". "):
        assert "ε" not in sentence or "δ" in sentence
    assert in_one_line(full).startswith("Statement: (")
    # The words of those who defend models are for them.
    for word in ("adjacency", "mechanism", "ρ", "Rényi", "curator"):
        assert word not in words


def spent(path, resumptions: int) -> Guarantee:
    terms = RunTerms(
        name="run",
        recipe="r",
        population="p",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-5),
        rounds=5,
    )
    release = PoissonSampledDpEvent(0.01, GaussianDpEvent(5.0))
    account = Account(ledger=Ledger(path), terms=terms, release=release)
    account.open()
    for _ in range(resumptions):
        account = Account(ledger=Ledger(path), terms=terms, release=release)
        account.reopen(None)
    account.charge(0, "record")
    return account.guarantee()


@pytest.mark.parametrize(
    ("resumptions", "words"), [(0, "never."), (1, "once."), (2, "twice."), (7, "7 times.")]
)
def test_a_statement_has_the_number_of_resumptions(tmp_path, resumptions, words):
    guarantee = spent(tmp_path / "ledger.jsonl", resumptions)
    assert f"Resumed: {words}" in in_one_line(statement(guarantee, ()))
    assert json.loads(statement_json(guarantee, ()))["resumptions"] == resumptions


def test_of_a_run_whose_ledger_did_not_record_resumptions_that_is_said(tmp_path):
    """The twin: what is not known is not called none."""
    guarantee = replace(spent(tmp_path / "ledger.jsonl", 0), resumptions=None)
    assert "Resumed: not recorded" in in_one_line(statement(guarantee, ()))
    assert json.loads(statement_json(guarantee, ()))["resumptions"] is None
