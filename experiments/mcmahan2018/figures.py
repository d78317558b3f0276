"""McMahan et al. 2018, table by table, figure by figure, and claim by claim of the text."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from lib import paper_values
from lib.page import Item, Judged, judge_by_groups, table
from lib.results import (
    Group,
    Measured,
    Result,
    list_names,
    load_computed,
    measure,
    percent,
    percents,
    say_lag,
)
from lib.svg import Line, curve, curves, figure
from lib.verdicts import (
    Difference,
    Part,
    Spread,
    Verdict,
    compare,
    correlate,
    judge_computed,
    judge_more,
    judge_same,
    last_values,
    pool,
    pool_runs,
    subtract,
)

PAPER = "mcmahan2018"
TITLE = "McMahan et al. 2018: learning differentially private recurrent language models"
ABOUT = """
Their settings (LSTM of 1.35M parameters, rate 6, B = 8, unroll 10, 100 users a round) on the 5,900
bloggers with 1,600 words, where they have 763,430 users of Reddit; 1,500 rounds at most, and 200 to
1,000 where that shows the claim, where they have 3,000 to 20,000. Accuracies are AccuracyTop1 of
655 held-out bloggers. At 100 users a round these noise levels promise nothing: their ε is of a
larger cohort at which the same σ means z = 1, an extrapolation, theirs and ours.
"""
# 0.3 points of AccuracyTop1: what counts as no difference.
CLOSE = 0.003
POINTS = "0.3 points"
# Of ten predictions, how many more may be common words.
SAME_WORDS = 0.1
NAMES = {
    "none": "no noise, S = ∞",
    "0.003-15": "σ = 0.003, S = 15",
    "0.006-10": "σ = 0.006, S = 10",
    "0.012-15": "σ = 0.012, S = 15",
}
CLIPPED_NAMES = {"20": "no noise, S = 20", "15": "no noise, S = 15"}
PRINTED = {
    "none": paper_values.MCMAHAN_NO_NOISE,
    "0.003-15": 0.1749,
    "0.006-10": 0.1704,
    "0.012-15": 0.1633,
}
# What the text says of training on another corpus.
ANOTHER_CORPUS = 0.025
# The noise of Figure 12: σ = 0.012 costs less than what counts as no difference, so that nothing
# could be told by it.
LOUD = "0.048"
# Norms that FedSGD ends alike with, so that how far these runs are apart is what seeds would be.
ALIKE_UNDER_SGD = ("2", "5", "20")
# Clip norms at z = 0.06.
NORMS = ("5", "7.9", "10", "12.6", "20")
# Dictionaries with more words than the usual 10,000.
LARGER = (20000, 30000)
# Of other models than the LSTM, the one that does not predict words.
OTHER_TOKENS = "characters"
# A model that always says the commonest words has less.
LEARNED = 0.1
TABLE_2 = "17.62 → 17.49, 17.04, 16.33 % at ε = 4.634, 2.314, 2.038 (δ = 1e-9)"
ACCURACY = "AccuracyTop1, %"
NOT_YET = "not measured yet"
SGD_SEEDS = (
    "No run of FedSGD has a second seed. Without noise, S = 2, 5 and 20 end alike: intervals of"
    " FedSGD are by how far these are apart in the second half of the rounds. FedSGD trains 50"
    " users a round, each with one gradient on all of their text."
)
# Groups whose runs are clipped, so that their seeds stay together, and those that are not.
CLIPPED_GROUPS = (
    "cohorts",
    "clip",
    "trade-off",
    "later",
    "noise-clipped",
    "users-clipped",
    "estimators-clipped",
    "heads",
    "greedy",
    "penalty",
)
UNCLIPPED_GROUPS = ("users", "estimators")
# Of `heads`, runs with the settings of `levels`, whose further seeds count there too.
SAME_AS_LEVELS = {
    "flat-0.003": "0.003-100",
    "flat-0.012": "0.012-100",
    "flat-0.024": "0.024-100",
    "flat-0.048": "0.048-100",
}


def items() -> list[Item]:
    return [
        table_1(),
        table_2(),
        epsilons_of_the_text(),
        table_3(),
        figure_1(),
        noise_later_on(),
        figure_2(),
        flat_against_per_layer(),
        figure_3(),
        trade_off_from_the_start(),
        trade_off_later(),
        figure_5(),
        figure_6(),
        figure_7(),
        figure_9(),
        figure_10(),
        rounds_of_fedsgd(),
        figure_11(),
        figure_12(),
        more_words(),
        penalty(),
        another_corpus(),
        greedy(),
        *other_models(),
    ]


def clipped_spread() -> Spread:
    """Return how far seeds of runs with a clip norm are apart."""
    groups: list[tuple[Group, Sequence[str] | None]] = [
        (Group(PAPER, name), None) for name in CLIPPED_GROUPS
    ]
    groups.append((Group(PAPER, "noise"), [name for name in NAMES if name != "none"]))
    return pool_runs(groups)


def unclipped_spread() -> Spread:
    """Return how far seeds of runs without a clip norm are apart: at a rate of 6, further."""
    groups: list[tuple[Group, Sequence[str] | None]] = [
        (Group(PAPER, name), None) for name in UNCLIPPED_GROUPS
    ]
    groups.append((Group(PAPER, "noise"), ["none"]))
    return pool_runs(groups)


def fedsgd_spread() -> Spread:
    """Return how far runs of FedSGD are apart that end alike, in the second half of the rounds."""
    found = Group(PAPER, "sgd-clip")
    rounds = [round for round, _ in found.curve(ALIKE_UNDER_SGD[0])]
    later = [round for round in rounds if 2 * round >= rounds[-1]]
    return pool([[found.at(norm, round).value for norm in ALIKE_UNDER_SGD] for round in later])


def _with_more_seeds(levels: Group) -> Group:
    """Add the seeds that were trained to count common words in their predictions."""
    heads = Group(PAPER, "heads")
    for name, same in SAME_AS_LEVELS.items():
        seeds = {result["seed"] for result in levels.found[name]}
        further = [result for result in heads.found[same] if result["seed"] not in seeds]
        levels.found[name] = [*levels.found[name], *further]
    return levels


def table_1() -> Item:
    rows = []
    off = 0.0
    below = 0
    count = 0
    for row in load_computed(PAPER)["table_1"]:
        theirs = paper_values.MCMAHAN_TABLE_1[row["users"], row["cohort"], row["noise_multiplier"]]
        cells = [_setting(row)]
        for printed, moments, pld in zip(theirs, row["moments"], row["pld"], strict=True):
            off = max(off, abs(printed - moments))
            below += pld < moments
            count += 1
            cells.append(f"{printed:.2f} / {moments:.2f} / **{pld:.2f}**")
        rows.append(cells)
    about_cells = (
        "ε at δ = K^−1.1: printed / the moments accountant of 2016 / **ours** (privacy loss"
        " distributions)."
    )
    powers = [f"10^{power}" for power in range(7)]
    parts = [
        Part(
            "every cell, to a unit of its last digit",
            f"{off:.3f} off",
            judge_computed(off < 0.0101),
        ),
        Part("an upper bound", f"ours is below {below} of {count}", judge_computed(below == count)),
    ]
    return Item(
        name="Table 1",
        about="ε of 1 to 10⁶ rounds, at δ = K^−1.1",
        theirs=f"{count} cells",
        ours=f"all {count} to {off:.3f}, with the accountant of 2016",
        parts=parts,
        command="python experiments/compute.py",
        details=f"{about_cells}\n\n{table(['δ = K^−1.1', *powers], rows)}",
    )


def _setting(row: Result) -> str:
    users = f"{row['users']:.0e}".replace("e+0", "e")
    return f"K = {users}, {row['cohort']:g} a round, z = {row['noise_multiplier']:g}"


def _find_best_without_noise(noise: Group) -> tuple[Group, str, str, Spread]:
    """Return the most accurate model without noise, as a run of a group, with its name: what noise
    costs is counted from it.
    """
    found = [(noise, "none", NAMES["none"], unclipped_spread())]
    clipped = Group(PAPER, "noise-clipped")
    if clipped.is_whole:
        for run, name in CLIPPED_NAMES.items():
            found.append((clipped, run, name, clipped_spread()))
    return max(found, key=lambda one: one[0].last(one[1]).value)


def _best_without_noise(noise: Group) -> tuple[Measured, str, Spread]:
    group, run, name, spread = _find_best_without_noise(noise)
    return group.last(run), name, spread


def _little_is_lost(noise: Group) -> Part:
    """Judge what the least noise costs, two-sided: a gain is not «no loss», it is a baseline that
    is not the best.
    """
    base, name, spread = _best_without_noise(noise)
    change = compare(noise.last("0.003-15"), base, clipped_spread(), spread)
    return Part(
        f"σ = 0.003 is within {POINTS} of the best model without noise (here {name})",
        f"{change} points",
        judge_same(change, CLOSE),
    )


@judge_by_groups(
    paper=PAPER,
    groups="noise",
    name="Table 2",
    about="ε, and what noise costs in accuracy",
    theirs=TABLE_2,
)
def accuracy_of_table_2(noise: Group) -> Judged:
    base, _, _ = _best_without_noise(noise)
    rows = _rows_without_noise(noise)
    for run, theirs in PRINTED.items():
        if run == "none":
            continue
        noised = noise.last(run)
        their_change = 100 * (theirs - PRINTED["none"])
        our_change = 100 * (noised.value - base.value)
        rows.append(
            [
                NAMES[run],
                f"{100 * theirs:.2f}",
                noised,
                noised.seeds,
                f"{their_change:+.2f}",
                f"{our_change:+.2f}",
            ]
        )
    parts = [_little_is_lost(noise)]
    noised_runs = [run for run in NAMES if run != "none"]
    for less, more in pairwise(noised_runs):
        loss = compare(noise.last(less), noise.last(more), clipped_spread())
        claim = f"{NAMES[more]} costs more than {NAMES[less]}"
        parts.append(Part(claim, f"{loss} points", judge_more(loss)))
    head = [
        "",
        "paper, 5,000 rounds",
        "ours, 1,500 rounds",
        "seeds",
        "paper: change from S = ∞",
        "ours: change from the best without noise",
    ]
    about_seeds = (
        f"Seeds of runs with a clip norm are {clipped_spread()} apart, of those without"
        f" {unclipped_spread()}: standard deviations, pooled over all runs that have several."
    )
    noised = [noise.last(run) for run in noised_runs]
    without = percents([noise.last("none"), *_clipped_baselines()])
    baselines = "S = ∞, 20, 15" if _clipped_baselines() else "S = ∞; S = 20 not measured yet"
    return Judged(
        ours=f"{without} ({baselines}) → {percents(noised)} %",
        parts=parts,
        details=f"{table(head, rows)}\n\n{about_seeds}",
    )


def _clipped_baselines() -> list[Measured]:
    clipped = Group(PAPER, "noise-clipped")
    return [clipped.last(run) for run in CLIPPED_NAMES] if clipped.is_whole else []


def _rows_without_noise(noise: Group) -> list[list[object]]:
    """Show the paper's baseline, which is not clipped, and those that are."""
    printed = f"{100 * PRINTED['none']:.2f}"
    base = noise.last("none")
    rows: list[list[object]] = [[NAMES["none"], printed, base, base.seeds, "", ""]]
    baselines = _clipped_baselines()
    for place, name in enumerate(CLIPPED_NAMES.values()):
        if baselines:
            rows.append([name, "", baselines[place], baselines[place].seeds, "", ""])
        else:
            rows.append([name, "", NOT_YET, "", "", ""])
    return rows


