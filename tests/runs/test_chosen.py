"""From people and an ε to a recipe, and to a model: what is read on the way, and what is said."""

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import Cut, lettered_words, made_up_users
from stated_deltas import bare_in_output
from taciturn.algorithms.pretraining import Schedule
from taciturn.cli import app
from taciturn.cli.command_classes import name_flags
from taciturn.core import END
from taciturn.data.population import LEAST_HELD_OUT, Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import DataError, public_vocabulary
from taciturn.errors import TaciturnError
from taciturn.files import check_can_be_made
from taciturn.privacy.participation import default_delta, round_for_publication
from taciturn.recipe import autoplan
from taciturn.recipe.autoplan import Limit
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import SHIPPED, load_model, save_model
from taciturn.runs import for_people
from taciturn.runs.display import Display
from taciturn.runs.for_people import (
    Pace,
    Timing,
    choose_pace,
    describe_limit,
    measure_until_two_agree,
    plan_recipe,
    pretrain_for,
)
from taciturn.runs.pretrain import CHECKPOINT, pretrain_model

SMALL = ModelSection(kind="cifg", width=8, units=12)
CARD = Path(for_people.__file__).parents[1] / "starts" / "README.md"


@pytest.fixture
def people(tmp_path, vocabulary) -> Path:
    held_out = made_up_users(LEAST_HELD_OUT, seed=1)
    return write_population(
        tmp_path / "people", made_up_users(230), held_out, vocabulary, {"least_tokens": 20}
    ).folder


