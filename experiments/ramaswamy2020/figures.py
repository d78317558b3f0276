"""Ramaswamy et al. 2020, table by table and figure by figure."""

import math
from dataclasses import replace
from typing import Any

from lib import paper_values, typed_claims, typing_tables
from lib.canary_tables import Kind, group_by_kind, least_rank_of_one_user, median, middle
from lib.page import Item, Judged, judge_by_groups, mark_impossible, table
from lib.results import Group, Measured, Result, load_computed, measure, percent
from lib.svg import Line, figure
from lib.verdicts import (
    Part,
    Spread,
    Verdict,
    compare,
    judge_computed,
    judge_counted,
    judge_more,
    judge_same,
    pool,
)
from taciturn.audit.results import rank_text
from taciturn.privacy.accounting.rounding_up import pair_text

PAPER = "ramaswamy2020"
TITLE = "Ramaswamy et al. 2020: training production language models without memorizing user data"
ABOUT = """
Their protocol for tuning (CIFG with tied embeddings, 500 users a round, σ = 3.2e-5 on the average,
S = 0.8, momentum 0.99) on 9,190 bloggers with 400 words each, 300 rounds from a random start, where
they have Stack Overflow and do not say how many. What they measure on phones (recall and clicks of
people) has no counterpart but simulated typing.
"""
# Half a point: more than the paper's own settings are apart in its Tables 7 and 8.
CLOSE = 0.005
POINTS = "0.5 points"
# The models of Table 2, as typing.json names them.
HEADLINE = {
    "none": "no privacy",
    "production": "noise of Ramaswamy et al.",
    "gboard": "noise of Xu et al.",
}
PRIVATE = ("production", "gboard")
# The claim is of recall and clicks.
METRICS = ("recall_top1", "recall_top3", "picked_rate")
TYPING = (
    "python experiments/keyboard/table.py local/people blogs.parquet"
    " experiments/ramaswamy2020/results/typing.json …"
)
# The paper's best settings: in three groups, with another seed in each.
BEST_OF_CLIENTS = "50-0.5"
REPEATS = (("server", "momentum-1-0.99"), ("client", BEST_OF_CLIENTS), ("clip", "0.8"))
# A rank that nobody would find by trying.
FAR = 100
# Of 2,000,000: as good as memorised.
LEARNED_BY_HEART = 1


def items() -> list[Item]:
    return [
        mark_impossible(
            name="Table 1",
            about="the settings that were best on Stack Overflow",
            theirs="momentum 0.99, rate 1, S = 0.8",
            why="no result: Tables 6 to 8 try them",
        ),
        table_2(),
        table_3(),
        table_4(),
        table_5(),
        group_of_16(),
        table_6(),
        table_7(),
        table_8(),
        figure_1(),
    ]


@judge_by_groups(
    paper=PAPER,
    groups="headline",
    name="Table 2",
    about="the private model against n-grams with history, in use",
    theirs="Top1 recall +7.77 %, Top3 +6.40 %, clicks +4.31 %",
    of_pilot=True,
)
def trained_for_table_2(headline: Group) -> Judged:
    rows = []
    extrapolated = _extrapolate()
    for run, name in HEADLINE.items():
        accuracy = headline.last(run)
        rows.append([name, *extrapolated[run], accuracy, accuracy.seeds])
    head = [
        "",
        "noise, clip norms per person",
        "guarantee in the paper's population, *extrapolated*",
        "AccuracyTop1",
        "seeds",
    ]
    about_cells = (
        "500 of 9,190 bloggers a round for 150 rounds, from the pilot's start; these people's own"
        " ε is on the page of [keyboard](../keyboard/README.md)."
    )
    not_typed = Part("ahead of n-grams", "not typed with yet", Verdict.NOT_RUN)
    return Judged(
        ours="not typed with yet",
        parts=[not_typed],
        details=f"{about_cells}\n\n{table(head, rows)}",
    )


def _extrapolate() -> dict[str, list[str]]:
    """Return each headline run's noise, and its guarantee in the paper's population."""
    table_5 = load_computed(PAPER)["table_5"]
    production = next(row for row in table_5 if row["users"] == 4_000_000)
    models = load_computed("xu2023")["models"]
    gboard = next(row for row in models if row["model"] == "NWP es-ES")
    epsilon = f"ε = {production['poisson']:.2f} at δ = N^−1.1 for N = 4,000,000"
    return {
        "none": ["0", "∞"],
        "production": ["0.0013", epsilon],
        "gboard": ["0.0018", f"ρ = {gboard['rho']:.2f} for 4,210,000 users"],
    }


