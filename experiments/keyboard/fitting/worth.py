"""What an ε is worth by the rule of `taciturn train PEOPLE --epsilon …`, at our δ and the papers'.

python experiments/keyboard/fitting/worth.py

It writes the table of docs/choosing.md; nothing is trained.
"""

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.accounting.rounding_up import epsilon_text
from taciturn.privacy.participation import default_delta
from taciturn.recipe.autoplan import Plan, Task, choose_plan

# As for the bloggers of experiments/keyboard, on one H200.
USERS = 9_300
USERS_PER_SECOND = 3_400
SECONDS = 240
PARAMETERS = 2_412_000
EPSILONS = (1.0, 2.0, 4.0, 8.0)
OUR_DELTA = default_delta(USERS)
# McMahan et al. 2018 and those after them.
PAPERS_DELTA = USERS**-1.1


def plan_for(promised: float, delta: float) -> Plan:
    """Return what the rule chooses."""
    task = Task(
        users=USERS,
        epsilon=promised,
        delta=delta,
        parameters=PARAMETERS,
        seconds=SECONDS,
        users_per_second=USERS_PER_SECOND,
    )
    return choose_plan(task)


def epsilon_of(plan: Plan, delta: float) -> float:
    """Return the ε of a plan's rounds at some δ."""
    gaussian = GaussianDpEvent(plan.noise_multiplier)
    sampled = PoissonSampledDpEvent(plan.cohort / USERS, gaussian)
    return epsilon(repeat(sampled, plan.rounds), delta)


def row(promised: float) -> str:
    """Return the row of the table for an ε."""
    ours = plan_for(promised, OUR_DELTA)
    papers = plan_for(promised, PAPERS_DELTA)
    cells = (
        f"{promised:g}",
        *_describe(ours),
        *_describe(papers),
        epsilon_text(epsilon_of(papers, OUR_DELTA)),
    )
    return f"| {' | '.join(cells)} |"


def _describe(plan: Plan) -> tuple[str, ...]:
    sizes = f"{plan.rounds} × {plan.cohort:,}"
    return sizes, f"{plan.noise_multiplier:.2f}", f"{plan.gain:.2f}"


if __name__ == "__main__":
    for one in EPSILONS:
        print(row(one), flush=True)
