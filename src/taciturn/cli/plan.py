"""`taciturn plan`: what a guarantee would take."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from taciturn.cli.output import console, print_table, say
from taciturn.cli.progress_display import bar, stages
from taciturn.names import AccountantName, MechanismName
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, rho_text

if TYPE_CHECKING:
    from taciturn.planning import Question


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
        with stages() as show:
            came = planning.simulate_timer(
                population=population,
                rounds=rounds,
                report_goal=report_goal,
                timer_hours=timer_hours,
                progress=partial(show, "simulating"),
            )
        turns = (
            f"at least {came.min_separation} rounds between two turns of a device, at most"
            f" {came.max_participations} turns"
        )
        took = f"{rounds:,} rounds in {came.hours / 24:.1f} days"
        console.print(
            f"A timer of {timer_hours:g} hours, on a simulated fleet that charges at night: {took},"
            f" {turns}."
        )
        min_separation = came.min_separation
    chosen = planning.MECHANISMS if mechanism == "all" else (mechanism,)
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
        return _grown(
            question, grow_to_rho, largest_goal, "blt" if mechanism == "all" else mechanism
        )
    with bar("planning", "kinds of noise") as show:
        wait = "(finding the best correlated noise takes a minute the first time)"
        answers = []
        for number, name in enumerate(chosen):
            show(number, len(chosen), f"{name} {wait}")
            answers.append(planning.plan(question, name))
        show(len(chosen), len(chosen), "")
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
    base = next((one.error for one in answers if one.mechanism == "independent"), None)
    rows = []
    for one in answers:
        name = "poisson (dp-fedavg)" if one.mechanism == "poisson" else one.mechanism
        cost = f"{one.noise_multiplier:.3g}", rho_text(one.rho), epsilon_text(one.epsilon)
        rows.append((name, *cost, f"{one.error:.3g}", f"{one.error / base:.2f}" if base else ""))
    print_table(("", "noise multiplier", "ρ", "ε", "error", "÷ independent"), rows)
    return {**_claim(question), "answers": [asdict(one) for one in answers]}


def _claim(question: "Question") -> dict[str, float]:
    return {
        "min_separation": question.separation,
        "max_participations": question.participations,
        "delta": question.at_delta,
    }


def _grown(
    trial: "Question", target: float, largest_goal: int, mechanism: MechanismName
) -> dict[str, Any]:
    from taciturn.planning import PlanError, grow_to_rho

    if mechanism in ("poisson", "cyclic-poisson"):
        raise PlanError(
            f"{mechanism} needs a curator that draws cohorts, and devices with a timer come on"
            " their own: choose another"
        )
    with stages() as show:
        found = grow_to_rho(trial, target, largest_goal, mechanism, show)
    question, answer, came = found.question, found.answer, found.simulated
    say(
        f"{question.report_goal:,} reports a round with a noise multiplier of"
        f" {answer.noise_multiplier:.3g} ({mechanism}), and a timer of {found.timer_hours} hours on"
        " every device.\nIn a simulated fleet, whose devices train while they charge at night:"
        f" {question.rounds:,} rounds in {came.hours / 24:.0f} days, at least {question.separation}"
        f" rounds between two turns of a device, at most {question.participations} turns. ρ ="
        f" {rho_text(answer.rho)}, ε = {epsilon_text(answer.epsilon)} at δ ="
        f" {delta_text(question.at_delta)}."
    )
    if found.more_noise > 1.001:
        say(
            f"The noise on the average is {found.more_noise:.2f} times what was tried, since"
            f" {question.report_goal:,} reports and this rest do not come to that ρ: expect a worse"
            " model, or allow more reports (--largest-goal), fewer rounds or a larger ρ.",
            style="yellow",
        )
    goal = {
        "report_goal": question.report_goal,
        "timer_hours": found.timer_hours,
        "days": came.hours / 24,
    }
    return {**_claim(question), **goal, "more_noise": found.more_noise, "answer": asdict(answer)}
