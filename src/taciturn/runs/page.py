"""RUN/report.html: what a run guarantees and what it is worth, for those who decide about it.

It is post-processing: about protected people it says only what the ledger and the released models
do. All figures are averages over held-out people, who have no guarantee, and over no fewer of them
than `LEAST_HELD_OUT`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np

import taciturn as tt
from taciturn.audit import audit_users, canaries
from taciturn.audit.results import (
    AuditResults,
    CanaryResults,
    MembershipResults,
    rank_text,
)
from taciturn.core import UNKNOWN
from taciturn.data.population import LEAST_HELD_OUT
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import Scores
from taciturn.evaluation.intervals import Interval
from taciturn.files import from_json, write_atomically
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, pair_text
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.recipe.recipe import Recipe
from taciturn.release.privacy_statement import is_reliable, plain_words
from taciturn.runs.folder import RunError, recipe_of
from taciturn.runs.metrics import Row, read_rows
from taciturn.runs.ngram_worth import MEASURED_TOKENS
from taciturn.runs.page_html import (
    Html,
    Notation,
    Point,
    Span,
    chart,
    groups,
    page,
    section,
    table,
    tag,
    tile,
)
from taciturn.runs.provenance import whose_text

FILE_NAME = "report.html"
# The page that is written where the run's people are not in reach.
ELSEWHERE = "report-elsewhere.html"
# Says why a run was stopped because it got worse.
STOPPED = "stopped.txt"
OUTSIDE = "Seen from outside"
# Of the words, sorted by frequency, one in this many is frequent; all others are rare.
FREQUENT = 10
COST = "Noise hides what few people share: people who gain less here pay more for privacy."
REBUILT = (
    "The population's text was replaced since this run: only the curves are of the people it was"
    " measured on then."
)
NOT_HERE = (
    "The people of this run are not here, nor is their ledger. So this page has no figures for"
    " groups of people, no other models beside this one, and nothing of what these people have"
    " spent in all. Settings, curves and audits are as the folder has them; no signature covers"
    " them."
)
# Columns of metrics.csv that a run may have, and the titles of their curves.
CURVES = {
    "loss": "Loss of held-out people",
    "general_perplexity": "Perplexity of the general text",
    "clip_estimate": "Clip norm: the estimate it follows",
}
FOOT = (
    "This page holds no one's text, and loads nothing over the network. It is measured on held-out"
    " people: the model never learned from them, and they have no guarantee. Their figures are"
    f" averages over at least {LEAST_HELD_OUT} of them; intervals are 95 % over people."
)
HOW_TO_COMPARE = (
    "For the n-grams that keyboards have today beside it: taciturn keyboard ngram PEOPLE --public"
    " TEXT --out FOLDER, then taciturn report RUN --beside FOLDER."
)
WITH_HISTORY = (
    "With each person's own history: every model also learns what a person wrote before. Measured"
    f" on the first {MEASURED_TOKENS} tokens of"
)


def _in_percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _in_round_percent(share: float) -> str:
    return f"{100 * share:g} %"


PERCENT = Notation(in_text=_in_percent, on_axis=_in_round_percent)
NUMBER = Notation(in_text="{:.3g}".format, on_axis="{:g}".format)
EPSILON = Notation(in_text=epsilon_text, on_axis="{:g}".format)


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A model that was measured on the held-out people."""

    name: str
    # What is guaranteed for it, in a word.
    privacy: str
    # A column for each of the people.
    scores: Scores
    # The same where it learns what each of them wrote before; of some of the people, if measured.
    with_history: Scores | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Held-out people of one kind, with a description."""

    name: str
    note: str
    users: np.ndarray


def write_report(
    folder: Path,
    *,
    guarantee: Guarantee,
    ledger: Ledger,
    texts: Texts,
    vocabulary: Vocabulary,
    model: Scores,
    start: Scores | None,
    model_with_history: Scores | None = None,
    beside: Sequence[Tested] = (),
    rebuilt: bool = False,
) -> Path:
    """Write the page of a run.

    Args:
        folder: of the run.
        guarantee: of its model.
        ledger: of its users.
        texts: what held-out people wrote.
        vocabulary: the words of the model.
        model: scores on held-out people after the run.
        start: scores before it, if its start can still be measured.
        model_with_history: scores of the model where it learns what each person wrote before.
        beside: models to compare with.
        rebuilt: whether the people's text was replaced since the run.

    Raises:
        RunError: the run has not ended.
    """
    if not (folder / "guarantee.txt").exists():
        raise RunError(
            f"{folder} has not ended, so there is nothing to report yet; resume it:"
            f" `tt.resume({str(folder)!r})`"
        )
    recipe = recipe_of(folder)
    rows = read_rows(folder)
    name = folder.resolve().name
    learned_from = whose_text(recipe, ledger.run_rows(guarantee.run)[0])
    statement = (folder / "guarantee.txt").read_text()
    held_out = groups_of(texts, vocabulary)
    earlier = _describe_start(start, guarantee)
    trained = _describe_model(name, model, guarantee)
    trained = replace(trained, with_history=model_with_history)
    parts = [
        tag("header", tag("h1", name), _note(_summarize(recipe, rows))),
        _show_promise(guarantee, learned_from, statement),
        *_warn_of_other_text(rebuilt),
        *_say_why_stopped(folder),
        _show_tiles(model, start),
        _draw_curves(rows, guarantee.delta),
        _show_groups(held_out, model, start, noisy=guarantee.is_private),
        _compare_models([*earlier, trained, *beside], own=len(earlier)),
        _show_spending(ledger, guarantee.delta),
        *_show_audit(folder),
        _write_foot(guarantee),
    ]
    write_atomically(folder / FILE_NAME, page(name, parts).encode())
    return folder / FILE_NAME


def write_report_elsewhere(
    folder: Path, *, guarantee: Guarantee, learned_from: str, statement: str
) -> Path:
    """Write a page of a run whose people are not in reach: what its folder holds, and what is not.

    The page that its maker wrote stays as it is.

    Args:
        folder: of the run.
        guarantee: of its model, worked out here.
        learned_from: whose text the model learned from.
        statement: of that guarantee.
    """
    recipe = recipe_of(folder)
    rows = read_rows(folder)
    name = folder.resolve().name
    parts = [
        tag("header", tag("h1", name), _note(_summarize(recipe, rows))),
        _show_promise(guarantee, learned_from, statement),
        *_say_why_stopped(folder),
        _draw_curves(rows, guarantee.delta),
        section("What is not here", tag("p", NOT_HERE)),
        *_show_audit(folder),
        _write_foot(guarantee),
    ]
    write_atomically(folder / ELSEWHERE, page(name, parts).encode())
    return folder / ELSEWHERE


def _note(words: str) -> Html:
    return tag("p", words, class_="quiet")


def _describe_model(name: str, model: Scores, guarantee: Guarantee) -> Tested:
    privacy = "ε = ∞"
    if guarantee.epsilon < math.inf:
        privacy = pair_text(guarantee.epsilon, guarantee.delta)
    if guarantee.is_simulated:
        privacy += ", in a simulation"
    return Tested(name=name, privacy=privacy, scores=model)


def _describe_start(start: Scores | None, guarantee: Guarantee) -> list[Tested]:
    if not start:
        return []
    privacy = "counted in ε" if guarantee.continued else "nobody's text"
    return [Tested(name="its start", privacy=privacy, scores=start)]


def _summarize(recipe: Recipe, rows: list[Row]) -> str:
    return (
        f"{recipe.algorithm}, {recipe.model.kind}, {rows[-1]['round']:,} rounds of about"
        f" {recipe.participation.cohort:,g} people"
    )


def _warn_of_other_text(rebuilt: bool) -> list[Html]:
    return [tag("p", REBUILT, class_="broken")] if rebuilt else []


def _say_why_stopped(folder: Path) -> list[Html]:
    """Say why a run ended early, and which model it ended with, if it got worse."""
    path = folder / STOPPED
    return [tag("p", f"Stopped: {path.read_text()}", class_="broken")] if path.exists() else []


def _write_foot(guarantee: Guarantee) -> Html:
    row = f"ledger row {guarantee.head[:16]}…"
    if guarantee.ledger_key:
        row += f", signed by ledger {guarantee.ledger_key}"
    origin = f"Taciturn {tt.__version__} · {row} · {date.today()}"
    return tag("footer", tag("p", FOOT), tag("p", origin))


def groups_of(texts: Texts, vocabulary: Vocabulary) -> list[Group]:
    """Group everybody, and thirds by how much people wrote and by how rare their words are.

    A third that is too small to report, or not different from the rest, is left out.
    """
    lengths = np.array([len(text) for text in texts])
    listed = len(vocabulary) - vocabulary.first_word
    frequent = vocabulary.first_word + listed // FREQUENT
    rare_shares = np.array([_share_of_rare_words(text, frequent) for text in texts])
    writers = np.flatnonzero(lengths)
    possible = [
        Group(name="Everybody", note="all held-out people", users=writers),
        Group(
            name="Light writers",
            note="the third who wrote least",
            users=_lowest_third(writers, lengths),
        ),
        Group(
            name="Heavy writers",
            note="the third who wrote most",
            users=_highest_third(writers, lengths),
        ),
        Group(
            name="Many rare words",
            note="the third with the rarest words",
            users=_highest_third(writers, rare_shares),
        ),
    ]
    return [group for group in possible if len(group.users) >= LEAST_HELD_OUT]


def _share_of_rare_words(text: np.ndarray, frequent: int) -> float:
    """Return the share of words that are not among the frequent ones, whose ids are below that."""
    if not len(text):
        return 0.0
    is_rare = (text >= frequent) | (text == UNKNOWN)
    return float(np.mean(is_rare))


def _lowest_third(users: np.ndarray, figures: np.ndarray) -> np.ndarray:
    """Return the third of the users with the lowest figures; nobody, where all are alike."""
    few, many = _bounds_of_thirds(figures[users])
    return users[figures[users] <= few] if few < many else users[:0]


def _highest_third(users: np.ndarray, figures: np.ndarray) -> np.ndarray:
    """Return the third of the users with the highest figures; nobody, where all are alike."""
    few, many = _bounds_of_thirds(figures[users])
    return users[figures[users] >= many] if few < many else users[:0]


def _bounds_of_thirds(figures: np.ndarray) -> tuple[float, float]:
    if not len(figures):
        return 0.0, 0.0
    few, many = np.quantile(figures, (1 / 3, 2 / 3))
    return few, many


# Figures in words.


def _with_margin(figure: Interval, times: float = 100.0, unit: str = " %") -> str:
    margin = f" ± {times * figure.margin:.2f}" if math.isfinite(figure.margin) else ""
    return f"{times * figure.value:.2f}{margin}{unit}"


class _Figures(NamedTuple):
    """The figures of everybody together, with margins."""

    top1: str
    top3: str
    perplexity: str


def _figures_of(scores: Scores) -> _Figures:
    together = scores.together
    return _Figures(
        top1=_with_margin(together["accuracy_top1"]),
        top3=_with_margin(together["accuracy_top3"]),
        perplexity=_with_margin(together["perplexity"], times=1.0, unit=""),
    )


def _gain_text(model: Scores, start: Scores, unit: str = " points") -> str:
    gain = model.gain_over(start)
    sign = "+" if gain.value >= 0 else ""
    return sign + _with_margin(gain, unit=unit).replace("-", "−")


# The sections of the page, in their order.


def _show_promise(guarantee: Guarantee, learned_from: str, statement: str) -> Html:
    """Show the guarantee.

    It is green where people may rely on it; orange where there is none, a weak one, a simulation's,
    or one that is only stated.
    """
    can_be_relied_on = is_reliable(guarantee)
    if can_be_relied_on:
        title = "What is promised"
    elif guarantee.epsilon == math.inf:
        title = "No guarantee"
    elif guarantee.standing == "stated":
        title = "What its maker states"
    else:
        title = "Not a promise to rely on"
    sentences = []
    for sentence in plain_words(guarantee, learned_from):
        sentences.append(tag("p", sentence.replace(" = ", "\u00a0=\u00a0")))
    return tag(
        "section",
        _show_epsilon(guarantee),
        tag("div", tag("h2", title), *sentences),
        tag("details", tag("summary", "The whole statement"), tag("pre", statement)),
        class_="promise" if can_be_relied_on else "promise warning",
    )


def _show_epsilon(guarantee: Guarantee) -> Html:
    epsilon = f"ε\u00a0=\u00a0{epsilon_text(guarantee.epsilon)}".replace("= >", ">")
    note = "nobody is protected"
    if guarantee.epsilon < math.inf:
        note = f"at δ = {delta_text(guarantee.delta)}"
    return tag("div", epsilon, tag("small", note), class_="figure")


def _show_tiles(model: Scores, start: Scores | None) -> Html:
    figures = _figures_of(model)
    gains = []
    if start is not None:
        gain = _gain_text(model.together, start.together, unit="")
        gains.append(tile("over its start", gain, "points of AccuracyTop1"))
    return tag(
        "div",
        tile("AccuracyTop1", figures.top1, "next word right at once"),
        *gains,
        tile("AccuracyTop3", figures.top3, "right among three"),
        tile("perplexity", figures.perplexity, "smaller is better"),
        class_="tiles",
    )


def _draw_curves(rows: list[Row], delta: float) -> Html:
    accuracy = _points_of(rows, "accuracy_top1", margin="accuracy_top1_margin")
    curves = [chart("AccuracyTop1 of held-out people", accuracy, PERCENT)]
    for column, title in CURVES.items():
        if column in rows[-1]:
            curves.append(chart(title, _points_of(rows, column), NUMBER))
    curves.append(_draw_epsilon(rows, delta))
    return section("Over the rounds", tag("div", *curves, class_="curves"))


def _points_of(rows: list[Row], column: str, margin: str = "") -> list[Point]:
    """Return the points of a column, with the margins of another one, if there is one."""
    points = []
    for row in rows:
        figure = Interval(row[column], row.get(margin, 0.0))
        points.append(Point(round=row["round"], figure=figure))
    return points


def _draw_epsilon(rows: list[Row], delta: float) -> Html:
    title = f"ε spent, at δ = {delta_text(delta)}"
    if not math.isfinite(rows[-1]["epsilon"]):
        words = "∞ from the first round on: there is no privacy."
        return tag("figure", tag("figcaption", title), _note(words))
    points = _points_of(rows, "epsilon")
    return chart(title, points, EPSILON, from_zero=True, kind="second")


def _show_groups(held_out: list[Group], model: Scores, start: Scores | None, noisy: bool) -> Html:
    """Show what each group of people gained."""
    spans = [_measure_group(group, model, start) for group in held_out]
    words = "AccuracyTop1 by groups of people."
    if noisy:
        words = f"{words} {COST}"
    legend = tag(
        "p",
        tag("span", class_="key start"),
        "start",
        tag("span", class_="key"),
        "this model, with its 95 % interval",
        class_="quiet",
    )
    parts = [tag("p", words), legend]
    if spans:
        parts.append(groups(spans, PERCENT))
    if len(spans) <= 1:
        few = f"Too few people, or too alike, for groups of {LEAST_HELD_OUT} and more."
        parts.append(_note(few))
    return section("Who gains, and how much", *parts)


def _measure_group(group: Group, model: Scores, start: Scores | None) -> Span:
    scores = model.pool(group.users)
    now = scores["accuracy_top1"]
    if not start:
        before = None
        gain = _with_margin(now)
    else:
        scores_before = start.pool(group.users)
        before = scores_before["accuracy_top1"].value
        gain = _gain_text(scores, scores_before)
    return Span(name=group.name, note=group.note, before=before, now=now, gain=gain)


def _compare_models(tested: list[Tested], own: int) -> Html:
    """Show models beside the run's, which is the one with the number `own`."""
    columns = ("", "privacy", "AccuracyTop1", "AccuracyTop3", "perplexity")
    rows = [(model.name, model.privacy, *_figures_of(model.scores)) for model in tested]
    parts = [table(columns, rows, bold=own)]
    measured = tested[own].with_history
    if measured is not None:
        people = len(measured.tokens)
        parts.append(tag("p", f"{WITH_HISTORY} {people:,} of these people."))
        parts.append(_compare_with_history(columns, tested, name=tested[own].name))
    if len(tested) <= own + 1:
        parts.append(_note(HOW_TO_COMPARE))
    return section("Beside others, on the same people and words", *parts)


