"""What came with a folder is believed for nothing that its reader asked somebody else for."""

import secrets
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from test_carried_away import fingerprint, launder, read_rows, sign_again

from harness import carried_away, lettered_words, made_up_users, quietly, tiny_recipe
from pages import REFUSED, script_on_page
from taciturn.algorithms.pretraining import Schedule
from taciturn.data.population import Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.state_of_the_union import simulated_users
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import DataError
from taciturn.export.aosp_dictionary import Dictionary
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.aosp_dictionary_words import read_dictionary_words
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.export.combined_source import read_combined_source
from taciturn.people import open_ledger
from taciturn.privacy.accounting.events import claim_of
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.ledger.guarantee import SIMULATED_USER
from taciturn.privacy.ledger.hash_chain import LedgerError
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.privacy.ledger.ledger_key import LedgerKey, open_key
from taciturn.privacy.ledger.signed_rows import CLAIMS, PLAYERS, SIGNATURE
from taciturn.privacy.noise.mechanism import adaptive_mechanism
from taciturn.privacy.noise.registry import NOISES, Segment
from taciturn.privacy.participation import CyclicPoisson, MinSeparation
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import load_model, save_model
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.loop import train_run
from taciturn.runs.pretrain import pretrain_model
from taciturn.runs.run import unit_of
from taciturn.runs.tuning import Size, deal_text

THEIRS = LedgerKey(bytes(32))


def train(folder: Path, rounds: int = 2) -> None:
    """A run beside its people."""
    people = write_population(
        folder / "people", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )
    settings = {"rounds": rounds, "evaluate_every": 1, "seed": None}
    train_run(tiny_recipe(people, run=settings), folder / "first", quietly)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    train(folder)
    return folder


@pytest.fixture
def away(home, tmp_path) -> Path:
    return carried_away(home / "first", tmp_path / "first")


# --- What a reader vouches for --------------------------------------------------------------------


def test_a_file_that_is_named_like_a_fingerprint_is_not_read_in_its_place(home, away, monkeypatch):
    """Who is in a folder from elsewhere names the right key, and the folder has a file for that."""
    real = fingerprint(home)
    launder(away, THEIRS)
    (away / real).write_text(THEIRS.fingerprint)
    monkeypatch.chdir(away)
    with pytest.raises(ExportRefused, match="does not vouch"):
        _ = FinishedRun(".", trust=real).guarantee
    # The twin: named as a file it is read.
    assert FinishedRun(".", trust=f"./{real}").guarantee.standing == "trusted"


def test_rows_of_a_trusted_run_vouch_for_no_model_of_an_invented_ledger(
    home, away, tmp_path, monkeypatch
):
    """Its maker can give it the id of the real one, which each signature states."""
    id = Ledger(home / "people" / FILE_NAME).id
    draw = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size: id if size == 8 else draw(size))
    train(tmp_path / "theirs")
    run = tmp_path / "theirs" / "first"
    own = FinishedRun(run).guarantee
    assert FinishedRun(run, trust=own.ledger_key).guarantee.standing == "ledger"
    for name in (FILE_NAME, SIGNATURE):
        shutil.copy(away / name, run / name)
    with pytest.raises(ExportRefused, match="is signed for another model"):
        _ = FinishedRun(run, trust=fingerprint(home)).guarantee


def test_nobody_types_with_a_run_of_another_ledger_than_they_named(home, away):
    launder(away, THEIRS)
    FinishedRun(away).predictor()
    for use in (FinishedRun.predictor, lambda run: run.params, lambda run: run.model):
        with pytest.raises(ExportRefused, match="does not vouch"):
            use(FinishedRun(away, trust=fingerprint(home)))


def test_an_anchor_vouches_whatever_it_is_called(away, tmp_path):
    anchor = tmp_path / "people.head"
    anchor.write_text(FinishedRun(away).guarantee.head)
    assert FinishedRun(away, trust=anchor).guarantee.standing == "trusted"
    anchor.write_text("f" * 64)
    with pytest.raises(ExportRefused, match="does not vouch"):
        _ = FinishedRun(away, trust=anchor).guarantee


