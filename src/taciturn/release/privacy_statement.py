"""The guarantee of a run in words, written from the ledger, never from what was planned.

statement.toml has the sentences.
"""

import math
import textwrap
import tomllib
from dataclasses import asdict
from importlib.resources import files
from typing import NamedTuple

from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import (
    MEANINGLESS,
    WEAK,
    delta_text,
    epsilon_text,
    mu_text,
    odds_text,
    rho_text,
    times_text,
)
from taciturn.privacy.ledger.guarantee import Guarantee

# The users who may be one person with two devices, or live together.
TWO_DEVICES = 2
HOUSEHOLD = 4
# ε up to which a guarantee is a strong one (Ponomareva et al. 2023, §5.2).
STRONG = 1.0
# The unit of a run on a fleet.
ONE_DEVICE = "one device"
WORDS = tomllib.loads((files("taciturn.release") / "statement.toml").read_text("utf-8"))
# What is said to those whose text was used.
PEOPLE: dict[str, str] = WORDS["people"]


class _EpsilonsOfGroups(NamedTuple):
    """What is promised to several users at once, as text; empty where there was no noise."""

    two: str
    four: str


def statement(guarantee: Guarantee, public_sources: tuple[str, ...], observed: str = "") -> str:
    """Write a page that begins with what people were promised, in plain words.

    For those who must defend the model it then makes the points of Ponomareva et al. 2023, §5.3, as
    Xu et al. 2023 report them.

    Args:
        guarantee: of the run.
        public_sources: the public text that went into it.
        observed: what happened, beside the claim; it never replaces the claim.
    """
    groups = _find_epsilons_of_groups(guarantee)
    parts = [
        _paragraph(f"Privacy of run {guarantee.run}"),
        *map(_paragraph, describe_standing(guarantee)),
        _paragraph(PEOPLE["title"]),
        *map(_paragraph, _promise_to_people(guarantee, groups)),
        _paragraph(PEOPLE["in_full"]),
    ]
    if guarantee.is_private and guarantee.is_simulated:
        parts.append(_paragraph(WORDS["simulation"]))
    if guarantee.is_private:
        points = {
            **_claim_points(guarantee, groups),
            **_evidence_points(guarantee, observed),
        }
        parts.append(_items(points))
    warning = _warn(guarantee)
    if warning:
        parts.append(_paragraph(warning))
    sources = "; ".join(public_sources)
    last = {
        "Not covered": WORDS["not_covered"],
        "To delete": WORDS["to_delete"],
        "Public": f"{sources}; the recipe, and the numbers of users and rounds in it.",
        "Ledger row": guarantee.head,
    }
    if guarantee.ledger_key:
        last["Ledger key"] = guarantee.ledger_key
    return "\n".join([*parts, _items(last)])


def describe_standing(guarantee: Guarantee) -> list[str]:
    """Say who states a guarantee, and what nobody compared; nothing where a ledger says it."""
    elsewhere = guarantee.elsewhere
    if elsewhere is None:
        return []
    words = WORDS["standing"][guarantee.standing].format(
        key=guarantee.ledger_key, row=elsewhere.row, date=elsewhere.date
    )
    return [words]


def is_reliable(guarantee: Guarantee) -> bool:
    """Tell whether people may rely on a guarantee; if not, pages show it as a warning."""
    is_strong = guarantee.epsilon <= WEAK and not guarantee.is_simulated
    return is_strong and guarantee.standing != "stated"


def _find_epsilons_of_groups(guarantee: Guarantee) -> _EpsilonsOfGroups:
    if not guarantee.is_private:
        return _EpsilonsOfGroups(two="", four="")
    return _EpsilonsOfGroups(
        two=epsilon_text(guarantee.for_group(TWO_DEVICES)),
        four=epsilon_text(guarantee.for_group(HOUSEHOLD)),
    )