def table_2() -> Item:
    """Judge what people save, once it is measured; what noise costs is not the claim."""
    item = trained_for_table_2()
    typing = typing_tables.load_results(PAPER, "typing")
    if item.seeds == 0 or typing is None:
        return replace(item, command=item.command if item.seeds == 0 else TYPING)
    parts = []
    for baseline in typed_claims.ngrams_with_history(typing):
        for run in PRIVATE:
            model = HEADLINE[run]
            parts += typed_claims.judge_ahead(typing, model, METRICS, baseline)
    elsewhere = typing_tables.load_results("keyboard", "typing-blogs-shipped")
    models = [HEADLINE[run] for run in PRIVATE]
    shown = typed_claims.describe(typing, elsewhere, HEADLINE["production"], METRICS)
    parts += typed_claims.judge_public_ngrams(typing, elsewhere, models, METRICS)
    return replace(
        item,
        ours=f"at their noise {shown}",
        parts=parts,
        # One model of each kind types.
        seeds=1,
        command=f"{item.command}\n{TYPING}",
        details=f"{item.details}\n\n{typing_tables.tables(typing)}",
    )


@judge_by_groups(
    paper=PAPER,
    groups="canaries",
    name="Table 3",
    about="how often a canary is met",
    theirs="1,150 to 3,680,000 times in 2,000 rounds",
)
def table_3(canaries: Group) -> Judged:
    rounds = canaries.found["private"][0]["rounds"]
    rows = []
    counts = []
    near = 0
    for kind, canary in group_by_kind(canaries.found["private"]).items():
        counts.append(canary.met)
        theirs = paper_values.RAMASWAMY_TABLE_3[kind]
        scaled = theirs * rounds / paper_values.RAMASWAMY_ROUNDS
        near += abs(canary.met / scaled - 1) < 0.25
        rows.append([*kind, f"{theirs:,}", f"{scaled:,.0f}", f"{canary.met:,}"])
    about_cells = (
        "A device reads 400 words of its 200 sentences at a time, so that not every copy is met."
    )
    ours = (
        f"{min(counts):,} to {max(counts):,} times in {rounds} rounds; {near} of {len(rows)} within"
        " a quarter of theirs"
    )
    claim = f"every count, times {rounds} of 2,000 rounds, within a quarter"
    verdict = judge_computed(near == len(rows))
    if 0 < near < len(rows):
        verdict = Verdict.PART
    head = ["n_u", "n_e", "paper", f"paper, of {rounds} rounds", "ours, expected"]
    return Judged(
        ours=ours,
        parts=[Part(claim, f"{near} of {len(rows)}", verdict)],
        details=f"{about_cells}\n\n{table(head, rows)}",
    )


@judge_by_groups(
    paper=PAPER,
    groups="canaries canaries-open",
    name="Table 4",
    about="what is memorised of 27 canaries",
    theirs="nothing of one user's; all that 16 users say often",
)
def table_4(private: Group, open: Group) -> Judged:
    with_privacy = group_by_kind(private.found["private"])
    without_privacy = group_by_kind(open.found["none"])
    rows = []
    for kind, (ranks, found) in paper_values.RAMASWAMY_TABLE_4.items():
        ours = with_privacy[kind]
        beside = without_privacy[kind]
        theirs = [", ".join(map(rank_text, ranks)), f"{found} of 3"]
        rows.append(
            [*kind, *theirs, median(ours.ranks), ours.found, median(beside.ranks), beside.found]
        )
    head = [
        "n_u",
        "n_e",
        "paper: ranks",
        "found",
        "ours: rank in the middle",
        "found",
        "no privacy: rank in the middle",
        "found",
    ]
    first = private.found["private"][0]
    about_cells = (
        f"{pair_text(first['epsilon'], first['delta'])}, {first['rounds']} rounds of 500."
        " Ranks among 2,000,000 random continuations, 1 being the likeliest: in the middle of all"
        " seeds and canaries, with a 95 % interval of that middle; found by a beam search of width"
        f" five. Seeds: {private.seeds}, without privacy {open.seeds}."
    )
    least = least_rank_of_one_user(with_privacy)
    repeated_without = middle(without_privacy[1, 200].ranks)
    shared = [middle(with_privacy[16, copies].ranks) for copies in (14, 200)]
    ours = (
        f"one user's have ranks of {rank_text(least)} and more, without privacy"
        f" {rank_text(repeated_without)} in the middle; those of 16 users"
        f" {' and '.join(map(rank_text, shared))}"
    )
    return Judged(
        ours=ours,
        parts=_parts_of_canaries(
            with_privacy, without_privacy, seeds=min(private.seeds, open.seeds)
        ),
        details=f"{about_cells}\n\n{table(head, rows)}",
    )


