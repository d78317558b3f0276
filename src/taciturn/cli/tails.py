"""`taciturn tails`: how much one user moves a model, estimated by the texts that it makes up."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from taciturn.cli.output import console


def tails(
    model: Annotated[Path, typer.Argument(help="a run or model, trained with some user")],
    other: Annotated[list[Path], typer.Argument(help="the same without that user; of several, the largest ε counts")],
    samples: Annotated[int, typer.Option(min=100, help="texts of ten words")] = 30_000,
    delta: Annotated[list[float] | None, typer.Option(help="δ (default: 1e-4, 1e-5, 1e-6)")] = None,
    figure: Annotated[Path | None, typer.Option(help="a picture of the tail of the last pair")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Estimate how much one user moves a model: an estimate, never a guarantee (Popov et al. 2018, §3).

    Texts are sampled from the first model; the ratio of their probabilities under both has a tail, and from it follows an ε for a δ.
    It holds for the pairs that were tried and for texts sampled at random, and says nothing of anyone who looks for more. What is
    guaranteed is in a run's guarantee.txt.

    An example: taciturn tails runs/all runs/without-anna --figure tail.png
    """
    from taciturn.audit.likelihood_tails import largest_epsilon
    from taciturn.release.plots import plot_tail
    from taciturn.runs.finished import compare_tails

    deltas = delta or [1e-4, 1e-5, 1e-6]
    with console.status("sampling"):
        found = compare_tails(model, other, samples, seed)
    table = Table(title=f"Texts of ten words from {model}: probability ratios to the other", title_justify="left")
    for name in ("without", "α", "C", "from", "KS", "Pareto?", *(f"ε at δ = {one:g}" for one in deltas)):
        table.add_column(name, justify="left" if name == "without" else "right")
    for path, (_, one) in zip(other, found, strict=True):
        figures = (f"{one.shape:.1f}", f"{one.scale:.2f}", f"{one.start:.2f}", f"{one.statistic:.2f}")
        fits = "yes" if one.fits else "no"
        table.add_row(str(path), *figures, fits, *(f"{one.epsilon(each):.2f}" for each in deltas))
    if len(found) > 1:
        largest = (f"{largest_epsilon([one for _, one in found], each):.2f}" for each in deltas)
        all_fit = "yes" if all(one.fits for _, one in found) else "not all"
        table.add_row("the largest", "", "", "", "", all_fit, *largest, style="bold")
    console.print(table)
    console.print("An estimate, not a guarantee: other pairs of users, or texts not sampled at random, may show more.")
    if figure is not None:
        ratios, one = found[-1]
        plot_tail(figure, ratios, one.shape, one.scale, one.start)
        console.print(f"{figure}", highlight=False)
