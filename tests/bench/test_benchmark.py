"""What the benchmark prints is measured, and its parts are what they say."""

import json

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from taciturn import randomness
from taciturn.bench import round_speed
from taciturn.cli import app
from taciturn.models.cifg import cifg
from taciturn.models.lstm import lstm


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(round_speed, "WORDS", 50)
    monkeypatch.setattr(round_speed, "TOKENS", 160)
    monkeypatch.setattr(round_speed, "cifg", lambda words: cifg(words))


@pytest.mark.slow
def test_the_command_prints_a_table_and_json_with_the_paper_round_first(small):
    arguments = ["bench", "--users", "4", "--rounds", "1"]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert printed.exit_code == 0
    assert "users/s" in printed.output
    speeds = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert next(iter(speeds)) == "users_per_s"
    assert speeds["users_per_s"] == speeds["paper_round"]["users_per_s"] > 0
    assert speeds["paper_round"]["tokens_per_s"] == pytest.approx(160 * speeds["users_per_s"])
    assert speeds["torch_users_per_s"] is None


def test_a_user_of_the_paper_round_costs_thirteen_gigaflop():
    params = lstm(10_000).init(randomness.jax_keys(bytes(32), 1)[0])
    assert round_speed._operations(params) == pytest.approx(13e9, rel=0.02)


def test_an_embedding_that_is_only_looked_up_counts_for_nothing():
    params = {"embedding": jnp.zeros((10, 3)), "word_embedding": jnp.zeros((10, 3))}
    assert round_speed._operations(params) == 6 * 30 * round_speed.TOKENS


def test_a_python_without_pytorch_is_said_in_a_sentence(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(round_speed.BenchError, match="no torch here"):
        round_speed._torch(str(fake), 2, 1)
