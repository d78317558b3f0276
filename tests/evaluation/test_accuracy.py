"""Accuracy counts what the paper counts, with intervals over users."""

import jax.numpy as jnp
import numpy as np
import pytest

from taciturn.core import LanguageModel
from taciturn.data.population import Texts
from taciturn.evaluation.accuracy import Scores, evaluate

VOCABULARY = 12


def successor_model(boost: float) -> LanguageModel:
    """Answers w + 1 after w, then w + 2, then w + 3; likes special signs best of all."""

    def contexts(params, tokens, key):
        return jnp.eye(VOCABULARY)[tokens]

    def words(params):
        table = jnp.zeros((VOCABULARY, VOCABULARY))
        for word in range(VOCABULARY):
            for distance, score in ((1, 3.0), (2, 2.0), (3, 1.0)):
                if word + distance < VOCABULARY:
                    table = table.at[word + distance, word].set(score)
        return table, jnp.where(jnp.arange(VOCABULARY) < 3, boost, 0.0)

    return LanguageModel(lambda key: {}, contexts, words)


def test_accuracy_counts_known_words_and_never_a_special_sign():
    texts = Texts.of([[4, 5, 6], [6, 7, 9], [1, 4, 1]], VOCABULARY)
    scores = evaluate(successor_model(boost=10.0), {}, texts)
    # After <bos> (2): 4 is second choice, 6 third or worse, unknown never counts. Then 5, 6, 7 are first, 9 after 7 second.
    assert scores.tokens.sum() == 9
    assert scores.top1.sum() == 3
    assert scores.top3.sum() == 3 + 2 + 1  # and 4 after unknown (1 → 4 is third)
    assert scores.accuracy_top1.value == pytest.approx(3 / 9)


def test_the_model_could_not_win_by_answering_unknown():
    texts = Texts.of([[1, 1, 1, 1]], VOCABULARY)
    assert evaluate(successor_model(boost=10.0), {}, texts).top3.sum() == 0


def test_loss_and_perplexity_are_over_all_tokens_but_padding():
    texts = Texts.of([[4, 5, 6]], VOCABULARY)
    scores = evaluate(successor_model(boost=0.0), {}, texts)
    log_probability = 0.0
    matrix, bias = successor_model(0.0).words({})
    for before, after in ((2, 4), (4, 5), (5, 6)):
        row = np.asarray(matrix)[:, before] + np.asarray(bias)
        log_probability += row[after] - np.log(np.exp(row).sum())
    assert scores.mean_loss.value == pytest.approx(-log_probability / 3, rel=1e-5)
    assert scores.perplexity.value == pytest.approx(np.exp(-log_probability / 3), rel=1e-5)


def test_a_long_text_is_scored_whole():
    rng = np.random.default_rng(0)
    texts = Texts.of([rng.integers(1, VOCABULARY, 905), rng.integers(1, VOCABULARY, 1)], VOCABULARY)
    assert evaluate(successor_model(0.0), {}, texts).tokens.tolist() == [905, 1]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rate = rng.beta(20, 80, 100)  # users differ, so words of one user are not independent
        scores = Scores(np.full(100, 50.0), rng.binomial(50, rate).astype(float), np.zeros(100), np.zeros(100))
        covered += abs(scores.accuracy_top1.value - 0.2) <= scores.accuracy_top1.margin
    assert 180 <= covered <= 199


def test_a_paired_gain_is_narrower_than_two_intervals():
    rng = np.random.default_rng(0)
    hits = rng.binomial(50, rng.beta(20, 80, 100)).astype(float)
    one = Scores(np.full(100, 50.0), hits, hits, hits)
    two = Scores(np.full(100, 50.0), hits + 1, hits, hits)
    gain = two.gain_over(one)
    assert gain.value == pytest.approx(1 / 50)
    assert gain.margin < one.accuracy_top1.margin / 5
    with pytest.raises(ValueError, match="same text"):
        two.gain_over(Scores(np.full(100, 40.0), hits, hits, hits))
