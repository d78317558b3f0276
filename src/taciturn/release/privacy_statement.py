"""The guarantee of a run in words, written from the ledger, never from what was planned."""

import math
import re
import textwrap
from dataclasses import asdict

from taciturn.files import to_json
from taciturn.privacy.figures import MEANINGLESS, WEAK, delta_text, epsilon_text, mu_text, rho_text
from taciturn.privacy.ledger import Guarantee

TWO_DEVICES, HOUSEHOLD = 2, 4  # users who may be one person, or live with one


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
            )
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
            _item("Setting", _setting(guarantee)),
            _item("Data", _covers(guarantee)),
            _item("Output", "every estimate released by the curator, and so every model on the way, not only the last."),
            _item("Unit", f"{guarantee.unit}, with everything they wrote."),
            _item("Adjacency", f"{guarantee.adjacency} ({_ADJACENCY.get(guarantee.adjacency, guarantee.adjacency)})."),
            _item("Groups", _groups(guarantee)),
            _item("Accounting", _accounting(guarantee)),
            _item("Noise", _noise(guarantee)),
            _item("Claim", f"{guarantee.claim}."),
        ]
        if observed:
            parts += [_item("Observed", f"{observed}. The figures above are for the claim.")]
        parts += [_item("Assumes", _assumes(guarantee))]
        if guarantee.epsilon == math.inf:
            parts += [
                "",
                _paragraph(
                    "There was noise, but at this δ it promises NOTHING: no ε can be shown for it. Ask for a larger δ "
                    "(`taciturn ledger show POPULATION --delta`), if one can be defended."
                ),
            ]
        elif guarantee.epsilon > MEANINGLESS:
            parts += ["", _paragraph("An ε above 1000 promises nothing: this run measures what noise costs in accuracy, not privacy.")]
        elif guarantee.epsilon > WEAK:
            parts += ["", _paragraph("An ε above 10 is a weak promise. More users, or fewer rounds, make it stronger.")]
    parts += [
        "",
        _item(
            "Not covered",
            "held-out users, on whom accuracy was measured; what the same users' text is used for elsewhere; other runs on these users "
            "(`taciturn ledger show POPULATION` adds them up); choices made by looking at results on private text.",
        ),
        _item("To delete", _TO_DELETE),
        _item("Public", f"{'; '.join(public_sources)}; the recipe, and the numbers of users and rounds in it."),
        _item("Ledger row", guarantee.head),
    ]
    return re.sub("\n{3,}", "\n\n", "\n".join([*parts, ""]))


def personal_statement(run: str | None, head: str | None) -> str:
    """What there is to say of a model that learned from its owner after its run: where it started, and that no guarantee goes with it."""
    start = "a model of public text" if run is None else f"the model of run {run} at ledger row {head}, whose guarantee is not this one's"
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
    pair = f"({epsilon_text(guarantee.epsilon)}, {delta_text(guarantee.delta)})-differential privacy"
    if not guarantee.sampled:
        return f"{pair}; ρ = {rho_text(guarantee.rho)} of zero-concentrated, μ = {mu_text(guarantee.rho)} of Gaussian DP"
    return f"{pair}; ρ = {rho_text(guarantee.rho)} of zero-concentrated DP, in which sampling users does not count"


def _setting(guarantee: Guarantee) -> str:
    trusted = "central differential privacy: whoever runs the curator is trusted to run it as it is."
    if guarantee.unit != "one device":
        return trusted
    return (
        f"{trusted} What the server sees before there is noise is the sum of each cell of a round (at most 200 devices), and no report: a "
        "sum of more than half of the cell's honest devices, if no more of those in the round work for the server than fleet.max_colluding "
        "says."
    )


def _groups(guarantee: Guarantee) -> str:
    """For who is several users, and for users who would be given away together."""
    two, four = (epsilon_text(guarantee.for_group(users)) for users in (TWO_DEVICES, HOUSEHOLD))
    return f"a person with two devices, who is two users here: ε = {two}; a household of four: ε = {four}; both at the same δ."


def _accounting(guarantee: Guarantee) -> str:
    rounded = "Figures are rounded up."
    if not guarantee.sampled:
        words = "one Gaussian mechanism over the whole run, of the sensitivity of its noise under the claim"
        return f"{words}{'.' if guarantee.continued else '; ε is exact for it.'} {rounded}"
    return f"{_ACCOUNTANTS[guarantee.accountant]} {rounded}"


def _noise(guarantee: Guarantee) -> str:
    """What stands between a proof about normal noise and the bits that are released."""
    distance = (
        f"at most {delta_text(guarantee.distance)} (total variation, over the whole run) from the rounded normal noise of the proof, "
        "which is counted in δ"
        if guarantee.distance
        else "taken to be the normal noise of the proof"
    )
    return (
        f"{distance}. The guarantee is computational: it holds against whoever cannot break ChaCha20 and HMAC-SHA256, with which noise and "
        "cohorts are drawn."
    )


def _assumes(guarantee: Guarantee) -> str:
    if not guarantee.sampled:
        return (
            "every cohort passes through the curator, which checks it against its log; when devices come, finish and drop out does not "
            "depend on what was written on them; they run the code they are given."
        )
    return "the cohort of a round is known to the curator alone; devices run the code they are given."


_TO_DELETE = (
    "private/ of the run's folder holds what would take the noise off (root, state, records) and who took part (participation log); it is "
    "deleted when the run ends. private/ of the population holds the salt of its hashed user ids and who opted out; delete it with the "
    "text. A backup or snapshot of either undoes the deletion: leave private/ out of them, or delete it there too. The ledger is kept."
)

_ADJACENCY = {
    "add or remove one user": "neighbours differ by one user, there in one and absent from the other",
    "replace one user by another": "neighbours differ in who one of the users is",
    "zero out one user": "neighbours differ in one user, whose reports are all zero in one of them",
}


def _covers(guarantee: Guarantee) -> str:
    earlier = ", and the earlier runs that it started from" if guarantee.continued else ""
    return f"all {guarantee.releases} releases of the run{earlier}."


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 79) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"{name + ':':<13}{text}", 79, subsequent_indent=" " * 13)


def statement_json(guarantee: Guarantee, public_sources: tuple[str, ...]) -> str:
    # Events stand in the ledger (`taciturn ledger export`).
    content = {name: value for name, value in asdict(guarantee).items() if name not in ("release", "earlier")} | {
        "epsilon_of_two_devices": guarantee.for_group(TWO_DEVICES),
        "epsilon_of_a_household": guarantee.for_group(HOUSEHOLD),
        "public_sources": list(public_sources),
        "private": guarantee.epsilon < math.inf and not guarantee.is_simulated,  # whose noise can be taken off
        "simulation": guarantee.is_simulated,
    }
    return to_json(content, indent=2, ensure_ascii=False) + "\n"


_ACCOUNTANTS = {
    "pld": "privacy loss distributions, or RDP where that is smaller; RDP alone for fixed-size rounds, noise multipliers below 0.3 and "
    "several runs in a row.",
    "rdp": "Rényi differential privacy.",
    "moments": "the moments accountant of 2016 (orders 2 to 33, classic conversion).",
}
