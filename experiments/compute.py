"""What can be computed and need not be trained: the papers' privacy figures, with the accountants
of their time and with ours.

python experiments/compute.py [PAPER …]        writes PAPER/results/computed.json; some minutes on a
CPU
"""

import json
import math
import sys
from dataclasses import replace

from dp_accounting import DpEvent, GaussianDpEvent, SampledWithoutReplacementDpEvent

from lib import paper_values
from lib.results import Result, load, rounded
from lib.run_lists import HERE, read_list
from taciturn import planning
from taciturn.names import MechanismName
from taciturn.privacy.accounting.accountant import classic_epsilon, epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.participation import FixedSize, PoissonSampling


def _poisson(users: float, cohort: float, rounds: int, noise_multiplier: float = 1.0) -> DpEvent:
    return repeat(PoissonSampling(cohort / users).event(noise_multiplier), rounds)


def mcmahan2018() -> Result:
    table_1 = []
    for users, cohort, multiplier in paper_values.MCMAHAN_TABLE_1:
        events = [_poisson(users, cohort, 10**power, multiplier) for power in range(7)]
        found = {
            name: [epsilon(event, users**-1.1, name) for event in events]
            for name in ("moments", "pld")
        }
        table_1.append({"users": users, "cohort": cohort, "noise_multiplier": multiplier, **found})
    asked = [
        (users, cohort, 5000, 1e-9) for _, _, users, cohort in paper_values.MCMAHAN_TABLE_2
    ] + list(paper_values.MCMAHAN_TEXT)
    text = []
    for users, cohort, rounds, delta in asked:
        event = _poisson(users, cohort, rounds)
        found = {name: epsilon(event, delta, name) for name in ("moments", "rdp", "pld")}
        text.append({"users": users, "cohort": cohort, "rounds": rounds, "delta": delta, **found})
    return {"table_1": table_1, "epsilons": text}


def ramaswamy2020() -> Result:
    cohort, rounds = paper_values.RAMASWAMY_COHORT, paper_values.RAMASWAMY_ROUNDS
    multiplier = paper_values.RAMASWAMY_SIGMA * cohort / paper_values.RAMASWAMY_CLIP_NORM
    rows = []
    for users in paper_values.RAMASWAMY_TABLE_5:
        delta, as_printed = (
            users**-1.1,
            repeat(
                SampledWithoutReplacementDpEvent(users, cohort, GaussianDpEvent(multiplier)), rounds
            ),
        )
        rows.append(
            {
                "users": users,
                "as_printed": classic_epsilon(as_printed, delta, range(2, 64)),
                "charged": epsilon(
                    repeat(FixedSize(cohort, users).event(multiplier), rounds), delta
                ),
                "poisson": epsilon(_poisson(users, cohort, rounds, multiplier), delta),
            }
        )
    return {"table_5": rows}


def xu2023() -> Result:
    rows = []
    for name, (
        rounds,
        min_separation,
        max_participations,
        timer,
        millions,
        _,
    ) in paper_values.XU_MODELS.items():
        asked = {
            "min_separation": min_separation,
            "max_participations": max_participations,
            "delta": 1e-10,
        }
        users = int(1e6 * (millions or 4.21))
        question = planning.Question(
            population=users,
            rounds=rounds,
            report_goal=paper_values.XU_REPORT_GOAL,
            noise_multiplier=paper_values.XU_NOISE_MULTIPLIER,
            **asked,
        )
        honaker = planning.plan(question, "honaker")
        blt = _at_error(question, "blt", honaker.error)
        row = {
            "model": name,
            "rho": honaker.rho,
            "epsilon": honaker.epsilon,
            "blt_rho": blt.rho,
            "blt_epsilon": blt.epsilon,
        }
        if timer and millions and "secure" not in name:
            came = planning.simulate_timer(
                population=users,
                rounds=rounds,
                report_goal=paper_values.XU_REPORT_GOAL,
                timer_hours=timer,
            )
            row |= {
                "min_separation": came.min_separation,
                "max_participations": came.max_participations,
                "days": came.hours / 24,
            }
        rows.append(row)
    of_rho = {
        str(rho): epsilon(GaussianDpEvent(1 / math.sqrt(2 * rho)), 1e-10)
        for rho in paper_values.XU_EPSILON
    }
    return {"models": rows, "epsilon_of_rho": of_rho, "figure_4": _figure_4()}


def _figure_4() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Around the model of es-ES, 4.2M users and 2,000 rounds. Noise grows with the report goal, so
    that its error stays; everybody rests as long as is possible.
    """
    goal, users, rounds = paper_values.XU_REPORT_GOAL, 4_200_000, 2000
    settings = {
        "report goal": [
            (one, users, rounds, one, None) for one in (500, 1000, 2000, 4000, 6500, 12_000, 20_000)
        ],
        "users": [
            (one, one, rounds, goal, None)
            for one in (800_000, 1_600_000, 3_200_000, 6_400_000, 12_800_000)
        ],
        "rounds": [(one, users, one, goal, None) for one in (500, 1000, 1500, 2000, 3000)],
        "min separation": [(one, users, rounds, goal, one) for one in (50, 100, 200, 400, 640)],
    }
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for across, places in settings.items():
        lines: dict[str, list[tuple[float, float]]] = {"tree": [], "tree, Honaker": [], "BLT": []}
        for place, people, length, reports, rest in places:
            multiplier = paper_values.XU_NOISE_MULTIPLIER * reports / goal
            question = planning.Question(
                population=people,
                rounds=length,
                report_goal=reports,
                noise_multiplier=multiplier,
                min_separation=rest,
            )
            honaker = planning.plan(question, "honaker")
            lines["tree, Honaker"].append((place, honaker.rho))
            lines["tree"].append((place, _at_error(question, "tree", honaker.error).rho))
            lines["BLT"].append((place, _at_error(question, "blt", honaker.error).rho))
        found[across] = lines
    return found


def _at_error(
    question: planning.Question, mechanism: MechanismName, error: float
) -> planning.Answer:
    """With as much noise on the models of the way."""
    first = planning.plan(question, mechanism)
    return planning.plan(
        replace(question, noise_multiplier=first.noise_multiplier * error / first.error), mechanism
    )


def keyboard() -> Result:
    """ε at a δ of one in the square of the users, of private runs that have results."""
    found = {}
    for run in read_list("keyboard"):
        if run.result.exists() and load(run)["noise_multiplier"] and run.seed == 1:
            taken = run.loaded().participation
            spent = _poisson(
                taken.users, taken.cohort, load(run)["rounds"], load(run)["noise_multiplier"]
            )
            found[f"{run.group}-{run.name}"] = (
                math.ceil(100 * epsilon(spent, taken.users**-2.0)) / 100
            )
    return {"epsilon_at_one_over_users_squared": found}


def main() -> None:
    for compute in (mcmahan2018, ramaswamy2020, xu2023, keyboard):
        if compute.__name__ not in (sys.argv[1:] or compute.__name__):
            continue
        path = HERE / compute.__name__ / "results" / "computed.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rounded(compute()), indent=1, ensure_ascii=False) + "\n")
        print(f"experiments/{path.relative_to(HERE)}", flush=True)


if __name__ == "__main__":
    main()
