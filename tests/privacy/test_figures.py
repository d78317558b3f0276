"""Printed numbers are never smaller than computed ones, and the default δ is small enough."""

import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from taciturn.cli import app
from taciturn.planning import LEAST_POPULATION, PlanError, Question
from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.rounding_up import (
    delta_text,
    epsilon_text,
    mu_text,
    odds_text,
    rho_text,
    times_text,
)
from taciturn.privacy.participation import LEAST_DELTA, PoissonSampling, default_delta

SOURCE = Path(__file__).parents[2] / "src" / "taciturn"


@given(st.floats(1e-300, 1000))
def test_figures_are_rounded_up(value):
    for text, step in (
        (epsilon_text(value), 0.1),
        (delta_text(value), 0.1),
        (rho_text(value), 0.01),
    ):
        assert value <= float(text) <= value * (1 + step) * (1 + 1e-9)
    assert float(mu_text(value)) >= math.sqrt(2 * value)


@given(st.floats(0, 10), st.floats(1e-15, 0.5))
def test_what_figures_mean_is_rounded_so_that_it_promises_less(epsilon, delta):
    times = Decimal(times_text(epsilon).replace(",", ""))
    assert Decimal(epsilon).exp() <= times <= Decimal(epsilon).exp() * Decimal("1.11")
    odds = Decimal(odds_text(delta).replace(",", ""))
    # Below ten it is an integer.
    assert 1 / (Decimal(delta) * Decimal("1.11")) - 1 <= odds
    # A δ counts as the number that it is written as.
    assert odds * Decimal(repr(delta)) <= 1


def test_an_epsilon_of_0_0149_is_not_printed_as_0_01():
    """F7."""
    assert (epsilon_text(0.0149), epsilon_text(0.1234), epsilon_text(1.001)) == (
        "0.015",
        "0.13",
        "1.01",
    )
    assert (epsilon_text(999.999), epsilon_text(1000.01), epsilon_text(math.inf)) == (
        "1000.00",
        "> 1000",
        "∞",
    )
    assert (rho_text(0.12345), rho_text(math.inf), mu_text(0.5), mu_text(math.inf)) == (
        "0.124",
        "∞",
        "1.01",
        "∞",
    )
    assert float(f"{0.0149:.1g}") < 0.0149  # the twin that must fail: to the nearest


@pytest.mark.parametrize("named", [1e-5, 1.1e-4, 4.4e-5, 0.1, 0.3])
def test_a_number_given_in_few_digits_is_printed_as_given(named):
    assert float(delta_text(named)) == named
    assert epsilon_text(2.0) == "2.00"
    assert (epsilon_text(0), delta_text(0), rho_text(0), mu_text(0)) == ("0.00", "0", "0", "0")


def test_no_promise_is_printed_by_any_other_function():
    """Lower bounds (audits) are not promises."""
    figure = re.compile(r"\{[^{}]*(epsilon|delta|rho|claimed)\)?:[,.\d]*[gfe]\}")
    found = {
        str(path.relative_to(SOURCE)): figure.findall(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
        if figure.search(path.read_text())
    }
    assert set(found) <= {"cli/ledger.py", "planning.py", "recipe/rules.py"}
    assert (
        found["cli/ledger.py"] == found["planning.py"] == found["recipe/rules.py"] == ["delta"]
    )  # each refuses a δ that was given
    assert figure.search('f"ε = {guarantee.epsilon:.2f}"')  # the twin that must be found
    assert figure.search('f"δ = {question.at_delta:.2g}"')


def test_the_default_delta_times_the_number_of_users_is_at_most_one_over_that_number():
    """F10."""
    for users in (10, 1000, 763_430, 10**7):
        assert users * default_delta(users) <= 1 / users * (1 + 1e-9)
    assert default_delta(10**8) == LEAST_DELTA == 1e-15
    assert pytest.approx(1e-6) == 10**9 * LEAST_DELTA
    assert 10**6 * (10**6) ** -1.1 > 0.2  # the twin that must fail: as it was


@pytest.mark.parametrize(("users", "cohort"), [(10**6, 1000), (10**7, 5000), (10**8, 5000)])
def test_loss_distributions_still_give_an_epsilon_at_the_default_delta(users, cohort):
    from dp_accounting import SelfComposedDpEvent

    event = SelfComposedDpEvent(PoissonSampling(cohort / users).event(1.0), 1000)
    delta = default_delta(users)
    assert epsilon(event, delta) < 0.5 * epsilon(event, delta, "rdp")


def test_a_population_for_which_no_delta_makes_sense_is_refused():
    common = [
        "plan",
        "--rounds",
        "10",
        "--report-goal",
        "1",
        "--noise-multiplier",
        "1",
        "--mechanism",
        "tree",
    ]
    run = CliRunner().invoke(app, [*common, "--population", "1"])
    assert run.exit_code != 0
    with pytest.raises(PlanError, match="1 users are too few for a guarantee"):
        Question(population=1, rounds=10, report_goal=1, noise_multiplier=1.0)
    with pytest.raises(PlanError, match="Plan for 10 or more"):
        Question(population=LEAST_POPULATION - 1, rounds=10, report_goal=1, noise_multiplier=1.0)
    assert (
        Question(
            population=LEAST_POPULATION, rounds=10, report_goal=1, noise_multiplier=1.0
        ).at_delta
        == 0.01
    )