@pytest.mark.parametrize("nothing", ["", " ", "-", "gone.head", "odd.head"])
def test_a_reader_who_names_nothing_is_told_so(away, nothing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd.head").write_text('{"head": 5}')
    with pytest.raises(LedgerError, match="ask the run's maker"):
        FinishedRun(away, trust=nothing)


# --- What is signed -------------------------------------------------------------------------------


def test_the_round_of_a_model_is_signed_too(home, away):
    """The version of a phone's dictionary is made of it."""
    params, card = load_model(away)
    save_model(away / "model.safetensors", params, replace(card, round=card.round + 100))
    with pytest.raises(ExportRefused, match="is signed for another model"):
        _ = FinishedRun(away, trust=fingerprint(home)).guarantee


GAUSSIAN = {"event": "gaussian", "noise_multiplier": 100.0}
CLAIMED = {"event": "correlated", "costs": [[9, GAUSSIAN]], "claim": "verified by its ledger"}


@pytest.mark.parametrize(
    "terms",
    [
        {"unit": "one simulated user, verified by its ledger"},
        {"unit": "one simulated user (pieces of public text of 9 tokens play the users) verified"},
        {"release": CLAIMED},
        {"release": {"event": "repeated", "count": 1, "of": CLAIMED}},
        {"delta": 1.0},
        {"delta": True},
        {"delta": float("nan")},
    ],
)
def test_what_a_statement_quotes_is_what_a_run_can_say(away, terms):
    rows = read_rows(away)
    sign_again(away, rows, THEIRS)
    # The twin: with the terms as they were, whoever signs them is read.
    assert FinishedRun(away).guarantee.standing == "stated"
    rows[0] |= terms
    sign_again(away, rows, THEIRS)
    with pytest.raises(ExportRefused, match="of no version of Taciturn"):
        _ = FinishedRun(away).guarantee


def test_a_name_that_rules_a_terminal_is_refused(away):
    rows = read_rows(away)
    for row in rows:
        row["run"] = "first\x1b[2J"
    sign_again(away, rows, THEIRS, run="first\x1b[2J")
    with pytest.raises(ExportRefused, match="does not hold"):
        _ = FinishedRun(away).guarantee


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("segments", [1, 2])
def test_every_claim_that_a_run_makes_is_known_elsewhere(name, segments):
    """Else its folder would open only at home."""
    coefficients = {"bands": [1.0, 0.5], "decay": [0.5], "scale": [0.25]}
    each = [Segment(rows=4, coefficients=coefficients)] * segments
    strategy = NOISES[name].draw(1.0, each).strategy
    rounds = 4 * segments
    schemes: list[MinSeparation | CyclicPoisson] = [
        MinSeparation(size=3, min_separation=2, max_participations=2, rounds=rounds)
    ]
    if NOISES[name].has_bands:
        schemes.append(CyclicPoisson(0.00001, cycle=2, rounds=rounds))
    for scheme in schemes:
        claim = claim_of(scheme.event(1.0, strategy))
        assert CLAIMS.fullmatch(claim)
        assert not CLAIMS.fullmatch(f"{claim}, as was verified")


def test_a_claim_about_clip_norms_is_known_elsewhere():
    noise = NOISES["tree"].draw(1.0, [Segment(rows=4, coefficients={})])
    mechanism = adaptive_mechanism(AdaptiveClip(start=1.0, count_stddev=5.0), 100.0, noise, 200)
    scheme = MinSeparation(size=3, min_separation=2, max_participations=2, rounds=4)
    claim = claim_of(mechanism.event(scheme))
    assert "clip norm" in claim
    assert CLAIMS.fullmatch(claim)


@pytest.mark.parametrize("play", ["speeches", "dealt text"])
def test_everyone_who_plays_a_user_is_known_elsewhere(tmp_path, play):
    words = lettered_words()
    if play == "speeches":
        people = simulated_users(tmp_path / "people", words)
    else:
        texts = Texts.of(made_up_users(100, least=40).values(), len(words))
        corpus = PublicCorpus(texts, words, "made-up text")
        people = deal_text(corpus, tmp_path / "people", Size(10, 20))
    unit = unit_of(people)
    assert PLAYERS.fullmatch(unit.removeprefix(SIMULATED_USER))
    assert not PLAYERS.fullmatch(f"{unit.removeprefix(SIMULATED_USER)} verified")


@pytest.mark.parametrize("name", [FILE_NAME, SIGNATURE])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000], ids=["bytes", "nested"])
def test_what_cannot_be_read_is_refused_in_a_sentence(away, name, content):
    (away / name).write_bytes(content)
    with pytest.raises(ExportRefused, match=r"cannot be read|is damaged"):
        _ = FinishedRun(away).guarantee