def _parts_of_canaries(
    private: dict[Kind, Any], open: dict[Kind, Any], *, seeds: int
) -> list[Part]:
    least = least_rank_of_one_user(private)
    of_power = min(open[1, 200].ranks)
    copied_once = min(min(private[users, 1].ranks) for users in (1, 4, 16))
    parts = [
        Part(
            f"nothing of one user's: every rank is {FAR} and more",
            f"{rank_text(least)} and more",
            judge_counted(least >= FAR, seeds),
        ),
        Part(
            "which says something: without privacy one user's is learned by heart",
            f"rank {rank_text(of_power)}, said 200 times",
            judge_counted(of_power <= LEARNED_BY_HEART, seeds),
        ),
        Part(
            f"nothing that is said once, by 16 users even: every rank is {FAR} and more",
            f"{rank_text(copied_once)} and more",
            judge_counted(copied_once >= FAR, seeds),
        ),
    ]
    for copies in (14, 200):
        canary = private[16, copies]
        claim = f"what 16 users say {copies} times is memorised: rank 1, and a beam search finds it"
        found, _, tried = canary.found.split()
        is_first = middle(canary.ranks) <= LEARNED_BY_HEART
        verdict = judge_counted(is_first and found == tried, seeds)
        if is_first and found != tried:
            verdict = Verdict.PART
        measured = f"rank {rank_text(middle(canary.ranks))} in the middle, found {canary.found}"
        parts.append(Part(claim, measured, verdict))
    return parts


def table_5() -> Item:
    rows = load_computed(PAPER)["table_5"]
    off = 0.0
    cells = []
    for row in rows:
        printed = paper_values.RAMASWAMY_TABLE_5[row["users"]]
        off = max(off, abs(row["as_printed"] - printed))
        cells.append(
            [
                f"{row['users']:,}",
                printed,
                f"{row['as_printed']:.2f}",
                _between(row),
                f"**{row['poisson']:.2f}**",
            ]
        )
    head = [
        "users",
        "ε at δ = N^−1.1 as printed",
        "recomputed as printed",
        "at 2S, as a swap of two users needs: between",
        "ours: Poisson cohorts instead",
    ]
    about_cells = (
        "ε at δ = N^−1.1. Rounds of a fixed size replace a user by another, and the sum moves by up"
        " to 2S: the printed figures count S. The lower end is the ε of one pair of populations"
        " (one user sends +S·v, all others −S·v), rounded down; the upper end is a bound by RDP"
        " without replacement, rounded up (`tests/papers/test_ramaswamy2020.py`)."
    )
    ends = f"{_between(rows[0])} (N = 2M) … {_between(rows[-1])} (10M)"
    is_below = any(row["at_least"] > paper_values.RAMASWAMY_TABLE_5[row["users"]] for row in rows)
    claim = "upper bounds on ε of rounds of a fixed size"
    parts = [Part(claim, f"ε is {ends}", judge_computed(not is_below))]
    return Item(
        name="Table 5",
        about="ε of the production run, at δ = N^−1.1",
        theirs="9.86 (N = 2M) … 3.27 (10M)",
        ours=f"{ends}; as printed to {off:.2f} if a swap moved the sum by S",
        parts=parts,
        command="python experiments/compute.py ramaswamy2020",
        details=f"{about_cells}\n\n{table(head, cells)}",
    )


def _between(row: Result) -> str:
    return f"{round_down(row['at_least'])} to {round_up(row['charged'])}"


def round_down(bound: float) -> str:
    """Show a lower bound so that it stays one.

    >>> round_down(17.795)
    '17.7'
    """
    return f"{math.floor(10 * bound) / 10:.1f}"