@pytest.fixture(scope="module")
def public(tmp_path_factory, vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("public")
    PublicCorpus(
        Texts.of(made_up_users(40, seed=2).values(), len(vocabulary)), vocabulary, "made-up text"
    ).save(folder / "text")
    return folder / "text"


@pytest.fixture(scope="module")
def start(public) -> str:
    pretrain_model(
        PublicCorpus.load(public),
        SMALL,
        Schedule(epochs=1, batch_size=8),
        public.parent / "start",
        lambda *_: None,
    )
    return str(public.parent / "start")


@pytest.fixture
def timed(monkeypatch):
    """A machine of one speed: two seconds to compile, 20 users a second, a second to measure the
    sample.
    """
    timing = Timing(compile_s=2.0, users_per_s=20.0, overhead_s=0.0, evaluate_s=1.0)
    monkeypatch.setattr(for_people, "measure_speed", lambda *_: timing)
    monkeypatch.setattr(autoplan, "with_exact_noise", lambda task, plan: plan)  # takes seconds


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_read_of_those_who_will_be_protected_but_how_many_they_are(people, start, timed):
    for path in people.glob("text-1/train-*"):
        path.unlink()
    before = files(people)
    assert plan_recipe(people, 4.0, start, minutes=10).task.users == 230
    assert files(people) == before  # no ledger, no charge
    with pytest.raises(DataError, match="train-00000"):
        _ = Population(people).texts[0]


def test_the_number_of_people_is_rounded_or_stated(people, start, timed):
    assert [round_for_publication(users) for users in (37, 1_299, 12_345, 1_098_765)] == [
        30,
        1_200,
        12_300,
        1_090_000,
    ]
    stated = plan_recipe(people, 4.0, start, 10, users=450)
    assert stated.recipe.participation.users == 450
    assert _reason(stated) == "as publicly stated: this number is no longer secret"
    counted = plan_recipe(people, 4.0, start, 10)
    assert _reason(counted) == "counted, and rounded down: this number is no longer secret"


def _reason(auto_plan):
    (reason,) = (one.reason for one in auto_plan.settings if one.path == "participation.users")
    return reason


@pytest.mark.parametrize("users", [120, 230, 460])
def test_delta_is_the_one_that_a_recipe_has_by_itself(people, start, timed, users):
    recipe = plan_recipe(people, 4.0, start, minutes=10, users=users).recipe
    assert recipe.delta == default_delta(users)
    assert recipe.with_settings("privacy", delta=None).delta == recipe.delta
    assert users * recipe.delta <= 1 / users * (1 + 1e-9)


@pytest.mark.parametrize("users", [23, 114, 461, 2_300])
def test_a_number_far_from_the_truth_is_refused_before_anything_is_timed(
    people, start, tmp_path, monkeypatch, users
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(for_people, "measure_speed", never)
    monkeypatch.setattr("taciturn.runs.train.pretrain_for", never)
    arguments = ["--epsilon", "4", "--users", str(users), "--public", start, "--dry-run"]
    # The number that would be published if none were stated, and no other.
    answer = rf"people has about 230 people, and {users:,} are stated: .* State --users within"
    with pytest.raises(TaciturnError, match=answer):
        CliRunner().invoke(app, ["train", "people", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("users", [115, 460])
def test_a_number_that_may_be_right_is_taken_and_a_dry_run_warns_of_it(
    people, start, timed, tmp_path, monkeypatch, users
):
    monkeypatch.chdir(tmp_path)
    arguments = ["--epsilon", "8", "--users", str(users), "--public", start, "--dry-run"]
    said = CliRunner().invoke(app, ["train", "people", *arguments], catch_exceptions=False)
    assert f"{users} people (as you state)" in said.output
    assert f"The recipe states {users} users, and people has about 230: a round" in said.output
    silent = ["--epsilon", "8", "--users", "250", "--public", start, "--dry-run"]
    said = CliRunner().invoke(app, ["train", "people", *silent], catch_exceptions=False)
    assert "The recipe states" not in said.output


def never(*_, **__):
    raise AssertionError("this takes minutes, and comes after everything that may be refused")


@pytest.mark.parametrize(
    ("folder", "answer"),
    [
        ("/proc/run", "/proc/"),
        ("people/manifest.json/run", "Not a directory"),
        ("taken", "taken exists already"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_timed(
    people, start, tmp_path, monkeypatch, folder, answer
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(for_people, "measure_speed", never)
    monkeypatch.setattr("taciturn.runs.train.pretrain_for", never)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    arguments = ["--epsilon", "4", "--public", start, "--run", folder]
    with pytest.raises((TaciturnError, OSError), match=answer):
        CliRunner().invoke(app, ["train", "people", *arguments], catch_exceptions=False)


def test_a_place_that_may_be_written_to_is_left_as_it_was(tmp_path):
    check_can_be_made(tmp_path / "runs" / "first")
    assert not list(tmp_path.iterdir())


def paces(*users_per_second):
    return [Pace(round_s=48 / speed, user_s=1 / speed) for speed in users_per_second]


@pytest.mark.parametrize(
    ("speeds", "measured", "chosen", "is_certain"),
    [
        # As on a busy machine within the hour: the first alone would plan for 25.
        ((25, 7, 9, 26, 30), 4, 25, True),
        ((25, 23), 2, 23, True),
        ((7, 25, 8.0, 40, 50), 3, 7, True),
        ((25, 7, 9, 12, 40), 5, 12, False),
    ],
)
def test_the_speed_is_measured_until_two_measurements_agree(speeds, measured, chosen, is_certain):
    left = iter(paces(*speeds))
    said = []
    found = measure_until_two_agree(lambda: next(left), said.append, math.inf)
    assert len(found) == measured == len(said)
    assert 1 / choose_pace(found).user_s == pytest.approx(chosen)
    assert (for_people._find_agreeing(found) is not None) == is_certain


def test_the_speed_is_measured_twice_at_least_and_no_more_often_than_there_is_time_for():
    left = iter(paces(25, 7, 9))
    found = measure_until_two_agree(lambda: next(left), lambda _: None, -math.inf)
    assert len(found) == 2
    # The slower of the two, where neither is the middle.
    assert 1 / choose_pace(found).user_s == pytest.approx(7)


def test_a_speed_that_no_two_measurements_agree_on_is_said_to_be_uncertain(
    people, start, timed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "people", "--epsilon", "8", "--public", start, "--dry-run"]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "uncertain" not in said.output
    timing = replace(for_people.measure_speed(), speeds=(25.0, 7.0, 12.0), is_certain=False)
    monkeypatch.setattr(for_people, "measure_speed", lambda *_: timing)
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "is uncertain: the speed changed while it was measured (25, 7, 12 people" in said.output


@pytest.mark.parametrize(
    ("minutes", "speed", "answer"),
    [
        (1, 10.0, "The time limits what it gains: twice the minutes would be worth about 0."),
        (500, 500.0, "The number of people limits what it gains at this ε, not the time: twice"),
    ],
)
def test_what_limits_the_gain_is_said(
    people, start, timed, tmp_path, monkeypatch, minutes, speed, answer
):
    monkeypatch.chdir(tmp_path)
    timing = replace(for_people.measure_speed(), users_per_s=speed)
    monkeypatch.setattr(for_people, "measure_speed", lambda *_: timing)
    arguments = ["--epsilon", "8", "--minutes", str(minutes), "--public", start, "--dry-run"]
    said = CliRunner().invoke(app, ["train", "people", *arguments], catch_exceptions=False)
    assert answer in said.output


def test_held_out_users_as_long_as_the_others_are_timed(people):
    sample = for_people.draw_sample(for_people.HeldOutUsers(people), 40, 1000).texts
    lengths = [len(text) for text in for_people.HeldOutUsers(people).texts]
    assert sorted(map(len, sample)) == sorted(length for length in lengths if length >= 40)
    assert len(for_people.draw_sample(for_people.HeldOutUsers(people), 40, 3).texts) == 3
    assert len(for_people.draw_sample(for_people.HeldOutUsers(people), 4_000, 1000).texts) == len(
        lengths
    )  # if none is, all


def test_time_for_compiling_and_measuring_is_set_aside(people, start, timed):
    worked_out = plan_recipe(people, 4.0, start, minutes=10)
    assert 400 < worked_out.task.seconds < 540
    assert worked_out.plan.rounds * worked_out.plan.cohort <= 20 * worked_out.task.seconds
    with pytest.raises(
        RecipeError, match=r"take .* minutes by themselves on this machine: allow more `minutes`"
    ):
        plan_recipe(people, 4.0, start, minutes=0.01)


def test_a_start_with_other_words_is_refused(people, timed):
    with pytest.raises(
        RecipeError,
        match=r"taciturn:english knows other words than .*people. Build the people with its words",
    ):
        plan_recipe(people, 4.0, SHIPPED, minutes=10)


def test_a_start_of_other_words_is_named_where_people_are_to_be_built_with_them(
    start, people, tmp_path, timed
):
    params, card = load_model(Path(start))
    other = replace(card, vocabulary=(*card.vocabulary[:-1], "elsewhere"))
    (tmp_path / "other").mkdir()
    save_model(tmp_path / "other" / "model.safetensors", params, other)
    with pytest.raises(RecipeError, match=r"vocabulary=.*other\)`\), or keep theirs") as refused:
        plan_recipe(people, 4.0, str(tmp_path / "other"), minutes=10)
    command = name_flags(str(refused.value), "train")
    assert f"(taciturn data build TEXT --out FOLDER --vocabulary {tmp_path / 'other'})" in command


def test_a_start_that_learned_from_people_is_refused(people, finished_runs, timed):
    with pytest.raises(RecipeError, match="learned from people"):
        plan_recipe(people, 4.0, str(finished_runs / "private"), minutes=10)


def test_people_and_an_epsilon_become_a_private_model(people, start, timed, tmp_path, monkeypatch):
    """Through the command: a recipe is worked out, written down and trained."""
    monkeypatch.setattr(autoplan, "ROUNDS", (12,))
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(
        app,
        ["train", "people", "--public", start, "--epsilon", "8", "--minutes", "1"],
        catch_exceptions=False,
    )
    assert said.exit_code == 0
    assert (
        "230 people (counted, and rounded down; state another number with --users), ε = 8.00 at"
        " δ = 1.9e-05 (1/users²)" in said.output
    )
    assert re.search(
        r"points of AccuracyTop1 over where it started, [\d.]+%$", said.output, re.MULTILINE
    )  # a pipe does not wrap
    assert said.output.endswith("Next: taciturn keyboard open runs/people-1\n")
    written = tomllib.loads((tmp_path / "runs" / "people-1.toml").read_text())
    assert written["privacy"]["epsilon"] == 8
    assert written["privacy"]["delta"] == default_delta(230)
    assert "(8.00, 1.9e-05)-differential privacy" in said.output
    limit = describe_limit(Limit(more_in_time=0.2))
    assert _shapes(_shown_in_the_tutorial()) <= _shapes(f"{said.output}\n{limit}")
    assert "This is the only run on these people so far." in said.output
    again = CliRunner().invoke(
        app, ["train", "runs/people-1.toml", "--run", "runs/again"], catch_exceptions=False
    )
    for printed in (said.output, again.output):
        assert bare_in_output(printed) == []
    # Two runs of 8 each are 16 to a person, or a little less, as they are added up in RDP.
    (together,) = re.findall(
        r"^All 2 runs on these people together: ε = ([\d.]+) at δ = 1.9e-05",
        again.output,
        re.MULTILINE,
    )
    assert 10 < float(together) < 16.1


def _shown_in_the_tutorial() -> str:
    tutorial = Path(__file__).parents[2] / "docs" / "tutorial.md"
    (block,) = re.findall(r"^```text\n(2,800 people.*?)^```", tutorial.read_text(), re.M | re.S)
    return block


def _shapes(printed: str) -> set[str]:
    """The lines, without their figures and folders."""
    without_folders = re.sub(r"runs/[\w-]+", "runs/NAME", printed)
    return {re.sub(r"\d[\d,.e-]*\b", "N", line) for line in without_folders.splitlines()}


@pytest.mark.slow
def test_public_text_is_learned_first_and_a_round_is_timed_on_this_machine(
    people, public, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(
        app,
        [
            "train",
            "people",
            "--public",
            str(public),
            "--epsilon",
            "8",
            "--minutes",
            "2",
            "--dry-run",
        ],
    )
    assert said.exit_code == 0, said.output
    assert "This machine trains" in said.output
    assert (tmp_path / "runs" / "people-1-start" / "model.safetensors").exists()
    assert (
        tomllib.loads((tmp_path / "runs" / "people-1.toml").read_text())["model"]["warm_start"]
        == "runs/people-1-start"
    )


def test_a_dry_run_writes_a_recipe_and_never_over_another(
    people, start, timed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "people", "--public", start, "--epsilon", "4", "--dry-run"]
    for _ in range(2):
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "people-1.toml",
        "people-2.toml",
    ]
    with pytest.raises(TaciturnError, match=r"people-1.toml exists already: train with it"):
        CliRunner().invoke(app, [*arguments, "--run", "runs/people-1"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["people"],
            "people is a population: say what its people are promised, for example --epsilon 4",
        ),
        (
            ["recipe.toml", "--epsilon", "4"],
            "there is no folder recipe.toml, and --epsilon needs one of people",
        ),
        ([], "name a recipe, or people and an ε"),
        (["--resume", "--run", "runs/1", "--epsilon", "4"], "--resume uses the run's own recipe"),
        (["--resume", "--run", "runs/1", "--dry-run"], "--resume uses the run's own recipe"),
        (
            ["recipe.toml", "--minutes", "5"],
            "there is no folder recipe.toml, and --minutes needs one of people",
        ),
        (
            ["people", "--epsilon", "4", "--dry-run", "--set", "run.rounds=3"],
            "leave out --set and --audit",
        ),
        (["people", "--epsilon", "4", "--run", "."], "has no name, which a new folder needs"),
        (["people", "--epsilon", "4", "--run", "people"], "people exists already"),
        (["people", "--epsilon", "4", "--public", "ngram"], "is not a neural model"),
        (
            ["people", "--epsilon", "4", "--public", "elsewhere"],
            "have different vocabularies: make",
        ),
    ],
)
def test_what_does_not_go_together_is_said(
    people, finished_runs, tmp_path, monkeypatch, arguments, answer
):
    monkeypatch.chdir(tmp_path)
    params, card = load_model(finished_runs / "counted")
    (tmp_path / "ngram").mkdir()
    save_model(tmp_path / "ngram" / "model.safetensors", params, replace(card, run=None))
    if "elsewhere" in arguments:
        PublicCorpus.of(["worda wordb"], lettered_words(), "other words").save(
            tmp_path / "elsewhere"
        )
    with pytest.raises(TaciturnError, match=answer):
        CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)


def test_the_start_that_is_shipped_knows_the_default_words_and_english():
    params, card = load_model(Path(SHIPPED))
    words = public_vocabulary(10_000)
    assert card.vocabulary == words.words
    assert card.run is None
    assert {leaf.dtype for leaf in params.values()} == {np.dtype(np.float32)}
    from taciturn.evaluation.accuracy import evaluate
    from taciturn.recipe import build

    model = build.language_model(ModelSection(kind="cifg"), len(words))
    plain = "Thank you very much for coming. I would like to see you again soon. Have a good day!"
    texts = Texts.of([[*words.encode(plain), END]], len(words))
    backwards = Texts.of([[*words.encode(plain)[::-1], END]], len(words))
    assert (
        evaluate(model, params, texts)["perplexity"].value
        < 60
        < evaluate(model, params, backwards)["perplexity"].value
    )


def test_the_card_of_the_start_names_every_source_and_licence():
    said = CARD.read_text()
    (source,) = load_model(Path(SHIPPED))[1].public_sources
    for name in (
        "Changelog",
        "congresstweets",
        "Self-dialogue",
        "DSTC8",
        "Taskmaster",
        "freeCodeCamp",
        "Wikipedia",
    ):
        assert name in source
        assert name in said
    for licence in ("CC BY-SA 4.0", "MIT", "BSD-3-Clause", "CC BY 4.0"):
        assert licence in said


@pytest.mark.parametrize("kind", ["of a run", "of other words", "of another shape"])
def test_only_public_text_with_the_same_words_is_gone_on_from(
    kind, people, public, finished_runs, tmp_path
):
    start = finished_runs / "private" if kind == "of a run" else Path(SHIPPED)
    model = ModelSection(kind="cifg") if kind == "of other words" else SMALL
    answers = {
        "of a run": "learned from people",
        "of other words": "knows other words",
        "of another shape": "its width is 96, not 8",
    }
    with pytest.raises(TaciturnError, match=answers[kind]):
        pretrain_model(
            PublicCorpus.load(public),
            model,
            Schedule(epochs=1),
            tmp_path / "out",
            lambda *_: None,
            start=start,
        )


def test_a_training_that_began_elsewhere_is_not_gone_on_with_as_if_it_had_not(
    public, start, tmp_path
):
    def cut(done, all, pace):
        if done > all / 2 + 1:
            raise Cut

    corpus, schedule = PublicCorpus.load(public), Schedule(epochs=2, batch_size=8)
    with pytest.raises(Cut):
        pretrain_model(corpus, SMALL, schedule, tmp_path / "out", cut, start=Path(start))
    with pytest.raises(RecipeError, match=r"its start is .*, not None"):
        pretrain_model(corpus, SMALL, schedule, tmp_path / "out", lambda *_: None, resume=True)


def test_learning_public_text_first_goes_on_where_it_was_interrupted(
    people, public, tmp_path, monkeypatch
):
    """With the same command; a start of other text in its place is refused."""
    begun = []

    def pretrain(*, resume, start, **_):
        begun.append((resume, start))

    announced = []

    class Announced(Display):
        def pretraining(self, out, about):
            announced.append(about)
            return super().pretraining(out, about)

    monkeypatch.setattr(for_people, "pretrain_model", pretrain)
    out = tmp_path / "out"
    pretrain_for(people, public, out, Announced())
    (about,) = announced
    assert "which `minutes` does not count: made-up text, " in about
    assert "up to 10 times. On two CPU cores that takes about 1 min;" in about
    out.mkdir()
    (out / CHECKPOINT).touch()
    pretrain_for(people, public, out, Display())
    assert begun == [(False, None), (True, None)]
    (out / CHECKPOINT).unlink()
    params, card = load_model(Path(SHIPPED))
    save_model(out / "model.safetensors", {"word_bias": params["word_bias"]}, card)
    with pytest.raises(TaciturnError, match="was pretrained on other text than"):
        pretrain_for(people, public, out, Display())
    save_model(
        out / "model.safetensors",
        {"word_bias": params["word_bias"]},
        replace(card, public_sources=("made-up text",)),
    )
    assert pretrain_for(people, public, out, Display()) == out
    assert len(begun) == 2


def test_going_on_from_a_start_begins_there_and_names_both_texts(public, start, tmp_path):
    corpus = PublicCorpus.load(public)
    slow = Schedule(epochs=1, batch_size=8, learning_rate=1e-9)
    pretrain_model(corpus, SMALL, slow, tmp_path / "out", lambda *_: None, start=Path(start))
    (before, about), (after, said) = load_model(Path(start)), load_model(tmp_path / "out")
    for name in before:
        np.testing.assert_allclose(before[name], after[name], atol=1e-6)
    assert said.public_sources == (*about.public_sources, corpus.source)