def _compare_with_history(columns: Sequence[str], tested: list[Tested], name: str) -> Html:
    """Show those that were measured with history; the run's model has this name."""
    rows = []
    for model in tested:
        if model.with_history is not None:
            rows.append((model.name, model.privacy, *_figures_of(model.with_history)))
    return table(columns, rows, bold=[row[0] for row in rows].index(name))


def _show_spending(ledger: Ledger, delta: float) -> Html:
    """Say what all runs on these people cost together, which is what matters to a person.

    It is at the δ of the run whose ε stands above, which the recipe states. The usual δ of totals
    follows from how many people there are, which nobody stated, and the page may be published.
    """
    runs = ledger.runs()
    spent, _ = ledger.total(delta)
    whole = "This is the only run on these people. In all they have spent"
    if len(runs) > 1:
        whole = f"All {len(runs)} runs on these people together, discarded ones included:"
    parts = [tag("p", f"{whole} {pair_text(spent, delta)}.")]
    seeded = sum(ledger.is_noise_known(run) for run in runs)
    if seeded:
        words = (
            f"{seeded} of {len(runs)} drew noise from a seed, with which anyone can remove it: such"
            " a run counts as ε = ∞, whatever its own page says of the method."
        )
        parts.append(tag("p", words))
    if spent == math.inf:
        words = (
            "At least one of them had no privacy, and may have revealed what single people wrote."
        )
        parts.append(tag("p", words))
    if ledger.budget:
        parts += _show_budget(ledger.budget, spent)
    adjacency = (
        "Added up for one adjacency: a person's reports, or zeros in their place. See taciturn"
        " ledger show."
    )
    return section("What these people have spent", *parts, _note(adjacency))


