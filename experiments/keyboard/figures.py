"""A private model worth shipping: how good the runs at a real ε are, and what people save who type
with them.
"""

from dataclasses import replace

from lib import typed_claims, typing_tables
from lib.canary_tables import CanaryRow, group_by_kind, least_rank_of_one_user
from lib.page import Item, Judged, judge_by_groups, mark_not_run, table
from lib.results import Group, Measured, Result, load_computed, percent
from lib.svg import Line, figure
from lib.verdicts import (
    Part,
    Spread,
    Verdict,
    compare,
    judge_counted,
    judge_more,
    pool_runs,
)
from taciturn.audit.results import rank_text
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, pair_text

PAPER = "keyboard"
TITLE = "A real ε on real people"
ABOUT_SEEDS = (
    "Intervals are by the spread of seeds of the bloggers' runs from the pilot's start, which have"
    " three."
)
ABOUT = (
    "Our own bars, beside the papers': every ε is of these people and this training, nothing"
    " extrapolated, and settings were fitted on other people. Rows that start from the pilot's"
    " model, which nobody else can get, are on [a page of their own](keyboard/README.md)."
)
EPSILONS = ("1", "2", "4", "8")
# Points of AccuracyTop1 over the start, by ε; and behind the twin without privacy.
BARS = {"1": 0.006, "4": 0.011, "8": 0.013}
BEHIND = 0.005
# All that is measured of what people are offered: the first three with punctuation and ends of
# messages, the others without, as the papers report them.
METRICS = (
    "accuracy_top1",
    "accuracy_top3",
    "keystroke_saving",
    "recall_top1",
    "recall_top3",
    "picked_rate",
)
SHIPS = "ships"
SHOWN = "ε = 4"
HEAD = (
    "ε at δ = 1/users²",
    "of all seeds together",
    "rounds",
    "AccuracyTop1",
    "gain",
    "AccuracyTop3",
    "seeds",
)
DELTA = "δ = users^−1.1"
# A rank that nobody would find by trying.
FAR = 100


def items() -> list[Item]:
    return [
        one_command(),
        start_that_ships(),
        typing("blogs", "blogs", is_of_pilot=False),
        typing("sms", "phone messages", is_of_pilot=False),
        blogs(),
        steam(),
        audit(),
        canaries(),
        typing("blogs", "blogs", is_of_pilot=True),
        typing("sms", "phone messages", is_of_pilot=True),
    ]


def spread() -> Spread:
    """Return how far seeds of one run are apart, of bloggers and from the pilot's start."""
    return pool_runs([(Group(PAPER, "blogs"), None)])


def gains_table(found: Group, runs: tuple[str, ...]) -> str:
    """Show the start, and the run of each ε, under the δ that the runs were charged at, and at
    1/users²: of one run, and of all seeds together.
    """
    start = percent(found.at(runs[0], 0))
    start_top3 = percent(found.at(runs[0], 0, "accuracy_top3"))
    rows = [["the start", "", "", "", start, "", start_top3, ""]]
    rows += [_gains_row(found, run) for run in runs]
    head = [f"ε at δ = {delta_text(found.found[runs[0]][0]['delta'])}", *HEAD]
    return table(head, rows)


def _gains_row(found: Group, run: str) -> list[str]:
    result = found.found[run][0]
    last = found.last(run)
    return [
        *_epsilons(found, run),
        str(result["rounds"]),
        f"**{last}**",
        f"{gain(found, run):+.2f}",
        percent(found.last(run, "accuracy_top3")),
        str(last.seeds),
    ]


def _epsilons(found: Group, run: str) -> list[str]:
    """Return ε as it was charged, and at 1/users² of one run and of all seeds."""
    result = found.found[run][0]
    if not result["noise_multiplier"]:
        return ["∞", "∞", "∞"]
    computed = load_computed(PAPER)
    name = f"{found.name}-{run}"
    at_smaller = []
    for of in ("epsilon", "epsilon_of_all_runs"):
        by_run = computed.get(f"{of}_at_one_over_users_squared", {})
        at_smaller.append(f"{by_run[name]:.2f}" if name in by_run else "not computed yet")
    return [epsilon_text(result["epsilon"]), *at_smaller]


def gain(found: Group, run: str) -> float:
    """Return the points of a run over its start."""
    return 100 * (found.last(run).value - found.at(run, 0).value)


def describe_gains(found: Group, runs: tuple[str, ...]) -> str:
    gains = ", ".join(f"{gain(found, run):+.2f} at {run}" for run in runs)
    return f"{gains} (δ = {delta_text(found.found[runs[0]][0]['delta'])})"


def judge_gain(found: Group, run: str, bar: float) -> Part:
    """Judge whether a run gains as much as a bar; its start is the same in every seed."""
    gained = compare(found.last(run), found.at(run, 0), spread())
    claim = f"at least {100 * bar:+.1f} points over the start at ε = {run}"
    return Part(claim, f"{gained} points", judge_more(gained, than=bar))


