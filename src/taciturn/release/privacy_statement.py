"""The guarantee of a run in words, written from the ledger, never from what was planned."""

import json
import math
import re
import textwrap
from dataclasses import asdict

from taciturn.privacy.ledger import Guarantee

MEANINGLESS, WEAK = 1000.0, 10.0


def epsilon_text(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "∞"
    return (
        "> 1000" if epsilon > MEANINGLESS else f"{epsilon:.2f}" if epsilon >= 0.1 or epsilon == 0 else f"{epsilon:.1g}"
    )


def rho_text(rho: float) -> str:
    return "∞" if math.isinf(rho) else f"{rho:.3g}"


def statement(guarantee: Guarantee, unit: str, public_sources: tuple[str, ...]) -> str:
    """A page for whoever must defend the model."""
    parts = [_paragraph(f"Privacy of run {guarantee.run}")]
    if guarantee.is_private and guarantee.randomness != "operating system":
        parts += [
            _paragraph(
                "SIMULATION: the noise came from a seed in the recipe. Whoever knows the seed can take it off again, so the figures "
                "below describe the mechanism, not this file."
            ),
        ]
    if not guarantee.is_private:
        parts += [
            _paragraph(
                "This model has NO privacy guarantee (ε = ∞). It was trained without noise, or started from a model that was, and may "
                "repeat what single users wrote."
            )
        ]
    else:
        parts += [
            _paragraph(
                f"({epsilon_text(guarantee.epsilon)}, {guarantee.delta:.2g})-differential privacy, and ρ = {rho_text(guarantee.rho)} "
                "of zero-concentrated differential privacy, in which sampling users does not count."
            ),
            _item("Unit", f"{unit}, with everything they wrote."),
            _item("Adjacency", f"{guarantee.adjacency}."),
            _item("Covers", _covers(guarantee)),
            _item("Accounting", _ACCOUNTANTS[guarantee.accountant]),
            _item(
                "Assumes", "the cohort of a round is known to the curator alone; devices run the code they are given."
            ),
        ]
        if guarantee.epsilon > MEANINGLESS:
            parts += [
                "",
                _paragraph(
                    "An ε above 1000 promises nothing: this run measures what noise costs in accuracy, not privacy."
                ),
            ]
        elif guarantee.epsilon > WEAK:
            parts += ["", _paragraph("An ε above 10 is a weak promise. More users, or fewer rounds, make it stronger.")]
    parts += [
        "",
        _item(
            "Not covered",
            "held-out users, on whom accuracy was measured; what the same users' text is used for elsewhere; other runs on these users "
            "(`taciturn ledger POPULATION` adds them up); choices made by looking at results on private text.",
        ),
        _item("Public text", f"{'; '.join(public_sources)}."),
        _item("Ledger row", guarantee.head),
    ]
    return re.sub("\n{3,}", "\n\n", "\n".join([*parts, ""]))


def _covers(guarantee: Guarantee) -> str:
    earlier = ", and the earlier runs that it started from" if guarantee.continued else ""
    return f"all {guarantee.releases} releases of the run: every model on the way, not only the last{earlier}."


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 79) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"{name + ':':<13}{text}", 79, subsequent_indent=" " * 13)


def statement_json(guarantee: Guarantee, unit: str, public_sources: tuple[str, ...]) -> str:
    content = asdict(guarantee) | {
        "unit": unit,
        "public_sources": list(public_sources),
        "private": guarantee.is_private,
    }
    # JSON knows no infinity.
    content = {name: "infinity" if value == math.inf else value for name, value in content.items()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


_ACCOUNTANTS = {
    "pld": "privacy loss distributions; RDP for fixed-size rounds, noise multipliers below 0.3 and several runs in a row.",
    "rdp": "Rényi differential privacy.",
    "moments": "the moments accountant of 2016 (orders 2 to 33, classic conversion).",
}
