"""Table 3 (McMahan et al. 2018): whether noise favours the most common words, on the held-out users
of a run.

    python experiments/head_words.py RUN

Prints, for the n most frequent words of the list, at which share of positions (in %) 0, 1, … of the
ten best predictions are among them.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import PADDING, LanguageModel, Params
from taciturn.data.layout import Cut
from taciturn.data.population import HeldOutUsers
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import NO_ANSWERS, WINDOW, batched_pieces
from taciturn.models import losses
from taciturn.recipe import build
from taciturn.runs.finished import FinishedRun

# The most frequent words that are looked for, and among how many of the best predictions.
HEADS = (10, 50, 100)
PREDICTIONS = 10
# The paper's sample.
MOST_TOKENS = 75_122


def count_for_run(run: FinishedRun) -> np.ndarray:
    """Return the shares for the held-out users of a run's population."""
    recipe = run.recipe
    vocabulary = run.model.vocabulary
    people = HeldOutUsers(Path(recipe.data.population))
    people.check_enough()
    return head_words(
        model=build.language_model(recipe.model, len(vocabulary)),
        params=run.params,
        texts=people.texts,
        vocabulary=vocabulary,
        cut=build.evaluation_cut(recipe, vocabulary),
    )


def head_words(
    model: LanguageModel, params: Params, texts: Texts, vocabulary: Vocabulary, cut: Cut = WINDOW
) -> np.ndarray:
    """Return float [HEADS, PREDICTIONS + 1]: the share of positions at which 0, 1, … of the ten
    best predictions are among the n most frequent words of the list.
    """
    histogram = np.zeros((len(HEADS), PREDICTIONS + 1))
    seen = 0
    for rows, _ in batched_pieces(texts, cut):
        counts = _count_positions(model, vocabulary.first_word, params, rows)
        histogram += jax.device_get(counts)
        seen += int(np.count_nonzero(rows[:, 1:]))
        if seen >= MOST_TOKENS:
            break
    return histogram / max(seen, 1)


@partial(jax.jit, static_argnums=(0, 1))
def _count_positions(
    model: LanguageModel, first_word: int, params: Params, rows: jax.Array
) -> jax.Array:
    """Return, for each head, at how many positions 0, 1, … of the best predictions are in it."""
    before = rows[:, :-1]
    targets = rows[:, 1:]
    logits = losses.logits(model, params, before)
    scores = logits.at[..., NO_ANSWERS].set(-jnp.inf)
    _, best_ids = jax.lax.top_k(scores, PREDICTIONS)
    # From the most frequent word on; below 0 are punctuation and what is not a word.
    places = best_ids - first_word
    is_target = targets != PADDING
    histograms = []
    for head in HEADS:
        is_in_head = (places >= 0) & (places < head)
        count = jnp.sum(is_in_head, axis=-1)
        one_hot = jax.nn.one_hot(count, PREDICTIONS + 1) * is_target[..., None]
        histograms.append(jnp.sum(one_hot, axis=(0, 1), dtype=jnp.float32))
    return jnp.stack(histograms)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    try:
        shares = count_for_run(FinishedRun(parser.parse_args(arguments).run))
    except TaciturnError as error:
        parser.error(str(error))
    print("  n", *(f"{count:5}" for count in range(PREDICTIONS + 1)))
    for n, row in zip(HEADS, shares, strict=True):
        print(f"{n:3}", *(f"{100 * share:5.1f}" for share in row))


if __name__ == "__main__":
    main()
