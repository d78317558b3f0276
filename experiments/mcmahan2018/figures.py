"""McMahan et al. 2018, table by table and figure by figure."""

from dataclasses import replace

from lib import paper_values
from lib.page import Item, Judged, Verdict, judged, table
from lib.results import Group, computed, percent
from lib.svg import Line, curve, figure

PAPER = "mcmahan2018"
TITLE = "McMahan et al. 2018: learning differentially private recurrent language models"
ABOUT = """
Their settings (LSTM of 1.35M parameters, rate 6, B = 8, unroll 10, 100 users a round) on the 5,900 bloggers with 1,600 words, where they
have 763,430 users of Reddit; 1,500 rounds at most, and 200 to 1,000 where that shows the claim, where they have 3,000 to 20,000.
Accuracies are of 655 held-out bloggers.
"""
CLOSE = 0.003  # 0.3 points of AccuracyTop1: what seeds and people leave undecided
NAMES = {
    "none": "no noise, S = ∞",
    "0.003-15": "σ = 0.003, S = 15",
    "0.006-10": "σ = 0.006, S = 10",
    "0.012-15": "σ = 0.012, S = 15",
}
PRINTED = {
    "none": paper_values.MCMAHAN_NO_NOISE,
    "0.003-15": 0.1749,
    "0.006-10": 0.1704,
    "0.012-15": 0.1633,
}
NORMS = ("5", "7.9", "10", "12.6", "20")  # clip norms at z = 0.06
LARGER = (20000, 30000)  # words
MORE_WORDS = "a modest gain in accuracy"
LEARNED = 0.05  # a model that always says the commonest words has less
TABLE_2 = "17.62 → 17.49, 17.04, 16.33 % at ε = 4.634, 2.314, 2.038"


def items() -> list[Item]:
    return [
        table_1(),
        table_2(),
        table_3(),
        figure_1(),
        figure_2(),
        figure_3(),
        figure_4(),
        figure_5(),
        figure_6(),
        figure_7(),
        figure_8(),
        figure_9(),
        figure_10(),
        figure_11(),
        figure_12(),
        other_models(),
    ]


def table_1() -> Item:
    about, command = "ε of 1 to 10⁶ rounds", "python experiments/compute.py"
    rows, off = [], 0.0
    for row in computed(PAPER)["table_1"]:
        theirs = paper_values.MCMAHAN_TABLE_1[row["users"], row["cohort"], row["noise_multiplier"]]
        off = max(off, *(abs(a - b) for a, b in zip(theirs, row["moments"], strict=True)))
        setting = f"K = {row['users']:.0e}, {row['cohort']:g} a round, z = {row['noise_multiplier']:g}".replace(
            "e+0", "e"
        )
        rows.append(
            [
                setting,
                *(
                    f"{a:.2f} / {b:.2f} / **{c:.2f}**"
                    for a, b, c in zip(theirs, row["moments"], row["pld"], strict=True)
                ),
            ]
        )
    details = (
        "Printed / the moments accountant of 2016 / **ours** (privacy loss distributions), at δ ="
        " K^−1.1.\n\n"
    )
    details += table(["", *(f"10^{power}" for power in range(7))], rows)
    ours = f"every cell, to {off:.2f}, with the accountant of 2016; ours is below it everywhere"
    return Item("Table 1", about, "63 cells", ours, Verdict.HOLDS, command=command, details=details)


@judged(PAPER, "noise", "Table 2", "ε, and what noise costs in accuracy", TABLE_2)
def accuracy_of_table_2(noise: Group) -> Judged:
    base = noise.last("none")
    lost = {run: base.value - noise.last(run).value for run in NAMES}
    rows = [
        [
            NAMES[run],
            f"{100 * theirs:.2f}",
            noise.last(run),
            f"{100 * (theirs - PRINTED['none']):+.2f}",
            f"{-100 * lost[run]:+.2f}",
        ]
        for run, theirs in PRINTED.items()
    ]
    is_close = lost["0.003-15"] < CLOSE and lost["0.003-15"] < lost["0.006-10"] < lost["0.012-15"]
    ours = f"{percent(base)} → {', '.join(percent(noise.last(run)) for run in list(NAMES)[1:])} %"
    head = ["", "paper, 5,000 rounds", "ours, 1,500 rounds", "paper: lost", "ours: lost"]
    return Judged(ours, Verdict.HOLDS if is_close else Verdict.PART, table(head, rows))


