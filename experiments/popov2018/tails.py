"""Tables 5 and 6 and Figure 3 (Popov et al. 2018): by how much one user moves a model, by the tails
of likelihood ratios (§3, Appendix A).

    python experiments/popov2018/tails.py RUN --cohorts 2 --out tails.json --figure tails.png
    python experiments/popov2018/tails.py MODEL OTHER… --figure tails.png

RUN is a run of averaging.toml, whose last model is trained for one more round of ten devices. A
pair of adjacent sets is that round with all ten and without one of them, θ and θ′: ten pairs for
each cohort. One device is left out of only the last round, so the pair shows the most that a device
of that round can do: later rounds would only thin it out. MODEL and OTHER are runs or models of any
kind, trained with some user and without: then these are the pairs.

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
from typing import Any, NamedTuple

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
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection
from taciturn.release.gate import check_not_personal
from taciturn.release.model_file import ModelCard, load_model
from taciturn.runs.folder import RunError, recipe_of

DEVICES = 10
DELTAS = (1e-4, 1e-5, 1e-6)
# Words of a text.
LENGTH = 10
# Texts.
AT_A_TIME = 500
SIGNIFICANCE = 0.05
INK = "#222222"
ACCENT = "#1b6ca8"
SECOND = "#c05621"


class Pair(NamedTuple):
    """Two models that one user tells apart."""

    name: str
    network: LanguageModel
    # θ.
    params: Params
    # θ′.
    other: Params
    # For what is sampled.
    key: Key


class Tail(NamedTuple):
    """Pareto's law for the largest ratios, P(c > x) = C · x^−α for x ≥ x_0, and how well it
    fits.
    """

    # α, Hill's estimator.
    shape: float
    # C.
    scale: float
    # x_0.
    start: float
    # Of the Lilliefors test.
    statistic: float
    # k, the number of largest ratios.
    used: int

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
    def sample_ratios(params: Params, other: Params, key: Key) -> jax.Array:
        texts = beginnings(model, params, AT_A_TIME, LENGTH, key)
        likely = _log_probability(model, params, texts)
        likely_to_other = _log_probability(model, other, texts)
        return likely - likely_to_other

    blocks = []
    for block in range(0, count, AT_A_TIME):
        block_key = jax.random.fold_in(key, block)
        ratios = sample_ratios(params, other, block_key)
        blocks.append(np.asarray(ratios))
    ratios = np.concatenate(blocks)[:count]
    return ratios.astype(np.float64)


def _log_probability(model: LanguageModel, params: Params, texts: jax.Array) -> jax.Array:
    """Return the log probability of each row after its <bos>, where padding and further beginnings
    have probability zero.
    """
    silent = np.array([PADDING, BEGIN])
    logits = losses.logits(model, params, texts[:, :-1]).at[..., silent].set(-jnp.inf)
    scores = jax.nn.log_softmax(logits)
    word_scores = jnp.take_along_axis(scores, texts[:, 1:, None], axis=-1)
    return jnp.sum(word_scores[..., 0], axis=1)


def fit_tail(log_ratios: np.ndarray) -> Tail:
    """Fit Hill's estimator to the k = 2⌊√n⌋ largest of n ratios (formulas 9, 10 and 12)."""
    count = len(log_ratios)
    used = 2 * math.isqrt(count)
    if not 2 <= used < count:
        raise ValueError(f"{count} ratios are too few to fit their tail")
    largest = np.sort(log_ratios)[::-1][:used]
    log_start = largest[-1]
    start = math.exp(log_start)
    # r_i.
    excess = largest - log_start
    mean = float(excess.mean())
    if mean == 0.0:
        return Tail(shape=math.inf, scale=math.nan, start=start, statistic=0.0, used=used)
    shape = 1.0 / mean
    return Tail(
        shape=shape,
        scale=used / count * math.exp(shape * log_start),
        start=start,
        statistic=lilliefors(excess),
        used=used,
    )