def judge_behind(found: Group, run: str) -> Part:
    """Judge whether a private run is near its twin without privacy."""
    behind = compare(found.last("none"), found.last(run), spread())
    rounds = found.found["none"][0]["rounds"]
    claim = (
        f"no more than {100 * BEHIND:.1f} points behind its twin without privacy ({rounds} rounds)"
        f" at ε = {run}"
    )
    verdict = judge_more(behind.negate(), than=-BEHIND)
    return Part(claim, f"{behind} points behind", verdict)


@judge_by_groups(
    paper=PAPER,
    groups="promised",
    name="the one command",
    about="9,190 bloggers, taciturn:english, ε = 4 at δ = 1/users²",
    theirs="+1.1 points over the start; −0.5 from no privacy",
)
def one_command(found: Group) -> Judged:
    runs = ("4", "none")
    ours = (
        f"{percent(found.at('4', 0))} → {percent(found.last('4'))} %; without privacy"
        f" {percent(found.last('none'))}"
    )
    return Judged(
        ours=ours,
        parts=[judge_gain(found, "4", BARS["4"]), judge_behind(found, "4")],
        details=f"{gains_table(found, runs)}\n\n{ABOUT_SEEDS}",
    )


@judge_by_groups(
    paper=PAPER,
    groups="blogs",
    name="blogs",
    about="9,190 bloggers, the pilot's start, δ = users^−1.1",
    theirs="+0.6, +1.1, +1.3 points at ε = 1, 4, 8; −0.5 from no privacy at 8",
    of_pilot=True,
)
def blogs(found: Group) -> Judged:
    parts = [judge_gain(found, run, bar) for run, bar in BARS.items()]
    parts.append(judge_behind(found, "8"))
    behind = 100 * (found.last("none").value - found.last("8").value)
    rounds = found.found["none"][0]["rounds"]
    gains = describe_gains(found, EPSILONS)
    return Judged(
        ours=f"{gains}; −{behind:.2f} from its twin without privacy ({rounds} rounds) at 8",
        parts=parts,
        details=gains_table(found, (*EPSILONS, "none")),
        figures={"blogs.svg": _draw_blogs(found)},
    )


def _draw_blogs(found: Group) -> str:
    points = []
    margins = []
    for run in EPSILONS:
        accuracy = found.last(run)
        points.append((float(run), 100 * accuracy.value))
        margins.append(50 * (accuracy.most - accuracy.least))
    lines = [
        Line(name="private", points=points, margins=margins),
        _level_line("no privacy", found.last("none")),
        _level_line("the start", found.at("1", 0)),
    ]
    return figure(
        f"Blogs: AccuracyTop1 of held-out people, {DELTA}",
        across="ε, real",
        up="AccuracyTop1, %",
        lines=lines,
        log=True,
    )


def _level_line(name: str, accuracy: Measured) -> Line:
    """Return a line that goes across at one height."""
    level = 100 * accuracy.value
    return Line(name=name, points=[(float(EPSILONS[0]), level), (float(EPSILONS[-1]), level)])


@judge_by_groups(
    paper=PAPER,
    groups="shipped",
    name="the start that ships",
    about="9,190 bloggers, taciturn:english, ε = 4 at δ = users^−1.1",
    theirs="+1.1 points over the start",
)
def start_that_ships(found: Group) -> Judged:
    delta = found.found["4"][0]["delta"]
    ours = f"{percent(found.at('4', 0))} → {percent(found.last('4'))} % (δ = {delta_text(delta)})"
    return Judged(
        ours=ours,
        parts=[judge_gain(found, "4", BARS["4"])],
        details=f"{gains_table(found, ('4',))}\n\n{ABOUT_SEEDS}",
    )


@judge_by_groups(
    paper=PAPER,
    groups="steam",
    name="steam",
    about="36,903 people with 200 words in the middle, the pilot's start, δ = users^−1.1",
    theirs="+0.6 points at ε = 1",
    of_pilot=True,
)
def steam(found: Group) -> Judged:
    runs = ("0.5", "1", "2", "4")
    return Judged(
        ours=describe_gains(found, runs),
        parts=[judge_gain(found, "1", BARS["1"])],
        details=f"{gains_table(found, runs)}\n\n{ABOUT_SEEDS}",
    )


@judge_by_groups(
    paper=PAPER,
    groups="watched",
    name="audit",
    about="1,000 audit users in a run at ε = 4, δ = users^−1.1",
    theirs="nothing contradicts the claim",
    of_pilot=True,
)
def audit(found: Group) -> Judged:
    (private,) = found.found["4"]
    watched = private["audit"]
    _, smaller, _ = _epsilons(found, "4")
    accuracy = 100 * private["rows"][-1]["accuracy_top1"]
    details = (
        f"{pair_text(private['epsilon'], private['delta'])}, {smaller} at 1/users²;"
        f" AccuracyTop1 of this run: {accuracy:.2f} %."
    )
    missed = watched["caught_at_80_percent"]
    parts = [
        Part(
            "nothing contradicts the claim",
            f"at least {watched['times_at_least']:.2f} times the claimed μ (99.9 %)",
            judge_counted(not watched["refuted"], found.seeds),
        ),
        Part(
            "noise of two thirds of what is claimed would have been caught, in 80 of 100 cases",
            f"caught where the claim is {missed:.2f} times too small",
            judge_counted(missed <= 1.5, found.seeds),
        ),
    ]
    return Judged(ours=_describe_audit(watched), parts=parts, details=details)