def table_2() -> Item:
    """ε is computed whether or not anything was trained."""
    item = accuracy_of_table_2()
    epsilons = {
        (row["users"], row["cohort"], row["rounds"], row["delta"]): row
        for row in computed(PAPER)["epsilons"]
    }
    rows = []
    for (sigma, clip, users, cohort), (epsilon, _) in paper_values.MCMAHAN_TABLE_2.items():
        found = epsilons[users, cohort, 5000, 1e-9]
        rows.append(
            [
                f"{sigma:g}, {clip}",
                f"{users:,.0f}",
                f"{cohort:,}",
                epsilon,
                f"{found['moments']:.3f}",
                f"**{found['pld']:.3f}**",
            ]
        )
    head = ["σ, S", "users", "a round, for z = 1", "ε as printed", "accountant of 2016", "ours"]
    extrapolated = (
        "An extrapolation, theirs and ours: nothing is trained with so many (δ = 1e-9, 5,000"
        " rounds)."
    )
    return replace(
        item, details="\n\n".join(filter(None, [item.details, extrapolated, table(head, rows)]))
    )


@judged(
    PAPER,
    "noise",
    "Table 3",
    "whether noise pushes towards common words",
    "only as far as it makes a model worse",
)
def table_3(noise: Group) -> Judged:
    rows, means = [], {}
    for run, name in NAMES.items():
        histograms = [one["head_words"] for one in noise.found[run]]
        counts = [
            sum(
                place * sum(h[head][place] for h in histograms) / len(histograms)
                for place in range(11)
            )
            for head in range(3)
        ]
        means[run] = counts[2]
        rows.append([name, percent(noise.last(run)), *(f"{count:.2f}" for count in counts)])
    details = (
        "How many of a model's ten best predictions are among the n most frequent words, on"
        " average.\n\n"
    )
    details += table(["", "AccuracyTop1, %", "n = 10", "n = 50", "n = 100"], rows)
    ours = (
        f"of ten predictions {means['none']:.1f} are among the 100 commonest without noise,"
        f" {means['0.003-15']:.1f} and "
    )
    ours += f"{means['0.012-15']:.1f} at σ = 0.003 and 0.012"
    return Judged(
        ours,
        Verdict.HOLDS if abs(means["0.003-15"] - means["none"]) < 0.3 else Verdict.FAILS,
        details,
    )


@judged(
    PAPER,
    "noise",
    "Figure 1",
    "training with noise, in curves",
    "σ = 0.003 nearly matches the baseline",
)
def figure_1(noise: Group) -> Judged:
    svg = figure(
        "Noise at 100 users a round",
        "round",
        "AccuracyTop1, %",
        [curve(noise, run, name) for run, name in NAMES.items()],
    )
    apart = noise.last("none").value - noise.last("0.003-15").value
    verdict = Verdict.HOLDS if apart < CLOSE else Verdict.FAILS
    return Judged(f"{100 * apart:+.2f} points apart in the end", verdict, "", {"noise.svg": svg})


@judged(
    PAPER, "clip", "Figure 2", "clip norms, flat and per layer", "S from 10 to 20 hardly matters"
)
def figure_2(clip: Group) -> Judged:
    ends = [clip.last(f"flat-{norm}").value for norm in (10, 15, 20)]
    svg = figure(
        "Clip norms without noise",
        "S",
        "AccuracyTop1, %",
        _flat_and_per_layer(clip, (1, 5, 10, 15, 20)),
        log=True,
    )
    verdict = (
        Verdict.HOLDS
        if max(ends) - min(ends) < CLOSE
        else Verdict.PART
        if abs(ends[2] - ends[1]) < CLOSE
        else Verdict.FAILS
    )
    ours = (
        f"{', '.join(percent(clip.last(f'flat-{norm}')) for norm in (10, 15, 20))} % at S = 10, 15"
        " and 20 after 500 rounds"
    )
    details = (
        "What differs: 500 rounds of 5,900 bloggers, where the paper has up to 3,000 rounds of"
        " 763,430 users."
    )
    return Judged(ours, verdict, details, {"clip.svg": svg})


