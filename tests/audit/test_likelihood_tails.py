"""Tails of likelihoods are estimates, and say so."""

import numpy as np
from typer.testing import CliRunner

from taciturn.audit.likelihood_tails import Tail, largest_epsilon


def test_an_estimate_is_called_one_however_narrow_the_terminal(monkeypatch, tmp_path):
    from taciturn import cli
    from taciturn.runs import finished

    found = [(np.zeros(9), Tail(9.0, 0.5, 1.2, 0.6, 9))]
    monkeypatch.setattr(finished, "compare_tails", lambda *_: found)
    monkeypatch.setenv("COLUMNS", "40")
    said = CliRunner().invoke(cli.app, ["audit", "tails", str(tmp_path / "a"), str(tmp_path / "b")])
    assert said.exit_code == 0, said.output
    assert "estimate, not a guarantee" in " ".join(said.output.split())
    assert list(tmp_path.iterdir()) == []  # nothing of it is written beside a run


def test_a_pair_whose_tail_is_no_number_is_not_left_out_of_the_largest():
    fine, broken = Tail(9.0, 0.5, 1.2, 0.6, 9), Tail(np.nan, np.nan, np.nan, np.nan, 9)
    assert not largest_epsilon([fine, broken], 1e-5) < np.inf
    assert not largest_epsilon([broken, fine], 1e-5) < np.inf
