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


def statement(guarantee: Guarantee, public_sources: tuple[str, ...], observed: str = "") -> str:
    """A page for whoever must defend the model: the points of Ponomareva et al. 2023, §5.3, as Xu et al. 2023 report them in Appendix A.

    `observed` is what really happened beside the claim; it never stands in its place.
    """
    parts = [_paragraph(f"Privacy of run {guarantee.run}")]
    if guarantee.is_private and guarantee.is_simulated:
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
            _item("Statement", f"{_formal(guarantee)}."),
            _item("Setting", "central differential privacy: whoever runs the curator is trusted to run it as it is."),
            _item("Data", _covers(guarantee)),
            _item(
                "Output", "every estimate released by the curator, and so every model on the way, not only the last."
            ),
            _item("Unit", f"{guarantee.unit}, with everything they wrote."),
            _item("Adjacency", f"{guarantee.adjacency} ({_ADJACENCY.get(guarantee.adjacency, guarantee.adjacency)})."),
            _item("Accounting", _accounting(guarantee)),
            _item("Claim", f"{guarantee.claim}."),
        ]
        if observed:
            parts += [_item("Observed", f"{observed}. The figures above are for the claim.")]
        parts += [_item("Assumes", _assumes(guarantee))]
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
        _item("Public", f"{'; '.join(public_sources)}; the recipe, and the numbers of users and rounds in it."),
        _item("Ledger row", guarantee.head),
    ]
    return re.sub("\n{3,}", "\n\n", "\n".join([*parts, ""]))


def personal_statement(run: str | None, head: str | None) -> str:
    """What there is to say of a model that learned from its owner after its run: where it started, and that no guarantee goes with it."""
    start = (
        "a model of public text"
        if run is None
        else f"the model of run {run} at ledger row {head}, whose guarantee is not this one's"
    )
    return "\n".join(
        [
            _paragraph("Personal model: learned from one person's own text."),
            _paragraph(
                "It has NO privacy guarantee and may repeat what its owner wrote, so it stays on this device: it cannot be exported, and "
                "no training starts from it."
            ),
            _item("Started from", f"{start}."),
            "",
        ]
    )


def _formal(guarantee: Guarantee) -> str:
    pair = f"({epsilon_text(guarantee.epsilon)}, {guarantee.delta:.2g})-differential privacy"
    if not guarantee.sampled:
        return f"{pair}; ρ = {rho_text(guarantee.rho)} of zero-concentrated, μ = {math.sqrt(2 * guarantee.rho):.3g} of Gaussian DP"
    return f"{pair}; ρ = {rho_text(guarantee.rho)} of zero-concentrated DP, in which sampling users does not count"


def _accounting(guarantee: Guarantee) -> str:
    if not guarantee.sampled:
        words = "one Gaussian mechanism over the whole run, of the sensitivity of its noise under the claim"
        return words + ("." if guarantee.continued else "; ε is exact for it.")
    return _ACCOUNTANTS[guarantee.accountant]


def _assumes(guarantee: Guarantee) -> str:
    if not guarantee.sampled:
        return (
            "every cohort passes through the curator, which checks it against its log; when devices come does not depend on what was "
            "written on them; they run the code they are given."
        )
    return "the cohort of a round is known to the curator alone; devices run the code they are given."


ZERO_OUT = "zero out one user"
_ADJACENCY = {
    "add or remove one user": "neighbours differ by one user, there in one and absent from the other",
    "replace one user by another": "neighbours differ in who one of the users is",
    ZERO_OUT: "neighbours differ in one user, whose reports are all zero in one of them",
}


def _covers(guarantee: Guarantee) -> str:
    earlier = ", and the earlier runs that it started from" if guarantee.continued else ""
    return f"all {guarantee.releases} releases of the run{earlier}."


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 79) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"{name + ':':<13}{text}", 79, subsequent_indent=" " * 13)


def statement_json(guarantee: Guarantee, public_sources: tuple[str, ...]) -> str:
    content = asdict(guarantee) | {
        "public_sources": list(public_sources),
        "private": guarantee.is_private and not guarantee.is_simulated,  # of a simulation the noise can be taken off
        "simulation": guarantee.is_simulated,
    }
    # JSON knows no infinity.
    content = {name: "infinity" if value == math.inf else value for name, value in content.items()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


_ACCOUNTANTS = {
    "pld": "privacy loss distributions; RDP for fixed-size rounds, noise multipliers below 0.3 and several runs in a row.",
    "rdp": "Rényi differential privacy.",
    "moments": "the moments accountant of 2016 (orders 2 to 33, classic conversion).",
}
