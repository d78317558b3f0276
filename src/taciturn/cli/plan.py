"""taciturn plan: what a guarantee would take."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from taciturn.cli.output import console
from taciturn.names import AccountantName, MechanismName

GOALS = (500, 1_000, 2_500, 6_500)


def plan(
    population: Annotated[int, typer.Option(min=1, help="N: users there are, as publicly known")],
    rounds: Annotated[int, typer.Option(min=1, help="T")],
    report_goal: Annotated[int, typer.Option(min=1, help="m: users a round")],
    delta: Annotated[float | None, typer.Option(help="(default: 1/N², at least 1e-15)")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="z; or ask for one of the next two")] = None,
    epsilon: Annotated[float | None, typer.Option(help="target")] = None,
    rho: Annotated[float | None, typer.Option(help="target, of zCDP")] = None,
    min_separation: Annotated[
        int | None,
        typer.Option(min=0, help="MinS: rounds between two turns of a user (default: all that N and m allow)"),
    ] = None,
    timer_hours: Annotated[
        float | None,
        typer.Option(
            help="in place of MinS: how long a device waits after an upload; a simulated fleet shows what that comes to"
        ),
    ] = None,
    max_participations: Annotated[
        int | None, typer.Option(min=1, help="MaxP (default: all that T and MinS allow)")
    ] = None,
    mechanism: Annotated[Literal[MechanismName, "all"], typer.Option(help="noise and sampling")] = "all",
    accountant: AccountantName = "pld",
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="the same σ with larger report goals and populations")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="draw ρ against users, rounds, report goal and separation (PNG)")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What a guarantee would take: noise, separation, ρ and ε, for every mechanism. Nothing is trained, no text is touched.

    `poisson` and `cyclic-poisson` (banded noise, users who take turns) need a curator that draws every cohort itself; all others
    claim only that users take turns (min separation), which a fleet of devices can keep.
    The error is that of the noise on the model; smaller is better.

    An example: taciturn plan --population 3000000 --rounds 1000 --report-goal 6500 --noise-multiplier 7
    """
    from taciturn.planning import MECHANISMS, PlanError, Question, draw, extrapolated, simulated_timer
    from taciturn.planning import plan as answer
    from taciturn.privacy.figures import delta_text, epsilon_text, rho_text

    if timer_hours is not None:
        if min_separation is not None:
            raise PlanError("say --min-separation or --timer-hours, not both")
        with console.status("simulating a fleet with this timer"):
            came = simulated_timer(population, rounds, report_goal, timer_hours)
        separation = came.min_separation
        min_separation = (
            population // report_goal - 1 if separation is None else min(separation, population // report_goal - 1)
        )
        if not json_:
            console.print(
                f"A timer of {timer_hours:g} hours, on a simulated fleet that charges at night: {rounds:,} rounds in "
                f"{came.hours / 24:.1f} days, at least {min_separation} rounds between two turns of a device, at most "
                f"{came.max_participations} turns.",
                highlight=False,
            )
    question = Question(
        population,
        rounds,
        report_goal,
        delta,
        noise_multiplier,
        epsilon,
        rho,
        min_separation,
        max_participations,
        accountant,
    )
    chosen = MECHANISMS if mechanism == "all" else (mechanism,)
    with console.status("") as status:
        answers = answer(
            question,
            chosen,
            lambda name: status.update(f"{name} (the best correlated noise takes a minute the first time)"),
        )
    if json_:
        claim = {
            "min_separation": question.separation,
            "max_participations": question.participations,
            "delta": question.at_delta,
        }
        print(json.dumps({**claim, "answers": [asdict(one) for one in answers]}))
        return
    console.print(
        f"{population:,} users, {report_goal:,} a round, {rounds:,} rounds: {rounds * report_goal:,} user updates. "
        f"{question.possible_separation} rounds of rest are possible; claimed are {question.separation}, and at most "
        f"{question.participations} participations. δ = {delta_text(question.at_delta)}",
        highlight=False,
    )
    base = next((one.error for one in answers if one.mechanism == "independent"), None)
    table = Table()
    for name in ("", "noise multiplier", "ρ", "ε", "error", "of independent"):
        table.add_column(name, justify="right" if name else "left")
    for one in answers:
        relative = f"{one.error / base:.2f}" if base else ""
        cells = (
            f"{one.noise_multiplier:.3g}",
            rho_text(one.rho),
            epsilon_text(one.epsilon),
            f"{one.error:.3g}",
            relative,
        )
        table.add_row(one.mechanism, *cells)
    console.print(table)
    if extrapolate:
        name = mechanism if mechanism != "all" else "honaker"
        table = Table(title=f"Extrapolated, not trained: the same σ, {name}", title_justify="left")
        for column in ("users", "report goal", "noise multiplier", "ρ", "ε"):
            table.add_column(column, justify="right")
        for people, goal, one in extrapolated(question, name, tuple(sorted({report_goal, *GOALS}))):
            figures = (f"{one.noise_multiplier:.3g}", rho_text(one.rho), epsilon_text(one.epsilon))
            table.add_row(f"{people:,}", f"{goal:,}", *figures)
        console.print(table)
    if figure:
        draw(question, figure)
        console.print(f"{figure}: ρ against users, rounds, report goal and separation", highlight=False)
