"""RUN/report.html: what a run guarantees and what it is worth, on one page for those who decide
about it.

It is post-processing: about protected people it says only what the ledger and the released models
do. All figures are averages over held-out people, who have no guarantee, and over no fewer of them
than `LEAST_HELD_OUT`.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from taciturn.privacy.accounting.rounding_up import WEAK, delta_text, epsilon_text, pair_text
from taciturn.privacy.ledger.ledger import Guarantee, Ledger, Row
from taciturn.recipe.recipe import Recipe
from taciturn.release.privacy_statement import plain_words
from taciturn.runs.folder import RunError, recipe_of
from taciturn.runs.page_html import Html, Span, chart, groups, page, section, table, tag, tile

FILE_NAME = "report.html"
_quiet = partial(tag, "p", class_="quiet")
OUTSIDE = "Seen from outside"
# in a text, and on an axis
PERCENT = (
    (lambda value: f"{100 * value:.2f} %"),
    (lambda value: f"{100 * value:g} %"),
)
FREQUENT = (
    # of the words, sorted by frequency, one in this many is frequent; all others are rare
    10
)
COST = "Noise hides what few people share: people who gain less here pay more for privacy."
REBUILT = (
    "The population's text was replaced since this run: only the curves are of the people it was"
    " measured on then."
)
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


class Tested(NamedTuple):
    name: str
    # what is guaranteed for it, in a word
    privacy: str
    # a column for each of them
    scores: Scores


class Group(NamedTuple):
    """Held-out people of one kind, with a description."""

    name: str
    note: str
    users: np.ndarray


def write_report(
    folder: Path,
    guarantee: Guarantee,
    ledger: Ledger,
    texts: Texts,
    vocabulary: Vocabulary,
    model: Scores,
    start: Scores | None,
    beside: Sequence[Tested] = (),
    rebuilt: bool = False,
) -> Path:
    """Write the page of a run. `model` and `start` are scores after and before it, on held-out
    people, who wrote `texts`; `rebuilt` says that their text was replaced since.
    """
    if not (folder / "guarantee.txt").exists():
        raise RunError(
            f"{folder} has not ended, so there is nothing to report yet; resume it: taciturn train"
            f" --resume --run {folder}"
        )
    recipe, rows = (
        recipe_of(folder),
        [from_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()],
    )
    simulated = ", in a simulation" if guarantee.is_simulated else ""
    own = Tested(folder.resolve().name, f"ε = {epsilon_text(guarantee.epsilon)}{simulated}", model)
    before = (
        [Tested("its start", "counted in ε" if guarantee.continued else "nobody's text", start)]
        if start
        else []
    )
    about = (
        f"{recipe.algorithm}, {recipe.model.kind}, {rows[-1]['round']:,} rounds of about"
        f" {recipe.participation.cohort:,g} people"
    )
    parts = [
        tag("header", tag("h1", own.name), _quiet(about)),
        _promise(
            guarantee,
            whose_text(recipe, ledger.run_rows(guarantee.run)[0]),
            (folder / "guarantee.txt").read_text(),
        ),
        *([tag("p", REBUILT, class_="broken")] if rebuilt else []),
        _tiles(model, start),
        _curves(rows),
        _people(groups_of(texts, vocabulary), model, start, guarantee.is_private),
        _compared([*before, own, *beside], len(before)),
        _spent(ledger),
        *_audited(folder),
        tag(
            "footer",
            tag("p", FOOT),
            tag(
                "p",
                f"Taciturn {tt.__version__} · ledger row {guarantee.head[:16]}… · {date.today()}",
            ),
        ),
    ]
    write_atomically(folder / FILE_NAME, page(own.name, parts).encode())
    return folder / FILE_NAME


def whose_text(recipe: Recipe, opened: Row) -> str:
    """Describe whose text a run learned from, by its recipe and what it declared."""
    if (
        recipe.fingerprint != opened["recipe"]
        # then its number of users is not the one that was declared
    ):
        return "people's text"
    simulated = opened.get("unit", "").startswith("one simulated")
    return (
        f"the text of about {recipe.participation.users:,}"
        f" {'simulated users' if simulated else 'people'}"
    )


def groups_of(texts: Texts, vocabulary: Vocabulary) -> list[Group]:
    """Group everybody, and thirds by how much people wrote and by how rare their words are. A third
    that is too small to report, or no different from the rest, is left out.
    """
    lengths = np.array([len(text) for text in texts])
    frequent = vocabulary.fixed + (len(vocabulary) - vocabulary.fixed) // FREQUENT
    rare = np.array(
        [np.mean((text >= frequent) | (text == UNKNOWN)) if len(text) else 0.0 for text in texts]
    )
    writers = np.flatnonzero(lengths)

    def third(figures: np.ndarray, sign: int) -> np.ndarray:
        few, many = np.quantile(figures[writers], (1 / 3, 2 / 3)) if len(writers) else (0.0, 0.0)
        chosen = figures[writers] <= few if sign < 0 else figures[writers] >= many
        return writers[chosen] if few < many else writers[:0]

    found = [
        Group("Everybody", "all held-out people", writers),
        Group("Light writers", "the third who wrote least", third(lengths, -1)),
        Group("Heavy writers", "the third who wrote most", third(lengths, 1)),
        Group("Many rare words", "the third with the rarest words", third(rare, 1)),
    ]
    return [one for one in found if len(one.users) >= LEAST_HELD_OUT]


def _with_margin(figure: Interval, times: float = 100.0, unit: str = " %") -> str:
    margin = f" ± {times * figure.margin:.2f}" if math.isfinite(figure.margin) else ""
    return f"{times * figure.value:.2f}{margin}{unit}"


def _gain(model: Scores, start: Scores, unit: str = " points") -> str:
    gain = model.gain_over(start)
    return ("+" if gain.value >= 0 else "") + _with_margin(gain, unit=unit).replace("-", "−")


def _promise(guarantee: Guarantee, learned_from: str, statement: str) -> Html:
    """Show the guarantee: green where people may rely on it; orange where there is none, a weak
    one, or a simulation's.
    """
    relied_on = guarantee.epsilon <= WEAK and not guarantee.is_simulated
    note = (
        f"at δ = {delta_text(guarantee.delta)}"
        if guarantee.epsilon < math.inf
        else "nobody is protected"
    )
    figure = tag(
        "div",
        f"ε\u00a0=\u00a0{epsilon_text(guarantee.epsilon)}".replace("= >", ">"),
        tag("small", note),
        class_="figure",
    )
    title = (
        "What is promised"
        if relied_on
        else "No guarantee"
        if guarantee.epsilon == math.inf
        else "Not a promise to rely on"
    )
    sentences = [
        sentence.replace(" = ", "\u00a0=\u00a0")
        for sentence in plain_words(guarantee, learned_from)
    ]
    words = tag("div", tag("h2", title), *(tag("p", sentence) for sentence in sentences))
    details = tag("details", tag("summary", "The whole statement"), tag("pre", statement))
    return tag(
        "section", figure, words, details, class_="promise" if relied_on else "promise warning"
    )


def _tiles(model: Scores, start: Scores | None) -> Html:
    everyone = model.together
    found = [
        tile("AccuracyTop1", _with_margin(everyone["accuracy_top1"]), "next word right at once"),
        tile("AccuracyTop3", _with_margin(everyone["accuracy_top3"]), "right among three"),
        tile("perplexity", _with_margin(everyone["perplexity"], 1.0, ""), "smaller is better"),
    ]
    if start is not None:
        found.insert(
            1, tile("over its start", _gain(everyone, start.together, ""), "points of AccuracyTop1")
        )
    return tag("div", *found, class_="tiles")


def _curves(rows: list[dict[str, Any]]) -> Html:
    def points(column: str, margin: str = "") -> list[tuple[int, Interval]]:
        return [(row["round"], Interval(row[column], row.get(margin, 0.0))) for row in rows]

    drawn = [
        chart(
            "AccuracyTop1 of held-out people",
            points("accuracy_top1", "accuracy_top1_margin"),
            *PERCENT,
        ),
        *(
            chart(title, points(column), "{:.3g}".format, "{:g}".format)
            for column, title in CURVES.items()
            if column in rows[-1]
        ),
        (
            chart(
                "ε spent",
                points("epsilon"),
                epsilon_text,
                "{:g}".format,
                from_zero=True,
                kind="second",
            )
            if math.isfinite(rows[-1]["epsilon"])
            else tag(
                "figure",
                tag("figcaption", "ε spent"),
                _quiet("∞ from the first round on: there is no privacy."),
            )
        ),
    ]
    return section("Over the rounds", tag("div", *drawn, class_="curves"))


def _people(held_out: list[Group], model: Scores, start: Scores | None, noisy: bool) -> Html:
    spans = []
    for one in held_out:
        now = model.of(one.users)
        figure, before = now["accuracy_top1"], start.of(one.users) if start else None
        gain = _with_margin(figure) if before is None else _gain(now, before)
        spans.append(
            Span(
                one.name, one.note, before["accuracy_top1"].value if before else None, figure, gain
            )
        )
    legend = (
        tag("span", class_="key start"),
        "start",
        tag("span", class_="key"),
        "this model, with its 95 % interval",
    )
    few = (
        []
        if len(spans) > 1
        else [_quiet(f"Too few people, or too alike, for groups of {LEAST_HELD_OUT} and more.")]
    )
    title = tag("p", "AccuracyTop1 by groups of people." + (" " + COST if noisy else ""))
    drawn = [groups(spans, *PERCENT)] if spans else []
    return section(
        "Who gains, and how much", title, tag("p", *legend, class_="quiet"), *drawn, *few
    )


def _compared(tested: list[Tested], own: int) -> Html:
    columns = ("", "privacy", "AccuracyTop1", "AccuracyTop3", "perplexity")
    cells = []
    for one in tested:
        scores = one.scores.together
        shares = [_with_margin(scores[metric]) for metric in ("accuracy_top1", "accuracy_top3")]
        cells.append((one.name, one.privacy, *shares, _with_margin(scores["perplexity"], 1.0, "")))
    hint = (
        "For n-grams beside it: taciturn keyboard ngram, then taciturn report RUN --beside FOLDER."
    )
    more = [] if len(tested) > own + 1 else [_quiet(hint)]
    return section("Beside others, on the same people and words", table(columns, cells, own), *more)


def _spent(ledger: Ledger) -> Html:
    """Say what all runs on these people cost together, which is what matters to a person."""
    runs, budget = ledger.runs(), ledger.budget
    delta = min(ledger.run_rows(run)[0]["delta"] for run in runs)
    spent = ledger.total(delta)[0]
    only = "This is the only run on these people. In all they have spent"
    whole = (
        f"All {len(runs)} runs on these people together, discarded ones included:"
        if len(runs) > 1
        else only
    )
    parts = [tag("p", f"{whole} {pair_text(spent, delta)}.")]
    if seeded := sum(ledger.run_rows(run)[0]["randomness"] != "operating system" for run in runs):
        drew = (
            f"{seeded} of {len(runs)} drew noise from a seed, with which anyone can remove it:"
            " their ε promises nothing."
        )
        parts.append(tag("p", drew))
    if spent == math.inf:
        parts.append(
            tag(
                "p",
                "At least one of them had no privacy, and may have revealed what single people"
                " wrote.",
            )
        )
    if budget:
        left, share = (
            f"Their budget for all runs is {pair_text(budget.epsilon, budget.delta)}.",
            min(1.0, spent / budget.epsilon),
        )
        parts += [
            tag("p", left),
            tag(
                "meter",
                f"{share:.0%}",
                min=0,
                max=1,
                value=f"{share:.3f}",
                aria_label="share of the budget spent",
            ),
        ]
    parts.append(
        _quiet(
            "Added up for one adjacency: a person's reports, or zeros in their place. See taciturn"
            " ledger show."
        )
    )
    return section("What these people have spent", *parts)


def _audited(folder: Path) -> Iterator[Html]:
    if not (folder / "audit.json").exists():
        if any((folder / one.FILE_NAME).exists() for one in (audit_users, canaries)):
            yield section(
                OUTSIDE,
                tag("p", "This run can be audited and was not yet: taciturn audit run RUN."),
            )
        return
    found = AuditResults.from_json(from_json((folder / "audit.json").read_text()))
    parts = []
    if found.membership:
        parts += _show_membership(found.membership)
    if found.canaries:
        parts.append(_table_of_canaries(found.canaries))
    yield section(OUTSIDE, *parts)


def _show_membership(membership: MembershipResults) -> list[Html]:
    words = "Nothing contradicts the claim. That proves nothing about what an audit cannot see."
    if membership.audit.refuted:
        words = "BROKEN: users are told apart better than is claimed. Trust no model of this run."
    kind = "broken" if membership.audit.refuted else ""
    row = (
        "of the turns tested",
        f"{membership.claimed_epsilon:.2f}",
        f"{membership.epsilon:.2f}",
        f"{membership.epsilon_at_least:.2f}",
    )
    columns = ("audit users", "claimed ε", "found", "at least (99.9 %)")
    return [tag("p", words, class_=kind), table(columns, [row])]


def _table_of_canaries(canary_results: CanaryResults) -> Html:
    rows = []
    for finding in canary_results.findings:
        row = (
            f"{finding.users} users, {finding.copies} copies",
            f"{finding.seen:,.0f}",
            f"{rank_text(finding.rank)} of {rank_text(finding.references)}",
            f"{finding.exposure:.1f}",
            "–" if finding.place is None else "found",
        )
        rows.append(row)
    return table(("planted secret", "times seen", "rank", "exposure", "by beam search"), rows)