@judged(
    PAPER,
    "levels",
    "Figure 3",
    "noise at S = 20, flat and per layer",
    "σ = 0.024 costs nothing early, 0.2 destroys",
)
def figure_3(levels: Group) -> Judged:
    early = levels.at("flat-0.003", 100).value - levels.at("flat-0.024", 100).value
    gone = levels.last("flat-0.003").value - levels.last("flat-0.2").value
    lines = _flat_and_per_layer(levels, (0.003, 0.012, 0.024, 0.048, 0.2))
    svg = figure("Noise at S = 20", "σ", "AccuracyTop1, %", lines, log=True)
    ours = (
        f"σ = 0.024 costs {100 * early:.2f} points after 100 rounds, 0.2 costs {100 * gone:.1f}"
        " after 500"
    )
    return Judged(
        ours,
        Verdict.HOLDS if early < CLOSE and gone > 0.02 else Verdict.PART,
        "",
        {"levels.svg": svg},
    )


@judged(
    PAPER,
    "trade-off later",
    "Figure 4",
    "clip norm and noise at equal cost",
    "S = 10 to 12.6 first; from round 4,885 on 7.9",
)
def figure_4(trade_off: Group, later: Group) -> Judged:
    places = [(float(norm), norm) for norm in NORMS]
    lines = [
        _over(trade_off, "from the start", places, 500),
        _over(later, "from round 750", places, 1000),
    ]
    svg = figure("Clip norm and noise at z = 0.06", "S", "AccuracyTop1, %", lines, log=True)
    return _trade_off(trade_off, later, {"trade-off.svg": svg})


@judged(
    PAPER,
    "estimators",
    "Figure 5",
    "cohorts of one size or drawn, three estimators of the average",
    "no difference",
)
def figure_5(estimators: Group) -> Judged:
    names = {
        "fixed-average": "100 exactly, true average",
        "drawn-average": "drawn, true average",
        "drawn-fixed": "drawn, fixed denominator",
        "drawn-clipped": "drawn, clipped denominator",
    }
    svg = figure(
        "Cohorts and estimators",
        "round",
        "AccuracyTop1, %",
        [curve(estimators, run, name) for run, name in names.items()],
    )
    ends = [estimators.last(run).value for run in names]
    apart = max(ends) - min(ends)
    verdict = Verdict.HOLDS if apart < CLOSE else Verdict.FAILS
    return Judged(
        f"{100 * apart:.2f} points apart at most after 200 rounds",
        verdict,
        "",
        {"estimators.svg": svg},
    )


@judged(
    PAPER, "users", "Figure 6", "more users a round, without clip or noise", "diminishing returns"
)
def figure_6(users: Group) -> Judged:
    cohorts = ("10", "50", "100", "500")
    svg = figure(
        "Users a round, without noise",
        "round",
        "AccuracyTop1, %",
        [curve(users, one, f"{one} users") for one in cohorts],
    )
    ends = [users.last(one).value for one in cohorts]
    first, second, last = ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]
    verdict = Verdict.HOLDS if first > second > -CLOSE and abs(last) < first else Verdict.FAILS
    ours = (
        f"{', '.join(percent(users.last(one)) for one in cohorts)} % with {', '.join(cohorts)}"
        " users after 200 rounds"
    )
    return Judged(ours, verdict, "", {"users.svg": svg})


