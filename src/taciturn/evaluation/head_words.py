"""Does noise push a model towards the most common words? (McMahan et al. 2018, Table 3)

At each position, how many of the model's ten best predictions are among the n most frequent words of the word list: a histogram over
0 … 10. A model that predicts head words more often has more mass to the right.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import PADDING, LanguageModel, Params
from taciturn.data.layout import Cut
from taciturn.data.texts import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import NO_ANSWERS, WINDOW, batched_pieces
from taciturn.models import losses

HEADS = (10, 50, 100)
PREDICTIONS = 10
MOST_TOKENS = 75_122  # the paper's sample


def head_words(model: LanguageModel, params: Params, texts: Texts, vocabulary: Vocabulary, cut: Cut = WINDOW) -> np.ndarray:
    """float [HEADS, PREDICTIONS + 1]: the share of positions at which so many of the predictions are head words."""
    count = _counter(model, vocabulary.fixed)
    histogram, seen = np.zeros((len(HEADS), PREDICTIONS + 1)), 0
    for rows, _ in batched_pieces(texts, cut):
        histogram += jax.device_get(count(params, rows))
        seen += int(np.count_nonzero(rows[:, 1:]))
        if seen >= MOST_TOKENS:
            break
    return histogram / max(seen, 1)


@lru_cache(maxsize=8)
def _counter(model: LanguageModel, first_word: int):
    @jax.jit
    def count(params: Params, rows: jax.Array) -> jax.Array:
        scores = losses.logits(model, params, rows[:, :-1]).at[..., NO_ANSWERS].set(-jnp.inf)
        best = jax.lax.top_k(scores, PREDICTIONS)[1] - first_word
        present = rows[:, 1:] != PADDING
        heads = [jnp.sum((best >= 0) & (best < head), axis=-1) for head in HEADS]
        return jnp.stack(
            [jnp.sum(jax.nn.one_hot(head, PREDICTIONS + 1) * present[..., None], axis=(0, 1), dtype=jnp.float32) for head in heads]
        )

    return count
