"""What is in a run's folder and its population's: roots, secrets and ledgers that are lost, copied
or cut off.
"""

import contextlib
import io
import shutil

import jax
import numpy as np
import pytest

from harness import (
    Cut,
    cut_at,
    cut_off_rows,
    pass_for_untouched,
    quietly,
    short_recipe,
    tiny_recipe,
    trained,
    true_norm,
)
from taciturn import randomness
from taciturn.data.population import Population
from taciturn.files import from_json
from taciturn.people import open_ledger
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.recipe.text import RecipeError, save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs import loop, run
from taciturn.runs.display import LineDisplay
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.ngram_baselines import count_population
from taciturn.runs.train import resume


@pytest.mark.parametrize("door", ["a run", "a warm start", "n-grams"])
def test_a_lost_ledger_is_not_made_anew(finished_runs, copied_runs, tmp_path, door):
    people = Population(copied_runs / "people")
    lost = trained(people, tmp_path / "lost") if door == "a warm start" else None
    (people.folder / FILE_NAME).unlink()
    doors = {
        "a run": lambda: run.Run(tmp_path / "next", short_recipe(people), bytes(32)),
        "a warm start": lambda: run.Run(
            tmp_path / "next",
            short_recipe(Population(finished_runs / "people"), model={"warm_start": str(lost)}),
            bytes(32),
        ),
        "n-grams": lambda: count_population(
            people.folder, tmp_path / "next", "katz", 2, non_private=True
        ),
    }
    with pytest.raises((LedgerError, RecipeError), match=r"gone|no ledger knows"):
        doors[door]()
    assert not (people.folder / FILE_NAME).exists()


def test_a_refused_run_cannot_be_resumed_from_a_non_private_model(copied_runs, tmp_path):
    """The same name, other parameters to start from: refused as a new run, and then also with
    --resume.
    """
    people = Population(copied_runs / "people")
    from_plain = short_recipe(people, model={"warm_start": str(copied_runs / "plain")})
    with pytest.raises(LedgerError, match="already has a run"):
        loop.train_run(from_plain, tmp_path / "private", cut_at(0))
    with pytest.raises(RunError, match="does not exist; name a folder that"):
        loop.resume_run(tmp_path / "private", cut_at(0))


def test_a_root_made_from_a_seed_is_never_declared_as_entropy(population, tmp_path):
    """Cut off before the run was declared; then the seed is taken out of the recipe."""
    folder = tmp_path / "seeded"
    (folder / "private").mkdir(parents=True)
    (folder / "private" / "root").write_bytes(randomness.root_from_seed(5))
    save_recipe(short_recipe(population), folder / "recipe.toml")
    with contextlib.suppress(Cut, LedgerError, RecipeError, RunError):
        loop.resume_run(folder, cut_at(0))
    declared = [
        row["randomness"] for row in Ledger(population.folder / FILE_NAME).run_rows("seeded")
    ]
    root = (folder / "private" / "root").read_bytes()
    assert declared in ([], ["seeded simulation"]) or root != randomness.root_from_seed(5)


def test_secrets_half_deleted_by_a_crash_are_deleted_when_the_run_is_next_touched(
    population, tmp_path
):
    folder = tmp_path / "half"
    (folder / "private").mkdir(parents=True)
    (folder / "private" / "state.safetensors").write_bytes(b"noise that is not yet used up")
    save_recipe(short_recipe(population), folder / "recipe.toml")
    with pytest.raises(RunError, match="finished"):
        loop.resume_run(folder, cut_at(0))
    assert not (folder / "private").exists()


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_without_its_people_is_told_where_they_were_before_anything_is_compiled(
    population, tmp_path, is_finished
):
    folder = tmp_path / "run"
    recipe = tiny_recipe(population, run={"rounds": 2, "seed": None})
    with contextlib.nullcontext() if is_finished else pytest.raises(Cut):
        loop.train_run(recipe, folder, quietly if is_finished else cut_at(1))
    moved = population.folder.rename(tmp_path / "moved")
    output = io.StringIO()
    words = "is finished" if is_finished else "set population in"
    with pytest.raises(RunError, match=words) as refused:
        resume(folder, LineDisplay(output))
    assert not output.getvalue()
    for advice in ("warm_start", "who never had one"):
        assert advice not in str(refused.value)
    # The twin: where they are back, a finished run is one to start from, and the other goes on.
    moved.rename(population.folder)
    with pytest.raises(RunError, match="warm_start") if is_finished else contextlib.nullcontext():
        resume(folder, LineDisplay(output))


