"""The sentences of a privacy statement: each stands where it is true, and nowhere else."""

import itertools
import math
import textwrap

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from taciturn.privacy.ledger.ledger import Guarantee
from taciturn.release import privacy_statement
from taciturn.release.privacy_statement import WORDS, personal_statement, plain_words, statement

ODD = "{two} %s {0}"  # a name that is not a gap to be filled in
KINDS = {
    "sampled": (True, False),
    "accountant": tuple(WORDS["accountant"]),
    "adjacency": tuple(WORDS["adjacency"]),
    "randomness": ("operating system", "seeded simulation"),
    "continued": (True, False),
    "unit": ("one user", "one device"),
    "epsilon": (0.5, 11.0, 2000.0, math.inf, None),  # None: there was no noise
    "distance": (0.0, 1e-9),
}


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
        "over_devices": private and of.unit == "one device",
        "gaussian": private and not of.sampled,
        "distance": private and of.distance > 0,
        "no_distance": private and not of.distance,
        "assumes_sampled": private and of.sampled,
        "assumes_turns": private and not of.sampled,
        "not_covered": True,
        "to_delete": True,
        **{
            f"accountant {one}": private and of.sampled and of.accountant == one
            for one in WORDS["accountant"]
        },
        **{f"adjacency {one}": private and of.adjacency == one for one in WORDS["adjacency"]},
    }.get(name, private)


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
    assert {name for name, _ in sentences()} - seen == {"personal"}
    assert WORDS["personal"] in in_one_line(personal_statement("r", "h"))


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
