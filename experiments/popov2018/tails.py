"""Tables 5 and 6 and Figure 3 (Popov et al. 2018): by how much one user moves a model, by the tails
of likelihood ratios (§3, Appendix A).

    python experiments/popov2018/tails.py RUN --cohorts 2 --out tails.json --figure tails.png
    python experiments/popov2018/tails.py MODEL OTHER… --figure tails.png

RUN is a run of averaging.toml, whose last model goes on for one more round of ten devices. A pair
of adjacent sets is that round with all ten and without one of them, θ and θ′: ten pairs for each
cohort. It is the last round alone that one device is left out of, so the pair shows the most that a
device of that round can do: later rounds would only thin it out. MODEL and OTHER are runs or models
of any kind, trained with some user and without: then these are the pairs.

For texts of ten words sampled from a model θ, the ratio c(s) = P(s | θ) / P(s | θ′) to a model
trained without one user has a tail like Pareto's, P(c > x) = C · x^−α, which gives the ε at a δ.
**An estimate, not a guarantee**: it holds for the pairs of user sets that were tried, and for texts
sampled at random.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from taciturn import trees
from taciturn.core import BEGIN, PADDING, Key, LanguageModel, Message, Params
from taciturn.errors import TaciturnError
from taciturn.fleets import assemble
from taciturn.models import losses
from taciturn.models.sampling import beginnings
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.gate import check_not_personal
from taciturn.release.model_file import ModelCard, load_model
from taciturn.runs.folder import RunError, recipe_of

DEVICES, DELTAS = 10, (1e-4, 1e-5, 1e-6)
LENGTH = 10  # words of a text
AT_A_TIME = 500  # texts
SIGNIFICANCE = 0.05
INK, ACCENT, SECOND = "#222222", "#1b6ca8", "#c05621"
Pair = tuple[
    str, LanguageModel, Params, Params, Key
]  # what it is called, θ, θ′, and for what is sampled


class Tail(NamedTuple):
    """Pareto's law for the largest ratios, P(c > x) = C · x^−α for x ≥ x_0, and how well it
    fits.
    """

    shape: float  # α, Hill's estimator
    scale: float  # C
    start: float  # x_0
    statistic: float  # of the Lilliefors test
    used: int  # k, the number of largest ratios

    @property
    def fits(self) -> bool:
        """Return whether the test does not reject the law at 5 %; identical ratios follow none."""
        return math.isfinite(self.shape) and self.statistic <= critical_value(self.used)

    def epsilon(self, delta: float) -> float:
        """Return the ε with P(c > e^ε) = δ (formula 7); outside the tail, where ε < log x_0, its
        start is an upper bound.
        """
        if self.shape == math.inf:
            return math.log(self.start)
        return max(math.log(self.scale / delta) / self.shape, math.log(self.start))


def log_ratios(
    model: LanguageModel, params: Params, other: Params, count: int, key: Key
) -> np.ndarray:
    """Return log c(s) of texts sampled from θ, each from its beginning; θ′ is `other`."""

    @jax.jit
    def some(params: Params, other: Params, key: Key) -> jax.Array:
        texts = beginnings(model, params, AT_A_TIME, LENGTH, key)
        return _log_probability(model, params, texts) - _log_probability(model, other, texts)

    found = [
        np.asarray(some(params, other, jax.random.fold_in(key, block)))
        for block in range(0, count, AT_A_TIME)
    ]
    return np.concatenate(found)[:count].astype(np.float64)


def _log_probability(model: LanguageModel, params: Params, texts: jax.Array) -> jax.Array:
    """Return the log probability of each row after its <bos>, where padding and further beginnings
    have probability zero.
    """
    silent = np.array([PADDING, BEGIN])
    scores = jax.nn.log_softmax(
        losses.logits(model, params, texts[:, :-1]).at[..., silent].set(-jnp.inf)
    )
    return jnp.sum(jnp.take_along_axis(scores, texts[:, 1:, None], axis=-1)[..., 0], axis=1)


def tail(log_ratios: np.ndarray) -> Tail:
    """Fit Hill's estimator to the k = 2⌊√n⌋ largest of n ratios (formulas 9, 10 and 12)."""
    count = len(log_ratios)
    used = 2 * math.isqrt(count)
    if not 2 <= used < count:
        raise ValueError(f"{count} ratios are too few to fit their tail")
    largest = np.sort(log_ratios)[::-1][:used]
    excess = largest - largest[-1]  # r_i
    mean = float(excess.mean())
    if mean == 0.0:
        return Tail(math.inf, math.nan, math.exp(largest[-1]), 0.0, used)
    shape = 1.0 / mean
    scale = used / count * math.exp(shape * largest[-1])
    return Tail(shape, scale, math.exp(largest[-1]), lilliefors(excess), used)


