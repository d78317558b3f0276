"""`taciturn plan`: what a guarantee would take."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from taciturn.cli.output import console, print_table, say
from taciturn.cli.progress_display import bar, stages
from taciturn.names import AccountantName, MechanismName
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, rho_text

if TYPE_CHECKING:
    from taciturn.planning import Answer, Question


def plan(
    population: Annotated[int, Option(min=1, help="N: number of users, as publicly known")],
    rounds: Annotated[int, Option(min=1, help="T: number of rounds")],
    report_goal: Annotated[int, Option(min=1, help="m: users a round")],
    delta: Annotated[float | None, Option(help="δ (default: 1/N², at least 1e-15)")] = None,
    noise_multiplier: Annotated[
        float | None, Option(help="z; or name an ε or a ρ to reach")
    ] = None,
    epsilon: Annotated[float | None, Option(help="ε to reach")] = None,
    rho: Annotated[float | None, Option(help="ρ to reach, of zCDP")] = None,
    min_separation: Annotated[
        int | None,
        Option(min=0, help="MinS: rounds between a user's turns (default: all that N, m allow)"),
    ] = None,
    timer_hours: Annotated[
        float | None,
        Option(help="in place of MinS: a device's rest after an upload, on a simulated fleet"),
    ] = None,
    max_participations: Annotated[
        int | None, Option(min=1, help="MaxP (default: all that T and MinS allow)")
    ] = None,
    mechanism: Annotated[Literal[MechanismName, "all"], Option(help="noise and sampling")] = "all",
    accountant: Annotated[AccountantName, Option(help="how ε is computed")] = "pld",
    grow_to_rho: Annotated[
        float | None,
        Option(help="raise goal and noise of a trial until ρ falls to this, and choose a timer"),
    ] = None,
    largest_goal: Annotated[
        int,
        Option(
            min=1, help="with --grow-to-rho: the most reports a round that your servers can handle"
        ),
    ] = 20_000,
) -> dict[str, Any]:
    """Work out what a guarantee would take. It shows noise, separation, ρ and ε, for every
    mechanism, and reads no text.

    `poisson` is dp-fedavg; all others are dp-ftrl. `poisson` and `cyclic-poisson` (banded noise,
    users who take turns) need a curator that draws every cohort; the others claim only that users
    take turns (min separation), which a fleet of devices can keep. The error is
    that of the noise on the model: compare it with that of a run that you have tried; smaller is
    better.

    Example: taciturn plan --population 3000000 --rounds 1000 --report-goal 6500 --noise-multiplier
    7

    From a small trial on public text to a fleet (Xu et al. 2023, §2.5): taciturn plan --population
    4200000 --rounds 1900 --report-goal 500 --noise-multiplier 0.54 --grow-to-rho 0.35 --mechanism
    honaker
    """
    from taciturn import planning

    if timer_hours is not None:
        if min_separation is not None:
            raise planning.PlanError("give --min-separation or --timer-hours, not both")
        min_separation = _try_timer(population, rounds, report_goal, timer_hours)
    question = planning.Question(
        population=population,
        rounds=rounds,
        report_goal=report_goal,
        delta=delta,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        rho=rho,
        min_separation=min_separation,
        max_participations=max_participations,
        accountant=accountant,
    )
    if grow_to_rho is not None:
        grown = "blt" if mechanism == "all" else mechanism
        return _grow(question, grow_to_rho, largest_goal, grown)
    names = planning.MECHANISMS if mechanism == "all" else (mechanism,)
    answers = _answer(question, names)
    updates = (
        f"{population:,} users, {report_goal:,} a round, {rounds:,} rounds:"
        f" {rounds * report_goal:,} user updates"
    )
    claim = (
        f"the claim is {question.separation}, and at most {question.participations} participations"
    )
    console.print(
        f"{updates}. {question.possible_separation} rounds of rest are possible; {claim}. δ ="
        f" {delta_text(question.at_delta)}"
    )
    _print_answers(answers)
    return {**_claim(question), "answers": [asdict(answer) for answer in answers]}


def _try_timer(population: int, rounds: int, report_goal: int, timer_hours: float) -> int | None:
    """Simulate devices with a timer; print and return how long they rest at least."""
    from taciturn import planning

    with stages() as show:
        simulated = planning.simulate_timer(
            population=population,
            rounds=rounds,
            report_goal=report_goal,
            timer_hours=timer_hours,
            progress=partial(show, "simulating"),
        )
    console.print(
        f"A timer of {timer_hours:g} hours, on a simulated fleet that charges at night: {rounds:,}"
        f" rounds in {simulated.hours / 24:.1f} days, at least {simulated.min_separation} rounds"
        f" between two turns of a device, at most {simulated.max_participations} turns."
    )
    return simulated.min_separation


def _answer(question: "Question", names: Sequence[MechanismName]) -> "list[Answer]":
    """Work out the question for each mechanism."""
    from taciturn import planning

    wait = "(finding the best correlated noise takes a minute the first time)"
    answers = []
    with bar("planning", "kinds of noise") as show:
        for name in names:
            show(len(answers), len(names), f"{name} {wait}")
            answers.append(planning.plan(question, name))
        show(len(names), len(names), "")
    return answers


def _print_answers(answers: "Sequence[Answer]") -> None:
    """Print what each mechanism takes, and its error beside that of independent noise."""
    from taciturn.privacy.schemes import SCHEMES

    titles = {name: scheme.plan_title for name, scheme in SCHEMES.items() if scheme.plan_title}
    independent = None
    for answer in answers:
        if answer.mechanism == "independent":
            independent = answer.error
    rows = []
    for answer in answers:
        row = (
            titles.get(answer.mechanism, answer.mechanism),
            f"{answer.noise_multiplier:.3g}",
            rho_text(answer.rho),
            epsilon_text(answer.epsilon),
            f"{answer.error:.3g}",
            f"{answer.error / independent:.2f}" if independent else "",
        )
        rows.append(row)
    print_table(("", "noise multiplier", "ρ", "ε", "error", "÷ independent"), rows)


def _claim(question: "Question") -> dict[str, float]:
    """Return what is claimed, for JSON."""
    return {
        "min_separation": question.separation,
        "max_participations": question.participations,
        "delta": question.at_delta,
    }


def _grow(
    trial: "Question", target: float, largest_goal: int, mechanism: MechanismName
) -> dict[str, Any]:
    """Print and return what a fleet takes that reaches a ρ, out of a trial."""
    from taciturn.planning import PlanError, grow_to_rho
    from taciturn.privacy.schemes import schemes_with

    if mechanism in schemes_with(lambda scheme: scheme.claims_sampling):
        raise PlanError(
            f"{mechanism} needs a curator that draws cohorts, and devices with a timer come on"
            " their own: choose another"
        )
    with stages() as show:
        growth = grow_to_rho(trial, target, largest_goal, mechanism, show)
    question = growth.question
    answer = growth.answer
    days = growth.simulated.hours / 24
    say(
        f"{question.report_goal:,} reports a round with a noise multiplier of"
        f" {answer.noise_multiplier:.3g} ({mechanism}), and a timer of {growth.timer_hours} hours"
        " on every device.\nIn a simulated fleet, whose devices train while they charge at night:"
        f" {question.rounds:,} rounds in {days:.0f} days, at least {question.separation}"
        f" rounds between two turns of a device, at most {question.participations} turns. ρ ="
        f" {rho_text(answer.rho)}, ε = {epsilon_text(answer.epsilon)} at δ ="
        f" {delta_text(question.at_delta)}."
    )
    if growth.more_noise > 1.001:
        say(
            f"The noise on the average is {growth.more_noise:.2f} times what was tried, since"
            f" {question.report_goal:,} reports and this rest do not come to that ρ: expect a worse"
            " model, or allow more reports (--largest-goal), fewer rounds or a larger ρ.",
            style="yellow",
        )
    return {
        **_claim(question),
        "report_goal": question.report_goal,
        "timer_hours": growth.timer_hours,
        "days": days,
        "more_noise": growth.more_noise,
        "answer": asdict(answer),
    }
