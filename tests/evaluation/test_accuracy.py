"""Accuracy counts what the paper counts, with intervals over users."""

import jax.numpy as jnp
import numpy as np
import pytest

from taciturn.core import LanguageModel
from taciturn.data.layout import Sentences
from taciturn.data.token_shards import Texts
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
    # After <bos> (2): 4 is second choice, 6 third or worse, unknown never counts. Then 5, 6, 7 are
    # first, 9 after 7 second.
    assert scores.tokens.sum() == 9
    assert scores.top1.sum() == 3
    assert scores.top3.sum() == 3 + 2 + 1  # and 4 after unknown (1 → 4 is third)
    assert scores["accuracy_top1"].value == pytest.approx(3 / 9)


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
    assert scores["loss"].value == pytest.approx(-log_probability / 3, rel=1e-5)
    assert scores["perplexity"].value == pytest.approx(np.exp(-log_probability / 3), rel=1e-5)


def test_a_long_text_is_scored_whole():
    rng = np.random.default_rng(0)
    texts = Texts.of([rng.integers(1, VOCABULARY, 905), rng.integers(1, VOCABULARY, 1)], VOCABULARY)
    assert evaluate(successor_model(0.0), {}, texts).tokens.tolist() == [905, 1]


def made_up_scores(top1: np.ndarray, tokens: float = 50.0) -> Scores:
    every = np.full(len(top1), tokens)
    return Scores(tokens=every, known=every / 2, top1=top1, top3=top1, top5=top1, loss=top1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rate = rng.beta(20, 80, 100)  # users differ, so words of one user are not independent
        accuracy = made_up_scores(rng.binomial(50, rate).astype(float))["accuracy_top1"]
        covered += abs(accuracy.value - 0.2) <= accuracy.margin
    assert 180 <= covered <= 199


def test_a_paired_gain_is_narrower_than_two_intervals():
    rng = np.random.default_rng(0)
    hits = rng.binomial(50, rng.beta(20, 80, 100)).astype(float)
    one, two = made_up_scores(hits), made_up_scores(hits + 1)
    gain = two.gain_over(one)
    assert gain.value == pytest.approx(1 / 50)
    assert gain.margin < one["accuracy_top1"].margin / 5
    with pytest.raises(ValueError, match="same text"):
        two.gain_over(made_up_scores(hits, 40.0))


def test_a_relative_change_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        rate = rng.beta(20, 80, 100)
        before, after = rng.binomial(200, rate), rng.binomial(200, 1.1 * rate)
        change = made_up_scores(after.astype(float)).change_from(
            made_up_scores(before.astype(float)), "accuracy_top1"
        )
        covered += abs(change.value - 0.1) <= change.margin
    assert 180 <= covered <= 199


def test_accuracy_in_the_vocabulary_leaves_unknown_targets_out():
    texts = Texts.of([[4, 5, 1, 1, 5, 6]], VOCABULARY)
    scores = evaluate(successor_model(0.0), {}, texts)
    assert scores.known.sum() == 4
    assert scores["accuracy_top1"].value == pytest.approx(2 / 6)
    assert scores["accuracy_in_vocabulary"].value == pytest.approx(2 / 4)


def test_top_five_counts_more_than_top_three():
    texts = Texts.of([[4, 4]], VOCABULARY)  # after 4 come 5, 6 and 7, then 3 and 4 before the rest
    scores = evaluate(successor_model(0.0), {}, texts)
    assert (scores.top1.sum(), scores.top3.sum(), scores.top5.sum()) == (0, 1, 2)


def test_a_model_that_is_broken_or_likes_all_words_alike_is_not_right():
    """Found by a second reader: ties and NaN counted as hits."""
    texts = Texts.of([[7, 9, 5, 11, 8, 6]], VOCABULARY)
    for value in (jnp.nan, 0.0):
        words = jnp.full((VOCABULARY, 1), value), jnp.full(VOCABULARY, value)
        model = LanguageModel(
            lambda key: {}, lambda p, t, k: jnp.ones((*t.shape, 1)), lambda p, words=words: words
        )
        scores = evaluate(model, {}, texts)
        assert scores.top1.sum() == 0
        assert scores.top3.sum() == (
            0 if jnp.isnan(value) else 1
        )  # the first three words that may be said: 3, 4, 5


def test_sentences_are_scored_each_from_its_own_beginning():
    texts = Texts.of([[4, 5, 3, 4, 5, 6, 3]], VOCABULARY)
    whole = evaluate(successor_model(0.0), {}, texts)
    apart = evaluate(successor_model(0.0), {}, texts, Sentences(5, ends=(3,)))
    assert whole.tokens.sum() == apart.tokens.sum() == 7
    # After <bos> (2) the word 4 is second choice; after <eos> (3) it is the first.
    assert whole.top1.sum() == apart.top1.sum() + 1
    assert (
        evaluate(successor_model(0.0), {}, texts, Sentences(2, ends=(3,))).tokens.sum() == 4
    )  # capped