def table_2() -> Item:
    """Add ε to what was trained: it is computed whether or not anything was."""
    item = accuracy_of_table_2()
    epsilons = _computed_epsilons()
    rows = []
    off = 0.0
    for (sigma, clip, users, cohort), (epsilon, _) in paper_values.MCMAHAN_TABLE_2.items():
        computed = epsilons[users, cohort, 5000, 1e-9]
        off = max(off, abs(computed["moments"] - epsilon))
        rows.append(
            [
                f"{sigma:g}, {clip}",
                f"{users:,.0f}",
                f"{cohort:,}",
                epsilon,
                f"{computed['moments']:.3f}",
                f"**{computed['pld']:.3f}**",
            ]
        )
    head = [
        "σ, S",
        "users",
        "a round, for z = 1",
        "ε at δ = 1e-9 as printed",
        "accountant of 2016",
        "ours",
    ]
    extrapolated = (
        "ε at δ = 1e-9 after 5,000 rounds. An extrapolation, theirs and ours: nothing is trained"
        " with that many users."
    )
    exact = Part("every ε as printed", f"{off:.3f} off", judge_computed(off < 0.0011))
    parts = [*item.parts, exact]
    details = "\n\n".join(filter(None, [item.details, extrapolated, table(head, rows)]))
    if item.verdict is Verdict.NOT_RUN:
        return replace(item, details=details)
    return replace(item, details=details, parts=parts)


