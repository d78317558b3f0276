"""The page of the papers: lists that load, results that are made into figures, and nothing on the page that is not in them."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import listed
import page
import results
import train

RUNS = [one for paper in listed.papers() for one in listed.listed(paper)]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The lists without their results."""
    for path in listed.HERE.glob("*/*"):
        if path.name in ("runs.toml", "figures.py", "beginning.md", "ending.md") or path.parent.name == "results":
            (tmp_path / path.parent.name).mkdir(exist_ok=True)
            (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    for path in listed.HERE.glob("*/results/computed.json"):
        (tmp_path / path.parts[-3] / "results").mkdir()
        (tmp_path / path.parts[-3] / "results" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(listed, "HERE", tmp_path)
    monkeypatch.setattr(page, "HERE", tmp_path)
    return tmp_path


def made_up(one: listed.ListedRun, top1: float) -> results.Result:
    rows = [
        {"round": round, "accuracy_top1": top1 * round / 1500, "accuracy_top1_margin": 0.002, "accuracy_top3": 0.3, "loss": 5.0}
        for round in sorted({*range(0, 1501, 50), 59, 118, 590})
    ]
    return {
        "paper": one.paper, "group": one.group, "name": one.name, "seed": one.seed, "rows": rows, "rounds": 590,
        "clipped": {"100": 0.9, "200": 0.8}, "head_words": [[1 / 11] * 11] * 3,
    }  # fmt: skip


def test_the_page_and_its_figures_come_out_of_the_results_byte_for_byte():
    for path, content in page.page().items():
        assert (listed.HERE / path).read_text() == content, f"{path} is not what the results say: make papers"


def test_another_result_would_be_another_page(elsewhere):
    """The twin: a figure that were typed would not move."""
    for one in RUNS:
        results.save(one, made_up(one, 0.17))
    first = page.page()
    changed = next(one for one in RUNS if one.id == "cohorts-100-1")
    results.save(changed, made_up(changed, 0.12))
    second = page.page()
    different = {str(path) for path in first if first[path] != second[path]}
    assert different == {"README.md", "mcmahan2018/figures/cohorts.svg"}


@pytest.mark.parametrize("one", RUNS, ids=lambda one: f"{one.paper}/{one.id}")
def test_every_listed_run_has_a_recipe_that_goes_together(one):
    recipe = one.loaded()
    assert recipe.run.seed == one.seed
    assert recipe.run.rounds % recipe.run.evaluate_every == 0


def test_where_all_runs_have_results_every_figure_is_drawn(elsewhere):
    for one in RUNS:
        results.save(one, made_up(one, 0.17 + 0.001 * (len(one.name) % 7)))
    made = page.page()
    pictures = [content for path, content in made.items() if path.suffix == ".svg"]
    assert len(pictures) >= 10
    for picture in pictures:
        drawn = ElementTree.fromstring(picture)
        assert "nan" not in picture
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) >= 3
    rows = [line for line in made[Path("README.md")].splitlines() if "**not run**" in line]
    assert not any("experiments/train.py" in row for row in rows if "Figure 8" not in row)


def test_what_has_no_result_is_not_run_and_its_command_names_a_list(elsewhere):
    rows = [line for line in page.page()[Path("README.md")].splitlines() if "**not run**" in line]
    commands = [row.split("`")[-2] for row in rows if "train.py" in row]
    assert len(commands) >= 10
    for command in commands:
        assert listed.chosen([command.split()[-1]])


def test_some_of_the_runs_are_counted_and_not_shown(elsewhere):
    one = next(one for one in RUNS if one.id == "cohorts-100-1")
    results.save(one, made_up(one, 0.17))
    row = next(line for line in page.page()[Path("README.md")].splitlines() if "mcmahan2018, Figure 7" in line)
    assert "1 of 9 runs" in row
    assert "17.0" not in row


def test_seeds_are_taken_together(elsewhere):
    for one in RUNS:
        if one.group == "cohorts":
            results.save(one, made_up(one, 0.16 + 0.01 * one.seed))
    group = results.Group("mcmahan2018", "cohorts")
    found = group.last("100")
    assert (found.value, found.least, found.most, found.seeds) == pytest.approx((0.18, 0.17, 0.19, 3))
    assert str(found) == "18.00 ± 0.20 (17.00 to 19.00)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[a]\nabout = 'x'\nrecipe = 'r'\nseeds = [1]\nruns.B = {}\n", "small letters"),
        ("[a]\nabout = 'x'\nrecipe = 'r'\nruns.b = {}\n", "has about, recipe, seeds and runs"),
        ("[a]\nabout = 'x'\nrecipe = 'r'\nseeds = [1]\nmeasures = ['luck']\nruns.b = {}\n", "has about, recipe, seeds and runs"),
        ("[a]\nabout = 'x'\nrecipe = 'r'\nseeds = [1, 1]\nruns.b = {}\n", "lists a run twice"),
    ],
)
def test_a_list_that_is_wrong_says_so(content, message, tmp_path, monkeypatch):
    (tmp_path / "odd2026").mkdir()
    (tmp_path / "odd2026" / "runs.toml").write_text(content)
    monkeypatch.setattr(listed, "HERE", tmp_path)
    with pytest.raises(listed.ListError, match=message):
        listed.listed("odd2026")
    with pytest.raises(listed.ListError, match="has no list of runs; there are odd2026"):
        listed.listed("nobody1999")


