"""The figures of Popov et al. 2018 that follow from others: Tables 5 and 6, and average
perplexities (Table 1).
"""

import math

import jax
import numpy as np
import pytest

from taciturn.data.vocabulary import SPECIAL
from taciturn.models.cells import cifg
from taciturn.release.model_file import ModelCard, save_model
from tails import Tail, critical_value, fit_tail, largest_epsilon, lilliefors, log_ratios, main

CRITICAL = 1.08  # of the Lilliefors test at 5 %
SHAPES = (
    15.8,
    20.9,
    15.1,
    16.6,
    16.5,
    17.6,
    14.9,
    19.2,
    15.6,
    15.2,
    16.5,
    14.4,
    19.5,
    18.2,
    16.2,
    17.2,
    17.3,
    14.8,
    17.1,
    20.5,
)
SCALES = (
    3.25,
    5.64,
    2.02,
    2.48,
    2.70,
    4.19,
    1.47,
    3.31,
    1.65,
    1.83,
    3.00,
    1.53,
    3.67,
    2.20,
    3.42,
    2.66,
    1.68,
    2.18,
    2.87,
    4.60,
)
STATISTICS = (
    0.49,
    0.91,
    0.48,
    0.62,
    0.83,
    0.59,
    1.39,
    0.41,
    0.93,
    0.51,
    0.76,
    0.89,
    0.66,
    0.94,
    0.67,
    0.85,
    0.73,
    0.97,
    0.65,
    0.94,
)
USED = 2 * math.isqrt(30_000)  # k, of 3 · 10⁴ samples
PAIRS = [
    Tail(shape=shape, scale=scale, start=1.4, statistic=statistic, used=USED)
    for shape, scale, statistic in zip(SHAPES, SCALES, STATISTICS, strict=True)
]


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-4, 0.67), (1e-5, 0.83), (1e-6, 0.99)])
def test_table_6_follows_from_table_5(delta, epsilon):
    assert largest_epsilon(PAIRS, delta) == pytest.approx(epsilon, abs=0.006)


def test_nineteen_of_twenty_pairs_pass_the_lilliefors_test_at_the_printed_critical_value():
    assert critical_value(USED) == pytest.approx(CRITICAL, abs=0.02)
    assert sum(pair.fits for pair in PAIRS) == 19


def test_hills_estimator_finds_the_law_that_the_samples_have():
    generator = np.random.default_rng(0)
    drawn = generator.pareto(16.0, 30_000)  # c − 1: P(c > x) = x^−16
    found = fit_tail(np.log1p(drawn))
    assert found.shape == pytest.approx(16.0, rel=0.12)
    assert found.scale == pytest.approx(1.0, rel=0.5)
    assert found.fits
    assert found.epsilon(1e-4) == pytest.approx(-math.log(1e-4) / 16, rel=0.1)


def test_a_tail_that_is_not_paretos_is_noticed():
    """The twin: values on a few heights are no such law."""
    generator = np.random.default_rng(0)
    assert not fit_tail(np.round(generator.exponential(size=30_000), 0)).fits
    assert lilliefors(np.linspace(0.9, 1.1, 300)) > 5 * CRITICAL


def test_the_epsilon_of_a_tail_is_never_below_where_the_tail_begins():
    far = Tail(shape=16.0, scale=1e-9, start=1.4, statistic=0.5, used=USED)
    assert far.epsilon(1e-4) == pytest.approx(math.log(1.4))


def test_models_that_are_the_same_have_ratios_of_one_and_others_have_not():
    network = cifg(30, 8, 12)
    params = network.init(jax.random.key(0))
    same = log_ratios(network, params, params, 1300, jax.random.key(1))
    assert len(same) == 1300
    np.testing.assert_allclose(same, 0.0, atol=1e-5)
    assert fit_tail(same).epsilon(1e-4) == pytest.approx(0.0, abs=1e-4)
    moved = jax.tree.map(lambda leaf: 1.3 * leaf, params)
    ratios = log_ratios(network, params, moved, 1300, jax.random.key(1))
    assert np.exp(-ratios).mean() == pytest.approx(1.0, abs=0.1)  # E[P′/P] under P is 1
    assert fit_tail(ratios).epsilon(1e-4) > 0.1


@pytest.mark.parametrize(
    ("general", "user", "average"),
    [
        (100.1, 336.0, 192.6),
        (121.3, 127.9, 124.8),
        (131.1, 109.7, 119.1),
        (149.0, 99.7, 119.9),
        (265.1, 93.4, 150.8),
    ],
)
def test_average_perplexity_is_the_geometric_mean_by_tokens(general, user, average):
    tokens = 170_000, 200_000
    mean = math.exp((tokens[0] * math.log(general) + tokens[1] * math.log(user)) / sum(tokens))
    assert mean == pytest.approx(average, rel=0.01)


@pytest.fixture
def models(tmp_path):
    """Two models of one kind, and one of another."""
    for name, units, seed in (("one", 12, 1), ("two", 12, 2), ("other", 13, 1)):
        words = (*SPECIAL, *(f"w{place}" for place in range(30 - len(SPECIAL))))
        card = ModelCard(
            architecture={"kind": "cifg", "width": 8, "units": units},
            vocabulary=words,
            text={"language": "en", "unit": "word"},
        )
        save_model(
            tmp_path / f"{name}.safetensors", cifg(30, 8, units).init(jax.random.key(seed)), card
        )
    return tmp_path


def test_the_script_shows_an_estimate_says_so_and_draws_it(models, capsys):
    main(
        [
            str(models / "one.safetensors"),
            str(models / "two.safetensors"),
            "--samples",
            "600",
            "--figure",
            str(models / "tail.png"),
        ]
    )
    assert "An estimate, not a guarantee" in capsys.readouterr().out
    assert (models / "tail.png").stat().st_size > 10_000
    assert len(list(models.iterdir())) == 4  # nothing else is written beside a model


@pytest.mark.parametrize(
    ("others", "fragments"),
    [
        (["nowhere"], ["nowhere does not exist", "such a file"]),
        (["other.safetensors"], ["is another kind of model than", "no ratio can be computed"]),
        (["two.safetensors", "--samples", "1"], ["--samples must be at least 100"]),
        (["two.safetensors", "--delta", "0"], ["--delta must lie between 0 and 1"]),
    ],
)
def test_a_wrong_input_is_answered_by_what_is_wrong(others, fragments, models, monkeypatch, capsys):
    monkeypatch.chdir(models)
    with pytest.raises(SystemExit, match="2"):
        main(["one.safetensors", *others])
    said = capsys.readouterr().err
    assert all(fragment in said for fragment in fragments)


def test_a_pair_whose_tail_is_no_number_is_not_left_out_of_the_largest():
    nan = np.nan
    fine = Tail(shape=9.0, scale=0.5, start=1.2, statistic=0.6, used=9)
    broken = Tail(shape=nan, scale=nan, start=nan, statistic=nan, used=9)
    assert not largest_epsilon([fine, broken], 1e-5) < np.inf
    assert not largest_epsilon([broken, fine], 1e-5) < np.inf
