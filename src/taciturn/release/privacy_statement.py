"""The guarantee of a run in words, written from the ledger, never from what was planned.
statement.toml has the sentences.
"""

import math
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files

from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import (
    MEANINGLESS,
    WEAK,
    delta_text,
    epsilon_text,
    mu_text,
    rho_text,
)
from taciturn.privacy.ledger.ledger import Guarantee

# users who may be one person, or live with one
TWO_DEVICES, HOUSEHOLD = 2, 4
# ε up to which a guarantee is a strong one (Ponomareva et al. 2023, §5.2)
STRONG = 1.0
WORDS = tomllib.loads((files("taciturn.release") / "statement.toml").read_text("utf-8"))


def statement(guarantee: Guarantee, public_sources: tuple[str, ...], observed: str = "") -> str:
    """Write a page for those who must defend the model: the points of Ponomareva et al. 2023, §5.3,
    as Xu et al. 2023 report them. `observed` is what happened, beside the claim; it never replaces
    the claim.
    """
    parts = [_paragraph(f"Privacy of run {guarantee.run}")]
    if guarantee.is_private and guarantee.is_simulated:
        parts.append(_paragraph(WORDS["simulation"]))
    if guarantee.is_private:
        parts.append("".join(_item(name, text) for name, text in _points(guarantee, observed)))
    if warning := _warning(guarantee):
        parts.append(_paragraph(warning))
    last = {
        "Not covered": WORDS["not_covered"],
        "To delete": WORDS["to_delete"],
        "Public": (
            f"{'; '.join(public_sources)}; the recipe, and the numbers of users and rounds in it."
        ),
        "Ledger row": guarantee.head,
    }
    return "\n".join([*parts, "".join(_item(name, text) for name, text in last.items())])


def personal_statement(run: str | None, head: str | None) -> str:
    """Describe a model that learned from its owner after its run: its start, and that it has no
    guarantee.
    """
    start = (
        "a model of public text"
        if run is None
        else f"the model of run {run} at ledger row {head}, whose guarantee is not this one's"
    )
    title = _paragraph("Personal model: learned from one person's own text.")
    return "\n".join([title, _paragraph(WORDS["personal"]), _item("Started from", f"{start}.")])


def plain_words(guarantee: Guarantee | None, learned_from: str | None) -> list[str]:
    """State the guarantee for the person who types, a sentence each. A warning comes first."""
    words: dict[str, str] = WORDS["plain"]
    if learned_from is None:
        return [words["unknown"]]
    if guarantee is None:
        return [words["public"].format(learned_from=learned_from)]
    if guarantee.epsilon == math.inf:
        return [words["infinite"].format(learned_from=learned_from), words["may_repeat"]]
    epsilon, unit = (
        epsilon_text(guarantee.epsilon),
        guarantee.unit.replace("one user", "each person"),
    )
    figures = (
        f"{'ε is' if epsilon.startswith('>') else 'ε ='} {epsilon} and δ ="
        f" {delta_text(guarantee.delta)}"
    )
    promise = words["private"].format(learned_from=learned_from, figures=figures, unit=unit)
    levels = {"strong": STRONG, "moderate": WEAK, "weak": MEANINGLESS}
    worth = next(
        (level for level, most in levels.items() if guarantee.epsilon <= most), "meaningless"
    )
    return [*([words["simulation"]] if guarantee.is_simulated else []), promise, words[worth]]


def _warning(guarantee: Guarantee) -> str:
    if not guarantee.is_private:
        return WORDS["no_privacy"]
    if guarantee.epsilon == math.inf:
        return WORDS["infinite"]
    return (
        WORDS["meaningless"]
        if guarantee.epsilon > MEANINGLESS
        else WORDS["weak"]
        if guarantee.epsilon > WEAK
        else ""
    )


def _points(guarantee: Guarantee, observed: str) -> Iterator[tuple[str, str]]:
    pair, rho = (
        f"({epsilon_text(guarantee.epsilon)}, {delta_text(guarantee.delta)})-differential privacy",
        rho_text(guarantee.rho),
    )
    if guarantee.sampled:
        yield (
            "Statement",
            f"{pair}; ρ = {rho} of zero-concentrated DP, in which sampling users does not count.",
        )
    else:
        yield (
            "Statement",
            f"{pair}; ρ = {rho} of zero-concentrated, μ = {mu_text(guarantee.rho)} of Gaussian DP.",
        )
    yield (
        "Setting",
        WORDS["central"] + (f" {WORDS['over_devices']}" if guarantee.unit == "one device" else ""),
    )
    earlier = ", and the earlier runs that it started from" if guarantee.continued else ""
    yield "Data", f"all {guarantee.releases} releases of the run{earlier}."
    yield "Output", WORDS["output"]
    yield "Unit", f"{guarantee.unit}, with everything they wrote."
    yield (
        "Adjacency",
        (
            f"{guarantee.adjacency}"
            f" ({WORDS['adjacency'].get(guarantee.adjacency, guarantee.adjacency)})."
        ),
    )
    two, four = (epsilon_text(guarantee.for_group(users)) for users in (TWO_DEVICES, HOUSEHOLD))
    yield "Groups", WORDS["groups"].format(two=two, four=four)
    exactly = WORDS["gaussian"] + ("." if guarantee.continued else "; ε is exact for it.")
    yield (
        "Accounting",
        (
            f"{WORDS['accountant'][guarantee.accountant] if guarantee.sampled else exactly} Figures"
            " are rounded up."
        ),
    )
    distance = WORDS["distance" if guarantee.distance else "no_distance"].format(
        distance=delta_text(guarantee.distance)
    )
    yield "Noise", f"{distance}. {WORDS['computational']}"
    yield "Claim", f"{guarantee.claim}."
    if observed:
        yield "Observed", f"{observed}. The figures above are for the claim."
    yield "Assumes", WORDS["assumes_sampled" if guarantee.sampled else "assumes_turns"]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 79) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"{name + ':':<13}{text}", 79, subsequent_indent=" " * 13) + "\n"


def statement_json(guarantee: Guarantee, public_sources: tuple[str, ...]) -> str:
    # Events are in the ledger (`taciturn ledger export`).
    content = {
        name: value
        for name, value in asdict(guarantee).items()
        if name not in ("release", "earlier")
    } | {
        "epsilon_of_two_devices": guarantee.for_group(TWO_DEVICES),
        "epsilon_of_a_household": guarantee.for_group(HOUSEHOLD),
        "public_sources": list(public_sources),
        "private": (
            guarantee.epsilon < math.inf
            # a seed's noise can be removed
            and not guarantee.is_simulated
        ),
        "simulation": guarantee.is_simulated,
    }
    return to_json(content, indent=2, ensure_ascii=False) + "\n"