def _show_budget(budget: PopulationBudget, spent: float) -> list[Html]:
    # Not with its δ, which may follow from how many people there are, too.
    words = f"Their budget for all runs is ε = {epsilon_text(budget.epsilon)}."
    share = min(1.0, spent / budget.epsilon)
    meter = tag(
        "meter",
        f"{share:.0%}",
        min=0,
        max=1,
        value=f"{share:.3f}",
        aria_label="share of the budget spent",
    )
    return [tag("p", words), meter]


def _show_audit(folder: Path) -> list[Html]:
    """Show what an audit found, or that there can be one."""
    path = folder / "audit.json"
    if path.exists():
        results = AuditResults.from_json(from_json(path.read_text()))
        parts = []
        if results.membership:
            parts += _show_membership(results.membership)
        if results.canaries:
            parts.append(_show_canaries(results.canaries))
        return [section(OUTSIDE, *parts)]
    kept_to_audit = (folder / kind.FILE_NAME for kind in (audit_users, canaries))
    if any(kept.exists() for kept in kept_to_audit):
        words = "This run can be audited and was not yet: taciturn audit run RUN."
        return [section(OUTSIDE, tag("p", words))]
    return []


def _show_membership(membership: MembershipResults) -> list[Html]:
    kind = "broken" if membership.is_refuted else ""
    delta = delta_text(membership.delta)
    columns = ("audit users, of the turns tested", "μ", f"ε at δ = {delta}")
    return [
        tag("p", membership.verdict(), class_=kind),
        table(columns, membership.rows()),
        tag("p", " ".join(membership.power())),
    ]


def _show_canaries(canary_results: CanaryResults) -> Html:
    rows = []
    for finding in canary_results.findings:
        rank = rank_text(finding.rank)
        references = rank_text(finding.references)
        row = (
            f"{finding.users} users, {finding.copies} copies",
            f"{finding.seen:,.0f}",
            f"{rank} of {references}",
            f"{finding.exposure:.1f}",
            "–" if finding.place is None else "found",
        )
        rows.append(row)
    return table(("planted secret", "times seen", "rank", "exposure", "by beam search"), rows)