def round_up(bound: float) -> str:
    """Show an upper bound so that it stays one.

    >>> round_up(24.615)
    '24.7'
    """
    return f"{math.ceil(10 * bound) / 10:.1f}"


def group_of_16() -> Item:
    """Compute what (1, 1e-8) for one user is for 16."""
    users = 16
    delta = users * math.exp(users - 1) * 1e-8
    tight = 1e-8 * math.expm1(users) / math.expm1(1)
    parts = [Part("a guarantee for 16 users", f"δ = {delta:.3f}", judge_computed(delta <= 0.53))]
    return Item(
        name="§V-A, a group",
        about="what (1, 1e-8) for one user is for 16",
        theirs="(16, 0.53)",
        ours=f"(16, {delta:.3f}); the sum that this bounds is (16, {tight:.3f})",
        parts=parts,
        command="python -m pytest tests/papers/test_ramaswamy2020.py",
    )


def spread_of_best() -> Spread:
    """Return how far seeds of the paper's best settings are apart."""
    accuracies = [result["rows"][-1]["accuracy_top1"] for result in _repeats()]
    return pool([accuracies])


def measure_best() -> Measured:
    """Return the accuracy of the paper's best settings over all their seeds."""
    return measure([result["rows"][-1] for result in _repeats()], "accuracy_top1")


def _describe_best() -> str:
    best = measure_best()
    return f"their best {100 * best.least:.2f} to {100 * best.most:.2f} in {best.seeds} seeds"


def _repeats() -> list[Result]:
    found = []
    for group, run in REPEATS:
        found += Group(PAPER, group).found[run]
    return found


@judge_by_groups(
    paper=PAPER,
    groups="server",
    name="Table 6",
    about="the server's optimiser",
    theirs="Nesterov momentum best (24.16), then Adam (23.38), then SGD (20.41)",
)
def table_6(server: Group) -> Judged:
    best = {}
    for kind in ("momentum", "adam", "sgd"):
        runs = [run for run in server.found if run.startswith(kind)]
        best[kind] = max((server.last(run) for run in runs), key=lambda one: one.value)
    constant = _constant_answer(server)
    spread = spread_of_best()
    parts = []
    for other in ("adam", "sgd"):
        ahead = compare(best["momentum"], best[other], spread)
        parts.append(Part(f"momentum is ahead of {other}", f"{ahead} points", judge_more(ahead)))
    begun = [kind for kind in ("adam", "sgd") if best[kind].value > constant + CLOSE]
    ahead = compare(best["adam"], best["sgd"], spread)
    verdict = judge_more(ahead) if len(begun) == 2 else Verdict.UNTOLD
    measured = f"{ahead} points" if len(begun) == 2 else "neither has begun to learn"
    parts.append(Part("Adam is ahead of SGD", measured, verdict))
    details = (
        f"Adam and SGD have not begun after 300 rounds: {100 * constant:.2f} % is one answer to"
        " everything, the same to the last digit in several runs. The paper's momentum is"
        " Nesterov's; ours here is plain."
    )
    shown = [f"plain momentum {percent(best['momentum'])}"]
    for kind in ("adam", "sgd"):
        shown.append(f"{kind} {percent(best[kind])}{'' if kind in begun else ' (not begun)'}")
    cells = _table(server, paper_values.RAMASWAMY_TABLE_6)
    return Judged(ours=", ".join(shown), parts=parts, details=f"{details}\n\n{cells}")


def _constant_answer(server: Group) -> float:
    """Return the accuracy that several runs share to the last digit: that of the commonest word."""
    accuracies = [server.last(run).value for run in server.found]
    shared = [value for value in accuracies if accuracies.count(value) > 1]
    return max(shared, default=0.0)


@judge_by_groups(
    paper=PAPER,
    groups="client",
    name="Table 7",
    about="a device's batches and rate",
    theirs="no large effect, 23.92 to 24.15",
)
def table_7(client: Group) -> Judged:
    ordered = sorted((client.last(run) for run in client.found), key=lambda one: one.value)
    parts = []
    for run in client.found:
        if run != BEST_OF_CLIENTS:
            parts.append(_like_the_best(client, run, _name_of_client(run)))
    return Judged(
        ours=f"{percent(ordered[0])} to {percent(ordered[-1])}; {_describe_best()}",
        parts=parts,
        details=_table(client, paper_values.RAMASWAMY_TABLE_7),
    )


