"""`taciturn doctor`: whether this machine can train, and what is missing for what."""

from functools import partial
from typing import Any

from taciturn.cli.output import say, stages

SIGNS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "broken": ("✗", "bold red")}


def doctor() -> tuple[list[dict[str, Any]], int]:
    """Check whether this machine can train, and what is missing for which command. Takes seconds, and changes nothing.

    Versions, packages, memory, disk and devices; and the test that every run makes before its first sum: whether a user's report has
    the same bits whoever is trained beside them. If something that training needs is broken, the exit status is 1.

    Example: taciturn doctor --json
    """
    from taciturn.bench.health import examined

    with stages() as show:
        found = examined(partial(show, "examining"))
    for one in found:
        sign, style = SIGNS[one.state]
        say(f"{sign} {one.name:<12} {one.said}", style=None if one.state == "ok" else style, markup=False)
        if one.to_do:
            say(f"  {'':<12} {one.to_do}", markup=False)
    broken = [one.name for one in found if one.state == "broken"]
    say(f"\nBroken: {', '.join(broken)}. Training needs it." if broken else "\nThis machine can train.", style="bold")
    return [one._asdict() for one in found], int(bool(broken))