def _promise_to_people(guarantee: Guarantee, groups: _EpsilonsOfGroups) -> list[str]:
    """Say to those whose text was used what is promised to them, paragraph by paragraph."""
    if guarantee.protects_nobody:
        return [PEOPLE["simulated"]]
    if not guarantee.is_private:
        return [PEOPLE["no_privacy"]]
    if guarantee.is_noise_known:
        return [PEOPLE["seed"]]
    promise = _state_promise(guarantee)
    if guarantee.epsilon > MEANINGLESS:
        return [promise]
    trusted = "server" if guarantee.unit == ONE_DEVICE else "curator"
    against = PEOPLE["against"]
    if guarantee.sampled:
        against = f"{against} {PEOPLE['sampled']}"
    against = f"{against} {PEOPLE[trusted]}"
    not_covered = PEOPLE["not_covered"].format(two=groups.two, four=groups.four)
    return [promise, against, not_covered]


def _state_promise(guarantee: Guarantee) -> str:
    """Return the sentences that have the figures, where there was noise."""
    delta = delta_text(guarantee.delta)
    if guarantee.epsilon == math.inf:
        return PEOPLE["infinite"].format(delta=delta)
    if guarantee.epsilon > MEANINGLESS:
        return PEOPLE["meaningless"].format(delta=delta)
    epsilon = epsilon_text(guarantee.epsilon)
    if guarantee.epsilon > WEAK:
        return PEOPLE["weak"].format(epsilon=epsilon, delta=delta)
    # A way to take part that was written elsewhere may state another one.
    otherwise = WORDS["otherwise"].get(
        guarantee.adjacency,
        PEOPLE["otherwise"].format(adjacency=guarantee.adjacency),
    )
    promise = PEOPLE["private"].format(
        times=times_text(guarantee.epsilon),
        otherwise=otherwise,
        odds=odds_text(guarantee.delta),
        epsilon=epsilon,
        delta=delta,
    )
    return f"{promise} {WORDS['plain'][_find_level(guarantee.epsilon)]}"


def personal_statement(run: str | None, head: str | None) -> str:
    """Describe a model that learned from its owner after its run.

    It says what the model started from, and that it has no guarantee.
    """
    if run is None:
        start = "a model of public text"
    else:
        start = f"the model of run {run} at ledger row {head}, whose guarantee is not this one's"
    title = _paragraph("Personal model: learned from one person's own text.")
    return "\n".join([title, _paragraph(WORDS["personal"]), _item("Started from", f"{start}.")])


def plain_words(guarantee: Guarantee | None, learned_from: str | None) -> list[str]:
    """State the guarantee for the person who types, a sentence each. A warning comes first."""
    words: dict[str, str] = WORDS["plain"]
    if learned_from is None:
        return [words["unknown"]]
    if guarantee is None:
        return [words["public"].format(learned_from=learned_from)]
    standing = describe_standing(guarantee)
    if guarantee.epsilon == math.inf:
        infinite = words["infinite"].format(learned_from=learned_from)
        return [*standing, infinite, words["may_repeat"]]
    epsilon = epsilon_text(guarantee.epsilon)
    relation = "ε is" if epsilon.startswith(">") else "ε ="
    promise = words["private"].format(
        learned_from=learned_from,
        figures=f"{relation} {epsilon} and δ = {delta_text(guarantee.delta)}",
        unit=guarantee.unit.replace("one user", "each person"),
    )
    worth = words[_find_level(guarantee.epsilon)]
    if guarantee.is_simulated:
        return [*standing, words["simulation"], promise, worth]
    return [*standing, promise, worth]


def _find_level(epsilon: float) -> str:
    """Return what a guarantee is worth."""
    if epsilon <= STRONG:
        return "strong"
    if epsilon <= WEAK:
        return "moderate"
    return "weak" if epsilon <= MEANINGLESS else "meaningless"


def _warn(guarantee: Guarantee) -> str:
    """Return what readers must know before they rely on a guarantee; nothing if they may."""
    if not guarantee.is_private:
        return WORDS["no_privacy"]
    if guarantee.epsilon == math.inf:
        return WORDS["infinite"]
    if guarantee.epsilon > MEANINGLESS:
        return WORDS["meaningless"]
    return WORDS["weak"] if guarantee.epsilon > WEAK else ""