def _name_of_client(run: str) -> str:
    batch, _, rate = run.partition("-")
    return f"batches of {batch} at a rate of {rate}"


def _like_the_best(group: Group, run: str, name: str) -> Part:
    """Judge whether a run is as accurate as the paper's best settings, of all their seeds."""
    change = compare(group.last(run), measure_best(), spread_of_best())
    claim = f"{name}: within {POINTS} of the paper's best"
    return Part(claim, f"{change} points", judge_same(change, CLOSE))


@judge_by_groups(
    paper=PAPER,
    groups="clip",
    name="Table 8",
    about="the clip norm",
    theirs="0.8 best, 0.2 to 1 within 0.2 points; 0.1 loses 0.4, 2 loses 0.7",
)
def table_8(clip: Group) -> Judged:
    parts = [_like_the_best(clip, norm, f"S = {norm}") for norm in ("0.2", "0.5", "1")]
    for norm in ("0.1", "2"):
        loss = compare(measure_best(), clip.last(norm), spread_of_best())
        claim = f"S = {norm} is worse than the paper's best"
        parts.append(Part(claim, f"{loss} points", judge_more(loss)))
    shown = [f"{percent(clip.last(run))} at {run}" for run in ("0.1", "0.2", "0.5", "0.8", "1")]
    return Judged(
        ours=f"{', '.join(shown)}; 1.5 and 2 diverge; {_describe_best()}",
        parts=parts,
        details=_table(clip, paper_values.RAMASWAMY_TABLE_8),
    )


@judge_by_groups(
    paper=PAPER,
    groups="clip",
    name="Figure 1",
    about="the share of users who are clipped",
    theirs="nearly all at S = 0.2, about 90 % at the best S",
)
def figure_1(clip: Group) -> Judged:
    lines = []
    at_end = {}
    for run, results in clip.found.items():
        points = _clipped_points(results[0])
        lines.append(Line(name=f"S = {run}", points=points))
        at_end[run] = points[-1][1]
    svg = figure(
        "Users whose update is longer than S",
        across="round",
        up="% of 200 held-out users",
        lines=lines,
    )
    best = _best_run(clip)
    parts = [
        Part(
            "more than 95 % are clipped at S = 0.2",
            f"{at_end['0.2']:.0f} %",
            judge_counted(at_end["0.2"] > 95, clip.seeds),
        ),
        Part(
            f"80 to 100 % at the best S, here {best}",
            f"{at_end[best]:.0f} %",
            judge_counted(at_end[best] >= 80, clip.seeds),
        ),
    ]
    return Judged(
        ours=f"{at_end['0.2']:.0f} % at S = 0.2, {at_end[best]:.0f} % at the best S, {best}",
        parts=parts,
        figures={"clipped.svg": svg},
    )


def _clipped_points(result: Result) -> list[tuple[int, float]]:
    """Return the share of clipped users in %, by round."""
    points = [(int(round), 100 * share) for round, share in result["clipped"].items()]
    return sorted(points)


def _describe_repeats() -> str:
    """Return the accuracies of the paper's best settings."""
    found = _repeats()
    if len(found) < 2:
        return ""
    accuracies = [f"{100 * result['rows'][-1]['accuracy_top1']:.2f}" for result in found]
    return (
        f"\n\nOne seed each; the paper's best settings with {len(found)} seeds:"
        f" {', '.join(accuracies)}, which is what intervals of differences are by."
    )


def _best_run(group: Group) -> str:
    return max(group.found, key=lambda run: group.last(run).value)


def _table(group: Group, theirs: dict[Any, float]) -> str:
    rows = []
    for run, value in zip(group.found, theirs.values(), strict=True):
        rows.append([run, f"{100 * value:.2f}", _describe_end(group, run)])
    return table(["", "paper, Top-1 recall", "ours, AccuracyTop1"], rows) + _describe_repeats()


def _describe_end(group: Group, run: str) -> str:
    """Return a run's accuracy, and where it diverged, if it did."""
    accuracy = str(group.last(run))
    stopped = [result for result in group.found[run] if result.get("stopped")]
    if not stopped:
        return accuracy
    first = min(result["rows"][-1]["round"] for result in stopped)
    return f"{accuracy}, diverged by round {first}, where it was stopped"
