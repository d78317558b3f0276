"""McMahan et al. 2018, table by table and figure by figure."""

import json

import printed
from drawing import Line, figure
from listed import HERE
from page import Item, Verdict, missing, not_run, table
from results import Group

PAPER = "mcmahan2018"
TITLE = "McMahan et al. 2018: learning differentially private recurrent language models"
ABOUT = """
Their settings (LSTM of 1.35M parameters, rate 6, B = 8, unroll 10, 100 users a round) on the 5,900 bloggers with 1,600 words, where they
have 763,430 users of Reddit; 1,500 rounds at most, where they have 5,000. Accuracies are of 655 held-out bloggers.
"""
CLOSE = 0.003  # 0.3 points of AccuracyTop1: what seeds and people leave undecided
NAMES = {"none": "no noise, S = ∞", "0.003-15": "σ = 0.003, S = 15", "0.006-10": "σ = 0.006, S = 10", "0.012-15": "σ = 0.012, S = 15"}
PRINTED = {"none": printed.MCMAHAN_NO_NOISE, "0.003-15": 0.1749, "0.006-10": 0.1704, "0.012-15": 0.1633}


def items() -> list[Item]:
    noise = Group(PAPER, "noise")
    return [
        table_1(),
        table_2(noise),
        table_3(noise),
        figure_1(noise),
        figure_2(),
        figure_3(),
        figure_4(),
        not_run("Figure 5", "fixed or variable cohorts, three estimators of the average", "no difference", ""),
        figure_6(),
        figure_7(),
        not_run("Figure 8", "as Figure 4, in curves", "S = 10 to 12.6, later 7.9", "python experiments/train.py mcmahan2018/trade-off"),
        not_run("Figure 9", "clip norms of FedSGD", "a smaller S does", ""),
        not_run("Figure 10", "noise under FedSGD", "worse than FedAvg's at the same σ", ""),
        not_run("Figure 11", "clip norms with 20,000 and 30,000 words", "the same S does", ""),
        not_run("Figure 12", "noise with 20,000 and 30,000 words", "the same σ does", ""),
    ]


def table_1() -> Item:
    about, command = "ε of 1 to 10⁶ rounds", "python experiments/compute.py"
    rows, off = [], 0.0
    for row in _computed()["table_1"]:
        theirs = printed.MCMAHAN_TABLE_1[row["users"], row["cohort"], row["noise_multiplier"]]
        off = max(off, *(abs(a - b) for a, b in zip(theirs, row["moments"], strict=True)))
        setting = f"K = {row['users']:.0e}, {row['cohort']:g} a round, z = {row['noise_multiplier']:g}".replace("e+0", "e")
        rows.append([setting, *(f"{a:.2f} / {b:.2f} / **{c:.2f}**" for a, b, c in zip(theirs, row["moments"], row["pld"], strict=True))])
    details = "Printed / the moments accountant of 2016 / **ours** (privacy loss distributions), at δ = K^−1.1.\n\n"
    details += table(["", *(f"10^{power}" for power in range(7))], rows)
    ours = f"every cell, to {off:.2f}, with the accountant of 2016; ours is below it everywhere"
    return Item("Table 1", about, "63 cells", ours, Verdict.HOLDS, command=command, details=details)


def table_2(noise: Group) -> Item:
    name, about = "Table 2", "ε, and what noise costs in accuracy"
    theirs = "17.62 → 17.49, 17.04, 16.33 % at ε = 4.634, 2.314, 2.038"
    epsilons = {(row["users"], row["cohort"], row["rounds"], row["delta"]): row for row in _computed()["epsilons"]}
    rows = []
    for (sigma, clip, users, cohort), (epsilon, _) in printed.MCMAHAN_TABLE_2.items():
        found = epsilons[users, cohort, 5000, 1e-9]
        rows.append([f"{sigma:g}, {clip}", f"{users:,.0f}", f"{cohort:,}", epsilon, f"{found['moments']:.3f}", f"**{found['pld']:.3f}**"])
    head = ["σ, S", "users", "a round, for z = 1", "ε as printed", "accountant of 2016", "ours"]
    epsilon_table = f"An extrapolation, theirs and ours: nothing is trained with so many (δ = 1e-9, 5,000 rounds).\n\n{table(head, rows)}"
    lacking = missing(name, about, theirs, noise)
    if lacking:
        return Item(name, about, theirs, lacking.ours, lacking.verdict, command=lacking.command, details=epsilon_table)
    base = noise.last("none")
    accuracy = [[NAMES[run], f"{100 * PRINTED[run]:.2f}", noise.last(run), _lost(PRINTED["none"], PRINTED[run])] for run in NAMES]
    accuracy = [[*row, _lost(base.value, noise.last(run).value)] for row, run in zip(accuracy, NAMES, strict=True)]
    lost = {run: base.value - noise.last(run).value for run in NAMES}
    close = lost["0.003-15"] < CLOSE and lost["0.003-15"] < lost["0.006-10"] < lost["0.012-15"]
    ours = f"{100 * base.value:.2f} → {', '.join(f'{100 * noise.last(run).value:.2f}' for run in list(NAMES)[1:])} %"
    head = ["", "paper, 5,000 rounds", "ours, 1,500 rounds", "paper: lost", "ours: lost"]
    verdict = Verdict.HOLDS if close else Verdict.PART
    return Item(name, about, theirs, ours, verdict, noise.seeds, noise.command, f"{table(head, accuracy)}\n\n{epsilon_table}")