def test_a_run_that_fails_is_counted_and_its_reason_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(train, "WORK", tmp_path)
    lost = listed.ListedRun("mcmahan2018", "noise", "nowhere", 1, "paper.toml", ())
    assert train.run_side_by_side([lost], 2, 60) == 1
    assert "noise-nowhere-1 FAILED" in capfd.readouterr().out


def test_no_run_begins_when_the_time_is_over(capfd):
    assert train.run_side_by_side(RUNS[:3], 2, 0) == 0
    assert "3 not begun" in capfd.readouterr().out


@pytest.mark.slow
def test_shrunken_runs_go_from_list_to_page(capfd, monkeypatch):
    import check

    here = listed.HERE  # which check.py puts elsewhere
    for module in (listed, page):
        monkeypatch.setattr(module, "HERE", here)
    before = {path: path.read_bytes() for path in here.rglob("*.json")}
    assert before
    assert check.main() == 0
    out = capfd.readouterr().out
    assert out.count(" s\n") == 13
    assert {path: path.read_bytes() for path in here.rglob("*.json")} == before  # what is committed was not touched


def test_a_result_keeps_six_digits_and_no_more(elsewhere):
    one = RUNS[0]
    results.save(one, {"rows": [{"round": 1, "loss": 4.123456789, "epsilon": float("inf")}]})
    assert json.loads(one.result.read_text()) == {"rows": [{"round": 1, "loss": 4.12346, "epsilon": "inf"}]}


def test_the_first_table_of_the_readme_is_what_was_measured():
    readme = (listed.HERE.parent / "README.md").read_text()
    typed = json.loads((listed.HERE / "keyboard" / "results" / "typing-blogs.json").read_text())["models"]
    rows = {
        "| Kneser–Ney 4-grams |": "Kneser–Ney", "| … with each person's own history | none": "Kneser–Ney, with history",
        "| ours, before": "start", "| **ours, ε = 1**": "ε = 1", "| **ours, ε = 2**": "ε = 2", "| **ours, ε = 4**": "ε = 4",
        "| … with each person's own history, which": "ε = 4, with history", "| ours without privacy": "no privacy",
        "| ours, ε = 4, from the start": "ε = 4 from the start that ships",
    }  # fmt: skip
    for beginning, model in rows.items():
        (row,) = (line for line in readme.splitlines() if line.startswith(beginning))
        said = [cell.strip(" *") for cell in row.split("|")[3:6]]
        assert said == [f"{100 * typed[model][name][0]:.2f}" for name in ("accuracy_top1", "accuracy_top3", "keystroke_saving")]
