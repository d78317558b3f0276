"""A run's page: its figures are the run's, nothing on it can do anything, and it can be read
everywhere.
"""

import json
import math
import re
import shutil
from html import unescape
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taciturn
from harness import Cut, cut_at, made_up_users, quietly, tiny_recipe
from taciturn.audit import audit_users
from taciturn.audit.one_run import Audit
from taciturn.audit.results import (
    AuditResults,
    CanaryFinding,
    CanaryResults,
    MembershipResults,
)
from taciturn.cli import app
from taciturn.cli import train as cli_train
from taciturn.data.population import HeldOutUsers, Population, write_population
from taciturn.data.token_shards import Texts
from taciturn.evaluation.accuracy import WINDOW, evaluate, evaluate_each, evaluate_steps
from taciturn.evaluation.intervals import Interval
from taciturn.export.word_model import load_word_model
from taciturn.files import from_json, to_json
from taciturn.people import open_ledger
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, pair_text
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.recipe import build
from taciturn.recipe.text import save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs import loop
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.ngram_baselines import count_population
from taciturn.runs.ngram_worth import measure_with_history
from taciturn.runs.page import groups_of
from taciturn.runs.page_html import Notation, Point, chart, tag, ticks

NASTY = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def made(tmp_path_factory, vocabulary):
    """People enough for groups, a start, a run from it, one without noise, and n-grams beside
    them.
    """
    folder = tmp_path_factory.mktemp("report")
    people = write_population(
        folder / "people", made_up_users(50), made_up_users(40, seed=1), vocabulary, {}
    )
    loop.train_run(
        tiny_recipe(people, run={"rounds": 2, "evaluate_every": 1, "seed": None}),
        folder / "start",
        quietly,
    )
    from_start = {
        "model": {"warm_start": str(folder / "start")},
        "run": {"evaluate_every": 2, "seed": None},
    }
    loop.train_run(tiny_recipe(people, **from_start), folder / "first", quietly)
    loop.train_run(
        tiny_recipe(people, algorithm="fedavg", privacy={"noise_multiplier": None}),
        folder / "plain",
        quietly,
    )
    count_population(people.folder, folder / "three-grams", "katz", 3, non_private=True)
    return folder


def text_of(folder) -> str:
    """What a person reads there."""
    page = (folder / "report.html").read_text()
    return " ".join(
        unescape(re.sub("<[^>]+>", " ", page[page.index("<main>") :])).replace("\xa0", " ").split()
    )


def figures_missing(text: str, run) -> list[str]:
    """Those of the run that its page does not show."""
    measured = FinishedRun(run).evaluate()
    top1, gain = measured.accuracy_top1, loop_gain(run)
    wanted = [
        f"ε = {epsilon_text(measured.guarantee.epsilon)}",
        f"{100 * top1.value:.2f} ± {100 * top1.margin:.2f} %",
        f"{measured.perplexity.value:.2f} ± {measured.perplexity.margin:.2f}",
        f"{100 * gain.value:+.2f} ± {100 * gain.margin:.2f} points".replace("-", "−"),
    ]
    return [one for one in wanted if one not in text]


def loop_gain(run):
    own = FinishedRun(run)
    population = build.population(own.recipe)
    texts = own._open_test().texts
    model = build.language_model(own.recipe.model, len(population.vocabulary))
    now, before = (
        evaluate(model, load_model(folder)[0], texts)
        for folder in (run, Path(own.recipe.model.warm_start))
    )
    return now.gain_over(before)


def test_the_page_shows_the_figures_of_the_run_and_of_no_other(made):
    text = text_of(made / "first")
    assert figures_missing(text, made / "first") == []
    assert figures_missing(text.replace("%", "").replace("points", ""), made / "first")  # the twin
    for words in (
        "What is promised",
        "Light writers",
        "Heavy writers",
        "Many rare words",
        "they have no guarantee",
        "Statement:",
    ):
        assert words in text
    rows = [
        json.loads(line) for line in (made / "first" / "metrics.jsonl").read_text().splitlines()
    ]
    for row in rows:
        assert f"round {row['round']}: {100 * row['accuracy_top1']:.2f} %" in text


def test_written_again_it_says_the_same_and_has_the_n_grams_beside_it(made, tmp_path):
    before = text_of(made / "first")
    assert "three-grams" not in before
    page = CliRunner().invoke(
        app, ["report", str(made / "first"), "--no-open"], catch_exceptions=False
    )
    assert "report.html" in page.output
    after = text_of(made / "first")
    assert "three-grams none: ε = ∞" in after
    assert figures_missing(after, made / "first") == []
    FinishedRun(made / "first").report(beside=())
    assert "three-grams" not in text_of(made / "first")
    with pytest.raises(RunError, match="not an n-gram model"):
        FinishedRun(made / "first").report(beside=[made / "plain"])


