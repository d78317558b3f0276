"""The page of the papers: lists that load, results that are made into figures, and nothing on the
page that is not in them.
"""

import json
import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import train
from lib import canary_tables, page, paper_values, results, run_lists, time_estimate, typing_tables
from taciturn.planning import Question, plan

COMMITTED = run_lists.HERE
RUNS = [one for paper in run_lists.papers() for one in run_lists.read_list(paper)]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The lists without their results."""
    for path in run_lists.HERE.glob("*/*"):
        is_written = path.suffix == ".md" and path.name != "README.md"
        if path.suffix == ".toml" or path.name == "figures.py" or is_written:
            (tmp_path / path.parent.name).mkdir(exist_ok=True)
            (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "ending.md").write_bytes((run_lists.HERE / "ending.md").read_bytes())
    for path in run_lists.HERE.glob("*/results/computed.json"):
        (tmp_path / path.parts[-3] / "results").mkdir()
        (tmp_path / path.parts[-3] / "results" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(run_lists, "HERE", tmp_path)
    monkeypatch.setattr(page, "HERE", tmp_path)
    return tmp_path


def made_up(one: run_lists.ListedRun, top1: float) -> results.Result:
    run = one.load_recipe().run
    rows = [
        {
            "round": round,
            "accuracy_top1": top1 * round / run.rounds,
            "accuracy_top1_margin": 0.002,
            "accuracy_top3": 0.3,
            "loss": 5.0,
            "general_perplexity": 90.0 + round,
            "upload_bytes": 1e9 * round,
        }
        for round in range(0, run.rounds + 1, run.evaluate_every)
    ]
    canaries = [
        [users, copies, 230 * copies, rank, False]
        for users, copies in paper_values.RAMASWAMY_TABLE_4
        for rank in (1_000, 2_000, 3_000)
    ]
    audit = {
        "users": 1000,
        "mu": 0.5,
        "times": 1.0,
        "times_at_least": 0.8,
        "caught_at_80_percent": 1.3,
        "refuted": False,
    }
    return {
        "paper": one.paper,
        "group": one.group,
        "name": one.name,
        "seed": one.seed,
        "rows": rows,
        "rounds": run.rounds,
        "epsilon": 3.99,
        "rho": 0.5,
        "delta": 4.4e-05,
        "noise_multiplier": 2.0,
        "clipped": {"100": 0.9, "200": 0.8},
        "head_words": [[1 / 11] * 11] * 3,
        "canaries": canaries,
        "audit": audit,
        "typed": typed_in(10 * top1),
    }


def typed_in(saved: float) -> results.Result:
    """What keystrokes.py would have measured."""
    return {
        "perplexity": {"general": [90.0, 9.0], "users": [150.0, 3.0]},
        "saved": {"general": 0.6, "users": saved},
    }


def typed_by(*models: str) -> results.Result:
    """What keyboard/table.py would have measured of an n-gram and of these models."""
    shown = {metric: [0.2, 0.01] for metric in typing_tables.SHOWN}
    changes = {
        metric: [0.03, 0.01]
        for metric in (
            "accuracy_top1",
            "accuracy_top3",
            "keystroke_saving",
            "picked_rate",
            "recall_top1",
            "recall_top3",
        )
    }
    made = {"n-gram": {**shown, "word_modified_ratio": [0.3, 0.01]}, **dict.fromkeys(models, shown)}
    return {
        "people": 10,
        "words": 4_000,
        "models": made,
        "from": "n-gram",
        "changes": dict.fromkeys(models, changes),
    }


def rows_with(made: dict[Path, str], *words: str) -> list[str]:
    """Return the rows of the first page that have all of these words."""
    lines = made[Path("README.md")].splitlines()
    return [line for line in lines if line.startswith("| [") and all(one in line for one in words)]


def names_of(made: dict[Path, str], *words: str) -> list[str]:
    return [row[3:].partition("]")[0] for row in rows_with(made, *words)]


def test_the_page_and_its_figures_come_out_of_the_results_byte_for_byte():
    for path, content in page.page().items():
        assert (run_lists.HERE / path).read_text() == content, (
            f"{path} is not what the results say: make papers"
        )


def test_another_result_would_be_another_page(elsewhere):
    """The twin: a figure that were typed would not move."""
    for one in RUNS:
        results.save(one, made_up(one, 0.17))
    first = page.page()
    changed = next(one for one in RUNS if one.id == "cohorts-100-1")
    results.save(changed, made_up(changed, 0.12))
    second = page.page()
    different = {str(path) for path in first if first[path] != second[path]}
    assert different >= {
        "README.md",
        "mcmahan2018/README.md",
        "mcmahan2018/figures/cohorts.svg",
    }
    assert "mcmahan2018/figures/noise.svg" not in different


@pytest.mark.parametrize("one", RUNS, ids=lambda one: f"{one.paper}/{one.id}")
def test_every_listed_run_has_a_recipe_that_goes_together(one):
    recipe = one.load_recipe()
    assert recipe.run.seed == (one.seed if one.is_seeded else None)
    assert recipe.run.rounds % recipe.run.evaluate_every == 0


def test_where_all_runs_have_results_every_figure_is_drawn(elsewhere):
    for one in RUNS:
        results.save(one, made_up(one, 0.17 + 0.001 * (len(one.name) % 7)))
    named = {
        "ramaswamy2020": [
            "Katz, with history",
            "no privacy",
            "noise of Ramaswamy et al.",
            "noise of Xu et al.",
        ],
        "xu2023": ["Kneser–Ney, 30,000 words", "10,000 words", "30,000 words"],
    }
    for paper, models in named.items():
        (elsewhere / paper / "results" / "typing.json").write_text(json.dumps(typed_by(*models)))
    shipped = typed_by("Kneser–Ney, public text", "ε = 4 from the start that ships")
    (elsewhere / "keyboard" / "results" / "typing-blogs-shipped.json").write_text(
        json.dumps(
            shipped | {"overlap": {"length": 13, "share": 0.001, "people": 2, "without": shipped}}
        )
    )
    for name in ("start", "tails", "epochs"):  # of programs other than train.py
        (elsewhere / "popov2018" / "results" / f"{name}.json").write_bytes(
            (COMMITTED / "popov2018" / "results" / f"{name}.json").read_bytes()
        )
    made = page.page()
    pictures = [content for path, content in made.items() if path.suffix == ".svg"]
    assert len(pictures) == 25
    for picture in pictures:
        drawn = ElementTree.fromstring(picture)
        assert "nan" not in picture
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) >= 3
    assert names_of(made, "**not measured yet**") == [
        # Of Popov et al.: nothing trains with compressed gradients yet.
        "Table 4",
        "§3, Smart Compose",
        "typing, phone messages",
    ]


def test_what_other_programs_have_not_measured_is_not_measured_yet(elsewhere):
    for one in RUNS:
        results.save(one, made_up(one, 0.17))
    rows = names_of(page.page(), "(popov2018", "**not measured yet**")
    assert rows == ["abstract", "Table 4", "Table 5", "Table 6", "Figure 3"]


def test_rehearsal_that_is_not_best_at_a_half_holds_in_part_or_not(elsewhere):
    def verdict(best: str) -> str:
        for one in RUNS:
            if one.group == "one-device":
                users = 100.0 if one.name == best else 150.0
                typed = {
                    "perplexity": {"general": [90.0, 9.0], "users": [users, 3.0]},
                    "saved": {"general": 0.6, "users": 0.5},
                }
                results.save(one, made_up(one, 0.17) | {"typed": typed})
        (row,) = rows_with(page.page(), "popov2018/README.md#table-1)")
        return row.split("**")[1]

    assert [verdict(best) for best in ("rehearsal-0.5", "rehearsal-0.75", "soft-0.5")] == [
        "holds in one seed",
        "in part",
        "does not hold",
    ]


def test_what_was_trained_and_not_typed_with_is_not_judged(elsewhere):
    for one in RUNS:
        if one.group in ("headline", "rescoring"):
            results.save(one, made_up(one, 0.17))
    made = page.page()
    rows = names_of(made, "not typed with yet")
    assert rows == ["Table 2 †", "Table 1, against n-grams †", "Table 2, utility"]
    assert names_of(made, "not typed with yet", "**not measured yet**") == rows


def test_a_rank_in_the_middle_has_an_interval_of_order_statistics():
    assert (
        canary_tables.median(list(range(1, 16))) == "8 (4 to 12)"
    )  # which holds it with a chance of 96.5 %
    assert canary_tables.median([1, 2, 3]) == "2 (1 to 3)"


def test_every_group_of_a_turn_gets_its_first_seed_before_any_gets_its_second():
    runs = run_lists.choose_runs([])
    assert {(one.paper, one.id) for one in runs} == {(one.paper, one.id) for one in RUNS}
    assert [one.item for one in runs if one.repeats == 0] == sorted(
        one.item for one in runs if one.repeats == 0
    )
    for turn in ((1, 6), (7, 8), (9, 10)):
        repeats = [one.repeats for one in runs if turn[0] <= one.item <= turn[1]]
        assert repeats == sorted(repeats)


def test_what_is_asked_for_fits_the_time_that_gpus_are_lent_for():
    """An hour for the papers' main claims, and two thirds of one for the next; and no run alone
    takes longer than a call.
    """
    takes = {one: time_estimate.estimate(one) for one in RUNS if one.paper != "keyboard"}
    for items, minutes in (((1, 2, 3, 5), 60), ((7, 8), 40)):
        assert sum(one.gpu for run, one in takes.items() if run.item in items) <= 60 * minutes
    assert max(one.beside(3) for one in takes.values()) < 9 * 60


def test_an_estimate_is_near_what_was_measured():
    """Runs had five others beside them, most of the time; those of the keyboard were run before the
    kernels were as fast.
    """
    measured = {
        one: results.load(one)["seconds"]
        for one in RUNS
        if one.paper != "keyboard" and one.result.exists()
    }
    assert sum(map(bool, measured.values())) >= 30
    far = []
    for one, took in measured.items():
        if took and not 1 / 3 < time_estimate.estimate(one).beside(5) / took < 3:
            far.append(one.id)
    # A run may have waited for others to compile.
    assert len(far) <= len(measured) / 50, far


def test_what_has_no_result_is_not_measured_yet_and_its_command_names_a_list(elsewhere):
    made = page.page()
    assert len(rows_with(made, "**not measured yet**")) >= 40
    commands = []
    for content in made.values():
        commands += re.findall(r"^python experiments/train.py (\S+/.*)$", content, re.MULTILINE)
    assert len(commands) >= 40
    for command in commands:
        assert run_lists.choose_runs(command.split())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_of_the_committed_results_may_be_missing(elsewhere, seed):
    generator = random.Random(seed)
    for path in sorted(COMMITTED.glob("*/results/*.json")):
        copied = elsewhere / path.relative_to(COMMITTED)
        copied.parent.mkdir(exist_ok=True)
        if generator.random() < 0.5:
            copied.write_bytes(path.read_bytes())
    rows = rows_with(page.page())
    assert len(rows) == len(rows_with({Path("README.md"): (COMMITTED / "README.md").read_text()}))
    assert any("**not measured yet**" in row for row in rows)


def test_some_of_the_runs_are_counted_and_not_shown(elsewhere):
    one = next(one for one in RUNS if one.id == "cohorts-100-1")
    results.save(one, made_up(one, 0.17))
    (row,) = rows_with(page.page(), "mcmahan2018/README.md#figure-7)")
    assert "1 of 12 runs" in row
    assert "17.0" not in row


def test_seeds_are_taken_together(elsewhere):
    for one in RUNS:
        if one.group == "cohorts":
            results.save(one, made_up(one, 0.16 + 0.01 * one.seed))
    group = results.Group("mcmahan2018", "cohorts")
    found = group.last("100")
    assert (found.value, found.least, found.most, found.seeds) == pytest.approx(
        (0.18, 0.17, 0.19, 3)
    )
    assert str(found) == "18.00 ± 0.20 (17.00 to 19.00)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[a]\nabout = 'x'\nitem = 1\nrecipe = 'r'\nseeds = [1]\nruns.B = {}\n", "small letters"),
        (
            "[a]\nabout = 'x'\nitem = 11\nrecipe = 'r'\nseeds = [1]\nruns.b = {}\n",
            "has about, an item from 1 to 10",
        ),
        (
            "[a]\nabout = 'x'\nitem = 1\nrecipe = 'r'\nruns.b = {}\n",
            "has about, an item from 1 to 10, recipe, seeds and runs",
        ),
        (
            (
                "[a]\nabout = 'x'\nitem = 1\nrecipe = 'r'\nseeds = [1]\nmeasures = ['luck']\nruns.b"
                " = {}\n"
            ),
            "has about, an item from 1 to 10, recipe, seeds and runs",
        ),
        (
            "[a]\nabout = 'x'\nitem = 1\nrecipe = 'r'\nseeds = [1, 1]\nruns.b = {}\n",
            "lists a run twice",
        ),
    ],
)
def test_a_list_that_is_wrong_says_so(content, message, tmp_path, monkeypatch):
    (tmp_path / "odd2026").mkdir()
    (tmp_path / "odd2026" / "runs.toml").write_text(content)
    monkeypatch.setattr(run_lists, "HERE", tmp_path)
    with pytest.raises(run_lists.ListError, match=message):
        run_lists.read_list("odd2026")
    with pytest.raises(run_lists.ListError, match="has no list of runs; there are odd2026"):
        run_lists.read_list("nobody1999")


def test_a_run_that_fails_is_counted_and_its_reason_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(train, "WORK", tmp_path)
    lost = run_lists.ListedRun(
        paper="mcmahan2018",
        group="noise",
        name="nowhere",
        seed=1,
        recipe="paper.toml",
        settings=(),
    )
    assert train.run_side_by_side([lost], 2, 600) == 1
    assert "noise-nowhere-1 FAILED" in capfd.readouterr().out


def test_people_are_copied_once_and_wholly(tmp_path):
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "text").write_text("first")
    (tmp_path / "copy-incomplete").mkdir()
    (tmp_path / "copy-incomplete" / "other").write_text("interrupted")
    train.copy_people(tmp_path / "people", tmp_path / "copy")
    (tmp_path / "people" / "text").write_text("second")
    train.copy_people(tmp_path / "people", tmp_path / "copy")
    assert [(path.name, path.read_text()) for path in (tmp_path / "copy").iterdir()] == [
        ("text", "first")
    ]
    assert not (tmp_path / "copy-incomplete").exists()


def test_the_noise_of_the_headline_is_that_of_the_papers():
    """In clip norms per person of a round, root mean square of the noise on the sum so far."""
    theirs = {
        "production": plan(
            Question(population=4_000_000, rounds=2000, report_goal=20_000, noise_multiplier=0.8),
            "poisson",
        ),
        "gboard": plan(
            Question(
                population=4_210_000,
                rounds=1900,
                report_goal=6500,
                noise_multiplier=7.0,
                min_separation=526,
            ),
            "honaker",
        ),
    }
    for name, answer in theirs.items():
        recipe = next(one for one in RUNS if one.id == f"headline-{name}-1").load_recipe()
        asked = Question(
            population=9100,
            rounds=recipe.run.rounds,
            report_goal=int(recipe.participation.cohort),
            noise_multiplier=recipe.privacy.noise_multiplier,
        )
        assert plan(asked, answer.mechanism).error == pytest.approx(answer.error, rel=0.05)


def test_a_run_waits_for_folders_that_are_not_here(tmp_path, monkeypatch):
    headline, goals = (
        next(one for one in RUNS if one.id == id) for id in ("headline-none-1", "goals-100-1")
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local" / "people").mkdir(parents=True)
    assert train.absent_folders(headline) == ("local/start",)
    assert train.absent_folders(goals) == ("local/steam-show",)
    (tmp_path / "local" / "start").mkdir()
    assert train.absent_folders(headline) == ()


def test_no_run_begins_that_would_not_end_in_time(capfd):
    runs = [one for one in RUNS if one.group == "noise"][:3]
    assert train.run_side_by_side(runs, 2, time_estimate.estimate(runs[0]).alone) == 0
    assert "3 not begun" in capfd.readouterr().out


def test_the_list_says_how_long_each_group_takes(elsewhere, capfd):
    runs = run_lists.choose_runs(["xu2023/goals"])
    results.save(runs[0], made_up(runs[0], 0.17))
    train.print_list(runs, [one for one in runs if not one.result.exists()], 4)
    out = capfd.readouterr().out
    assert out.splitlines()[0].split() == ["done", "xu2023/goals-100-1", *runs[0].settings]
    assert "for  8 runs, 4 at a time  xu2023/goals" in out


@pytest.mark.slow
def test_shrunken_runs_go_from_list_to_page(capfd, monkeypatch):
    import check

    here = run_lists.HERE  # which check.py puts elsewhere
    for module in (run_lists, page):
        monkeypatch.setattr(module, "HERE", here)
    before = {path: path.read_bytes() for path in here.rglob("*.json")}
    assert before
    assert check.main() == 0
    out = capfd.readouterr().out
    assert out.count(" s\n") == 13
    assert {
        path: path.read_bytes() for path in here.rglob("*.json")
    } == before  # what is committed was not touched


def test_a_result_keeps_six_digits_and_no_more(elsewhere):
    one = RUNS[0]
    results.save(one, {"rows": [{"round": 1, "loss": 4.123456789, "epsilon": float("inf")}]})
    assert json.loads(one.result.read_text()) == {
        "rows": [{"round": 1, "loss": 4.12346, "epsilon": "inf"}]
    }
