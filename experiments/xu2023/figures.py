"""Xu et al. 2023, table by table and figure by figure."""

import math
from dataclasses import replace
from itertools import pairwise

from lib import paper_values, typing_tables
from lib.page import (
    Item,
    Judged,
    Verdict,
    choose_verdict,
    judge_by_groups,
    judge_parts,
    mark_impossible,
    mark_not_run,
    table,
)
from lib.paper_values import XuModel
from lib.results import Group, Result, load_computed, percent, percents, say_lag
from lib.svg import Line, curve, curves, figure

PAPER = "xu2023"
TITLE = "Xu et al. 2023: federated learning of Gboard language models with differential privacy"
ABOUT = """
Their privacy figures are recomputed; their accuracies are of millions of phones. DP-FTRL is tried
on 5,900 bloggers in cohorts of 100 for 590 rounds or 290 (LSTM of 1.35M parameters), and on 36,903
steam users, of whom a fifth of the paper's report goals fit, for 200 rounds. So few people leave no
small ρ at a usable noise; what carries over is how noise, report goals and starts compare.
"""
CLOSE = 0.003
TIED = ("untied", "tied")
# The kind of n-gram that the models replaced.
KATZ = "Katz, with history"
COMPUTE = "python experiments/compute.py"
TYPING = (
    "python experiments/keyboard/table.py local/blogs-1600-30k blogs.parquet"
    " experiments/xu2023/results/typing.json …"
)
# As typing.json names them.
FEWER_WORDS = "10,000 words"
MORE_WORDS = "30,000 words"
STARTS = "a start saves about 1,000 rounds; the adaptive clip norm catches up"
ACCURACY = "AccuracyTop1, %"


