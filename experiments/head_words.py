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

HEADS, PREDICTIONS, MOST_TOKENS = (
    (10, 50, 100),
    10,
    75_122,
)  # most frequent words, looked for among the best; the paper's sample


def of_run(run: FinishedRun) -> np.ndarray:
    """Return the shares for the held-out users of a run's population."""
    recipe, vocabulary, people = (
        run.recipe,
        run.model.vocabulary,
        HeldOutUsers(Path(run.recipe.data.population)),
    )
    people.check_enough()
    model = build.language_model(recipe.model, len(vocabulary))
    return head_words(
        model, run.params, people.texts, vocabulary, build.evaluation_cut(recipe, vocabulary)
    )


def head_words(
    model: LanguageModel, params: Params, texts: Texts, vocabulary: Vocabulary, cut: Cut = WINDOW
) -> np.ndarray:
    """Return float [HEADS, PREDICTIONS + 1]: the share of positions at which 0, 1, … of the ten
    best predictions are among the n most frequent words of the list.
    """
    histogram, seen = np.zeros((len(HEADS), PREDICTIONS + 1)), 0
    for rows, _ in batched_pieces(texts, cut):
        histogram += jax.device_get(_counted(model, vocabulary.first_word, params, rows))
        seen += int(np.count_nonzero(rows[:, 1:]))
        if seen >= MOST_TOKENS:
            break
    return histogram / max(seen, 1)


@partial(jax.jit, static_argnums=(0, 1))
def _counted(model: LanguageModel, first_word: int, params: Params, rows: jax.Array) -> jax.Array:
    scores = losses.logits(model, params, rows[:, :-1]).at[..., NO_ANSWERS].set(-jnp.inf)
    best = jax.lax.top_k(scores, PREDICTIONS)[1] - first_word
    present = rows[:, 1:] != PADDING
    heads = [jnp.sum((best >= 0) & (best < head), axis=-1) for head in HEADS]
    counted = [jax.nn.one_hot(head, PREDICTIONS + 1) * present[..., None] for head in heads]
    return jnp.stack([jnp.sum(one, axis=(0, 1), dtype=jnp.float32) for one in counted])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    try:
        shares = of_run(FinishedRun(parser.parse_args(arguments).run))
    except TaciturnError as error:
        parser.error(str(error))
    print("  n", *(f"{count:5}" for count in range(PREDICTIONS + 1)))
    for n, row in zip(HEADS, shares, strict=True):
        print(f"{n:3}", *(f"{100 * share:5.1f}" for share in row))


if __name__ == "__main__":
    main()