# --- A model whose name was removed ---------------------------------------------------------------


def remove_the_name(folder: Path) -> None:
    params, card = load_model(folder)
    nameless = replace(card, run=None, ledger_head=None)
    save_model(folder / "model.safetensors", params, nameless)


def test_no_page_says_that_a_model_of_users_is_made_of_public_text(away, tmp_path):
    FinishedRun(away).export(tmp_path / "exported")
    assert "As its maker states" in script_on_page(tmp_path / "exported")
    remove_the_name(tmp_path / "exported")
    with pytest.raises(REFUSED, match="is signed for another model"):
        script_on_page(tmp_path / "exported")


@pytest.mark.parametrize("what", ["run", "run without a signature", "export", "file"])
def test_nothing_learns_from_a_model_of_users_as_from_public_text(home, tmp_path, what):
    start = tmp_path / "start"
    if "run" in what:
        shutil.copytree(home / "first", start)
    else:
        FinishedRun(home / "first").export(start)
    if what == "run without a signature":
        (start / SIGNATURE).unlink()
    remove_the_name(start)
    # Other parameters than those that the ledger knows.
    params, card = load_model(start)
    learned = {**params, "word_bias": params["word_bias"] + 1}
    save_model(start / "model.safetensors", learned, card)
    if what == "file":
        start /= "model.safetensors"
    people = Population(home / "people")
    recipe = tiny_recipe(people, model={"warm_start": str(start)})
    with pytest.raises(RecipeError, match="not taken for public text"):
        train_run(recipe, tmp_path / "run", quietly)
    texts = Texts.of(made_up_users(40, seed=2).values(), len(people.vocabulary))
    pretrain = partial(
        pretrain_model,
        PublicCorpus(texts, people.vocabulary, "made-up text"),
        ModelSection(**card.architecture),
        Schedule(epochs=1, batch_size=8),
        tmp_path / "pretrained",
        lambda *_: None,
    )
    with pytest.raises(RecipeError, match="learned from people"):
        pretrain(start=start)
    # The twin: the same parameters, where nothing is beside them.
    (tmp_path / "public").mkdir()
    save_model(tmp_path / "public" / "model.safetensors", learned, card)
    pretrain(start=tmp_path / "public")


@pytest.mark.parametrize("to", ["dict", "combined"])
def test_words_of_a_private_model_are_not_taken_for_a_public_list(away, tmp_path, to):
    FinishedRun(away).export(tmp_path / "out", to=to, words=1000, public_words=0)
    path = tmp_path / "out" / f"main_en.{to}"
    with pytest.raises(DataError, match="was made from a run's model"):
        read_dictionary_words(path, 20)
    # The twin: the same words, described by somebody else.
    dictionary = read_combined_source(path) if to == "combined" else read_dictionary(path)
    header = dictionary.header | {"description": "published"}
    theirs = tmp_path / "theirs.dict"
    write_dictionary(theirs, Dictionary(header=header, words=dictionary.words))
    assert read_dictionary_words(theirs, 20)


# --- Where the people are -------------------------------------------------------------------------


def test_a_run_opens_where_the_place_of_its_people_cannot_be_looked_at(away):
    """As in the home of another account, or by a name that no disk here has room for."""
    recipe = away / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("people-of-another-machine", "p" * 300))
    assert FinishedRun(away).guarantee.standing == "stated"
    with pytest.raises(RunError, match=r"cannot be read here \(File name too long\): bring"):
        FinishedRun(away).evaluate()


def test_two_runs_that_end_at_once_record_one_key(tmp_path):
    people = write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12), lettered_words(), {}
    )
    one, other = (open_ledger(people) for _ in range(2))
    assert open_key(one).fingerprint == open_key(other).fingerprint
    assert [row["kind"] for row in open_ledger(people).rows] == ["ledger", "key"]


def test_a_key_whose_row_was_never_written_gets_it(tmp_path):
    """A process died between the two."""
    people = write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12), lettered_words(), {}
    )
    (tmp_path / "people" / "private" / "ledger-key").write_bytes(bytes(32))
    key = open_key(open_ledger(people))
    assert key.fingerprint == THEIRS.fingerprint
    rows = open_ledger(people).rows
    assert rows[-1]["public"] == key.public.hex()