@judge_by_groups(
    paper=PAPER,
    groups="watched",
    name="canaries",
    about="27 canaries of 189 synthetic users in a run at ε = 4, δ = users^−1.1",
    theirs="nothing of one user's is memorised",
    of_pilot=True,
)
def canaries(found: Group) -> Judged:
    private = group_by_kind(found.found["4"])
    without = group_by_kind(found.found["none"])
    least = least_rank_of_one_user(private)
    least_without = least_rank_of_one_user(without)
    has_power = least_without < FAR
    verdict = judge_counted(least >= FAR, found.seeds) if has_power else Verdict.UNTOLD
    measured = f"{rank_text(least)} and more; without privacy {rank_text(least_without)} and more"
    details = (
        "Its twin without privacy memorises nothing of one user's either, so that these runs cannot"
        " tell a private model from one that leaks: Table 4 of"
        " [ramaswamy2020](../ramaswamy2020/README.md) can. Ranks among 2,000,000 random"
        " continuations."
    )
    return Judged(
        ours=f"ranks of one user's are {measured}",
        parts=[Part(f"every rank is {FAR} and more", measured, verdict)],
        details=f"{details}\n\n{_canaries_table(private, beside=without)}",
    )


def _describe_audit(audit: Result) -> str:
    claimed = audit["mu"]
    found = audit["times"] * claimed
    least = audit["times_at_least"] * claimed
    return (
        f"claimed μ {claimed:.2f}, found {found:.2f}, at least {least:.2f} (99.9 %); noise"
        f" {audit['caught_at_80_percent']:.2f} times too small would have been caught in 80 of 100"
        " cases"
    )


def _canaries_table(
    canaries: dict[tuple[int, int], CanaryRow], beside: dict[tuple[int, int], CanaryRow]
) -> str:
    rows = []
    for kind, row in canaries.items():
        other = beside[kind]
        rows.append([*kind, _list_ranks(row), row.found, _list_ranks(other), other.found])
    return table(["n_u", "n_e", "ε = 4: ranks", "found", "no privacy: ranks", "found"], rows)


def _list_ranks(row: CanaryRow) -> str:
    return ", ".join(map(rank_text, row.ranks))


def typing(text: str, what: str, *, is_of_pilot: bool) -> Item:
    """Return how well people type a text with our models from one of the starts, once it is
    measured: like beside like, both without history and both with.
    """
    name = f"typing, {what}{', the pilot’s start' if is_of_pilot else ''}"
    names = [typing_tables.SHOWN[metric] for metric in METRICS]
    claim = f"a private model beats n-grams: {', '.join(names)}"
    # What was measured before 1/users² was the default is of the pilot's start.
    delta = DELTA if is_of_pilot else "δ = 1/users²"
    result = f"typing-{text}{'' if is_of_pilot else '-shipped'}"
    command = "python experiments/keyboard/table.py …"
    measured = typing_tables.load_results(PAPER, result)
    if measured and "command" in measured:
        command += f"  # all of it is in results/{result}.json"
    about = f"what people save with ε = 4 at {delta}, like beside like"
    ours = _our_models(measured, is_of_pilot) if measured else []
    if measured is None or not ours:
        item = mark_not_run(name=name, about=about, theirs=claim, command=command)
        return replace(item, of_pilot=is_of_pilot)
    parts = []
    shown = []
    for model in ours:
        has_history = typed_claims.HISTORY in model
        changes = []
        for metric in METRICS:
            baseline = typed_claims.best_ngram(measured, metric, has_history)
            if baseline is None:
                continue
            parts += typed_claims.judge_ahead(measured, model, [metric], baseline)
            ahead = typed_claims.change(measured, model, metric, baseline)
            changes.append(f"{100 * ahead.value:+.1f}")
        shown.append(f"{' / '.join(changes)} %{' with history' if has_history else ''}")
    parts += typed_claims.judge_public_ngrams(measured, None, [], METRICS)
    about_delta = f"Every ε is at {delta}."
    return Item(
        name=name,
        about=about,
        theirs=claim,
        ours=f"{', '.join(shown)}, from the best n-gram",
        seeds=typed_claims.TYPED_WITH,
        command=command,
        parts=parts,
        details=f"{about_delta}\n\n{typing_tables.tables(measured)}",
        of_pilot=is_of_pilot,
    )


def _our_models(typing: Result, is_of_pilot: bool) -> list[str]:
    """Return our models at ε = 4 from one of the starts, without history and with."""
    names = []
    for name in typing["models"]:
        is_ours = name.startswith(SHOWN) or f" {SHOWN}" in name
        if is_ours and (SHIPS not in name) == is_of_pilot:
            names.append(name)
    return names
