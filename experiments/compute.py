"""What can be computed and need not be trained: the papers' privacy figures, with the accountants
of their time and with ours.

python experiments/compute.py [PAPER …]        writes PAPER/results/computed.json; some minutes on a
CPU
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dp_accounting import DpEvent, GaussianDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld import privacy_loss_distribution

from lib import paper_values
from lib.paper_values import XuModel
from lib.results import Result, load, round_figures
from lib.run_lists import HERE, read_list
from taciturn import planning
from taciturn.names import AccountantName, MechanismName
from taciturn.privacy.accounting.accountant import classic_epsilon, epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.participation import FixedSize, PoissonSampling

TABLE_1_ACCOUNTANTS: tuple[AccountantName, ...] = ("moments", "pld")
TEXT_ACCOUNTANTS: tuple[AccountantName, ...] = ("moments", "rdp", "pld")
XU_DELTA = 1e-10
# Of the users of es-ES, where a model's are not printed.
USUAL_MILLIONS = 4.21

# Of a figure, by the name of the line.
Lines = dict[str, list[tuple[float, float]]]


def _poisson(users: float, cohort: float, rounds: int, noise_multiplier: float = 1.0) -> DpEvent:
    return repeat(PoissonSampling(cohort / users).event(noise_multiplier), rounds)


def mcmahan2018() -> Result:
    return {"table_1": _mcmahan_table_1(), "epsilons": _mcmahan_epsilons()}


def _mcmahan_table_1() -> list[Result]:
    rows = []
    for users, cohort, multiplier in paper_values.MCMAHAN_TABLE_1:
        row: Result = {"users": users, "cohort": cohort, "noise_multiplier": multiplier}
        events = [_poisson(users, cohort, 10**power, multiplier) for power in range(7)]
        for accountant in TABLE_1_ACCOUNTANTS:
            row[accountant] = [epsilon(event, users**-1.1, accountant) for event in events]
        rows.append(row)
    return rows


def _mcmahan_epsilons() -> list[Result]:
    """Return the ε of Table 2 and of the text."""
    asked = []
    for _, _, users, cohort in paper_values.MCMAHAN_TABLE_2:
        asked.append((users, cohort, 5000, 1e-9))
    rows = []
    for users, cohort, rounds, delta in [*asked, *paper_values.MCMAHAN_TEXT]:
        row: Result = {"users": users, "cohort": cohort, "rounds": rounds, "delta": delta}
        event = _poisson(users, cohort, rounds)
        for accountant in TEXT_ACCOUNTANTS:
            row[accountant] = epsilon(event, delta, accountant)
        rows.append(row)
    return rows


def ramaswamy2020() -> Result:
    cohort = paper_values.RAMASWAMY_COHORT
    rounds = paper_values.RAMASWAMY_ROUNDS
    multiplier = paper_values.RAMASWAMY_SIGMA * cohort / paper_values.RAMASWAMY_CLIP_NORM
    rows = []
    for users in paper_values.RAMASWAMY_TABLE_5:
        delta = users**-1.1
        round = SampledWithoutReplacementDpEvent(users, cohort, GaussianDpEvent(multiplier))
        swap = FixedSize(cohort, users).event(multiplier)
        at_least = _least_epsilon_of_a_swap(users, cohort, rounds, multiplier)
        rows.append(
            {
                "users": users,
                "as_printed": classic_epsilon(repeat(round, rounds), delta, range(2, 64)),
                "charged": epsilon(repeat(swap, rounds), delta),
                "at_least": at_least,
                "poisson": epsilon(_poisson(users, cohort, rounds, multiplier), delta),
            }
        )
    return {"table_5": rows}


def _least_epsilon_of_a_swap(
    users: int, cohort: int, rounds: int, noise_multiplier: float
) -> float:
    """Return what ε is at least: the target sends +S·v, and everybody else, the user in whose place
    it comes included, −S·v, so that the sum moves by 2S in every round in which it takes part.
    """
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier / 2,
        sampling_prob=cohort / users,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-4,
    )
    return float(one_round.self_compose(rounds).get_epsilon_for_delta(users**-1.1))


def xu2023() -> Result:
    epsilons = {}
    for rho in paper_values.XU_EPSILON:
        event = GaussianDpEvent(1 / math.sqrt(2 * rho))
        epsilons[str(rho)] = epsilon(event, XU_DELTA)
    models = [_xu_model(name, model) for name, model in paper_values.XU_MODELS.items()]
    return {"models": models, "epsilon_of_rho": epsilons, "figure_4": _figure_4()}


def _xu_model(name: str, model: XuModel) -> Result:
    """Return the cost of a model as printed, of a BLT in its place, and, where its timer is
    printed, what a simulated fleet would leave of its participation.
    """
    users = int(1e6 * (model.millions or USUAL_MILLIONS))
    question = planning.Question(
        population=users,
        rounds=model.rounds,
        report_goal=paper_values.XU_REPORT_GOAL,
        noise_multiplier=paper_values.XU_NOISE_MULTIPLIER,
        min_separation=model.min_separation,
        max_participations=model.max_participations,
        delta=XU_DELTA,
    )
    honaker = planning.plan(question, "honaker")
    blt = _plan_at_error(question, "blt", honaker.error)
    row = {
        "model": name,
        "rho": honaker.rho,
        "epsilon": honaker.epsilon,
        "blt_rho": blt.rho,
        "blt_epsilon": blt.epsilon,
    }
    if model.timer_hours and model.millions and "secure" not in name:
        simulated = planning.simulate_timer(
            population=users,
            rounds=model.rounds,
            report_goal=paper_values.XU_REPORT_GOAL,
            timer_hours=model.timer_hours,
        )
        row |= {
            "min_separation": simulated.min_separation,
            "max_participations": simulated.max_participations,
            "days": simulated.hours / 24,
        }
    return row


class _Place(NamedTuple):
    """A place across a chart of Figure 4, which varies the model of es-ES."""

    across: int
    users: int = 4_200_000
    rounds: int = 2000
    report_goal: int = paper_values.XU_REPORT_GOAL
    # None: as long as is possible.
    min_separation: int | None = None


def _figure_4() -> dict[str, Lines]:
    """Return ρ around the model of es-ES, 4.2M users and 2,000 rounds. Noise grows with the report
    goal, so that its error stays; everybody rests as long as is possible.
    """
    goals = (500, 1000, 2000, 4000, 6500, 12_000, 20_000)
    users = (800_000, 1_600_000, 3_200_000, 6_400_000, 12_800_000)
    rounds = (500, 1000, 1500, 2000, 3000)
    separations = (50, 100, 200, 400, 640)
    return {
        "report goal": _figure_4_lines([_Place(value, report_goal=value) for value in goals]),
        "users": _figure_4_lines([_Place(value, users=value) for value in users]),
        "rounds": _figure_4_lines([_Place(value, rounds=value) for value in rounds]),
        "min separation": _figure_4_lines(
            [_Place(value, min_separation=value) for value in separations]
        ),
    }


def _figure_4_lines(places: Sequence[_Place]) -> Lines:
    lines: Lines = {"tree": [], "tree, Honaker": [], "BLT": []}
    goal = paper_values.XU_REPORT_GOAL
    for place in places:
        question = planning.Question(
            population=place.users,
            rounds=place.rounds,
            report_goal=place.report_goal,
            noise_multiplier=paper_values.XU_NOISE_MULTIPLIER * place.report_goal / goal,
            min_separation=place.min_separation,
        )
        honaker = planning.plan(question, "honaker")
        tree = _plan_at_error(question, "tree", honaker.error)
        blt = _plan_at_error(question, "blt", honaker.error)
        lines["tree, Honaker"].append((place.across, honaker.rho))
        lines["tree"].append((place.across, tree.rho))
        lines["BLT"].append((place.across, blt.rho))
    return lines


def _plan_at_error(
    question: planning.Question, mechanism: MechanismName, error: float
) -> planning.Answer:
    """Plan with this much noise on the models of the way."""
    first = planning.plan(question, mechanism)
    multiplier = first.noise_multiplier * error / first.error
    return planning.plan(replace(question, noise_multiplier=multiplier), mechanism)


def keyboard() -> Result:
    """Return ε at a δ of one in the square of the users, of private runs that have results: of one
    run, and of all runs of its kind on the same people.
    """
    runs = [run for run in read_list("keyboard") if run.result.exists()]
    of_one = {}
    of_all = {}
    for run in runs:
        result = load(run)
        if run.seed != 1 or not result["noise_multiplier"]:
            continue
        participation = run.load_recipe().participation
        delta = participation.users**-2.0
        one_round = _poisson(
            users=participation.users,
            cohort=participation.cohort,
            rounds=1,
            noise_multiplier=result["noise_multiplier"],
        )
        rounds = result["rounds"]
        same = sum((other.group, other.name) == (run.group, run.name) for other in runs)
        name = f"{run.group}-{run.name}"
        of_one[name] = _round_up(epsilon(repeat(one_round, rounds), delta))
        of_all[name] = _round_up(epsilon(repeat(one_round, same * rounds), delta))
    return {
        "epsilon_at_one_over_users_squared": of_one,
        "epsilon_of_all_runs_at_one_over_users_squared": of_all,
    }


def _round_up(epsilon: float) -> float:
    return math.ceil(100 * epsilon) / 100


def main() -> None:
    for compute in (mcmahan2018, ramaswamy2020, xu2023, keyboard):
        paper = compute.__name__
        if sys.argv[1:] and paper not in sys.argv[1:]:
            continue
        path = HERE / paper / "results" / "computed.json"
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(round_figures(compute()), indent=1, ensure_ascii=False)
        path.write_text(text + "\n")
        print(f"experiments/{path.relative_to(HERE)}", flush=True)


if __name__ == "__main__":
    main()