def _claim_points(guarantee: Guarantee, groups: _EpsilonsOfGroups) -> dict[str, str]:
    """Return what is claimed, for what and for whom."""
    setting = WORDS["central"]
    if guarantee.unit == ONE_DEVICE:
        setting = f"{setting} {WORDS['over_devices']} {WORDS['lying_server']}"
    earlier = ", and the earlier runs that it started from" if guarantee.continued else ""
    neighbours = WORDS["adjacency"].get(guarantee.adjacency, guarantee.adjacency)
    return {
        "Statement": _state_figures(guarantee),
        "Setting": setting,
        "Data": f"all {guarantee.releases} releases of the run{earlier}.",
        **_say_that_it_ended_early(guarantee),
        "Resumed": _count_resumptions(guarantee.resumptions),
        "Output": WORDS["output"],
        "Unit": f"{guarantee.unit}, with everything they wrote.",
        "Adjacency": f"{guarantee.adjacency} ({neighbours}).",
        "Groups": WORDS["groups"].format(two=groups.two, four=groups.four),
    }


def _say_that_it_ended_early(guarantee: Guarantee) -> dict[str, str]:
    """Say whose figures are stated, where fewer releases were made than declared."""
    early = guarantee.ended_early
    if early is None:
        return {}
    words = WORDS["ended_early"].format(
        made=guarantee.releases,
        declared=early.declared,
        epsilon=epsilon_text(early.epsilon_of_made),
    )
    # Else it says no more than the figures do.
    if early.epsilon_ex_post < guarantee.epsilon:
        ex_post = WORDS["ex_post"].format(
            made=guarantee.releases,
            declared=early.declared,
            epsilon=epsilon_text(early.epsilon_ex_post),
            delta=delta_text(guarantee.delta / early.declared),
        )
        words = f"{words} {ex_post}"
    return {"Ended": words}


def _count_resumptions(resumptions: int | None) -> str:
    if resumptions is None:
        return "not recorded: the ledger is older than that."
    words = ("never", "once", "twice")
    return f"{words[resumptions]}." if resumptions < len(words) else f"{resumptions} times."


def _state_figures(guarantee: Guarantee) -> str:
    epsilon = epsilon_text(guarantee.epsilon)
    pair = f"({epsilon}, {delta_text(guarantee.delta)})-differential privacy"
    rho = rho_text(guarantee.rho)
    if guarantee.sampled:
        return f"{pair}; ρ = {rho} of zero-concentrated DP, in which sampling users does not count."
    return f"{pair}; ρ = {rho} of zero-concentrated, μ = {mu_text(guarantee.rho)} of Gaussian DP."


def _evidence_points(guarantee: Guarantee, observed: str) -> dict[str, str]:
    """Return what the claim rests on."""
    if guarantee.sampled:
        accounting = WORDS["accountant"][guarantee.accountant]
    else:
        accounting = WORDS["gaussian"] + ("." if guarantee.continued else "; ε is exact for it.")
    distance = WORDS["distance" if guarantee.distance else "no_distance"].format(
        distance=delta_text(guarantee.distance)
    )
    points = {
        "Accounting": f"{accounting} Figures are rounded up.",
        "Noise": f"{distance}. {WORDS['computational']}",
        "Claim": f"{guarantee.claim}.",
    }
    if observed:
        points["Observed"] = f"{observed}. The figures above are for the claim."
    points["Assumes"] = WORDS["assumes_sampled" if guarantee.sampled else "assumes_turns"]
    return points


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 79) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"{name + ':':<13}{text}", 79, subsequent_indent=" " * 13) + "\n"


def _items(points: dict[str, str]) -> str:
    return "".join(_item(name, text) for name, text in points.items())


def statement_json(guarantee: Guarantee, public_sources: tuple[str, ...]) -> str:
    """Return the guarantee as JSON, for programs."""
    content = asdict(guarantee)
    # Events are in the ledger (`taciturn ledger export`).
    del content["release"]
    del content["earlier"]
    if guarantee.ended_early is None:
        del content["ended_early"]
    del content["elsewhere"]
    content["standing"] = guarantee.standing
    if guarantee.elsewhere is not None:
        content["signed"] = {"row": guarantee.elsewhere.row, "date": guarantee.elsewhere.date}
    # The noise of a seed can be removed.
    is_private = guarantee.epsilon < math.inf and not guarantee.is_simulated
    content |= {
        "epsilon_of_two_devices": guarantee.for_group(TWO_DEVICES),
        "epsilon_of_a_household": guarantee.for_group(HOUSEHOLD),
        "public_sources": list(public_sources),
        "private": is_private,
        "simulation": guarantee.is_simulated,
    }
    return to_json(content, indent=2, ensure_ascii=False) + "\n"
