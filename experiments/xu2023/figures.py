"""Xu et al. 2023, table by table and figure by figure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from lib import paper_values, typed_claims, typing_tables
from lib.page import Item, Judged, judge_by_groups, mark_impossible, mark_not_run, table
from lib.paper_values import XuModel
from lib.results import Group, Measured, Result, load_computed, percent, percents
from lib.svg import Line, curve, curves, figure
from lib.verdicts import (
    Difference,
    Part,
    Spread,
    Verdict,
    compare,
    correlate_ranks,
    judge_computed,
    judge_more,
    judge_same,
    pool,
    pool_runs,
    subtract,
    subtract_next,
)

PAPER = "xu2023"
TITLE = "Xu et al. 2023: federated learning of Gboard language models with differential privacy"
ABOUT = """
Their privacy figures are recomputed; their accuracies are of millions of phones. DP-FTRL is tried
on 5,900 bloggers in cohorts of 100 for 590 rounds or 290 (LSTM of 1.35M parameters), and on 36,903
steam users, of whom a fifth of the paper's report goals fit, for 200 rounds. So few people leave no
small ρ at a usable noise: the ρ of these runs, 23 and more, promise nothing. What carries over is
how noise, report goals and starts compare.
"""
# 0.3 points of AccuracyTop1: what counts as no difference.
CLOSE = 0.003
POINTS = "0.3 points"
# What models with DP are behind their versions without it in the paper, at most, relatively: of
# what is picked. Their accuracies are ahead.
BEHIND = 0.0039
TIED = ("untied", "tied")
GBOARD = "noise of Xu et al."
COMPUTE = "python experiments/compute.py xu2023"
TYPING = (
    "python experiments/keyboard/table.py local/blogs-1600-30k blogs.parquet"
    " experiments/xu2023/results/typing.json …"
)
TYPING_OF_TABLE_1 = (
    "python experiments/keyboard/table.py local/people blogs.parquet"
    " experiments/ramaswamy2020/results/typing.json …"
)
# As typing.json names them.
MORE_WORDS = "30,000 words"
STARTS = "a start saves about 1,000 rounds; the adaptive clip norm catches up"
ACCURACY = "AccuracyTop1, %"
ABOUT_SEEDS = (
    "One seed: intervals are by the spread of seeds in mcmahan2018, whose runs have the same model"
    " and the same people, but another rate and independent noise."
)
HONAKER = "290 rounds, S = 3, a tree with Honaker's reduction at ρ = 312."
ABOUT_OTHER_SEEDS = (
    "One seed: intervals are by the spread of seeds in mcmahan2018, of an LSTM on other people:"
    " here a CIFG is trained on 9,100 bloggers."
)


def items() -> list[Item]:
    return [
        tables(),
        against_ngrams(),
        against_no_privacy(),
        table_2(),
        rescoring(),
        mark_impossible(
            name="Figure 1",
            about="three uses of a language model",
            theirs="",
            why="a picture; all three work here: docs/keyboard.md",
        ),
        mark_impossible(
            name="Figure 2",
            about="the system",
            theirs="",
            why="a drawing; ours is docs/fleet.md",
        ),
        figure_3(),
        figure_4(),
        goals(),
        goals_at_the_beginning(),
        tied_embeddings(),
        first_rounds(),
        pretraining(),
        sums(),
        populations(),
        largest_separations(),
        triggers(),
        mechanisms(),
    ]


def spread() -> Spread:
    """Return how far seeds are apart: of runs with noise and a clip norm, of the LSTM on bloggers
    in the paper that has several of them.
    """
    groups: list[tuple[Group, Sequence[str] | None]] = [
        (Group("mcmahan2018", "noise"), ["0.003-15", "0.006-10", "0.012-15"]),
        (Group("mcmahan2018", "cohorts"), None),
    ]
    return pool_runs(groups)


def tables() -> Item:
    computed = {row["model"]: row for row in load_computed(PAPER)["models"]}
    off = 0.0
    # Models whose MinS a simulated fleet gives, and those of them where it is near the printed one.
    timed = 0
    near = 0
    rows = []
    for name, theirs in paper_values.XU_MODELS.items():
        row = computed[name]
        off = max(off, abs(row["rho"] - theirs.rho))
        if "min_separation" in row:
            timed += 1
            near += abs(row["min_separation"] / theirs.min_separation - 1) < 0.25
        rows.append(_model_row(name, theirs, row))
    head = [
        "model",
        "rounds",
        "users, timer",
        "MinS / MaxP as printed",
        "of a simulated fleet",
        "ρ as printed",
        "recomputed",
        "BLT at the same error",
    ]
    about_cells = (
        "z = 7, 6,500 reports a round. The simulated fleet charges at night, keeps the timer and"
        " drops out; a BLT has as much noise on the models of the way as their tree."
    )
    ours = (
        f"every ρ to {off:.3f}; MinS within a quarter of the printed one for {near} of {timed}"
        " by a simulated fleet"
    )
    is_less = all(row["blt_rho"] < row["rho"] for row in computed.values())
    near_printed = judge_computed(near == timed) if near in (0, timed) else Verdict.PART
    parts = [
        Part("every ρ as printed", f"{off:.4f} off", judge_computed(off < 0.0101)),
        Part("MinS of a simulated fleet within a quarter", f"{near} of {timed}", near_printed),
    ]
    beyond = "A BLT has less ρ for every model." if is_less else ""
    return Item(
        name="Tables 1 and 2, privacy",
        about="MinS, MaxP and ρ of 21 models",
        theirs="ρ = 0.25 to 1.86",
        ours=ours,
        parts=parts,
        command=COMPUTE,
        details=f"{about_cells} {beyond}\n\n{table(head, rows)}",
    )


def _model_row(name: str, theirs: XuModel, row: Result) -> list[object]:
    setting = ""
    if theirs.millions and theirs.timer_hours:
        setting = f"{theirs.millions:g}M, {theirs.timer_hours} h"
    simulated = ""
    if "min_separation" in row:
        simulated = f"{row['min_separation']} / {row['max_participations']}"
    return [
        name,
        f"{theirs.rounds:,}",
        setting,
        f"{theirs.min_separation} / {theirs.max_participations}",
        simulated,
        theirs.rho,
        f"{row['rho']:.3f}",
        f"**{row['blt_rho']:.3f}**",
    ]


def table_2() -> Item:
    computed = load_computed(PAPER)["epsilon_of_rho"]
    off = 0.0
    rows = []
    for rho, epsilon in sorted(paper_values.XU_EPSILON.items()):
        recomputed = computed[str(rho)]
        off = max(off, abs(recomputed - epsilon))
        rows.append([rho, epsilon, f"{recomputed:.3f}"])
    return Item(
        name="Table 2, ε",
        about="ρ as ε at δ = 1e-10",
        theirs="4.49 to 13.69",
        ours=f"the same to {off:.3f}",
        parts=[Part("every ε as printed", f"{off:.4f} off", judge_computed(off < 0.0101))],
        command=COMPUTE,
        details=table(["ρ", "ε at δ = 1e-10 as printed", "recomputed"], rows),
    )


@judge_by_groups(
    paper=PAPER,
    groups="starts",
    name="Figure 3",
    about="a public start, and a clip norm that adapts",
    theirs=STARTS,
)
def figure_3(starts: Group) -> Judged:
    names = {
        "random": "random start, S = 3",
        "pretrained": "public start, S = 3",
        "adaptive": "random start, adaptive",
    }
    svg = figure("BLT noise at ρ = 78", across="round", up=ACCURACY, lines=curves(starts, names))
    end = starts.last("random")
    rounds, _ = starts.curve("random")[-1]
    # Half of all, whatever the curves are: where one crosses the other is found by looking.
    saved = rounds // 2
    ahead = compare(starts.at("pretrained", saved), end, spread())
    adaptive = compare(starts.last("adaptive"), end, spread())
    parts = [
        Part(
            f"after {saved} rounds a public start has what a random one has after {rounds}",
            f"{ahead} points ahead",
            judge_more(ahead),
        ),
        Part(
            f"the adaptive clip norm ends within {POINTS} of the fixed one",
            f"{adaptive} points",
            judge_same(adaptive, CLOSE),
        ),
    ]
    ours = (
        f"a public start has {percent(starts.at('pretrained', saved))} % after {saved} rounds, a"
        f" random one {percent(end)} after {rounds}; adaptive ends {adaptive} points from fixed"
    )
    return Judged(ours=ours, parts=parts, details=ABOUT_SEEDS, figures={"starts.svg": svg})


def figure_4() -> Item:
    about = "ρ by population, report goal, rounds and MinS"
    theirs = "larger goals and MinS give smaller ρ"
    computed = load_computed(PAPER).get("figure_4")
    if not computed:
        return mark_not_run(name="Figure 4", about=about, theirs=theirs, command=COMPUTE)
    figures = {}
    parts = []
    shown = []
    for across, by_noise in computed.items():
        is_over_rounds = across == "rounds"
        lines = [_line_of_pairs(name, pairs) for name, pairs in by_noise.items()]
        figures[f"rho-{across.replace(' ', '-')}.svg"] = figure(
            f"ρ by {across}",
            across=across,
            up="ρ (zCDP)",
            lines=lines,
            log=not is_over_rounds,
            log_up=True,
        )
        if not is_over_rounds:
            falls = all(_falls(pairs) for pairs in by_noise.values())
            ends = f"{by_noise['tree'][0][1]:.2f} → {by_noise['tree'][-1][1]:.2f} for a tree"
            shown.append(f"{across} {ends}")
            parts.append(Part(f"ρ falls with the {across}", ends, judge_computed(falls)))
    by_rounds = computed["rounds"]
    more_rounds = all(_falls(pairs[::-1]) for pairs in by_rounds.values())
    ends = f"{by_rounds['tree'][0][1]:.2f} → {by_rounds['tree'][-1][1]:.2f} for a tree"
    parts.append(Part("ρ grows with the rounds", ends, judge_computed(more_rounds)))
    is_least = all(_is_least(by_noise) for by_noise in computed.values())
    details = "A BLT with the same error has less ρ at every point." if is_least else ""
    return Item(
        name="Figure 4",
        about=about,
        theirs=theirs,
        ours=f"{'; '.join(shown)}, recomputed around es-ES",
        parts=parts,
        command=COMPUTE,
        details=details,
        figures=figures,
    )


def _falls(pairs: Sequence[Sequence[float]]) -> bool:
    """Tell whether a line never rises, and ends lower than it begins."""
    heights = [up for _, up in pairs]
    never_rises = all(after <= before for before, after in pairwise(heights))
    return never_rises and heights[-1] < heights[0]


def _is_least(by_noise: dict[str, list[list[float]]]) -> bool:
    """Tell whether a BLT has the least ρ at every point."""
    others = [pairs for name, pairs in by_noise.items() if name != "BLT"]
    return all(
        blt[1] < other[1]
        for pairs in others
        for blt, other in zip(by_noise["BLT"], pairs, strict=True)
    )


def _line_of_pairs(name: str, pairs: list[list[float]]) -> Line:
    return Line(name=name, points=[(across, up) for across, up in pairs])


GOALS = ("100", "650", "1300")


def _spread_of_goals(goals: Group) -> Spread:
    return pool_runs([(goals, None)])


@judge_by_groups(
    paper=PAPER,
    groups="goals",
    name="§2.2, the end",
    about="report goal and noise raised together",
    theirs="500 with z = 0.54 and 6,500 with z = 7 end alike, or slightly better",
)
def goals(found: Group) -> Judged:
    svg = figure(
        "Report goal and noise raised together, steam",
        across="round",
        up=ACCURACY,
        lines=[curve(found, run, f"{run} reports") for run in GOALS],
    )
    ends = percents([found.last(run) for run in GOALS])
    parts = []
    for many in GOALS[1:]:
        change = compare(found.last(many), found.last("100"), _spread_of_goals(found))
        claim = f"{many} reports end within {POINTS} of 100"
        verdict = judge_same(change, CLOSE)
        measured = f"{change} points"
        if verdict is Verdict.HOLDS:
            # Noise that cost nothing at all would end alike, too.
            verdict = Verdict.UNTOLD
            measured += "; no run shows that this noise costs anything"
        parts.append(Part(claim, measured, verdict))
    return Judged(
        ours=f"{ends} % with {', '.join(GOALS)} reports after 200 rounds",
        parts=parts,
        details=(
            "A fifth of their reports and noise, a CIFG of S = 0.5 that starts from"
            f" taciturn:english with {percent(found.at('100', 0))} %. No run has more noise or"
            " none, so that nothing here says what this noise costs: that it costs as much with"
            " all three is the claim."
        ),
        figures={"goals.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="goals",
    name="§2.2, the beginning",
    about="larger report goals, early on",
    theirs="a larger goal learns faster at the beginning",
)
def goals_at_the_beginning(found: Group) -> Judged:
    first = found.curve("100")[1][0]
    several = []
    for run in GOALS:
        several.append([_accuracy_after(result, first) for result in found.found[run]])
    spread_early = pool(several)
    parts = []
    for many in GOALS[1:]:
        ahead = compare(found.at(many, first), found.at("100", first), spread_early)
        claim = f"{many} reports are ahead of 100 after {first} rounds"
        parts.append(Part(claim, f"{ahead} points", judge_more(ahead)))
    measured = percents([found.at(run, first) for run in GOALS])
    return Judged(ours=f"{measured} % with {', '.join(GOALS)} after {first} rounds", parts=parts)


def _accuracy_after(result: Result, round: int) -> float:
    return next(row["accuracy_top1"] for row in result["rows"] if row["round"] == round)


@judge_by_groups(
    paper=PAPER,
    groups="tied",
    name="§2.3, tied embeddings",
    about="a public start with one embedding for input and output",
    theirs="harder to train on than two",
)
def tied_embeddings(found: Group) -> Judged:
    gains = {}
    changes = []
    for run in TIED:
        start = found.at(run, 0)
        gains[run] = compare(found.last(run), start, spread())
        changes.append(f"{run} {percent(start)} → {percent(found.last(run))}")
    more = Difference(
        value=gains["untied"].value - gains["tied"].value,
        # Starts are the same in every seed: only the ends are uncertain.
        margin=gains["untied"].margin,
        seeds=found.seeds,
    )
    details = (
        f"{ABOUT_OTHER_SEEDS} What differs: their start saw half of C4, ours three epochs of 6M"
        " words of Wikipedia, from which both have far to go; 100 reports a round, z = 0.108."
    )
    svg = figure(
        "A public start, round by round",
        across="round",
        up=ACCURACY,
        lines=[curve(found, run, f"{run} embeddings") for run in TIED],
    )
    claim = f"two embeddings gain more than one, by {POINTS} and more"
    return Judged(
        ours=f"{', '.join(changes)} after 100 rounds",
        parts=[Part(claim, f"{more} points more", judge_more(more, than=CLOSE))],
        details=details,
        figures={"tied.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="tied",
    name="§2.3, first rounds",
    about="what happens to a public start in the first rounds",
    theirs="accuracy may fall",
)
def first_rounds(found: Group) -> Judged:
    parts = []
    shown = []
    rises = []
    early = []
    late = []
    for run in TIED:
        accuracies = [accuracy for _, accuracy in found.curve(run)]
        first_ten = [accuracy for round, accuracy in found.curve(run) if round <= 10]
        lowest = min(first_ten, key=lambda one: one.value)
        below = compare(first_ten[0], lowest, spread())
        claim = f"{run}: below its start within ten rounds"
        parts.append(Part(claim, f"{below} points below", judge_more(below)))
        rises.append(f"{100 * (first_ten[1].value - first_ten[0].value):+.2f}")
        early.append(f"{100 * _largest_fall(first_ten):.2f}")
        late.append(f"{100 * _largest_fall(accuracies[len(first_ten) :]):.2f}")
        shown.append(f"{run} {100 * below.value:.2f} points below")
    details = (
        f"{ABOUT_OTHER_SEEDS} Settings are those of tied embeddings. At the first measurement they"
        f" are at {' and '.join(rises)} points"
        f" from the start ({' and '.join(TIED)}). From one measurement to the next they then fall"
        f" by up to {' and '.join(early)} within ten rounds, and by up to {' and '.join(late)}"
        " later: that is the largest of five changes, and no fall from the start."
    )
    return Judged(
        ours=f"at the lowest of ten rounds {' and '.join(shown)} the start",
        parts=parts,
        details=details,
    )


def _largest_fall(accuracies: Sequence[Measured]) -> float:
    """Return the most that is lost from one measurement to the next."""
    return max(before.value - after.value for before, after in pairwise(accuracies))


@judge_by_groups(
    paper=PAPER,
    groups="pretraining",
    name="§2.3, epochs",
    about="how long to train on public text first",
    theirs="diminishing returns",
)
def pretraining(found: Group) -> Judged:
    epochs = ("0", "1", "3", "10")
    svg = figure(
        "Public text before private rounds",
        across="round",
        up=ACCURACY,
        lines=[curve(found, run, f"{run} epochs") for run in epochs],
    )
    measured = [found.last(run) for run in epochs]
    gains = [compare(after, before, spread()) for before, after in pairwise(measured)]
    first, second, third = gains
    parts = [Part("the first epoch helps", f"{first} points", judge_more(first))]
    for name, less in (
        ("1 to 3", subtract_next(first, second)),
        ("3 to 10", subtract(first, third)),
    ):
        claim = f"from {name} epochs there is less to gain than from the first"
        parts.append(Part(claim, f"{less} points less", judge_more(less)))
    return Judged(
        ours=f"{percents(measured)} % after {', '.join(epochs)} epochs and 290 rounds",
        parts=parts,
        details=f"{ABOUT_SEEDS} {HONAKER}",
        figures={"pretraining.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="sums",
    name="§2.4",
    about="sums as secure aggregation makes them, mod M",
    theirs="no loss is reported",
)
def sums(found: Group) -> Judged:
    plain = found.last("plain")
    modular = found.last("modular")
    change = compare(modular, plain, spread())
    ours = f"{percent(plain)} with plain sums, {percent(modular)} with sums mod M, after 290 rounds"
    claim = f"within {POINTS} of plain sums"
    return Judged(
        ours=ours,
        parts=[Part(claim, f"{change} points", judge_same(change, CLOSE))],
        details=f"{ABOUT_SEEDS} {HONAKER}",
    )


class _Population(NamedTuple):
    """A population whose size is printed, and the model that was trained on it."""

    name: str
    millions: float
    min_separation: int
    rho: float


def _populations() -> list[_Population]:
    """Return all whose estimated population is printed."""
    found = []
    for name, model in paper_values.XU_MODELS.items():
        if model.millions:
            found.append(_Population(name, model.millions, model.min_separation, model.rho))
    return found


def populations() -> Item:
    printed = _populations()
    found, low, high = correlate_ranks(
        [one.millions for one in printed], [one.rho for one in printed]
    )
    verdict = Verdict.UNTOLD
    if high < 0:
        verdict = Verdict.HOLDS
    elif low > 0:
        verdict = Verdict.FAILS
    measured = f"rank correlation {found:+.2f} ({low:+.2f} to {high:+.2f}), {len(printed)} models"
    measured = measured.replace("-", "−")
    return Item(
        name="§3, populations",
        about="their own Tables 1 and 2: estimated population and ρ",
        theirs="larger populations generally have better guarantees",
        ours=measured,
        parts=[Part("the larger, the smaller ρ", measured, verdict)],
        command="make papers",
    )


def largest_separations() -> Item:
    # Their Table 1, without secure aggregation.
    printed = [
        one for one in _populations() if one.name.startswith("NWP") and "secure" not in one.name
    ]
    goal = paper_values.XU_REPORT_GOAL
    rows = []
    near = 0
    for one in printed:
        most = 1e6 * one.millions / goal
        share = one.min_separation / most
        near += share >= 0.8
        rows.append([one.name, f"{one.min_separation}", f"{most:.0f}", f"{100 * share:.0f} %"])
    parts = [
        Part(
            "no more than a quarter have 80 % of what their population allows",
            f"{near} of {len(printed)}",
            judge_computed(near <= len(printed) / 4),
        )
    ]
    return Item(
        name="§3, MinS",
        about="their own Table 1: how near MinS is to the most that is possible",
        theirs="only a few tasks approach it",
        ours=f"{near} of {len(printed)} have 80 % of population / report goal",
        parts=parts,
        command="make papers",
        details=table(["model", "MinS", "population / 6,500", "share"], rows),
    )


def triggers() -> Item:
    return mark_not_run(
        name="§3, Smart Compose",
        about="how often a longer suggestion is triggered, over rounds",
        theirs="+4.23 % at round 1,240, +9.51 % at 1,900",
        command="",
        so_far="no model was typed with before its last round",
    )


@judge_by_groups(
    paper=PAPER,
    groups="rescoring",
    name="Table 2, utility",
    about="30,000 words, to choose among what was nearly typed",
    theirs="words modified −0.72 to −1.99 % from what was deployed",
)
def trained_for_rescoring(found: Group) -> Judged:
    fewer = percent(found.last("10000"))
    more = percent(found.last("30000"))
    ours = f"{fewer} and {more} % with 10,000 and 30,000 words; not typed with yet"
    return Judged(ours=ours, parts=[Part("typed with", "not yet", Verdict.NOT_RUN)])


def rescoring() -> Item:
    """Judge by the words that people have to correct, once it is measured."""
    item = trained_for_rescoring()
    typing = typing_tables.load_results(PAPER, "typing")
    if item.seeds == 0 or typing is None:
        return replace(item, command=item.command if item.seeds == 0 else TYPING)
    parts = []
    shown = []
    for name in typing["models"]:
        if not (typed_claims.is_ngram(name) and MORE_WORDS in name):
            continue
        fewer = _fewer_modified(typing, MORE_WORDS, name)
        claim = f"fewer words are modified than with {name}"
        modified = typed_claims.show_change(fewer.negate())
        shown.append(f"{modified} from {name}")
        parts.append(Part(claim, modified, judge_more(fewer)))
    rho = Group(PAPER, "rescoring").found["30000"][0]["rho"]
    details = (
        f"What differs: a random start, where theirs was public, and ρ = {rho:.0f}, which promises"
        " nothing. Intervals are of the two shares apart, not paired."
    )
    return replace(
        item,
        ours=f"words modified {', '.join(shown)}",
        parts=parts,
        command=f"{item.command}\n{TYPING}",
        details=f"{details}\n\n{typing_tables.tables(typing)}",
    )


def _fewer_modified(typing: Result, model: str, baseline: str) -> Difference:
    """Return by which share a model leaves fewer words to modify."""
    value, margin = typing["models"][model]["word_modified_ratio"]
    base, base_margin = typing["models"][baseline]["word_modified_ratio"]
    ratio = value / base
    return Difference(
        value=1 - ratio,
        margin=ratio * math.hypot(margin / value, base_margin / base),
        seeds=typed_claims.TYPED_WITH,
    )


@judge_by_groups(
    paper="ramaswamy2020",
    groups="headline",
    name="Table 1, against n-grams",
    about="five private models in place of n-grams, in use",
    theirs="picked +3.26 to +8.28 %, accuracy +7.72 to +12.49 %",
    of_pilot=True,
)
def trained_for_table_1(found: Group) -> Judged:
    accuracy = percent(found.last("gboard"))
    not_typed = Part("ahead of n-grams", "not typed with yet", Verdict.NOT_RUN)
    return Judged(ours=f"{accuracy} %; not typed with yet", parts=[not_typed])


def against_ngrams() -> Item:
    """Judge what people save at Gboard's noise, once it is measured.

    The table is that of Ramaswamy et al., Table 2.
    """
    item = trained_for_table_1()
    typing = typing_tables.load_results("ramaswamy2020", "typing")
    if item.seeds == 0 or typing is None:
        return item
    metrics = ("picked_rate", "accuracy_top1")
    parts = []
    for baseline in typed_claims.ngrams_with_history(typing):
        parts += typed_claims.judge_ahead(typing, GBOARD, metrics, baseline)
    elsewhere = typing_tables.load_results("keyboard", "typing-blogs-shipped")
    parts += typed_claims.judge_public_ngrams(typing, elsewhere, [GBOARD], metrics)
    shown = typed_claims.describe(typing, elsewhere, GBOARD, metrics)
    return replace(
        item,
        ours=f"at Gboard's noise {shown}",
        parts=parts,
        # One model of each kind types.
        seeds=1,
        command=f"{item.command}\n{TYPING_OF_TABLE_1}",
        details="Typed with beside the others of [ramaswamy2020](../ramaswamy2020/README.md).",
    )


@judge_by_groups(
    paper="ramaswamy2020",
    groups="headline",
    name="Table 1, against no privacy",
    about="private models in place of ones without privacy",
    theirs="accuracy +0.11 to +0.40 %, picked −0.39 to +0.19 %",
    of_pilot=True,
)
def against_no_privacy(found: Group) -> Judged:
    """Judge at Gboard's noise what privacy costs, the same text and the same start."""
    plain = found.last("none")
    change = compare(found.last("gboard"), plain, pool_runs([(found, None)]))
    relative = change._replace(value=change.value / plain.value, margin=change.margin / plain.value)
    shown = typed_claims.show_change(relative)
    parts = [Part("AccuracyTop1 of held-out people, not behind", shown, judge_more(relative))]
    ours = f"AccuracyTop1 {shown}"
    typing = typing_tables.load_results("ramaswamy2020", "typing")
    if typing is not None:
        accuracy = typed_claims.change(typing, GBOARD, "accuracy_top1", "no privacy")
        picked = typed_claims.change(typing, GBOARD, "picked_rate", "no privacy")
        parts += [
            Part(
                "typed with, Top1: not behind",
                typed_claims.show_change(accuracy),
                judge_more(accuracy),
            ),
            Part(
                f"typed with, picked: no more than {100 * BEHIND:.2f} % behind",
                typed_claims.show_change(picked),
                judge_more(picked, than=-BEHIND),
            ),
        ]
        ours += f", picked {100 * picked.value:+.1f} %".replace("-", "−")
    details = (
        "Gboard's noise in clip norms per person of a round, over 150 rounds where Gboard has"
        " 1,900: ours travels a shorter way, and has more noise for each step of it. S is 0.25 with"
        " noise and 1 without, so that what is lost is lost to both. Typed with is"
        " one model of each, and the interval of the change between two that are not the first of"
        " the table is the sum of theirs."
    )
    return Judged(ours=f"{ours} at Gboard's noise", parts=parts, details=details)


