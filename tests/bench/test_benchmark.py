"""What the benchmark prints is measured, and its parts are what they say."""

import json

import ceilings
import in_turns
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from taciturn import randomness
from taciturn.bench import round_speed
from taciturn.cli import app
from taciturn.errors import TaciturnError
from taciturn.models.cells import lstm


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(round_speed, "WORDS", 50)
    monkeypatch.setattr(round_speed, "TOKENS", 160)


@pytest.mark.slow
def test_the_command_prints_a_table_and_json_with_the_paper_round_first(small):
    arguments = ["bench", "--users", "4", "--rounds", "1"]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert printed.exit_code == 0
    assert "users/s" in printed.output
    speeds = json.loads(
        CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout
    )
    assert next(iter(speeds)) == "users_per_s"
    assert speeds["users_per_s"] == speeds["paper_round"]["users_per_s"] > 0
    assert speeds["paper_round"]["tokens_per_s"] == pytest.approx(160 * speeds["users_per_s"])


def test_a_user_of_the_paper_round_costs_thirteen_gigaflop():
    params = lstm(10_000).init(randomness.jax_key(bytes(32)))
    assert ceilings.operations(params) == pytest.approx(13e9, rel=0.02)


def test_an_embedding_that_is_only_looked_up_counts_for_nothing():
    params = {"embedding": jnp.zeros((10, 3)), "word_embedding": jnp.zeros((10, 3))}
    assert ceilings.operations(params) == 6 * 30 * ceilings.TOKENS


PAGE = "Before.\n\n<!-- in turns, cpu -->\nwhat was measured before\n<!-- end -->\n\nAfter.\n"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository's benchmarks/, and environments in which another program says what it is told
    to.
    """
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.setattr(in_turns, "HERE", tmp_path)

    def answer(environment: str, script: str) -> None:
        python = tmp_path / "peers" / environment / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    answer("torch", "echo warming up; echo $(( $2 / 2 ))")  # of 8 users, 4 a second
    answer("fedjax", "echo 2")
    return answer


def run_beside(tmp_path, *names):
    ours = iter([8.0, 9.0, 10.0])
    commands = {name: in_turns.peer_command(name, tmp_path / "peers", 8, 1) for name in names}
    return in_turns.run_in_turns(lambda: next(ours), commands, progress=lambda step: None)


def test_others_are_run_in_turns_with_ours(clone, tmp_path):
    speeds = run_beside(tmp_path, "pfl", "fedjax")
    assert speeds == {"taciturn": [8.0, 9.0, 10.0], "pfl": [4.0] * 3, "fedjax": [2.0] * 3}
    assert in_turns.Ratio.of(speeds["taciturn"], speeds["pfl"]) == (2.0, 2.25, 2.5)


def test_the_comparison_takes_the_place_of_the_one_before(clone, tmp_path):
    in_turns.write_table(run_beside(tmp_path, "pfl", "fedjax"), "Two cores, today", "cpu")
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("Before.")
    assert page.endswith("<!-- end -->\n\nAfter.\n")
    assert "| pfl-research under torchrun | 4, 4, 4 | 2.25 × (2.00 to 2.50) |" in page
    assert "what was measured before" not in page
    with pytest.raises(TaciturnError, match="no place for this table"):
        in_turns.write_table({"taciturn": [1.0]}, "", "another machine")
    assert (tmp_path / "README.md").read_text() == page


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "echo ImportError: no torch here >&2; exit 1",
            "status 1 and no figure: ImportError: no torch here",
        ),
        ("true", "status 0 and no figure: it printed nothing"),
        ("echo nonsense", "no figure"),
    ],
)
def test_a_program_that_does_not_run_is_reported_in_a_sentence(clone, tmp_path, script, sentence):
    clone("torch", script)
    with pytest.raises(TaciturnError, match=sentence):
        run_beside(tmp_path, "torch")


def test_a_missing_environment_is_reported_before_anything_is_measured(clone, tmp_path):
    (tmp_path / "peers" / "fedjax" / "bin" / "python").unlink()
    with pytest.raises(TaciturnError, match="make peers"):
        in_turns.peer_command("fedjax", tmp_path / "peers", users=8, rounds=1)


def test_a_framework_that_is_unknown_is_refused():
    assert in_turns.parse_peers("torch, fedjax") == ["torch", "fedjax"]
    with pytest.raises(TaciturnError, match="not 'flower': name some of them"):
        in_turns.parse_peers("torch,flower")


def test_our_own_round_is_measured_in_users_a_second(small):
    with in_turns.our_round(users=4, rounds=1, precision="float32") as measure:
        assert measure() > 0