def test_with_each_person_s_history_the_run_stands_beside_n_grams_that_have_it_too(made):
    FinishedRun(made / "first").report(beside=[made / "three-grams"])
    text = text_of(made / "first")
    without, _, with_history = text.partition("With each person's own history")
    assert "400 tokens of 40 of these people" in with_history
    held_out = HeldOutUsers(made / "people").texts
    for name in ("first", "three-grams"):
        model = load_word_model(made / name).model
        perplexity = measure_with_history(model, held_out).together["perplexity"]
        shown = f"{perplexity.value:.2f} ± {perplexity.margin:.2f}"
        assert shown in with_history
        # The twin: it is not what the run has without. The n-grams are certain of this text.
        assert name == "three-grams" or shown not in without
    FinishedRun(made / "first").report(beside=())
    assert "own history" not in text_of(made / "first")


def test_the_ledger_s_total_and_the_budget_are_those_of_the_population(made, population, tmp_path):
    book = open_ledger(Population(made / "people"))
    delta = min(book.run_rows(run)[0]["delta"] for run in book.runs())
    epsilon, _ = book.total(delta)
    assert f"ε = {epsilon_text(epsilon)}" in text_of(made / "plain")
    open_ledger(population).set_budget(PopulationBudget(epsilon=30.0, delta=4e-4))
    alone = loop.train_run(
        tiny_recipe(population, run={"rounds": 1, "seed": None}), tmp_path / "alone", quietly
    )
    assert "the only run" in text_of(alone.folder)
    assert "budget for all runs is ε = 30.00" in text_of(alone.folder)


def test_a_page_does_not_tell_by_its_δ_how_many_people_there_are(population, tmp_path):
    """The ledger's own total, for its owner, is at the δ of the people who were counted."""
    recipe = tiny_recipe(
        population, privacy={"delta": 1e-5}, run={"rounds": 1, "evaluate_every": 1, "seed": None}
    )
    book = open_ledger(population)
    usual = book.usual_delta(len(population)).delta
    book.set_budget(PopulationBudget(epsilon=30.0, delta=usual))
    run = loop.train_run(recipe, tmp_path / "run", quietly)
    book.refresh()
    spent = pair_text(book.total(1e-5).epsilon, 1e-5)
    assert f"In all they have spent {spent}." in text_of(run.folder)
    counted = delta_text(book.usual_delta().delta)
    assert counted == "0.0004"
    assert counted not in text_of(run.folder)
    assert "Their budget for all runs is ε = 30.00." in text_of(run.folder)


def test_a_run_without_privacy_gets_an_orange_card_and_one_with_it_does_not(made):
    assert 'class="promise warning"' in (made / "plain" / "report.html").read_text()
    assert "NO privacy guarantee" in text_of(made / "plain")
    assert "ε = ∞" in text_of(made / "plain")
    assert 'class="promise"' in (made / "first" / "report.html").read_text()
    assert "NO privacy guarantee" not in text_of(made / "first")


def test_a_simulation_is_called_one_wherever_its_ε_stands(population, tmp_path):
    first = loop.train_run(
        tiny_recipe(population, run={"rounds": 1, "seed": 3}), tmp_path / "seeded", quietly
    )
    assert ", in a simulation" in text_of(first.folder)
    second = loop.train_run(
        tiny_recipe(population, run={"rounds": 1, "seed": None}), tmp_path / "real", quietly
    )
    assert ", in a simulation" not in text_of(second.folder)
    assert "1 of 2 drew noise from a seed" in text_of(second.folder)


@pytest.mark.parametrize(
    ("fails", "error", "why"),
    [
        ("loop.write_report", OSError(28, "No space left on device"), "No space left on device"),
        ("loop.write_report", PackageNotFoundError("taciturn"), "PackageNotFoundError"),
        ("page.groups_of", MemoryError("rows"), "MemoryError: rows"),
    ],
)
def test_a_page_that_cannot_be_written_does_not_undo_the_run(
    population, tmp_path, monkeypatch, caplog, fails, error, why
):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(f"taciturn.runs.{fails}", failing)
    run = loop.train_run(tiny_recipe(population, run={"rounds": 1}), tmp_path / "run", quietly)
    assert run.guarantee.releases == 1
    assert f"only its page could not be written ({why}" in caplog.text
    assert f"taciturn report {run.folder}" in caplog.text
    assert {"guarantee.txt", "guarantee.json", "model.safetensors", "ledger.jsonl"} <= {
        one.name for one in run.folder.iterdir()
    }
    assert not (run.folder / "private").exists()
    assert open_ledger(population).is_closed("run")
    assert not (run.folder / "report.html").exists()
    monkeypatch.undo()
    FinishedRun(run.folder).report()  # what failed can be done again
    assert (run.folder / "report.html").exists()