def lilliefors(values: np.ndarray) -> float:
    """Return √k times the largest distance between the empirical distribution and the exponential
    one of the same mean.
    """
    count = len(values)
    expected = -np.expm1(-np.sort(values) / values.mean())
    steps = np.arange(count + 1) / count
    above = np.max(steps[1:] - expected)
    below = np.max(expected - steps[:-1])
    return math.sqrt(count) * float(max(above, below))


@lru_cache
def critical_value(count: int) -> float:
    """Simulate the critical value of the Lilliefors test for `count` values."""
    generator = np.random.default_rng(1969)
    statistics = [lilliefors(generator.exponential(size=count)) for _ in range(4000)]
    return float(np.quantile(statistics, 1 - SIGNIFICANCE))


def largest_epsilon(tails: Iterable[Tail], delta: float) -> float:
    """Return the largest over all pairs, as the paper reports it; NaN if one of them is."""
    return float(np.max([tail.epsilon(delta) for tail in tails]))


def plot_tail(path: Path, log_ratios: np.ndarray, law: Tail) -> None:
    """Draw likelihood ratios of texts under two models beside Pareto's law, as in Popov et al.
    2018, Figure 3: their tail P(c > x), and by how many samples the two differ there, with the
    standard error of that count.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    tails, difference = figure.subplots(1, 2)
    ordered = np.sort(log_ratios)
    count = len(ordered)
    log_start = math.log(law.start)
    xs = np.linspace(log_start, max(ordered[-1], log_start + 1e-6), 200)
    expected = np.minimum(law.scale * np.exp(-law.shape * xs), 1.0)

    # How many are at least as large.
    above = count - np.arange(count)
    tails.step(ordered, above / count, color=ACCENT, where="post", label="samples")
    tails.plot(xs, expected, color=SECOND, label=f"Pareto, α = {law.shape:.1f}")
    tails.axvline(log_start, color=INK, lw=0.6, ls=":")
    tails.set(yscale="log", xlabel="log c(s)", ylabel="P(c > x)")
    tails.legend(frameon=False)

    counted = count - np.searchsorted(ordered, xs, side="right")
    spread = np.sqrt(count * expected * (1 - expected))
    difference.fill_between(
        xs, -spread, spread, color=INK, alpha=0.12, lw=0, label="standard error"
    )
    difference.plot(xs, counted - count * expected, color=ACCENT, label="samples − law")
    difference.set(xlabel="log c(s)", ylabel="samples")
    difference.legend(frameon=False)

    for panel in figure.axes:
        panel.grid(alpha=0.25, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def train_each(recipe: Recipe, params: Params, cohort: np.ndarray, key: jax.Array) -> list[Params]:
    """Return the update of each device by itself: there is no privacy here to lose."""
    population = build.population(recipe)
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    program = device_program(algorithm)
    one_at_a_time = recipe.with_settings("participation", cohort=1)
    fleet = assemble.simulated_fleet(one_at_a_time, population)
    public = algorithm.mechanism.public(algorithm.mechanism.init(params))
    message = Message(params, public)
    updates = []
    for user in cohort:
        report = fleet.sum_reports(program, message, np.array([user]), key)
        updates.append(report.update)
    return updates


def pairs_of_a_round(run: Path, cohorts: int) -> Iterator[Pair]:
    """Yield ten pairs for each cohort: its round with all devices, and without one of them."""
    recipe = recipe_of(run)
    assert recipe.algorithm == "fedavg"
    assert recipe.privacy.clip_norm is None
    loaded, card = load_model(run)
    params = jax.device_put(loaded)
    network = build.language_model(recipe.model, len(card.vocabulary))
    users = np.random.default_rng(7).permutation(recipe.participation.users)
    for number in range(cohorts):
        first = number * DEVICES
        cohort = users[first : first + DEVICES]
        updates = train_each(recipe, params, cohort, jax.random.key(number))
        total = jax.tree.map(lambda *layers: sum(layers[1:], layers[0]), *updates)
        theta = trees.add(params, trees.scale(total, 1 / DEVICES))
        for left_out, update in enumerate(updates):
            others = trees.subtract(total, update)
            yield Pair(
                name=f"{first + left_out + 1:2d}",
                network=network,
                params=theta,
                other=trees.add(params, trees.scale(others, 1 / (DEVICES - 1))),
                key=jax.random.key(100 * number + left_out),
            )


def pairs_of_models(path: Path, others: list[Path], seed: int) -> Iterator[Pair]:
    """Yield a pair for each of the other models."""
    params, card = _load_measurable(path)
    network = build.language_model(ModelSection(**card.architecture), len(card.vocabulary))
    shapes = jax.tree.map(np.shape, params)
    for number, other_path in enumerate(others):
        other, other_card = _load_measurable(other_path)
        is_same_kind = jax.tree.map(np.shape, other) == shapes
        if not is_same_kind or other_card.vocabulary != card.vocabulary:
            raise RunError(
                f"{other_path} is another kind of model than {path}, or knows other words, so no"
                " ratio can be computed"
            )
        yield Pair(
            name=f"{other_path}",
            network=network,
            params=params,
            other=other,
            key=jax.random.key(seed + number),
        )


def _load_measurable(folder: Path) -> tuple[Params, ModelCard]:
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
    options = parser.parse_args(arguments)
    if options.samples < 100:
        parser.error("--samples must be at least 100")
    if not all(0 < delta < 1 for delta in options.delta):
        parser.error("--delta must lie between 0 and 1")
    try:
        show(options)
    except TaciturnError as error:
        parser.error(str(error))


def show(options: argparse.Namespace) -> None:
    """Fit the tails of all pairs, and print what they say; write and draw what was asked for."""
    if options.others:
        pairs = pairs_of_models(options.model, options.others, options.seed)
    else:
        pairs = pairs_of_a_round(options.model, options.cohorts)
    tails: list[Tail] = []
    for pair in pairs:
        ratios = log_ratios(pair.network, pair.params, pair.other, options.samples, pair.key)
        tail = fit_tail(ratios)
        print(f"{pair.name}  {describe_tail(tail, options.delta)}", flush=True)
        if options.figure and not tails:
            plot_tail(options.figure, ratios, tail)
        tails.append(tail)
    critical = critical_value(tails[0].used)
    fits = sum(tail.fits for tail in tails)
    largest = {delta: round(largest_epsilon(tails, delta), 2) for delta in options.delta}
    print(f"critical value {critical:.2f}; {fits} of {len(tails)} fit")
    print("largest ε:", largest)
    print(
        "An estimate, not a guarantee: other pairs of users, or texts not sampled at random, may"
        " show more."
    )
    if options.out:
        options.out.write_text(as_json(tails, options.delta))


def describe_tail(tail: Tail, deltas: Sequence[float]) -> str:
    law = f"α {tail.shape:5.1f}  C {tail.scale:6.2f}  x0 {tail.start:.2f}  KS {tail.statistic:.2f}"
    epsilons = ", ".join(f"{tail.epsilon(delta):.2f}" for delta in deltas)
    return f"{law}  {'fits' if tail.fits else 'does not fit'}  ε {epsilons}"


def as_json(tails: list[Tail], deltas: Sequence[float]) -> str:
    """Return the fits, to four digits."""
    content = {
        "critical": round(critical_value(tails[0].used), 3),
        "pairs": [_fit_to_json(tail, deltas) for tail in tails],
    }
    return json.dumps(content, indent=1) + "\n"


def _fit_to_json(tail: Tail, deltas: Sequence[float]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, figure in tail._asdict().items():
        content[name] = _to_four_digits(figure)
    content["fits"] = tail.fits
    content["epsilon"] = {f"{delta:g}": _to_four_digits(tail.epsilon(delta)) for delta in deltas}
    return content


def _to_four_digits(figure: float) -> float:
    return float(f"{figure:.4g}")


if __name__ == "__main__":
    main()