def table_3(noise: Group) -> Item:
    name, about, theirs = "Table 3", "whether noise pushes towards common words", "only as far as it makes a model worse"
    lacking = missing(name, about, theirs, noise)
    if lacking:
        return lacking
    rows, means = [], {}
    for run in NAMES:
        histograms = [one["head_words"] for one in noise.found[run]]
        counts = [sum(place * sum(h[head][place] for h in histograms) / len(histograms) for place in range(11)) for head in range(3)]
        means[run] = counts
        rows.append([NAMES[run], f"{100 * noise.last(run).value:.2f}", *(f"{count:.2f}" for count in counts)])
    details = "How many of a model's ten best predictions are among the n most frequent words, on average.\n\n"
    details += table(["", "AccuracyTop1, %", "n = 10", "n = 50", "n = 100"], rows)
    little = abs(means["0.003-15"][2] - means["none"][2]) < 0.3
    ours = f"of ten predictions {means['none'][2]:.1f} are among the 100 commonest without noise, {means['0.003-15'][2]:.1f} and "
    ours += f"{means['0.012-15'][2]:.1f} at σ = 0.003 and 0.012"
    return Item(name, about, theirs, ours, Verdict.HOLDS if little else Verdict.FAILS, noise.seeds, noise.command, details)


def figure_1(noise: Group) -> Item:
    name, about, theirs = "Figure 1", "training with noise, in curves", "σ = 0.003 nearly matches the baseline"
    lacking = missing(name, about, theirs, noise)
    if lacking:
        return lacking
    svg = figure("Noise at 100 users a round", "round", "AccuracyTop1, %", [_curve(noise, run, label) for run, label in NAMES.items()])
    apart = noise.last("none").value - noise.last("0.003-15").value
    verdict = Verdict.HOLDS if apart < CLOSE else Verdict.FAILS
    return Item(
        name, about, theirs, f"{100 * apart:+.2f} points apart in the end", verdict, noise.seeds, noise.command, "", {"noise.svg": svg}
    )


def figure_2() -> Item:
    group, name, about, theirs = Group(PAPER, "clip"), "Figure 2", "clip norms, flat and per layer", "S from 10 to 20 hardly matters"
    lacking = missing(name, about, theirs, group)
    if lacking:
        return lacking
    norms = (1, 5, 10, 15, 20)
    lines = [_over(group, f"{kind} {rounds}", [(norm, f"{kind}-{norm}") for norm in norms], rounds)
             for kind in ("flat", "per-layer") for rounds in (100, 500)]  # fmt: skip
    ends = [group.last(f"flat-{norm}").value for norm in (10, 15, 20)]
    verdict = Verdict.HOLDS if max(ends) - min(ends) < CLOSE else Verdict.FAILS
    ours = f"{100 * (max(ends) - min(ends)):.2f} points between S = 10 and 20 after 500 rounds"
    svg = figure("Clip norms without noise, after 100 and 500 rounds", "S", "AccuracyTop1, %", lines, log=True)
    return Item(name, about, theirs, ours, verdict, group.seeds, group.command, "", {"clip.svg": svg})