@judged(
    PAPER,
    "cohorts",
    "Figure 7",
    "accuracy depends on σ, not on the cohort",
    "100 and 1,250 users a round: almost identical curves",
)
def figure_7(cohorts: Group) -> Judged:
    names = {
        "100": "σ = 0.012, 100 users, z = 0.08",
        "1250": "σ = 0.012, 1,250 users, z = 1",
        "loud-100": "σ = 0.048, 100 users, z = 0.32",
        "loud-1250": "σ = 0.048, 1,250 users, z = 4",
    }
    svg = figure(
        "The same σ, S = 15",
        "round",
        "AccuracyTop1, %",
        [curve(cohorts, run, name) for run, name in names.items()],
    )
    apart = {
        many: cohorts.last(many).value - cohorts.last(few).value
        for few, many in (("100", "1250"), ("loud-100", "loud-1250"))
    }
    ours = (
        f"1,250 users are {100 * apart['1250']:+.2f} points from 100 at σ = 0.012, and"
        f" {100 * apart['loud-1250']:+.2f} at σ = 0.048, "
    )
    ours += (
        "where noise costs"
        f" {100 * (cohorts.last('1250').value - cohorts.last('loud-1250').value):.2f}, after 200"
        " rounds"
    )
    alike, never_worse = (
        all(abs(one) < CLOSE for one in apart.values()),
        all(one > -CLOSE for one in apart.values()),
    )
    verdict = Verdict.HOLDS if alike else Verdict.PART if never_worse else Verdict.FAILS
    details = (
        "**Every extrapolated ε on this page rests on it**, and needs no more than that larger"
        " cohorts do no worse."
    )
    return Judged(ours, verdict, details, {"cohorts.svg": svg})


@judged(PAPER, "trade-off later", "Figure 8", "as Figure 4, in curves", "S = 10 to 12.6, later 7.9")
def figure_8(trade_off: Group, later: Group) -> Judged:
    drawn = {}
    for name, group, when in (
        ("trade-off-start", trade_off, "from the start"),
        ("trade-off-later", later, "S = 20 up to round 750"),
    ):
        lines = [
            curve(group, norm, f"S = {norm}, σ = {0.0006 * float(norm):.4g}") for norm in NORMS
        ]
        drawn[f"{name}.svg"] = figure(
            f"Clip norm and noise at z = 0.06, {when}", "round", "AccuracyTop1, %", lines
        )
    return _trade_off(trade_off, later, drawn)


@judged(
    PAPER,
    "sgd-clip",
    "Figure 9",
    "clip norms of FedSGD",
    "a smaller S does: 2, where FedAvg takes 15",
)
def figure_9(sgd: Group) -> Judged:
    places = [(float(norm), norm) for norm in ("0.5", "1", "2", "5", "20")]
    svg = figure(
        "FedSGD: clip norms without noise",
        "S",
        "AccuracyTop1, %",
        [_over(sgd, "FedSGD", places, n) for n in (100, 1000)],
        log=True,
    )
    lost = sgd.last("20").value - sgd.last("2").value
    ours = (
        f"S = 2 is {100 * lost:+.2f} points behind S = 20 after 1,000 rounds"
        f" ({percent(sgd.last('20'))} %)"
    )
    return Judged(ours, Verdict.HOLDS if lost < CLOSE else Verdict.FAILS, "", {"sgd-clip.svg": svg})


@judged(
    PAPER,
    "sgd-levels levels",
    "Figure 10",
    "noise under FedSGD",
    "more sensitive to noise than FedAvg at the same σ",
)
def figure_10(sgd: Group, averaging: Group) -> Judged:
    levels = ("0.0005", "0.002", "0.006", "0.012", "0.024")
    lines = [
        _over(sgd, "FedSGD", [(float(level), level) for level in levels], 1000),
        _over(
            averaging,
            "FedAvg",
            [(level, f"flat-{level}") for level in (0.003, 0.012, 0.024, 0.048)],
            500,
        ),
    ]
    svg = figure("Noise at S = 20", "σ", "AccuracyTop1, %", lines, log=True)
    lost = sgd.last("0.0005").value - sgd.last("0.012").value
    beside = averaging.last("flat-0.003").value - averaging.last("flat-0.012").value
    ours = f"σ = 0.012 costs FedSGD {100 * lost:.2f} points, FedAvg {100 * beside:.2f}"
    return Judged(
        ours, Verdict.HOLDS if lost > beside else Verdict.FAILS, "", {"sgd-levels.svg": svg}
    )


@judged(
    PAPER,
    "words-clip clip",
    "Figure 11",
    "clip norms with 20,000 and 30,000 words",
    f"the same S does; {MORE_WORDS}",
)
def figure_11(words: Group, ten: Group) -> Judged:
    svg = figure(
        "Clip norms and larger dictionaries",
        "S",
        "AccuracyTop1, %",
        _by_words(words, ten, (5, 10, 20)),
        log=True,
    )
    return _with_more_words(words, ten, ("S = 10", 10), ("S = 20", 20), {"words-clip.svg": svg})