def lilliefors(values: np.ndarray) -> float:
    """Return √k times the largest distance between the empirical distribution and the exponential
    one of the same mean.
    """
    count, expected = len(values), -np.expm1(-np.sort(values) / values.mean())
    steps = np.arange(count + 1) / count
    return math.sqrt(count) * float(
        max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    )


@lru_cache
def critical_value(count: int) -> float:
    """Simulate the critical value of the Lilliefors test for `count` values."""
    generator = np.random.default_rng(1969)
    return float(
        np.quantile(
            [lilliefors(generator.exponential(size=count)) for _ in range(4000)], 1 - SIGNIFICANCE
        )
    )


def largest_epsilon(tails: Iterable[Tail], delta: float) -> float:
    """Return the largest over all pairs, as the paper reports it; NaN if one of them is."""
    return float(np.max([one.epsilon(delta) for one in tails]))


def plot_tail(path: Path, log_ratios: np.ndarray, law: Tail) -> None:
    """Draw likelihood ratios of texts under two models beside Pareto's law, as in Popov et al.
    2018, Figure 3: their tail P(c > x), and by how many samples the two differ there, with the
    standard error of that count.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    tails, difference = figure.subplots(1, 2)
    ordered = np.sort(log_ratios)
    above = len(ordered) - np.arange(len(ordered))  # how many are at least as large
    tails.step(ordered, above / len(ordered), color=ACCENT, where="post", label="samples")
    xs = np.linspace(math.log(law.start), max(ordered[-1], math.log(law.start) + 1e-6), 200)
    expected = np.minimum(law.scale * np.exp(-law.shape * xs), 1.0)
    tails.plot(xs, expected, color=SECOND, label=f"Pareto, α = {law.shape:.1f}")
    tails.axvline(math.log(law.start), color=INK, lw=0.6, ls=":")
    tails.set(yscale="log", xlabel="log c(s)", ylabel="P(c > x)")
    tails.legend(frameon=False)
    counted = len(ordered) - np.searchsorted(ordered, xs, side="right")
    spread = np.sqrt(len(ordered) * expected * (1 - expected))
    difference.fill_between(
        xs, -spread, spread, color=INK, alpha=0.12, lw=0, label="standard error"
    )
    difference.plot(xs, counted - len(ordered) * expected, color=ACCENT, label="samples − law")
    difference.set(xlabel="log c(s)", ylabel="samples")
    difference.legend(frameon=False)
    for panel in figure.axes:
        panel.grid(alpha=0.25, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def updates(recipe, params: Params, cohort: np.ndarray, key: jax.Array) -> list[Params]:
    """Of each device by itself: there is no privacy here to lose."""
    population = build.population(recipe)
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    program, fleet = (
        device_program(algorithm),
        assemble.simulated_fleet(recipe.with_settings("participation", cohort=1), population),
    )
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))
    return [fleet.sum_reports(program, message, np.array([user]), key).update for user in cohort]


def pairs_of_a_round(run: Path, cohorts: int) -> Iterator[Pair]:
    recipe, (params, card) = recipe_of(run), load_model(run)
    assert recipe.algorithm == "fedavg"
    assert recipe.privacy.clip_norm is None
    model, params = build.language_model(recipe.model, len(card.vocabulary)), jax.device_put(params)
    users = np.random.default_rng(7).permutation(recipe.participation.users)
    for number in range(cohorts):
        cohort = users[number * DEVICES : (number + 1) * DEVICES]
        each = updates(recipe, params, cohort, jax.random.key(number))
        total = jax.tree.map(lambda *layers: sum(layers[1:], layers[0]), *each)
        theta = trees.add(params, trees.scale(total, 1 / DEVICES))
        for left_out, update in enumerate(each):
            other = trees.add(params, trees.scale(trees.subtract(total, update), 1 / (DEVICES - 1)))
            yield (
                f"{number * DEVICES + left_out + 1:2d}",
                model,
                theta,
                other,
                jax.random.key(100 * number + left_out),
            )


def pairs_of_models(path: Path, others: list[Path], seed: int) -> Iterator[Pair]:
    params, card = _measurable(path)
    network = build.language_model(ModelSection(**card.architecture), len(card.vocabulary))
    for number, place in enumerate(others):
        other, its_card = _measurable(place)
        if its_card.vocabulary != card.vocabulary or jax.tree.map(np.shape, other) != jax.tree.map(
            np.shape, params
        ):
            raise RunError(
                f"{place} is another kind of model than {path}, or knows other words, so no ratio"
                " can be computed"
            )
        yield f"{place}", network, params, other, jax.random.key(seed + number)


def _measurable(folder: Path) -> tuple[Params, ModelCard]:
    """Load a model; refuse a personal one, whose figures belong to its owner."""
    params, card = load_model(folder)
    check_not_personal(card, folder)
    return params, card


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN or MODEL",
        help="a run of averaging.toml, or a model trained with some user",
    )
    parser.add_argument(
        "others",
        type=Path,
        nargs="*",
        metavar="OTHER",
        help="the same without that user; of several, the largest ε counts",
    )
    parser.add_argument(
        "--cohorts", type=int, default=2, help="of ten devices, for a RUN (default: 2)"
    )
    parser.add_argument(
        "--samples", type=int, default=30_000, help="texts of ten words (default: 30,000)"
    )
    parser.add_argument(
        "--delta", type=float, nargs="+", default=DELTAS, help="δ (default: 1e-4, 1e-5, 1e-6)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the texts, for a MODEL")
    parser.add_argument("--out", type=Path, help="the fits, as JSON")
    parser.add_argument("--figure", type=Path, help="a picture of the tail of the first pair")
    given = parser.parse_args(arguments)
    if given.samples < 100:
        parser.error("--samples must be at least 100")
    if not all(0 < one < 1 for one in given.delta):
        parser.error("--delta must lie between 0 and 1")
    try:
        show(given)
    except TaciturnError as error:
        parser.error(str(error))


def show(given: argparse.Namespace) -> None:
    pairs = (
        pairs_of_models(given.model, given.others, given.seed)
        if given.others
        else pairs_of_a_round(given.model, given.cohorts)
    )
    found: list[Tail] = []
    for name, model, theta, other, key in pairs:
        ratios = log_ratios(model, theta, other, given.samples, key)
        found.append(one := tail(ratios))
        law = f"α {one.shape:5.1f}  C {one.scale:6.2f}  x0 {one.start:.2f}  KS {one.statistic:.2f}"
        epsilons = ", ".join(f"{one.epsilon(delta):.2f}" for delta in given.delta)
        print(f"{name}  {law}  {'fits' if one.fits else 'does not fit'}  ε {epsilons}", flush=True)
        if given.figure and len(found) == 1:
            plot_tail(given.figure, ratios, one)
    print(
        f"critical value {critical_value(found[0].used):.2f}; {sum(one.fits for one in found)} of"
        f" {len(found)} fit"
    )
    print("largest ε:", {delta: round(largest_epsilon(found, delta), 2) for delta in given.delta})
    print(
        "An estimate, not a guarantee: other pairs of users, or texts not sampled at random, may"
        " show more."
    )
    if given.out:
        given.out.write_text(as_json(found, given.delta))


def as_json(tails: list[Tail], deltas: Sequence[float]) -> str:
    """Return the fits, to four digits."""

    def pair(one: Tail) -> dict:
        figures = {key: float(f"{value:.4g}") for key, value in one._asdict().items()}
        return figures | {
            "fits": one.fits,
            "epsilon": {f"{delta:g}": float(f"{one.epsilon(delta):.4g}") for delta in deltas},
        }

    return (
        json.dumps(
            {"critical": round(critical_value(tails[0].used), 3), "pairs": list(map(pair, tails))},
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
