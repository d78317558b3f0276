"""Tables 5 and 6 and Figure 3 (Popov et al. 2018): by how much one device of ten moves the model of a round.

    python experiments/popov2018/tails.py RUN --cohorts 2 --out tails.json --figure tails.png

RUN is a run of averaging.toml, whose last model goes on for one more round of ten devices. A pair of adjacent sets is that round with
all ten and without one of them, θ and θ′: ten pairs for each cohort. It is the last round alone that one device is left out of, so the
pair shows the most that a device of that round can do: later rounds would only thin it out.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from taciturn import trees
from taciturn.audit.likelihood_tails import Tail, critical_value, largest_epsilon, log_ratios, tail
from taciturn.core import Message, Params
from taciturn.fleets import assemble
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.release.model_file import load_model
from taciturn.release.plots import plot_tail
from taciturn.runs.folder import recipe_of

DEVICES, DELTAS = 10, (1e-4, 1e-5, 1e-6)


def updates(recipe, params: Params, cohort: np.ndarray, key: jax.Array) -> list[Params]:
    """Of each device by itself: there is no privacy here to lose."""
    population = build.population(recipe)
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    program, fleet = (device_program(algorithm), assemble.simulated(recipe.with_settings("participation", cohort=1), population))
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))
    return [fleet.sum_reports(program, message, np.array([user]), key).update for user in cohort]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--cohorts", type=int, default=2)
    parser.add_argument("--samples", type=int, default=30_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    recipe, (params, card) = recipe_of(arguments.run), load_model(arguments.run)
    assert recipe.algorithm == "fedavg"
    assert recipe.privacy.clip_norm is None
    model, params = build.language_model(recipe.model, len(card.vocabulary)), jax.device_put(params)
    users = np.random.default_rng(7).permutation(recipe.participation.users)
    found: list[Tail] = []
    for number in range(arguments.cohorts):
        cohort = users[number * DEVICES : (number + 1) * DEVICES]
        each = updates(recipe, params, cohort, jax.random.key(number))
        total = jax.tree.map(lambda *layers: sum(layers[1:], layers[0]), *each)
        theta = trees.add(params, trees.scale(total, 1 / DEVICES))
        for left_out, update in enumerate(each):
            other = trees.add(params, trees.scale(trees.subtract(total, update), 1 / (DEVICES - 1)))
            ratios = log_ratios(model, theta, other, arguments.samples, jax.random.key(100 * number + left_out))
            found.append(tail(ratios))
            one = found[-1]
            print(f"{len(found):2d}  α {one.shape:5.1f}  C {one.scale:6.2f}  x0 {one.start:.2f}  KS {one.statistic:.2f}", flush=True)
            if arguments.figure and len(found) == 1:
                plot_tail(arguments.figure, ratios, one.shape, one.scale, one.start)
    print(f"critical value {critical_value(found[0].used):.2f}; {sum(one.fits for one in found)} of {len(found)} fit")
    print("largest ε:", {delta: round(largest_epsilon(found, delta), 2) for delta in DELTAS})
    if arguments.out:
        arguments.out.write_text(json.dumps([one._asdict() for one in found]))


if __name__ == "__main__":
    main()