def test_what_a_finished_run_promises_is_never_left_out_for_its_page(
    population, tmp_path, monkeypatch
):
    """The twin: where the statement itself cannot be written, the run is not finished, and keeps
    what it resumes from.
    """

    def failing(*_, **__):
        raise PackageNotFoundError("taciturn")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "statement", failing)
        with pytest.raises(PackageNotFoundError, match="No package metadata"):
            loop.train_run(tiny_recipe(population, run={"rounds": 1}), tmp_path / "run", quietly)
    assert (tmp_path / "run" / "private" / "root").exists()
    assert loop.resume_run(tmp_path / "run", quietly).guarantee.releases == 1


def test_the_page_is_drawn_where_the_package_was_never_installed(population, tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    run = loop.train_run(tiny_recipe(population, run={"rounds": 1}), tmp_path / "run", quietly)
    assert f"Taciturn {taciturn.__version__} · ledger row" in text_of(run.folder)


@pytest.mark.parametrize(
    ("where", "words"),
    [("write_report", "finished; only its page"), ("statement", "Nothing is lost; resume with")],
)
def test_after_ctrl_c_a_run_is_to_be_resumed_unless_it_is_finished(
    population, tmp_path, monkeypatch, where, words
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    said = []

    def leave(words):
        said.append(words)
        raise SystemExit(130)

    monkeypatch.setattr(loop, where, interrupted)
    monkeypatch.setattr(cli_train, "leave_interrupted", leave)
    save_recipe(tiny_recipe(population, run={"rounds": 1}), tmp_path / "recipe.toml")
    done = CliRunner().invoke(
        app, ["train", str(tmp_path / "recipe.toml"), "--run", str(tmp_path / "run")]
    )
    assert done.exit_code == 130
    assert words in said[0]
    monkeypatch.undo()
    again = CliRunner().invoke(app, ["train", "--resume", "--run", str(tmp_path / "run")])
    assert ("Its page is missing: taciturn report" in str(again.exception)) == (
        where == "write_report"
    )
    assert (tmp_path / "run" / "guarantee.json").exists()


def test_a_resumed_run_is_compared_with_where_it_began(population, tmp_path):
    recipe = tiny_recipe(population, run={"rounds": 3, "save_every": 1})
    with pytest.raises(Cut):
        loop.train_run(recipe, tmp_path / "cut", cut_at(2))
    with pytest.raises(RunError, match="has not ended"):
        FinishedRun(tmp_path / "cut").report()
    loop.resume_run(tmp_path / "cut", quietly)
    loop.train_run(recipe.with_settings("run", rounds=3), tmp_path / "whole", quietly)
    cut, whole = (text_of(tmp_path / name) for name in ("cut", "whole"))
    assert "Not a promise to rely on A simulation" in whole  # its noise came from a seed
    assert (
        re.search(r"over its start (\S+)", cut)[1] == re.search(r"over its start (\S+)", whole)[1]
    )


def test_text_from_files_stays_text(made, tmp_path):
    folder = tmp_path / "people's <b>run</b>"
    shutil.copytree(made / "first", folder)
    (folder / "guarantee.txt").write_text(f"Statement: {NASTY}")
    FinishedRun(folder).report(beside=())
    page = (folder / "report.html").read_text()
    assert NASTY not in page
    assert "<b>run</b>" not in page
    assert NASTY in unescape(page)  # and is there to be read
    assert tag("p", NASTY) == "<p>&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;</p>"
    assert "Content-Security-Policy" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_what_an_audit_found_is_on_the_page_and_that_nobody_looked(made, tmp_path):
    folder = shutil.copytree(made / "first", tmp_path / "first")
    (folder / audit_users.FILE_NAME).touch()
    run = FinishedRun(folder)
    run.report(beside=())
    assert "can be audited and was not yet" in text_of(folder)
    canary = CanaryFinding(
        users=4,
        copies=15,
        rank=1640,
        references=2_000_000,
        exposure=10.25,
        seen=60.0,
        place=None,
    )
    for refuted in (False, True):
        audit = Audit(
            included=3,
            left_out=5,
            mu=1.0,
            times=0.5,
            times_at_least=1.5 if refuted else 0.25,
            signal=1.0,
            spread=1.0,
            caught=(2.0, math.inf),
        )
        membership = MembershipResults(
            audit=audit,
            delta=1e-6,
            turns=1,
            claimed_epsilon=2.0,
            epsilon=1.5,
            epsilon_at_least=0.25,
            whole=None,
        )
        results = AuditResults(
            run=str(folder),
            epsilon=2.0,
            delta=1e-6,
            accuracy_top1=Interval(0.25, math.nan),
            membership=membership,
            canaries=CanaryResults([canary]),
        )
        written = to_json(results.to_json())
        (folder / "audit.json").write_text(written)
        assert to_json(AuditResults.from_json(from_json(written)).to_json()) == written
        run.report(beside=())
        assert ("BROKEN" in text_of(folder)) == refuted
        shown = text_of(folder)
        assert "claimed 1.00 2.00 found 0.50 1.50 found, at least" in shown
        assert f"{audit.times_at_least:.2f} 0.25" in shown
        assert "4 users, 15 copies 60 1.6k of 2.0M 10.2 –" in text_of(folder)


def test_groups_are_thirds_and_never_so_small_that_they_tell_of_one_person(vocabulary):
    lengths = np.arange(1, 37)
    texts = Texts.of([[5] * length for length in lengths], len(vocabulary))
    found = {one.name: one.users for one in groups_of(texts, vocabulary)}
    assert list(found) == [
        "Everybody",
        "Light writers",
        "Heavy writers",
    ]  # all know the same one word
    assert lengths[found["Light writers"]].max() < lengths[found["Heavy writers"]].min()
    few = Texts.of([[5] * length for length in range(1, 28)], len(vocabulary))  # thirds of nine
    assert [one.name for one in groups_of(few, vocabulary)] == ["Everybody"]
    alike = Texts.of([[5, 6]] * 60, len(vocabulary))
    assert [one.name for one in groups_of(alike, vocabulary)] == ["Everybody"]


def test_scores_of_each_user_add_up_and_n_grams_are_scored_as_networks_are(made):
    own = FinishedRun(made / "first")
    test = own._open_test()
    each, all = (one(test.model, test.params, test.texts) for one in (evaluate_each, evaluate))
    np.testing.assert_allclose(each.together.loss, all.loss)
    halves = each.pool(np.arange(0, 40, 2)), each.pool(np.arange(1, 40, 2))
    assert sum(half.top1.sum() for half in halves) == all.top1.sum()
    stepped = evaluate_steps(own.model.model, test.texts, WINDOW)  # the same network, word by word
    np.testing.assert_array_equal(stepped.tokens, each.tokens)
    np.testing.assert_allclose(stepped.loss, each.loss, rtol=1e-4)
    np.testing.assert_allclose(stepped.top3, each.top3, atol=1)
    counted = load_word_model(made / "three-grams")
    assert evaluate_steps(counted.model, test.texts, WINDOW).top1.sum() > 0


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.1, 0.1),
        (0.0, 0.0),
        (-3.0, 5.0),
        (0.181, 0.204),
        (1e-9, 2e-9),
        (0, 12345),
        (9.21, 9.21 + 4e-13),
        (9.21, 9.21 + 2e-15),
        (0, 3e-14),
    ],
)
def test_an_axis_has_few_round_marks_around_everything(low, high):
    marks = ticks(low, high)
    assert 2 <= len(set(marks)) <= 6
    assert marks[0] <= low + 1e-12
    assert marks[-1] >= high - 1e-12


def test_a_curve_leaves_out_what_is_not_finite():
    nan, inf = float("nan"), float("inf")
    points = [
        Point(0, Interval(1.0, 0.0)),
        Point(1, Interval(nan, 0.0)),
        Point(2, Interval(inf, nan)),
    ]
    notation = Notation(in_text="{:g}".format, on_axis="{:g}".format)
    drawn = chart("loss", points, notation)
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert "no finite figures" in chart("loss", [Point(0, Interval(inf, 0.0))], notation)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("run", ["first", "plain"])
def test_it_is_read_in_a_browser_at_any_width_by_day_and_by_night(
    browser, made, scheme, width, run
):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    address = (made / run / "report.html").as_uri()
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "[...document.querySelectorAll('main *')].every((one) => one.getBoundingClientRect().right"
        " <= innerWidth + 1)"
    )
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
    page.click("summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert {one for one in asked if not one.startswith("data:")} == {address}
    context.close()
