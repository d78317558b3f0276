"""Table 3 of McMahan et al. 2018: how many of the best predictions are common words."""

import jax.numpy as jnp
import numpy as np
import pytest

from head_words import head_words
from taciturn.core import LanguageModel
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary


def test_head_words_are_counted_among_the_ten_best():
    words = tuple(f"w{index}" for index in range(200))
    vocabulary = Vocabulary(words=SPECIAL + PUNCTUATION + words)
    size, first = len(vocabulary), vocabulary.first_word

    model = LanguageModel(
        lambda key: {},
        lambda p, t, k: jnp.zeros((*t.shape, 1)),
        lambda p: (jnp.zeros((size, 1)), p),
    )

    def likes(ids):  # whatever comes before; and special signs best of all, which are no answers
        return jnp.full(size, -1.0).at[ids].set(5.0).at[:3].set(9.0)

    texts = Texts.of([[first] * 7, [first] * 4], size)
    head = head_words(model, likes(np.arange(first, first + 10)), texts, vocabulary)
    assert head.shape == (3, 11)
    assert head[:, 10] == pytest.approx(1.0)  # all ten, among the 10, 50 and 100 most frequent
    mixed = head_words(
        model, likes(np.r_[first + 3 : first + 6, first + 60 : first + 67]), texts, vocabulary
    )
    assert [row.argmax() for row in mixed] == [3, 3, 10]
    tail = head_words(model, likes(np.arange(first + 150, first + 160)), texts, vocabulary)
    assert tail[:, 0] == pytest.approx(1.0)
    assert tail.sum(axis=1) == pytest.approx(1.0)
