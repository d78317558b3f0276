"""Every example runs, is short, and every public name is documented by an example that was run."""

import ast
import inspect
import operator
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import taciturn as tt
from harness import tiny_recipe
from taciturn.recipe.text import save_recipe
from taciturn.runs.train import train

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return __import__


def test_every_example_is_run_here_and_is_short():
    shown = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {name for name in shown if f'example("{name}")' in Path(__file__).read_text()} == set(
        shown
    )
    assert max(shown.values()) < 120


def test_quickstart(example, tmp_path):
    run = example("quickstart").main(tmp_path)
    assert 7.5 < run.guarantee.epsilon <= 8.0
    assert (
        run.scores["accuracy_top1"].value > run.before["accuracy_top1"].value + 0.05
    )  # its noise is no seeded one
    assert "model.safetensors" in {path.name for path in (tmp_path / "model").iterdir()}


def test_own_algorithm(example, tmp_path):
    assert (
        example("own_algorithm").main(tmp_path) < 0.3
    )  # of the truth, whose largest coefficient is 2
    assert (tmp_path / "ledger.jsonl").exists()


def test_own_model(example, population, tmp_path):
    run = example("own_model").main(population.folder, tmp_path, users=50, rounds=4)
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert run.recipe.model.kind == "two-words"


def test_fleet_in_process(example, population, tmp_path):
    assert example("fleet_in_process").main(population.folder, tmp_path).guarantee.releases == 2


def test_the_door_has_at_most_fifteen_names_and_each_is_explained():
    assert len(tt.__all__) <= 15
    assert sorted(tt.__all__) == sorted(tt._ROOMS)
    for name in tt.__all__:
        assert inspect.getdoc(getattr(tt, name)), name
    functions = [getattr(tt, name) for name in tt.__all__ if inspect.isfunction(getattr(tt, name))]
    for one in [*functions, tt.Curator.for_simulation]:
        said = inspect.getdoc(one) or ""
        assert all(word in said for word in ("Args:", "Example:")), one
        assert "Returns:" in said or "Yields:" in said, one


def test_names_are_loaded_when_they_are_used_and_train_stays_the_function():
    program = (
        "import sys, taciturn; print('jax' in sys.modules); import taciturn.training;"
        " print(taciturn.train.__name__)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["False", "train"]
    assert tt.train is train
    with pytest.raises(AttributeError, match="taciturn has no trian; it has"):
        _ = tt.trian


def test_the_docstrings_of_the_door_say_what_happens(population, tmp_path, monkeypatch):
    """In a folder with what a reader of them has: messages, a recipe, a run."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    rows = [
        (
            f"user {number % 40}",
            " ".join(generator.choice(["see", "you", "soon", "at", "home"], 20)),
        )
        for number in range(400)
    ]
    pq.write_table(
        pa.table({"user": [row[0] for row in rows], "text": [row[1] for row in rows]}),
        "messages.parquet",
    )
    # A model whose noise a seed repeats is not exported.
    recipe = tiny_recipe(population).with_settings("run", seed=None)
    save_recipe(recipe, Path("recipe.toml"))
    (tmp_path / "runs").mkdir()
    order = [
        "build_population",
        "load_recipe",
        "train",
        "resume",
        "FinishedRun",
        "private_averaging",
    ]
    order += ["Curator.for_simulation", "rounds", "register_model"]
    known = {"tt": tt, "np": np}
    for name in order:
        said = inspect.getdoc(operator.attrgetter(name)(tt)) or ""
        example = textwrap.dedent(said.split("Example:\n")[1])
        exec(compile(example, name, "exec"), known)
    assert known["run"].guarantee.releases == 6
    assert known["state"].round == 3
    assert (tmp_path / "model" / "model.onnx").exists()


def test_examples_use_the_door(tmp_path):
    """But for the fleet, whose parts are for those who build one."""
    for path in EXAMPLES.glob("*.py"):
        inside = [
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taciturn.")
        ]
        assert not inside or path.stem == "fleet_in_process"