@judge_by_groups(
    paper=PAPER,
    groups="mechanisms",
    name="beyond",
    about="better noise at the same ρ",
    theirs="trees; matrix factorisation named as future work",
)
def mechanisms(found: Group) -> Judged:
    lines = [_line_over_costs(found, kind) for kind in ("tree", "honaker", "blt")]
    svg = figure("Three kinds of noise, 590 rounds", across="ρ", up=ACCURACY, lines=lines, log=True)
    parts = []
    for cost in ("78", "312", "1250"):
        ahead = compare(found.last(f"blt-{cost}"), found.last(f"honaker-{cost}"), spread())
        claim = f"BLT is ahead of a tree with Honaker's reduction at ρ = {cost}"
        parts.append(Part(claim, f"{ahead} points", judge_more(ahead)))
    sixteenth = compare(found.last("blt-78"), found.last("honaker-1250"), spread())
    claim = f"BLT at ρ = 78 is no more than {POINTS} behind that tree at 1,250"
    parts.append(Part(claim, f"{sixteenth} points", judge_more(sixteenth, than=-CLOSE)))
    rows = []
    for cost in ("78", "312", "1250"):
        cells = [found.last(f"{kind}-{cost}") for kind in ("tree", "honaker", "blt")]
        rows.append([cost, *cells])
    rows.append(["no noise", found.last("none"), "", ""])
    ours = (
        f"at ρ = 78: tree {percent(found.last('tree-78'))}, Honaker"
        f" {percent(found.last('honaker-78'))}, BLT {percent(found.last('blt-78'))}; no noise"
        f" {percent(found.last('none'))}"
    )
    cells = table(["ρ", "tree", "tree with Honaker's reduction", "BLT"], rows)
    return Judged(
        ours=ours,
        parts=parts,
        details=f"{ABOUT_SEEDS}\n\n{cells}",
        figures={"mechanisms.svg": svg},
    )


def _line_over_costs(found: Group, kind: str) -> Line:
    points = []
    for cost in ("78", "312", "1250"):
        accuracy = found.last(f"{kind}-{cost}")
        points.append((float(cost), 100 * accuracy.value))
    return Line(name=kind, points=points)