def _computed_epsilons() -> dict[tuple[float, float, int, float], Result]:
    rows = load_computed(PAPER)["epsilons"]
    return {(row["users"], row["cohort"], row["rounds"], row["delta"]): row for row in rows}


def epsilons_of_the_text() -> Item:
    computed = _computed_epsilons()
    parts = []
    for setting, printed in paper_values.MCMAHAN_TEXT.items():
        users, cohort, rounds, delta = setting
        ours = computed[setting]["moments"]
        # As many digits as are printed.
        unit = 0.1 if printed in (1.2, 4.6) else 0.01
        claim = (
            f"ε = {printed} at δ = {delta:g}, {cohort:,} of {users:,.0f} users, {rounds:,} rounds"
        )
        measured = f"{ours:.3f}; our accountant {computed[setting]['pld']:.3f}"
        parts.append(Part(claim, measured, judge_computed(abs(ours - printed) <= unit)))
    first = ", ".join(f"{printed:g}" for printed in paper_values.MCMAHAN_TEXT.values())
    ours = ", ".join(f"{computed[setting]['moments']:.2f}" for setting in paper_values.MCMAHAN_TEXT)
    return Item(
        name="§3 and appendix D, ε",
        about="ε that the text names (δ = 1e-9, the second, of the first version, at 1e-6)",
        theirs=first,
        ours=ours,
        parts=parts,
        command="python experiments/compute.py mcmahan2018",
    )


@judge_by_groups(
    paper=PAPER,
    groups="noise",
    name="Table 3",
    about="whether noise pushes towards common words",
    theirs="only as far as it makes a model worse; neither cohort nor noise matters",
)
def table_3(noise: Group) -> Judged:
    named = [(name, noise.found[run]) for run, name in NAMES.items()]
    clipped = Group(PAPER, "noise-clipped")
    if clipped.is_whole:
        named += [(name, clipped.found[run]) for run, name in CLIPPED_NAMES.items()]
    heads = Group(PAPER, "heads")
    for run, results in heads.found.items():
        if results:
            named.append((_name_of_heads(run), results))
    rows = []
    accuracies = []
    counts = []
    for name, results in named:
        by_head = [_measure_counts(results, head) for head in range(3)]
        accuracies.append(float(np.mean(last_values(results))))
        counts.append(by_head[-1].value)
        shown = [f"{count.value:.2f}" for count in by_head]
        rows.append([name, f"{100 * accuracies[-1]:.2f}", *shown, len(results)])
    without = _measure_counts(noise.found["none"])
    least = _measure_counts(noise.found["0.003-15"])
    spread = _spread_of_counts([results for _, results in named])
    change = compare(least, without, spread)
    claim = f"σ = 0.003 changes less than {SAME_WORDS} of ten words"
    parts = [
        _better_models_say_fewer(accuracies, counts),
        Part(claim, _show_words(change), judge_same(change, SAME_WORDS)),
        _cohorts_say_the_same(heads, spread),
        *(_says_what_its_quality_says(heads, run, spread) for run in ("0.048-100", "0.096-100")),
    ]
    about_cells = (
        "How many of a model's ten best predictions are among the n most frequent words, on"
        f" average. Parts are of n = 100, where all of these models are within"
        f" {max(counts) - min(counts):.1f} words, and seeds of one run {spread.deviation:.2f} words"
        f" apart ({spread.degrees} degrees of freedom)."
    )
    head = ["", ACCURACY, "n = 10", "n = 50", "n = 100", "seeds"]
    ours = (
        f"of ten predictions {without.value:.2f} are among the 100 commonest without noise,"
        f" {least.value:.2f} at σ = 0.003; {len(named)} models, the paper has 11"
    )
    return Judged(ours=ours, parts=parts, details=f"{about_cells}\n\n{table(head, rows)}")


def _name_of_heads(run: str) -> str:
    kind, count = run.split("-")
    if kind == "early":
        return f"σ = 0.003, S = 20, {count} rounds"
    if kind == "short":
        return f"σ = 0.012, S = 15, {int(count):,} users a round, 200 rounds"
    return f"σ = {kind}, S = 20, 500 rounds"


def _better_models_say_fewer(accuracies: Sequence[float], counts: Sequence[float]) -> Part:
    low, high = correlate(accuracies, counts)
    verdict = Verdict.UNTOLD
    if high < 0:
        verdict = Verdict.HOLDS
    elif low > 0:
        verdict = Verdict.FAILS
    measured = f"their correlation is {low:+.2f} to {high:+.2f} over {len(counts)} models"
    return Part("better models say fewer common words", measured, verdict)


def _cohorts_say_the_same(heads: Group, spread: Spread) -> Part:
    claim = f"1,250 users a round change less than {SAME_WORDS} of ten words"
    few = heads.found["short-100"]
    many = heads.found["short-1250"]
    if not (few and many):
        return Part(claim, NOT_YET, Verdict.NOT_RUN)
    change = compare(_measure_counts(many), _measure_counts(few), spread)
    return Part(claim, _show_words(change), judge_same(change, SAME_WORDS))