@judged(
    PAPER,
    "words-levels levels",
    "Figure 12",
    "noise with 20,000 and 30,000 words",
    f"the same σ does; {MORE_WORDS}",
)
def figure_12(words: Group, ten: Group) -> Judged:
    lines = _by_words(words, ten, (0.003, 0.012, 0.048))
    svg = figure("Noise at S = 20 and larger dictionaries", "σ", "AccuracyTop1, %", lines, log=True)
    return _with_more_words(
        words, ten, ("σ = 0.012", 0.012), ("0.003", 0.003), {"words-levels.svg": svg}
    )


def _by_words(words: Group, ten: Group, values: tuple[float, ...]) -> list[Line]:
    larger = [
        _over(words, f"{many} words", [(value, f"{many}-{value}") for value in values], 300)
        for many in LARGER
    ]
    return [_over(ten, "10000 words", [(value, f"flat-{value}") for value in values], 300), *larger]


def _with_more_words(
    words: Group,
    ten: Group,
    tried: tuple[str, float],
    usual: tuple[str, float],
    figures: dict[str, str],
) -> Judged:
    """Judge whether what is tried costs the same with any number of words, and whether more words
    are better.
    """
    lost, best = (
        [ten.at(f"flat-{v}", 300).value, *(words.at(f"{many}-{v}", 300).value for many in LARGER)]
        for _, v in (tried, usual)
    )
    cost = [a - b for a, b in zip(best, lost, strict=True)]
    same, better = max(abs(one - cost[0]) for one in cost) < CLOSE, min(best[1:]) > best[0]
    ours = (
        f"{tried[0]} costs {_points(cost)} points against {usual[0]} with 10,000, 20,000 and 30,000"
        f" words, which have {_points(best)} %"
    )
    verdict = Verdict.FAILS if not same else Verdict.HOLDS if better else Verdict.PART
    return Judged(f"{ours}, after 300 rounds", verdict, "", figures)


@judged(
    PAPER,
    "kinds",
    "beyond",
    "GRU, Transformer and characters at σ = 0.003, S = 15",
    "left to others",
)
def other_models(kinds: Group) -> Judged:
    names = ("gru", "transformer", "characters")
    ours = ", ".join(
        f"{name} {percent(kinds.last(f'{name}-none'))} → {percent(kinds.last(f'{name}-noise'))}"
        for name in names
    )
    lost = [kinds.last(f"{name}-none").value - kinds.last(f"{name}-noise").value for name in names]
    learned = min(kinds.last(f"{name}-none").value for name in names) > LEARNED
    return Judged(
        f"{ours}, after 300 rounds",
        Verdict.HOLDS if learned and max(lost) < CLOSE else Verdict.PART,
    )


def _trade_off(trade_off: Group, later: Group, figures: dict[str, str]) -> Judged:
    """Judge whether a clip norm that is smaller than the best from the start is best later on."""
    first, last = (
        max(NORMS, key=lambda norm: group.last(norm).value) for group in (trade_off, later)
    )
    ours = (
        f"from the start, after 500 rounds, S = {first} is best; from round 750 on, after 250 more,"
        f" S = {last}"
    )
    verdict = (
        Verdict.HOLDS
        if float(last) < float(first) <= 12.6
        else Verdict.PART
        if float(last) <= float(first)
        else Verdict.FAILS
    )
    return Judged(ours, verdict, "", figures)


def _flat_and_per_layer(group: Group, values: tuple[float, ...]) -> list[Line]:
    kinds = [(kind, rounds) for kind in ("flat", "per-layer") for rounds in (100, 500)]
    return [
        _over(group, kind, [(value, f"{kind}-{value}") for value in values], rounds)
        for kind, rounds in kinds
    ]


def _points(values: list[float]) -> str:
    *first, last = (f"{100 * value:.2f}" for value in values)
    return f"{', '.join(first)} and {last}"


def _over(group: Group, name: str, places: list[tuple[float, str]], rounds: int) -> Line:
    found = [(place, group.at(run, rounds)) for place, run in places]
    points, margins = (
        [(place, 100 * one.value) for place, one in found],
        [100 * one.users for _, one in found],
    )
    return Line(f"{name}, {rounds} rounds", points, margins)
