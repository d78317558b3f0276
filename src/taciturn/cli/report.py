"""`taciturn report`: a run on one page."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from taciturn.cli.output import say, stages


def report(
    run: Annotated[Path, Argument(help="a run folder")],
    beside: Annotated[list[Path] | None, Option(help="n-grams to compare with; repeatable (default: those beside RUN)")] = None,
    browser: Annotated[bool, Option("--open/--no-open", help="open it in a browser")] = True,
) -> dict[str, str]:
    """Write RUN/report.html and open it: the guarantee, curves, and what the model is worth to which people.

    A run writes its page when it ends. This command writes it again: with n-grams beside the model, with an audit made since, or for an
    older run. The page is one file that loads nothing over the network. It measures held-out people only, who have no guarantee.

    Example: taciturn report runs/first --beside baselines/kneser-ney
    """
    import webbrowser

    from taciturn.runs.finished import FinishedRun

    with stages() as show:
        page = FinishedRun(run).report(beside, show)
    say(f"{page}")
    if browser:
        webbrowser.open(page.resolve().as_uri())
    return {"report": str(page)}