def _says_what_its_quality_says(heads: Group, run: str, spread: Spread) -> Part:
    """Judge whether a model that noise made worse says as many common words as one with hardly any
    noise that is as accurate: between those that were trained for 25 to 500 rounds.
    """
    claim = (
        f"a model that σ = {run.split('-')[0]} made worse says as many as one of its quality with"
        f" less noise, to {SAME_WORDS} of ten"
    )
    steps = ("early-25", "early-50", "early-100", "0.003-100")
    if not all(heads.found[name] for name in (*steps, run)):
        return Part(claim, NOT_YET, Verdict.NOT_RUN)
    points = []
    for step in steps:
        count = _measure_counts(heads.found[step])
        points.append((heads.last(step).value, count))
    points.sort(key=lambda point: point[0])
    across, counts = zip(*points, strict=True)
    expected = np.interp(heads.last(run).value, across, [count.value for count in counts])
    # As uncertain as the least certain of those that it is between.
    like = min(counts, key=lambda count: count.seeds)._replace(value=float(expected))
    off = compare(_measure_counts(heads.found[run]), like, spread)
    return Part(claim, _show_words(off), judge_same(off, SAME_WORDS))


def _measure_counts(results: Sequence[Result], head: int = 2) -> Measured:
    """Return how many of ten predictions are among the most frequent words, over seeds."""
    rows = [{"words": _count_words(result, head)} for result in results]
    return measure(rows, "words")


def _count_words(result: Result, head: int = 2) -> float:
    shares = result["head_words"][head]
    return sum(place * share for place, share in enumerate(shares))


def _spread_of_counts(several: Sequence[Sequence[Result]]) -> Spread:
    return pool([[_count_words(result) for result in results] for results in several])


def _show_words(change: Difference) -> str:
    return f"{change.value:+.2f} ± {change.margin:.2f} words"


@judge_by_groups(
    paper=PAPER,
    groups="noise",
    name="Figure 1",
    about="training with noise, in curves",
    theirs="σ = 0.003 nearly matches the baseline",
)
def figure_1(noise: Group) -> Judged:
    lines = curves(noise, NAMES)
    clipped = Group(PAPER, "noise-clipped")
    if clipped.is_whole:
        lines += curves(clipped, CLIPPED_NAMES)
    svg = figure("Noise at 100 users a round", across="round", up=ACCURACY, lines=lines)
    noised = noise.last("0.003-15").value
    ours = f"σ = 0.003 is {say_lag(noise.last('none').value - noised)} S = ∞"
    baselines = _clipped_baselines()
    if baselines:
        ours += f", {say_lag(baselines[0].value - noised)} S = 20, both without noise"
    else:
        ours += " without noise, which is not the best; S = 20 not measured yet"
    return Judged(ours=ours, parts=[_little_is_lost(noise)], figures={"noise.svg": svg})


@judge_by_groups(
    paper=PAPER,
    groups="noise",
    name="§3, noise later on",
    about="the longer the training, the more noise costs",
    theirs="each level eventually becomes detrimental",
)
def noise_later_on(noise: Group) -> Judged:
    group, base, name, spread = _find_best_without_noise(noise)
    parts = []
    costs = []
    # Nothing was learned before the first.
    first = noise.curve("0.003-15")[1][0]
    for run in [run for run in NAMES if run != "none"]:
        early = compare(group.at(base, first), noise.at(run, first), spread, clipped_spread())
        late = compare(group.last(base), noise.last(run), spread, clipped_spread())
        costs.append(f"{100 * early.value:.2f} → {100 * late.value:.2f}")
        grown = subtract(late, early)
        claim = f"{NAMES[run]} is below the best without noise (here {name}) in the end"
        parts.append(Part(claim, f"{late} points", judge_more(late)))
        claim = f"{NAMES[run]} costs more in the end than after {first} rounds"
        parts.append(Part(claim, f"{grown} points more", judge_more(grown)))
    ours = (
        f"σ = 0.003, 0.006 and 0.012 cost {list_names(costs)} points against {name}, from round"
        f" {first} to the end"
    )
    return Judged(ours=ours, parts=parts)