def figure_3() -> Item:
    group, name, about = Group(PAPER, "levels"), "Figure 3", "noise at S = 20, flat and per layer"
    theirs = "σ = 0.024 costs nothing early, 0.2 destroys"
    lacking = missing(name, about, theirs, group)
    if lacking:
        return lacking
    sigmas = (0.003, 0.012, 0.024, 0.048, 0.2)
    lines = [_over(group, f"{kind} {rounds}", [(sigma, f"{kind}-{sigma}") for sigma in sigmas], rounds)
             for kind in ("flat", "per-layer") for rounds in (100, 500)]  # fmt: skip
    early = group.at("flat-0.003", 100).value - group.at("flat-0.024", 100).value
    gone = group.last("flat-0.003").value - group.last("flat-0.2").value
    verdict = Verdict.HOLDS if early < CLOSE and gone > 0.02 else Verdict.PART
    ours = f"σ = 0.024 costs {100 * early:.2f} points after 100 rounds, 0.2 costs {100 * gone:.1f} after 500"
    svg = figure("Noise at S = 20, after 100 and 500 rounds", "σ", "AccuracyTop1, %", lines, log=True)
    return Item(name, about, theirs, ours, verdict, group.seeds, group.command, "", {"levels.svg": svg})


def figure_4() -> Item:
    group, name, about = Group(PAPER, "trade-off"), "Figure 4", "clip norm and noise at equal cost"
    theirs = "S = 10 to 12.6 first; from round 4,885 on 7.9"
    lacking = missing(name, about, theirs, group)
    if lacking:
        return lacking
    norms = ("5", "7.9", "10", "12.6", "20")
    line = _over(group, "from the start, 500 rounds", [(float(norm), norm) for norm in norms], 500)
    best = max(norms, key=lambda norm: group.last(norm).value)
    ours = f"from the start, after 500 rounds, S = {best} is best; the later rounds were not run"
    svg = figure("Clip norm and noise at z = 0.06", "S", "AccuracyTop1, %", [line])
    return Item(name, about, theirs, ours, Verdict.PART, group.seeds, group.command, "", {"trade-off.svg": svg})


def figure_6() -> Item:
    group, name, about = Group(PAPER, "users"), "Figure 6", "more users a round, without clip or noise"
    theirs = "diminishing returns"
    lacking = missing(name, about, theirs, group)
    if lacking:
        return lacking
    cohorts = ("10", "50", "100", "500")
    svg = figure("Users a round, without noise", "round", "AccuracyTop1, %", [_curve(group, one, f"{one} users") for one in cohorts])
    ends = [group.last(one).value for one in cohorts]
    verdict = (
        Verdict.HOLDS if ends[1] - ends[0] > ends[2] - ends[1] > -CLOSE and abs(ends[3] - ends[2]) < ends[1] - ends[0] else Verdict.FAILS
    )
    ours = f"{', '.join(f'{100 * end:.2f}' for end in ends)} % with {', '.join(cohorts)} after 400 rounds"
    return Item(name, about, theirs, ours, verdict, group.seeds, group.command, "", {"users.svg": svg})


def figure_7() -> Item:
    group, name, about = Group(PAPER, "cohorts"), "Figure 7", "accuracy depends on σ, not on the cohort"
    theirs = "100 and 1,250 users a round: almost identical curves"
    lacking = missing(name, about, theirs, group)
    if lacking:
        return lacking
    cohorts = ("100", "400", "1250")
    svg = figure(
        "σ = 0.012, S = 15", "round", "AccuracyTop1, %", [_curve(group, one, f"{one} users, z = {int(one) / 1250:g}") for one in cohorts]
    )
    apart = group.last("1250").value - group.last("100").value
    verdict = Verdict.HOLDS if abs(apart) < CLOSE else Verdict.PART if apart > 0 else Verdict.FAILS
    ours = f"{', '.join(f'{100 * group.last(one).value:.2f}' for one in cohorts)} % with {', '.join(cohorts)} after 400 rounds"
    details = "**Every extrapolated ε on this page rests on it.**"
    return Item(name, about, theirs, ours, verdict, group.seeds, group.command, details, {"cohorts.svg": svg})


def _computed() -> dict:
    return json.loads((HERE / PAPER / "results" / "computed.json").read_text())


def _curve(group: Group, run: str, name: str) -> Line:
    curve = [(round, one) for round, one in group.curve(run) if round]
    return Line(name, [(round, 100 * one.value) for round, one in curve], [50 * (one.most - one.least) for _, one in curve])


def _over(group: Group, name: str, places: list[tuple[float, str]], rounds: int) -> Line:
    found = [(place, group.at(run, rounds)) for place, run in places]
    return Line(
        f"{name} rounds" if name[-1].isdigit() else name,
        [(place, 100 * one.value) for place, one in found],
        [100 * one.users for _, one in found],
    )


def _lost(base: float, value: float) -> str:
    return f"{100 * (value - base):+.2f}"
