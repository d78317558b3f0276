"""Ramaswamy et al. 2020, table by table and figure by figure."""

import math
from dataclasses import replace
from typing import Any

from lib import paper_values, typed_claims, typing_tables
from lib.canary_tables import (
    CanaryRow,
    Kind,
    group_by_kind,
    least_met,
    least_rank_of_one_user,
    median,
    middle,
)
from lib.page import Item, Judged, judge_by_groups, mark_impossible, table
from lib.results import (
    Group,
    Measured,
    Result,
    list_names,
    load_computed,
    measure,
    percent,
)
from lib.run_lists import read_list
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
    measure_share,
    pool,
)
from taciturn.audit.results import rank_text
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.recipe.recipe import Recipe

PAPER = "ramaswamy2020"
TITLE = "Ramaswamy et al. 2020: training production language models without memorizing user data"
ABOUT = """
Tables 6 to 8 and Figure 1 are their protocol for tuning (CIFG with tied embeddings, 500 users a
round, σ = 3.2e-5 on the average, S = 0.8, momentum 0.99) on 9,190 bloggers with 400 words each, 300
rounds from a random start, where they have Stack Overflow and do not say how many rounds. Tables 2
to 4 have settings of their own, which their sections name. What they measure on phones (recall and
clicks of people) has no counterpart but simulated typing.
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
# Of these, the paper's own; the other is judged by the claims of Xu et al.
PRIVATE = ("production",)
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
# Five of the six canaries of four users that the paper calls «almost all nearly memorized» are
# below the first.
LOW = 1_000
ALMOST_ALL = 5 / 6
# Of the users whose update is looked at, for Figure 1; and the shares there.
LOOKED_AT = 200
NEARLY_ALL = 0.95
AT_THE_BEST = (0.8, 1.0)
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
        "noise on the running sum, rms, in clip norms per person of a round",
        "guarantee in the paper's population, *extrapolated*, Poisson cohorts",
        "AccuracyTop1",
        "seeds",
    ]
    about_cells = (
        "500 of 9,190 bloggers a round for 150 rounds, from the pilot's start; these people's own"
        " ε is on the page of [keyboard](../keyboard/README.md). Noise on the running sum of all"
        " rounds is as much as theirs in 2,000 rounds: 1.5e-4 a round here, 4e-5 in the paper. The"
        " extrapolated ε is the kindest of those of Table 5: it takes cohorts to be drawn at"
        " random."
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
    once = paper_values.RAMASWAMY_TABLE_3[1, 1]
    # Of a device, whose canary is met once each time that it takes part.
    takes_part = once * rounds / paper_values.RAMASWAMY_ROUNDS
    found = least_met(canaries.found["private"])
    rows = []
    counts = []
    near = 0
    for kind, canary in group_by_kind(canaries.found["private"]).items():
        counts.append(canary.met)
        theirs = paper_values.RAMASWAMY_TABLE_3[kind]
        scaled = theirs * rounds / paper_values.RAMASWAMY_ROUNDS
        near += abs(canary.met / scaled - 1) < 0.25
        rows.append([*kind, f"{theirs:,}", f"{scaled:,.0f}", f"{canary.met:,.0f}"])
    about_cells = (
        "By our design, not theirs: a device reads 400 words of its 200 sentences at a time, so"
        " that not every copy is met. A count is how often a device takes part, by n_e, by n_u; how"
        " often it takes part was set to be as in the paper, and all that is missing is what the"
        " 400 words leave out, so that nothing of theirs is refuted. Ours are means over all"
        " canaries of a kind, each of which is met as often as is expected of its devices."
    )
    ours = (
        f"{min(counts):,.0f} to {max(counts):,.0f} times in {rounds} rounds, by our design: a"
        f" device reads 400 words at a time; {near} of {len(rows)} within a quarter of theirs"
    )
    claim = f"by our design, not theirs: every count, times {rounds} of 2,000 rounds, to a quarter"
    verdict = judge_computed(near == len(rows))
    if 0 < near < len(rows):
        verdict = Verdict.PART
    parts = [
        Part(
            f"a device takes part {takes_part:.0f} times in {rounds} rounds, to 1 %",
            f"{found}",
            judge_computed(abs(found / takes_part - 1) < 0.01),
        ),
        Part(claim, f"{near} of {len(rows)}", verdict),
    ]
    head = ["n_u", "n_e", "paper", f"paper, of {rounds} rounds", "ours, mean"]
    return Judged(ours=ours, parts=parts, details=f"{about_cells}\n\n{table(head, rows)}")


def _canary_recipe() -> Recipe:
    return next(run for run in read_list(PAPER) if run.group == "canaries").load_recipe()


@judge_by_groups(
    paper=PAPER,
    groups="canaries canaries-open",
    name="Table 4",
    about="what is memorised of 27 canaries",
    theirs="nothing of one user's or said once; of four users nearly all; all that 16 say often",
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
    ranks_and_seeds = (
        "Ranks among 2,000,000 random continuations, 1 being the likeliest: in the middle of all"
        " seeds and canaries, with a 95 % interval of that middle; found by a beam search of width"
        f" five. Seeds: {private.seeds}, without privacy {open.seeds}."
    )
    least = least_rank_of_one_user(with_privacy)
    beside = without_privacy[1, 200]
    shared = [_rank_and_found(with_privacy[16, copies]) for copies in (14, 200)]
    of_four = _rank_and_found(with_privacy[4, 14])
    ours = (
        f"one user's have ranks of {rank_text(least)} and more, without privacy"
        f" {_rank_and_found(beside)}; four users' 14 times {of_four}; 16 users'"
        f" {' and '.join(shared)}"
    )
    about_runs = _describe_canary_runs(private.found["private"][0])
    return Judged(
        ours=ours,
        parts=_parts_of_canaries(
            with_privacy, without_privacy, seeds=min(private.seeds, open.seeds)
        ),
        details=f"{about_runs}\n\n{ranks_and_seeds}\n\n{table(head, rows)}",
    )


def _describe_canary_runs(first: Result) -> str:
    """Say with which settings the canaries were trained, and whose ε it is."""
    recipe = _canary_recipe()
    devices = 0
    for (users, _), (ranks, _) in paper_values.RAMASWAMY_TABLE_4.items():
        devices += users * len(ranks)
    cohort = recipe.participation.cohort
    reports = devices * recipe.canaries.rate
    share = 100 * reports / (reports + cohort)
    their_share = 100 * reports / paper_values.RAMASWAMY_COHORT
    return (
        f"{first['rounds']} rounds of {cohort:g} bloggers from {recipe.model.warm_start}, S ="
        f" {recipe.privacy.clip_norm:g}, the server's rate {recipe.server.learning_rate:g} and"
        f" momentum {recipe.server.momentum:g}. Beside them come the devices of the canaries,"
        f" {reports:.0f} of about {reports + cohort:.0f} reports a round: {share:.0f} %, where the"
        f" paper has {their_share:.1f} %. {pair_text(first['epsilon'], first['delta'])} is that of"
        f" a blogger, who is drawn with a probability of {cohort:g}/{recipe.participation.users:,};"
        f" devices of canaries come with one of {recipe.canaries.rate:g}, and it is not theirs."
    )


def _rank_and_found(canary: CanaryRow) -> str:
    return f"rank {rank_text(middle(canary.ranks))} in the middle, found {canary.found}"


def _parts_of_canaries(
    private: dict[Kind, CanaryRow], open: dict[Kind, CanaryRow], *, seeds: int
) -> list[Part]:
    parts = []
    for copies in (200, 14, 1):
        claim = f"nothing of one user's that is said {_times(copies)}"
        parts.append(_nothing_memorised(claim, private[1, copies], open[1, copies], seeds))
    for users in (4, 16):
        claim = f"nothing of {users} users' that is said once"
        parts.append(_nothing_memorised(claim, private[users, 1], open[users, 1], seeds))
    for copies in (14, 200):
        canary = private[4, copies]
        low = sum(rank < LOW for rank in canary.ranks)
        count = len(canary.ranks)
        parts.append(
            Part(
                f"what 4 users say {copies} times is nearly memorised: five of six ranks below"
                f" {LOW:,}",
                f"{low} of {count}, {_rank_and_found(canary)}; without privacy rank"
                f" {rank_text(middle(open[4, copies].ranks))}",
                judge_counted(low >= ALMOST_ALL * count, seeds),
            )
        )
    for copies in (14, 200):
        canary = private[16, copies]
        claim = f"what 16 users say {copies} times is memorised: rank 1, and a beam search finds it"
        found, _, tried = canary.found.split()
        is_first = middle(canary.ranks) <= LEARNED_BY_HEART
        verdict = judge_counted(is_first and found == tried, seeds)
        if is_first and found != tried:
            verdict = Verdict.PART
        parts.append(Part(claim, _rank_and_found(canary), verdict))
    return parts


def _times(copies: int) -> str:
    return "once" if copies == 1 else f"{copies} times"


def _nothing_memorised(claim: str, private: CanaryRow, open: CanaryRow, seeds: int) -> Part:
    """Judge whether all ranks are far. Where training without privacy learns none either, that
    privacy learns none says nothing of it.
    """
    least = min(private.ranks)
    least_without = min(open.ranks)
    measured = f"{rank_text(least)} and more; without privacy {rank_text(least_without)} and more"
    if private.never_met:
        measured += f"; {private.never_met} of {len(private.ranks)} never met"
    verdict = judge_counted(least >= FAR, seeds)
    if verdict is not Verdict.FAILS and least_without >= FAR:
        verdict = Verdict.UNTOLD
    return Part(f"{claim}: every rank is {FAR} and more", measured, verdict)


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
    begun = [kind for kind in ("adam", "sgd") if best[kind].value > constant + CLOSE]
    for other, name in (("adam", "Adam"), ("sgd", "SGD")):
        ahead = compare(best["momentum"], best[other], spread)
        verdict = judge_more(ahead)
        measured = f"{ahead} points"
        if other not in begun:
            # What it would come to is not known.
            verdict = Verdict.UNTOLD
            measured += f", and {name} has not begun to learn"
        parts.append(Part(f"plain momentum is ahead of {name}", measured, verdict))
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
    printed = paper_values.RAMASWAMY_TABLE_8
    for norm in ("0.1", "2"):
        loss = compare(measure_best(), clip.last(norm), spread_of_best())
        theirs = printed[0.8] - printed[float(norm)]
        off = loss._replace(value=loss.value - theirs)
        claim = f"S = {norm} loses {100 * theirs:.1f} points to it, within {POINTS}"
        measured = f"{loss} points"
        if any(result.get("stopped") for result in clip.found[norm]):
            measured += "; it had diverged"
        parts.append(Part(claim, measured, judge_same(off, CLOSE)))
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
        at_end[run] = points[-1][1] / 100
    svg = figure(
        "Users whose update is longer than S",
        across="round",
        up="% of 200 held-out users",
        lines=lines,
    )
    best = _best_run(clip)
    shown = f"{100 * at_end['0.2']:.0f} % at S = 0.2, {100 * at_end[best]:.0f} % at the best S,"
    return Judged(
        ours=f"{shown} {best}, which is not told from others",
        parts=[_nearly_all_clipped(clip, at_end["0.2"]), _clipped_at_the_best(clip, at_end)],
        details=f"Shares are of {LOOKED_AT} held-out users, after the last round measured.",
        figures={"clipped.svg": svg},
    )


def _nearly_all_clipped(clip: Group, share: float) -> Part:
    found = measure_share(share, LOOKED_AT, clip.seeds)
    return Part(
        f"more than {100 * NEARLY_ALL:.0f} % are clipped at S = 0.2",
        f"{100 * share:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})",
        judge_more(found, than=NEARLY_ALL),
    )


def _clipped_at_the_best(clip: Group, shares: dict[str, float]) -> Part:
    """Judge the share at every S that may be the best: seeds are far apart here."""
    best = clip.last(_best_run(clip))
    spread = spread_of_best()
    low, high = AT_THE_BEST
    candidates = [run for run in clip.found if compare(best, clip.last(run), spread).low <= 0]
    answers = {low <= shares[run] <= high for run in candidates}
    verdict = judge_counted(answers == {True}, clip.seeds) if len(answers) == 1 else Verdict.UNTOLD
    measured = ", ".join(f"{100 * shares[run]:.0f} % at {run}" for run in candidates)
    may_be = list_names(candidates)
    claim = f"{100 * low:.0f} to {100 * high:.0f} % at the best S, which may be {may_be}"
    return Part(claim, measured, verdict)


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