@judge_by_groups(
    paper=PAPER,
    groups="clip",
    name="Figure 2",
    about="clip norms without noise",
    theirs="S from 10 to 20 has at most a small effect",
)
def figure_2(clip: Group) -> Judged:
    svg = figure(
        "Clip norms without noise",
        across="S",
        up=ACCURACY,
        lines=_flat_and_per_layer(clip, (1, 5, 10, 15, 20)),
        log=True,
    )
    parts = []
    for norm in (10, 15):
        change = compare(clip.last(f"flat-{norm}"), clip.last("flat-20"), clipped_spread())
        claim = f"S = {norm} is within {POINTS} of S = 20"
        parts.append(Part(claim, f"{change} points", judge_same(change, CLOSE)))
    measured = [clip.last(f"flat-{norm}") for norm in (10, 15, 20)]
    details = (
        "What differs: 500 rounds of 5,900 bloggers, where the paper has up to 3,000 rounds of"
        " 763,430 users."
    )
    return Judged(
        ours=f"{percents(measured)} % at S = 10, 15 and 20 after 500 rounds",
        parts=parts,
        details=details,
        figures={"clip.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="clip",
    name="Figure 2, flat and per layer",
    about="one clip norm, or one for each layer (first version of the paper)",
    theirs="flat slightly ahead for S from 10 to 20",
)
def flat_against_per_layer(clip: Group) -> Judged:
    parts = []
    shown = []
    for norm in (10, 15, 20):
        ahead = compare(clip.last(f"flat-{norm}"), clip.last(f"per-layer-{norm}"), clipped_spread())
        parts.append(Part(f"flat is ahead at S = {norm}", f"{ahead} points", judge_more(ahead)))
        shown.append(f"{100 * ahead.value:+.2f}")
    return Judged(ours=f"{list_names(shown)} points at S = 10, 15 and 20", parts=parts)


@judge_by_groups(
    paper=PAPER,
    groups="levels",
    name="Figure 3",
    about="noise at S = 20, flat and per layer",
    theirs="early almost no loss at σ = 0.024, later more; 0.2 destroys",
)
def figure_3(levels: Group) -> Judged:
    levels = _with_more_seeds(levels)
    spread = clipped_spread()
    early = compare(levels.at("flat-0.003", 100), levels.at("flat-0.024", 100), spread)
    late = compare(levels.last("flat-0.003"), levels.last("flat-0.024"), spread)
    gone = compare(levels.last("flat-0.003"), levels.last("flat-0.2"), spread)
    grown = subtract(late, early)
    half = levels.last("flat-0.003").value / 2
    svg = figure(
        "Noise at S = 20",
        across="σ",
        up=ACCURACY,
        lines=_flat_and_per_layer(levels, (0.003, 0.012, 0.024, 0.048, 0.2)),
        log=True,
    )
    claim = f"σ = 0.024 costs less than {POINTS} against σ = 0.003 after 100 rounds"
    parts = [
        Part(claim, f"{early} points", judge_same(early, CLOSE)),
        Part("it costs more after 500", f"{grown} points more", judge_more(grown)),
        Part("σ = 0.2 costs more than half", f"{gone} points", judge_more(gone, than=half)),
    ]
    ours = (
        f"against σ = 0.003, 0.024 costs {100 * early.value:.2f} points after 100 rounds and"
        f" {100 * late.value:.2f} after 500, 0.2 costs {100 * gone.value:.1f} and leaves"
        f" {percent(levels.last('flat-0.2'))} %"
    )
    return Judged(ours=ours, parts=parts, figures={"levels.svg": svg})


@judge_by_groups(
    paper=PAPER,
    groups="trade-off",
    name="Figures 4 and 8, from the start",
    about="clip norm and noise at equal cost",
    theirs="S from 10 to 12.6 works well",
)
def trade_off_from_the_start(trade_off: Group) -> Judged:
    spread = clipped_spread()
    parts = []
    for norm in ("10", "12.6"):
        for other in ("7.9", "20"):
            ahead = compare(trade_off.last(norm), trade_off.last(other), spread)
            claim = f"S = {norm} is ahead of S = {other}"
            parts.append(Part(claim, f"{ahead} points", judge_more(ahead)))
    measured = [trade_off.last(norm) for norm in NORMS]
    runs = {float(norm): norm for norm in NORMS}
    line = _across(trade_off, "from the start", runs, rounds=500)
    svg = figure("Clip norm and noise at z = 0.06", across="S", up=ACCURACY, lines=[line], log=True)
    return Judged(
        ours=f"{percents(measured)} % at S = {', '.join(NORMS)} after 500 rounds",
        parts=parts,
        figures={
            "trade-off.svg": svg,
            "trade-off-start.svg": _draw_trade_off(trade_off, "from the start"),
        },
    )


@judge_by_groups(
    paper=PAPER,
    groups="later",
    name="Figures 4 and 8, later on",
    about="a smaller clip norm from some round on, at equal cost",
    theirs="S = 7.9 is better from round 4,885 on",
)
def trade_off_later(later: Group) -> Judged:
    parts = []
    for other in ("12.6", "20"):
        ahead = compare(later.last("7.9"), later.last(other), clipped_spread())
        claim = f"S = 7.9 is ahead of S = {other}"
        parts.append(Part(claim, f"{ahead} points", judge_more(ahead)))
    measured = [later.last(norm) for norm in NORMS]
    details = "What differs: S = 20 for 750 rounds, and then 250 more, where they have 6,000 more."
    return Judged(
        ours=f"{percents(measured)} % at S = {', '.join(NORMS)} from round 750 to 1,000",
        parts=parts,
        details=details,
        figures={"trade-off-later.svg": _draw_trade_off(later, "S = 20 up to round 750")},
    )


def _draw_trade_off(group: Group, when: str) -> str:
    names = {norm: f"S = {norm}, σ = {0.0006 * float(norm):.4g}" for norm in NORMS}
    title = f"Clip norm and noise at z = 0.06, {when}"
    return figure(title, across="round", up=ACCURACY, lines=curves(group, names))


@judge_by_groups(
    paper=PAPER,
    groups="estimators",
    name="Figure 5",
    about="cohorts of one size or drawn, three estimators of the average",
    theirs="none of them matters",
)
def figure_5(estimators: Group) -> Judged:
    names = {
        "fixed-average": "100 exactly, true average",
        "drawn-average": "drawn, true average",
        "drawn-fixed": "drawn, fixed denominator",
        "drawn-clipped": "drawn, clipped denominator",
    }
    lines = curves(estimators, names)
    svg = figure("Cohorts and estimators", across="round", up=ACCURACY, lines=lines)
    parts = _same_as_first(estimators, names, spread=unclipped_spread(), beside="")
    measured = [estimators.last(run) for run in names]
    ours = f"{percents(measured)} % after 200 rounds"
    clipped = Group(PAPER, "estimators-clipped")
    if clipped.is_whole:
        beside = [clipped.last(run) for run in names]
        ours += f"; clipped at S = 20 {percents(beside)} %"
        parts += _same_as_first(clipped, names, spread=clipped_spread(), beside=", both at S = 20")
    return Judged(ours=ours, parts=parts, figures={"estimators.svg": svg})


def _same_as_first(
    group: Group, names: dict[str, str], *, spread: Spread, beside: str
) -> list[Part]:
    """Judge whether each run is as accurate as the first."""
    first, *others = names
    parts = []
    for other in others:
        change = compare(group.last(other), group.last(first), spread)
        claim = f"{names[other]} is within {POINTS} of {names[first]}{beside}"
        parts.append(Part(claim, f"{change} points", judge_same(change, CLOSE)))
    return parts


COHORTS = ("10", "50", "100", "500")


@judge_by_groups(
    paper=PAPER,
    groups="users",
    name="Figure 6",
    about="more users a round, without clip or noise",
    theirs="diminishing returns",
)
def figure_6(users: Group) -> Judged:
    lines = [curve(users, cohort, f"{cohort} users") for cohort in COHORTS]
    measured = [users.last(cohort) for cohort in COHORTS]
    ours = f"{percents(measured)} % with {', '.join(COHORTS)} users after 200 rounds"
    details = "Clipped at S = 20, beside it: not measured yet."
    clipped = Group(PAPER, "users-clipped")
    if clipped.is_whole:
        lines += [curve(clipped, cohort, f"{cohort} users, S = 20") for cohort in COHORTS]
        beside = [clipped.last(cohort) for cohort in COHORTS]
        ours += f"; clipped at S = 20 {percents(beside)} %"
        verdicts = _diminishing(clipped, clipped_spread())
        details = (
            "Clipped at S = 20, which the paper does not do here:\n\n"
            f"{table(('claim', 'measured', 'verdict'), verdicts)}"
        )
    svg = figure("Users a round, without noise", across="round", up=ACCURACY, lines=lines)
    return Judged(
        ours=ours,
        parts=_diminishing(users, unclipped_spread()),
        details=details,
        figures={"users.svg": svg},
    )


def _diminishing(users: Group, spread: Spread) -> list[Part]:
    """Judge whether more users help, less and less, and never do harm."""
    first = compare(users.last("50"), users.last("10"), spread)
    last = compare(users.last("500"), users.last("100"), spread)
    less = subtract(first, last)
    claim = "500 users are no worse than 100, by more than 0.1 points"
    return [
        Part("50 users are better than 10", f"{first} points", judge_more(first)),
        Part("from 100 to 500 there is less to gain", f"{less} points less", judge_more(less)),
        Part(claim, f"{last} points", judge_more(last, than=-0.001)),
    ]


@judge_by_groups(
    paper=PAPER,
    groups="cohorts",
    name="Figure 7",
    about="accuracy depends on σ, not on the cohort",
    theirs="100 and 1,250 users a round: almost identical curves",
)
def figure_7(cohorts: Group) -> Judged:
    names = {
        "100": "σ = 0.012, 100 users, z = 0.08",
        "1250": "σ = 0.012, 1,250 users, z = 1",
        "loud-100": "σ = 0.048, 100 users, z = 0.32",
        "loud-1250": "σ = 0.048, 1,250 users, z = 4",
    }
    svg = figure("The same σ, S = 15", across="round", up=ACCURACY, lines=curves(cohorts, names))
    spread = clipped_spread()
    parts = []
    shown = []
    for few, many, sigma in (("100", "1250", "0.012"), ("loud-100", "loud-1250", "0.048")):
        change = compare(cohorts.last(many), cohorts.last(few), spread)
        claim = f"1,250 users are within {POINTS} of 100 at σ = {sigma}"
        parts.append(Part(claim, f"{change} points", judge_same(change, CLOSE)))
        shown.append(f"{100 * change.value:+.2f} points at σ = {sigma}")
    cost = compare(cohorts.last("1250"), cohorts.last("loud-1250"), spread)
    details = (
        f"**Every extrapolated ε on this page rests on it.** Noise does show within 200 rounds:"
        f" σ = 0.048 costs {cost} points against 0.012."
    )
    return Judged(
        ours=f"{' and '.join(shown)}, after 200 rounds",
        parts=parts,
        details=details,
        figures={"cohorts.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="sgd-clip clip",
    name="Figure 9",
    about="clip norms of FedSGD",
    theirs="a much smaller S does: 2, where FedAvg takes 15",
)
def figure_9(sgd: Group, averaging: Group) -> Judged:
    runs = {float(norm): norm for norm in ("0.5", "1", "2", "5", "20")}
    svg = figure(
        "FedSGD: clip norms without noise",
        across="S",
        up=ACCURACY,
        lines=[_across(sgd, "FedSGD", runs, rounds) for rounds in (100, 1000)],
        log=True,
    )
    change = compare(sgd.last("2"), sgd.last("20"), fedsgd_spread())
    loss = compare(averaging.last("flat-20"), averaging.last("flat-5"), clipped_spread())
    parts = [
        Part(
            f"FedSGD with S = 2 is within {POINTS} of S = 20",
            f"{change} points",
            judge_same(change, CLOSE),
        ),
        Part(
            f"FedAvg loses more than {POINTS} at S = 5 against S = 20",
            f"{loss} points",
            judge_more(loss, than=CLOSE),
        ),
    ]
    ours = (
        f"FedSGD {percent(sgd.last('2'))} % at S = 2, {percent(sgd.last('20'))} at 20 after 1,000"
        f" rounds; FedAvg loses {100 * loss.value:.2f} points at S = 5"
    )
    return Judged(ours=ours, parts=parts, details=SGD_SEEDS, figures={"sgd-clip.svg": svg})


@judge_by_groups(
    paper=PAPER,
    groups="sgd-levels sgd-clip levels clip",
    name="Figure 10",
    about="noise under FedSGD",
    theirs="more sensitive to noise than FedAvg at the same σ",
)
def figure_10(sgd: Group, sgd_clip: Group, averaging: Group, clip: Group) -> Judged:
    averaging = _with_more_seeds(averaging)
    sgd_runs = {float(level): level for level in ("0.0005", "0.002", "0.006", "0.012", "0.024")}
    averaging_runs = {level: f"flat-{level}" for level in (0.003, 0.012, 0.024, 0.048)}
    lines = [
        _across(sgd, "FedSGD", sgd_runs, rounds=500),
        _across(averaging, "FedAvg", averaging_runs, rounds=500),
    ]
    svg = figure("Noise at S = 20", across="σ", up=ACCURACY, lines=lines, log=True)
    # Noise adds up over rounds: both after as many.
    rounds = clip.curve("flat-20")[-1][0]
    sgd_cost = compare(sgd_clip.at("20", rounds), sgd.at("0.012", rounds), fedsgd_spread())
    averaging_cost = compare(clip.last("flat-20"), averaging.last("flat-0.012"), clipped_spread())
    more = subtract(sgd_cost, averaging_cost)
    ours = (
        f"after {rounds} rounds σ = 0.012 costs FedSGD {100 * sgd_cost.value:.2f} points, FedAvg"
        f" {100 * averaging_cost.value:.2f}"
    )
    details = (
        f"{SGD_SEEDS} After 1,000 rounds it has {percent(sgd_clip.last('20'))} % without noise,"
        f" {percent(sgd.last('0.012'))} with it."
    )
    claim = (
        f"at S = 20, σ = 0.012 costs FedSGD more than FedAvg after {rounds} rounds, each from no"
        " noise"
    )
    return Judged(
        ours=ours,
        parts=[Part(claim, f"{more} points more", judge_more(more))],
        details=details,
        figures={"sgd-levels.svg": svg},
    )


@judge_by_groups(
    paper=PAPER,
    groups="sgd-clip clip",
    name="Appendix D, FedSGD",
    about="rounds until an accuracy is reached",
    theirs="FedSGD takes a significantly larger number than FedAvg",
)
def rounds_of_fedsgd(sgd: Group, averaging: Group) -> Judged:
    best = max(sgd.found, key=lambda run: sgd.last(run).value)
    reached = sgd.last(best)
    rounds = sgd.curve(best)[-1][0]
    fewer = rounds // 2
    ahead = compare(averaging.at("flat-20", fewer), reached, clipped_spread(), fedsgd_spread())
    claim = (
        f"FedAvg (S = 20) has more after {fewer} rounds than FedSGD (S = {best}, its best) after"
        f" {rounds:,}"
    )
    ours = (
        f"FedSGD has {percent(reached)} % after {rounds:,} rounds of 50 users, FedAvg"
        f" {percent(averaging.at('flat-20', fewer))} after {fewer} of 100"
    )
    return Judged(
        ours=ours,
        parts=[Part(claim, f"{ahead} points", judge_more(ahead))],
        details=SGD_SEEDS,
    )


@judge_by_groups(
    paper=PAPER,
    groups="words-clip clip",
    name="Figure 11",
    about="clip norms with 20,000 and 30,000 words",
    theirs="the same S does",
)
def figure_11(words: Group, ten: Group) -> Judged:
    svg = figure(
        "Clip norms and larger dictionaries",
        across="S",
        up=ACCURACY,
        lines=_by_words(words, ten, (5, 10, 20)),
        log=True,
    )
    parts = []
    shown = []
    for many, group, kind in _dictionaries(words, ten):
        others = {norm: group.at(f"{kind}-{norm}", 300) for norm in ("5", "10")}
        second = max(others, key=lambda norm: others[norm].value)
        ahead = compare(group.at(f"{kind}-20", 300), others[second], clipped_spread())
        claim = f"of S = 5, 10 and 20 the last is best with {many:,} words"
        shown.append(f"{100 * ahead.value:.2f}")
        parts.append(Part(claim, f"{ahead} points ahead of S = {second}", judge_more(ahead)))
    ours = (
        f"with 10,000, 20,000 and 30,000 words S = 20 is {list_names(shown)} points ahead of the"
        " next, after 300 rounds"
    )
    details = "S = 20 is the largest that was tried: a larger one may be better still."
    return Judged(ours=ours, parts=parts, details=details, figures={"words-clip.svg": svg})


@judge_by_groups(
    paper=PAPER,
    groups="words-levels levels",
    name="Figure 12",
    about="noise with 20,000 and 30,000 words",
    theirs="the same σ does",
)
def figure_12(words: Group, ten: Group) -> Judged:
    ten = _with_more_seeds(ten)
    svg = figure(
        "Noise at S = 20 and larger dictionaries",
        across="σ",
        up=ACCURACY,
        lines=_by_words(words, ten, (0.003, 0.012, 0.048)),
        log=True,
    )
    spread = clipped_spread()
    costs = {}
    for many, group, kind in _dictionaries(words, ten):
        low = group.at(f"{kind}-0.003", 300)
        costs[many] = compare(low, group.at(f"{kind}-{LOUD}", 300), spread)
    parts = []
    for many in LARGER:
        more = subtract(costs[many], costs[10_000])
        claim = f"σ = {LOUD} costs {many:,} words as much as 10,000, within {POINTS}"
        parts.append(Part(claim, f"{more} points more", judge_same(more, CLOSE)))
    shown = [f"{100 * cost.value:.2f}" for cost in costs.values()]
    ours = (
        f"σ = {LOUD} costs {list_names(shown)} points against 0.003 with 10,000, 20,000 and 30,000"
        " words, after 300 rounds"
    )
    return Judged(ours=ours, parts=parts, figures={"words-levels.svg": svg})


@judge_by_groups(
    paper=PAPER,
    groups="words-clip clip words-levels levels",
    name="Appendix D, more words",
    about="accuracy with 20,000 and 30,000 words",
    theirs="a modest improvement",
)
def more_words(words: Group, ten: Group, noised: Group, levels: Group) -> Judged:
    levels = _with_more_seeds(levels)
    parts = []
    for many in LARGER:
        for group, base, run, about in (
            (words, ten, "20", "S = 20 without noise"),
            (noised, levels, "0.003", "σ = 0.003"),
        ):
            gain = compare(
                group.at(f"{many}-{run}", 300), base.at(f"flat-{run}", 300), clipped_spread()
            )
            claim = f"{many:,} words are better than 10,000, {about}"
            parts.append(Part(claim, f"{gain} points", judge_more(gain)))
    measured = [ten.at("flat-20", 300), *(words.at(f"{many}-20", 300) for many in LARGER)]
    ours = f"{percents(measured)} % with 10,000, 20,000 and 30,000 words, S = 20, after 300 rounds"
    return Judged(ours=ours, parts=parts)


def _dictionaries(words: Group, ten: Group) -> list[tuple[int, Group, str]]:
    """Return the sizes of dictionaries, with the group and the kind of run that each is in."""
    return [(10_000, ten, "flat"), *((many, words, str(many)) for many in LARGER)]


@judge_by_groups(
    paper=PAPER,
    groups="penalty",
    name="Appendix D, L2 penalty",
    about="a penalty on the length of updates, in place of clipping",
    theirs="no positive effect",
)
def penalty(found: Group) -> Judged:
    parts = []
    shown = []
    for run in found.found:
        norm, _, weight = run.partition("-")
        if weight == "none":
            continue
        gain = compare(found.last(run), found.last(f"{norm}-none"), clipped_spread())
        claim = f"a penalty of {weight} gains less than {POINTS} at S = {norm}"
        # Where it does harm, it has no positive effect either.
        verdict = judge_more(gain.negate(), than=-CLOSE)
        parts.append(Part(claim, f"{gain} points", verdict))
        shown.append(f"{100 * gain.value:+.2f}")
    return Judged(ours=f"{list_names(shown)} points after 500 rounds", parts=parts)


@judge_by_groups(
    paper="xu2023",
    groups="pretraining mechanisms",
    name="§3, another corpus",
    about="what training on another corpus costs, beside what noise costs",
    theirs="can cost 2.50 points, σ = 0.003 costs 0.13",
)
def another_corpus(pretraining: Group, mechanisms: Group) -> Judged:
    """Compare a model of Wikipedia with one of bloggers, on bloggers; neither has noise."""
    cost = compare(mechanisms.last("none"), pretraining.at("10", 0), clipped_spread())
    claim = f"another corpus costs {100 * ANOTHER_CORPUS:.2f} points and more"
    details = (
        "The LSTM of 1.35M parameters, ten epochs of 6M words of Wikipedia against 590 rounds of"
        " 100 bloggers at S = 3, a rate of 1 and a server's momentum of 0.9, both measured on the"
        " held-out bloggers. One seed: the interval is by the spread of seeds at a rate of 6."
    )
    return Judged(
        ours=f"Wikipedia costs {100 * cost.value:.2f} points",
        parts=[Part(claim, f"{cost} points", judge_more(cost, than=ANOTHER_CORPUS))],
        details=details,
    )


@judge_by_groups(
    paper=PAPER,
    groups="greedy noise",
    name="§2.2, greedy clipping",
    about="the clip norm kept after every local step, as the first version of the paper trained",
    theirs="compared with nothing",
)
def greedy(found: Group, noise: Group) -> Judged:
    change = compare(found.last("0.003-15"), noise.last("0.003-15"), clipped_spread())
    claim = f"within {POINTS} of clipping once, at σ = 0.003, S = 15"
    return Judged(
        ours=f"{percent(found.last('0.003-15'))} % against {percent(noise.last('0.003-15'))}",
        parts=[Part(claim, f"{change} points", judge_same(change, CLOSE))],
    )


def other_models() -> list[Item]:
    """Return what the paper leaves to others, a row for each kind of model."""
    names = {"gru": "a GRU", "transformer": "a Transformer", "characters": "characters"}
    return [_other_model(kind, name) for kind, name in names.items()]


def _other_model(kind: str, name: str) -> Item:
    @judge_by_groups(
        paper=PAPER,
        groups="kinds",
        name=f"beyond, {name}",
        about="what σ = 0.003 costs at S = 15",
        theirs="left to others",
    )
    def judge(kinds: Group) -> Judged:
        noised = kinds.last(f"{kind}-noise")
        plain = kinds.last(f"{kind}-none")
        clipped = Group(PAPER, "kinds-clipped")
        if clipped.found.get(kind):
            # Which differs in nothing but the noise.
            baseline = clipped.last(kind)
            spread = clipped_spread()
            beside = f"{percent(baseline)} at S = 15"
        else:
            baseline = plain
            spread = unclipped_spread()
            beside = "S = 15 not measured yet"
        claim = f"within {POINTS} of the same without noise"
        if kind == OTHER_TOKENS:
            # The spread of a model of words says nothing of it.
            change = compare(noised, baseline, Spread(deviation=math.inf, degrees=1))
            measured = f"{100 * change.value:+.2f} points, and no second seed"
            details = "No model of characters has a second seed, so that there is no interval."
        else:
            change = compare(noised, baseline, clipped_spread(), spread)
            measured = f"{change} points"
            details = (
                "Local steps at a rate of 0.5: at the LSTM's rate of 6, a model without unit-norm"
                " embeddings diverges. None of these has a second seed: intervals are by the spread"
                " of the LSTM's, at its rate."
            )
        parts = [Part(claim, measured, judge_same(change, CLOSE))]
        if baseline.value <= LEARNED:
            # It has little to lose.
            measured = f"{percent(baseline)} %: it has learned little yet"
            parts = [Part(claim, measured, Verdict.UNTOLD)]
        ours = f"{percent(plain)} (S = ∞; {beside}) → {percent(noised)} % after 300 rounds"
        return Judged(ours=ours, parts=parts, details=details)

    return judge()


def _by_words(words: Group, ten: Group, values: tuple[float, ...]) -> list[Line]:
    """Return a line for each size of dictionary, from 10,000 words on."""
    lines = [_across(ten, "10000 words", _runs("flat", values), rounds=300)]
    for many in LARGER:
        lines.append(_across(words, f"{many} words", _runs(many, values), rounds=300))
    return lines


def _flat_and_per_layer(group: Group, values: tuple[float, ...]) -> list[Line]:
    lines = []
    for kind in ("flat", "per-layer"):
        for rounds in (100, 500):
            lines.append(_across(group, kind, _runs(kind, values), rounds))
    return lines


def _runs(kind: object, values: tuple[float, ...]) -> dict[float, str]:
    """Return the names of a kind's runs by the value that each tries."""
    return {value: f"{kind}-{value}" for value in values}


def _across(group: Group, name: str, runs: dict[float, str], rounds: int) -> Line:
    """Return a line of AccuracyTop1 after some rounds over a value that runs differ by."""
    points = []
    margins = []
    for value, run in runs.items():
        accuracy = group.at(run, rounds)
        points.append((value, 100 * accuracy.value))
        margins.append(100 * accuracy.users)
    return Line(name=f"{name}, {rounds} rounds", points=points, margins=margins)