def test_a_run_is_not_resumed_with_a_truncated_ledger(population, tmp_path):
    recipe = tiny_recipe(population, run={"rounds": 2, "save_every": 1})
    path = population.folder / FILE_NAME

    def cut(done, *_):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train_run(recipe, tmp_path / "run", cut)
    whole, head = path.read_text(), path.with_suffix(".head").read_text()
    cut_off_rows(path, 2)  # the charge, and the model that came of it
    with pytest.raises(LedgerError, match="lacks the row at which this run was saved"):
        loop.resume_run(tmp_path / "run", quietly)
    path.write_text(whole)
    path.with_suffix(".head").write_text(head)
    pass_for_untouched(path)
    assert loop.resume_run(tmp_path / "run", quietly).guarantee.releases == 2  # the twin


def test_two_runs_with_one_root_never_share_noise(population, tmp_path):
    """A folder copied before its first save, with another noise multiplier in it, is another run
    with the same root.
    """

    def plain(noise_multiplier: float):
        return tiny_recipe(
            population,
            server={"optimizer": "sgd", "momentum": 0.0},
            privacy={"noise_multiplier": noise_multiplier, "accountant": "rdp"},
            run={"rounds": 1, "save_every": 1, "evaluate_every": 2, "seed": None},
        )

    with pytest.raises(Cut):
        loop.train_run(plain(1.0), tmp_path / "one", cut_at(0))
    (tmp_path / "two" / "private").mkdir(parents=True)
    shutil.copy(tmp_path / "one" / "private" / "root", tmp_path / "two" / "private" / "root")
    save_recipe(plain(2.0), tmp_path / "two" / "recipe.toml")
    start = load_model(tmp_path / "one")[0]
    one, two = (
        jax.tree.map(
            lambda end, begin: np.asarray(end - begin),
            loop.resume_run(tmp_path / name, quietly).params,
            start,
        )
        for name in ("one", "two")
    )
    left = jax.tree.map(
        lambda a, b: 2 * a - b, one, two
    )  # the total alone, if the noise is the same but for its size
    assert true_norm(left) > true_norm(one)


AFTER_THE_LAST_ROUND = {  # where a process may die, and whether the run is finished then
    "taciturn.runs.loop.statement": False,
    "taciturn.runs.loop.statement_json": False,
    "taciturn.runs.loop.delete_secrets": False,
    "taciturn.runs.folder.shutil.rmtree": True,
    "taciturn.privacy.ledger.account.Account.close": True,
    "taciturn.runs.page.groups_of": True,
    "taciturn.runs.loop.write_report": True,
}


@pytest.mark.parametrize(("where", "finished"), AFTER_THE_LAST_ROUND.items())
def test_a_run_that_dies_after_its_last_round_is_resumed_or_has_all_that_it_promises(
    population, tmp_path, where, finished
):
    def dies(*_, **__):
        raise Cut

    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, dies)
        with pytest.raises(Cut):
            loop.train_run(
                tiny_recipe(population, run={"rounds": 2, "seed": None}), folder, quietly
            )
    assert (folder / "private" / "root").exists() == (not finished)
    told = where.startswith(("taciturn.runs.loop", "taciturn.runs.page")) and finished
    assert (
        open_ledger(population).is_closed("run") == told
    )  # or else what it reserved counts as spent
    if finished:
        with pytest.raises(RunError, match=r"finished.*Its page is missing: `tt.FinishedRun"):
            loop.resume_run(folder, quietly)
    else:
        loop.resume_run(folder, quietly)
    assert not (folder / "private").exists()
    done, whole = (
        FinishedRun(folder),
        loop.train_run(tiny_recipe(population, run={"rounds": 2}), tmp_path / "whole", quietly),
    )
    done.report()
    assert {one.name for one in folder.iterdir()} == {one.name for one in whole.folder.iterdir()}
    assert done.guarantee.releases == 2
    assert from_json((folder / "guarantee.json").read_text())["epsilon"] == done.guarantee.epsilon
    assert open_ledger(population).is_closed("run")


def test_a_run_that_may_still_be_trained_is_not_closed_by_a_copy_without_secrets(
    population, tmp_path
):
    recipe = tiny_recipe(population, run={"rounds": 2, "save_every": 1, "seed": None})
    with pytest.raises(Cut):
        loop.train_run(recipe, tmp_path / "run", cut_at(1))
    shutil.copytree(
        tmp_path / "run", tmp_path / "elsewhere" / "run", ignore=shutil.ignore_patterns("private")
    )
    with pytest.raises(RunError, match="finished"):
        loop.resume_run(tmp_path / "elsewhere" / "run", quietly)
    assert not open_ledger(population).is_closed("run")
    assert loop.resume_run(tmp_path / "run", quietly).guarantee.releases == 2