def items() -> list[Item]:
    return [
        tables(),
        table_1(),
        table_2(),
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
        tied_embeddings(),
        first_rounds(),
        pretraining(),
        sums(),
        rescoring(),
        mechanisms(),
    ]


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
    return Item(
        name="Tables 1 and 2, privacy",
        about="MinS, MaxP and ρ of 21 models",
        theirs="ρ = 0.25 to 1.86",
        ours=ours,
        verdict=Verdict.HOLDS if near == timed else Verdict.PART,
        command=COMPUTE,
        details=f"{about_cells}\n\n{table(head, rows)}",
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
        verdict=Verdict.HOLDS,
        command=COMPUTE,
        details=table(["ρ", "ε as printed", "recomputed"], rows),
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
    end = starts.last("random").value
    rounds, _ = starts.curve("random")[-1]
    apart = end - starts.last("adaptive").value
    saved = _first_round_with(starts, "pretrained", end)
    ours = (
        f"after {saved} of {rounds} rounds a public start has what a random one ends with; adaptive"
        f" ends {say_lag(apart)}"
    )
    return Judged(
        ours=ours,
        verdict=Verdict.HOLDS if saved < rounds / 2 and abs(apart) < CLOSE else Verdict.PART,
        figures={"starts.svg": svg},
    )


def _first_round_with(group: Group, run: str, least: float) -> float:
    """Return the first round after which a run is as accurate, infinity where it never is."""
    for round, accuracy in group.curve(run):
        if accuracy.value >= least:
            return round
    return math.inf


def figure_4() -> Item:
    about = "ρ by population, report goal, rounds and MinS"
    theirs = "larger goals and MinS give smaller ρ"
    computed = load_computed(PAPER).get("figure_4")
    if not computed:
        return mark_not_run(name="Figure 4", about=about, theirs=theirs, command=COMPUTE)
    figures = {}
    falls = True
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
            falls = falls and all(pairs[-1][1] < pairs[0][1] for pairs in by_noise.values())
    return Item(
        name="Figure 4",
        about=about,
        theirs=theirs,
        ours="so do ours, and a BLT with the same error has less of it everywhere",
        verdict=choose_verdict(holds=falls),
        command=COMPUTE,
        figures=figures,
    )


def _line_of_pairs(name: str, pairs: list[list[float]]) -> Line:
    return Line(name=name, points=[(across, up) for across, up in pairs])


@judge_by_groups(
    paper=PAPER,
    groups="goals",
    name="§2.2",
    about="report goal and noise raised together",
    theirs="500 with z = 0.54 and 6,500 with z = 7 end alike",
)
def goals(found: Group) -> Judged:
    runs = ("100", "650", "1300")
    svg = figure(
        "Report goal and noise raised together, steam",
        across="round",
        up=ACCURACY,
        lines=[curve(found, run, f"{run} reports") for run in runs],
    )
    ends = percents([found.last(run) for run in runs])
    apart = found.last("1300").value - found.last("100").value
    return Judged(
        ours=f"{ends} % with {', '.join(runs)} reports",
        verdict=choose_verdict(holds=apart > -CLOSE),
        figures={"goals.svg": svg},
    )


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
        end = found.last(run)
        gains[run] = end.value - start.value
        changes.append(f"{run} {percent(start)} → {percent(end)}")
    details = (
        "What differs: their start saw half of C4, ours three epochs of 6M words of Wikipedia, from"
        " which both have far to go."
    )
    svg = figure(
        "A public start, round by round",
        across="round",
        up=ACCURACY,
        lines=[curve(found, run, f"{run} embeddings") for run in TIED],
    )
    return Judged(
        ours=f"{', '.join(changes)} after 100 rounds",
        verdict=choose_verdict(holds=gains["tied"] < gains["untied"] - CLOSE),
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
    falls = []
    dips = {}
    for run in TIED:
        first_ten = [accuracy for round, accuracy in found.curve(run) if round <= 10]
        values = [accuracy.value for accuracy in first_ten]
        start = values[0]
        falls.append(start - min(values))
        dips[run] = max(before - after for before, after in pairwise(values))
    below = max(falls)
    by_run = " and ".join(f"{run} by {100 * dip:.2f}" for run, dip in dips.items())
    ours = (
        f"within ten rounds it falls from one measurement to the next, {by_run} points at most, and"
        f" below its start by {100 * below:.2f}"
    )
    verdict = choose_verdict(holds=below > CLOSE, in_part=max(dips.values()) > CLOSE)
    return Judged(ours=ours, verdict=verdict)


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
    ends = [accuracy.value for accuracy in measured]
    first, *others = [later - before for before, later in pairwise(ends)]
    return Judged(
        ours=f"{percents(measured)} % after {', '.join(epochs)} epochs and 290 rounds",
        verdict=choose_verdict(holds=first > max(others)),
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
    is_close = abs(plain.value - modular.value) < CLOSE
    ours = f"{percent(plain)} with plain sums, {percent(modular)} with sums mod M, after 290 rounds"
    return Judged(ours=ours, verdict=choose_verdict(holds=is_close))


@judge_by_groups(
    paper=PAPER,
    groups="rescoring",
    name="Table 2, utility",
    about="30,000 words, to choose among what was nearly typed",
    theirs="words modified −0.72 to −1.99 %",
)
def trained_for_rescoring(found: Group) -> Judged:
    fewer = percent(found.last("10000"))
    more = percent(found.last("30000"))
    ours = f"{fewer} and {more} % with 10,000 and 30,000 words; not typed with yet"
    return Judged(ours=ours, verdict=Verdict.NOT_RUN)


def rescoring() -> Item:
    """Judge by the words that people have to correct, once it is measured."""
    item = trained_for_rescoring()
    if item.seeds == 0:
        return item
    typing = typing_tables.load_results(PAPER, "typing")
    if typing is None:
        return replace(item, command=TYPING)
    modified = {}
    for name, metrics in typing["models"].items():
        modified[name] = metrics["word_modified_ratio"][0]
    larger = modified[MORE_WORDS]
    changes = []
    is_better = []
    for name in (FEWER_WORDS, typing["from"]):
        change = 100 * (larger / modified[name] - 1)
        changes.append(f"{change:+.1f} % from {name}")
        is_better.append(larger < modified[name])
    by_model = ", ".join(changes)
    return replace(
        item,
        ours=f"words modified {by_model}, without privacy; a random start, where theirs was public",
        verdict=judge_parts(is_better),
        details=typing_tables.tables(typing),
    )


@judge_by_groups(
    paper="ramaswamy2020",
    groups="headline",
    name="Table 1, utility",
    about="private models against n-grams, in use",
    theirs="picked +3.26 to +8.28 %, accuracy +7.72 to +12.49 %",
)
def trained_for_table_1(found: Group) -> Judged:
    accuracy = percent(found.last("gboard"))
    return Judged(ours=f"{accuracy} %; not typed with yet", verdict=Verdict.NOT_RUN)


def table_1() -> Item:
    """Judge what people save at Gboard's noise, once it is measured.

    The table is that of Ramaswamy et al., Table 2.
    """
    item = trained_for_table_1()
    typing = typing_tables.load_results("ramaswamy2020", "typing")
    if item.seeds == 0 or typing is None:
        return item
    model = "noise of Xu et al."
    metrics = ("picked_rate", "accuracy_top1")
    changes = []
    for baseline in (KATZ, typing["from"]):
        change = typing_tables.describe_changes(typing, model, metrics, baseline)
        changes.append(f"over {change}")
    return replace(
        item,
        ours=f"at Gboard's noise {'; '.join(changes)}",
        verdict=typing_tables.judge_changes(typing, model, metrics, KATZ),
    )


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
    tree = found.last("tree-78")
    honaker = found.last("honaker-78")
    blt = found.last("blt-78")
    ours = (
        f"at ρ = 78: tree {percent(tree)}, Honaker {percent(honaker)}, BLT {percent(blt)}; no noise"
        f" {percent(found.last('none'))}"
    )
    return Judged(
        ours=ours,
        verdict=choose_verdict(holds=blt.value > honaker.value),
        figures={"mechanisms.svg": svg},
    )


def _line_over_costs(found: Group, kind: str) -> Line:
    points = []
    for cost in ("78", "312", "1250"):
        accuracy = found.last(f"{kind}-{cost}")
        points.append((float(cost), 100 * accuracy.value))
    return Line(name=kind, points=points)
