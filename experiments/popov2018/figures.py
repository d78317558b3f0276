"""Popov et al. 2018, table by table and figure by figure."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

from lib import paper_values, run_lists
from lib.page import Item, Judged, judge_by_groups, mark_impossible, mark_not_run, table
from lib.results import Group, Result
from lib.svg import Line, figure
from lib.verdicts import (
    Difference,
    Part,
    Verdict,
    judge_computed,
    judge_counted,
    judge_more,
    judge_same,
)

PAPER = "popov2018"
TITLE = "Popov et al. 2018: distributed fine-tuning of language models on private data"
ABOUT = """
Their model (2 × 650 LSTM, 30,000 words, 45.8M parameters) from Wikipedia (30M words; ours are 6M)
to blogs, in place of Twitter; one seed each. Words outside the list count as one more word, where
the paper leaves them out, so that levels are not comparable, changes are. Keystrokes are those of
300 sentences of general text and of 400 held-out users, each from its beginning, with a strip of
three. Nothing here has a second seed, and no interval of a difference was measured: 3 % of a
perplexity, and one point of keystrokes, are what we leave undecided.
"""
# The run of Table 1 that learns only from the device's text.
RETRAINED = "alone"
ROWS = {
    "rehearsal-0.25": "rehearsal, λ = ¼",
    "rehearsal-0.5": "rehearsal, λ = ½",
    "rehearsal-0.75": "rehearsal, λ = ¾",
    "soft-0.25": "soft labels, λ = ¼",
    "soft-0.5": "soft labels, λ = ½",
    "soft-0.75": "soft labels, λ = ¾",
    RETRAINED: "re-training, λ = 1",
    "generated-1": "transfer learning, generated text, 1 cycle",
    "generated-5": "… 5 cycles",
    "real-1": "transfer learning, real text",
    "averaged-1": "averaging, 1 round",
    "averaged-5": "averaging, 5 rounds of the same ten",
    "rehearsal": "averaging, 300 rounds",
    "none": "averaging, 300 rounds, no rehearsal",
    "queue": "from a queue, 30 devices in flight, 100 rounds",
}
TRANSFER = ("generated-1", "generated-5", "real-1")
CYCLES = {"generated-1": "generated text, 1 cycle,", "generated-5": "generated text, 5 cycles,"}
SIDES = ("general", "users")
# What one seed leaves undecided: shares of a perplexity, and of keystrokes.
UNDECIDED = 0.03
UNDECIDED_KEYSTROKES = 0.01
# Nothing was run with a second seed.
ONE = 1
# The sizes that the paper's abstract names, of perplexity and of keystrokes.
CLAIMED_FALL = 0.67
CLAIMED_KEYSTROKES = 0.087
# How far from a size that is claimed ours may be: a quarter.
NEAR = 0.25
EPOCHS = (
    "python experiments/popov2018/communication.py --part epochs --epochs 2 1 --rates 1.0 0.05 …"
)
TAILS = "python experiments/popov2018/tails.py local/papers/popov2018/averaging-rehearsal-1 …"

# The perplexities of general text, of users', and on average, as the paper prints them.
Printed = tuple[float, ...]


def items() -> list[Item]:
    return [
        table_1(),
        table_2(),
        transfer_on_real_text(),
        sizes_of_the_abstract(),
        # Every seed uploads as much.
        replace(table_3(), seeds=0),
        table_4(),
        table_5(),
        table_6(),
        mark_impossible(
            name="Figure 1",
            about="the approach, drawn",
            theirs="",
            why="a drawing, no result",
        ),
        figure_2(),
        figure_3(),
        mark_impossible(
            name="§2.5, on a phone",
            about="training on a device",
            theirs="140 seconds for 20 kB of text",
            why="no phone was tried",
        ),
    ]


def average(general: float, users: float) -> float:
    """Return the geometric mean over the tokens of the paper's tests, 170,000 of general text and
    200,000 of users'.
    """
    return math.exp((170 * math.log(general) + 200 * math.log(users)) / 370)


def average_perplexity(typing: Result) -> float:
    perplexity = typing["perplexity"]
    return average(perplexity["general"][0], perplexity["users"][0])


def load_program_result(name: str) -> Result:
    """Return what a program other than train.py wrote; nothing where it has not run."""
    path = run_lists.HERE / PAPER / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def load_typing(group: Group, name: str) -> Result:
    """Return what keystrokes.py measured of a run."""
    return group.found[name][0]["typed"]


def _row(name: str, typing: Result, paper: Printed | None) -> list[str]:
    cells = [name]
    for place, side in enumerate(SIDES):
        value, margin = typing["perplexity"][side]
        cells += [
            f"{value:.1f} ± {margin:.1f}",
            _show_printed(paper, place),
            f"{100 * typing['saved'][side]:.1f}",
        ]
    return [*cells, f"**{average_perplexity(typing):.1f}**", _show_printed(paper, 2)]


def _show_printed(paper: Printed | None, place: int) -> str:
    return f"{paper[place]:.1f}" if paper else ""


def _table(typings: dict[str, Result], papers: dict[str, Printed]) -> str:
    """Show runs below the start, if it was measured."""
    rows = []
    start = load_program_result("start")
    if start:
        rows.append(_row("before", start, paper_values.POPOV_START))
    for name, typing in typings.items():
        rows.append(_row(ROWS[name], typing, papers.get(name)))
    head = [""]
    for side in SIDES:
        head += [f"{side}: perplexity", f"{side}: *paper*", f"{side}: keystrokes saved, %"]
    return table([*head, "average perplexity", "*paper*"], rows)


@judge_by_groups(
    paper=PAPER,
    groups="one-device",
    name="Table 1",
    about="rehearsal against learning without forgetting",
    theirs="rehearsal best, at λ = ½: average perplexity 119.1",
)
def table_1(devices: Group) -> Judged:
    typings = {name: load_typing(devices, name) for name in paper_values.POPOV_TABLE_1}
    averages = {name: average_perplexity(typing) for name, typing in typings.items()}
    best = min(averages, key=lambda name: averages[name])
    soft = [average for name, average in averages.items() if name.startswith("soft")]
    retrained = averages[RETRAINED]
    rehearsed = min(average for name, average in averages.items() if name.startswith("rehearsal"))
    others = [
        name for name in averages if name.startswith("rehearsal-") and name != "rehearsal-0.5"
    ]
    ours = (
        f"best is {ROWS[best]}: {averages[best]:.1f}; soft labels at best {min(soft):.1f},"
        f" re-training {retrained:.1f}"
    )
    parts = [
        _better("rehearsal is better than soft labels", rehearsed, min(soft)),
        _better("rehearsal is better than re-training", rehearsed, retrained),
    ]
    for other in others:
        claim = f"λ = ½ is better than {ROWS[other].partition(', ')[2]}"
        parts.append(_better(claim, averages["rehearsal-0.5"], averages[other]))
    about_cells = (
        "A million words of blogs as if they were one person's; one epoch; rows of 35 words,"
        " batches of 20."
    )
    cells = _table(typings, paper_values.POPOV_TABLE_1)
    return Judged(ours=ours, parts=parts, details=f"{about_cells}\n\n{cells}")


def _better(claim: str, one: float, other: float) -> Part:
    """Judge whether one perplexity is lower than another."""
    lower = Difference(value=1 - one / other, margin=UNDECIDED, seeds=ONE)
    return Part(claim, f"{one:.1f} against {other:.1f}", judge_more(lower))


@judge_by_groups(
    paper=PAPER,
    groups="ten averaging",
    name="Table 2",
    about="averaging against transfer learning",
    theirs="averaging better: 160.3 against 171.6 after a round, 107.5 after 300",
)
def table_2(ten: Group, averaging: Group) -> Judged:
    runs = dict.fromkeys((*TRANSFER, "averaged-1", "averaged-5"), ten)
    runs |= dict.fromkeys(averaging.found, averaging)
    typings = {name: load_typing(group, name) for name, group in runs.items()}
    averages = {name: average_perplexity(typing) for name, typing in typings.items()}
    # As often as devices train for averaging: each cycle of the server's has a round of theirs.
    transferred = min(averages["generated-1"], averages["real-1"])
    ours = (
        f"{averages['averaged-1']:.1f} against {transferred:.1f} after a round,"
        f" {averages['averaged-5']:.1f} against {averages['generated-5']:.1f} after five,"
        f" {averages['rehearsal']:.1f} after 300"
    )
    parts = [
        _better(
            "averaging is better than transfer learning after a round",
            averages["averaged-1"],
            transferred,
        ),
        _better(
            "averaging is better than transfer learning after five rounds",
            averages["averaged-5"],
            averages["generated-5"],
        ),
    ]
    about_cells = (
        "Ten devices of about 1,600 words each, rehearsal at λ = ½, batches of 10 rows of 20 words;"
        " 300 rounds are 3,000 devices. Devices train anew for each of the server's five cycles, so"
        " these are held against five rounds; in the paper the server has one round of theirs and"
        " generates text anew."
    )
    stale = averaging.found["queue"][0]["rows"][-1].get("staleness", math.nan)
    about_queue = f"A report from the queue is {stale:.1f} rounds old on average."
    cells = _table(typings, paper_values.POPOV_TABLE_2)
    details = "\n\n".join([about_cells, cells, about_queue])
    return Judged(ours=ours, parts=parts, details=details)


@judge_by_groups(
    paper=PAPER,
    groups="ten",
    name="§2.5, transfer learning",
    about="generated text in place of real text",
    theirs="no significant difference: 171.6 and 174.4 against 174.6",
)
def transfer_on_real_text(ten: Group) -> Judged:
    averages = {name: average_perplexity(load_typing(ten, name)) for name in TRANSFER}
    start = load_program_result("start")
    parts = []
    for name in CYCLES:
        ratio = averages[name] / averages["real-1"] - 1
        claim = f"{CYCLES[name]} is within {100 * UNDECIDED:.0f} % of real text"
        measured = f"{100 * ratio:+.1f} %"
        verdict = judge_counted(abs(ratio) < UNDECIDED, ONE)
        untrained = average_perplexity(start) / averages["real-1"] - 1 if start else 0.0
        if verdict is not Verdict.FAILS and abs(untrained) < UNDECIDED:
            # Where no training at all is as near, being near says nothing.
            verdict = Verdict.UNTOLD
            measured += f"; the start itself {100 * untrained:+.1f} %" if start else ""
        parts.append(Part(claim, measured, verdict))
    generated = " and ".join(f"{averages[name]:.1f}" for name in CYCLES)
    return Judged(ours=f"{generated} against {averages['real-1']:.1f}", parts=parts)


@judge_by_groups(
    paper=PAPER,
    groups="averaging",
    name="abstract",
    about="what 300 rounds change for users and for the general language",
    theirs="perplexity −67 % («almost 70»), keystrokes +8.7 points, general ones −0.6",
)
def sizes_of_the_abstract(averaging: Group) -> Judged:
    typing = load_typing(averaging, "rehearsal")
    start = load_program_result("start")
    gains = _keystroke_gains(typing)
    if gains is None:
        part = Part("changes from the start", "the start is not measured", Verdict.NOT_RUN)
        return Judged(ours="the start is not measured", parts=[part])
    fall = 1 - typing["perplexity"]["users"][0] / start["perplexity"]["users"][0]
    users = Difference(value=gains["users"], margin=UNDECIDED_KEYSTROKES, seeds=ONE)
    general = Difference(value=gains["general"], margin=UNDECIDED_KEYSTROKES, seeds=ONE)
    is_near_fall = abs(fall / CLAIMED_FALL - 1) < NEAR
    is_near_gain = abs(gains["users"] / CLAIMED_KEYSTROKES - 1) < NEAR
    parts = [
        Part("users save more keystrokes", f"{users} points", judge_more(users)),
        Part(
            "their perplexity falls as far, to a quarter",
            _fall(fall),
            judge_counted(is_near_fall, ONE),
        ),
        Part(
            "they save as many keystrokes, to a quarter",
            f"{100 * gains['users']:+.1f} points",
            judge_counted(is_near_gain, ONE),
        ),
        Part(
            "the general language loses no more than two points",
            f"{general} points{_without_rehearsal(averaging)}",
            judge_more(general, than=-0.02),
        ),
    ]
    ours = (
        f"perplexity {_fall(fall)}, keystrokes {100 * gains['users']:+.1f} points, general ones"
        f" {100 * gains['general']:+.1f}"
    )
    return Judged(ours=ours.replace("-", "−"), parts=parts)


def _without_rehearsal(averaging: Group) -> str:
    """Say what there is to lose: two points are fewer."""
    gains = _keystroke_gains(load_typing(averaging, "none"))
    return f"; without rehearsal {100 * gains['general']:+.2f}" if gains else ""


def _fall(share: float) -> str:
    return f"−{100 * share:.0f} %"


def _keystroke_gains(typing: Result) -> dict[str, float] | None:
    """Return the keystrokes saved over the start, by the side of the text, if that was measured."""
    start = load_program_result("start")
    if not start:
        return None
    return {side: typing["saved"][side] - start["saved"][side] for side in SIDES}


@judge_by_groups(
    paper=PAPER,
    groups="one-device ten",
    name="Table 3",
    about="what is uploaded",
    theirs="174.43 MB a model, 1.70 GB a round",
)
def table_3(devices: Group, ten: Group) -> Judged:
    mebibytes = _uploaded_bytes(devices, RETRAINED) / 2**20
    gibibytes = _uploaded_bytes(ten, "averaged-1") / 2**30
    parts = [
        Part(
            "a model, to 1 % where MB is 2²⁰ bytes",
            f"{mebibytes:.1f} MiB",
            _near(mebibytes, 174.43),
        ),
        Part(
            "a round, to 1 % where GB is 2³⁰ bytes", f"{gibibytes:.2f} GiB", _near(gibibytes, 1.70)
        ),
    ]
    return Judged(ours=f"{mebibytes:.1f} MiB, {gibibytes:.2f} GiB", parts=parts)


def _near(ours: float, theirs: float) -> Verdict:
    return judge_computed(abs(ours / theirs - 1) < 0.01)


def _uploaded_bytes(group: Group, run: str) -> float:
    last = group.found[run][0]["rows"][-1]
    return last.get("upload_bytes", 0)


def judge_by_program(
    *, result: str, command: str, name: str, about: str, theirs: str
) -> Callable[[Callable[[Result], Judged]], Callable[[], Item]]:
    """Make an item of a function that judges what a program other than train.py wrote.

    Args:
        result: the name of the program's result.
        command: what would run the program.
        name: what the paper calls the table or figure.
        about: what it shows.
        theirs: what they print, or claim.
    """

    def with_result(judge: Callable[[Result], Judged]) -> Callable[[], Item]:
        def make_item() -> Item:
            content = load_program_result(result)
            if not content:
                return mark_not_run(name=name, about=about, theirs=theirs, command=command)
            judged = judge(content)
            return Item(
                name=name,
                about=about,
                theirs=theirs,
                ours=judged.ours,
                seeds=1,
                command=command,
                parts=judged.parts,
                details=judged.details,
                figures=judged.figures,
            )

        return make_item

    return with_result


@judge_by_program(
    result="epochs",
    command=EPOCHS,
    name="Table 4",
    about="several epochs against compressed gradients",
    theirs="71.06 and 72.24, for 112 and 53,000 uploads",
)
def table_4(result: Result) -> Judged:
    rounds = {row["round"]: row for row in result["epochs"]["rows"]}
    best = result["epochs"]["best"]
    row = rounds[best["round"]]
    gibibytes = row["bytes"] / 2**30
    cells = []
    for round in (2, 4, 8, 16, len(rounds)):
        if round in rounds:
            shown = rounds[round]
            uploaded = shown["bytes"] / 2**30
            cells.append([round, f"{shown['valid']:.1f}", shown["uploads"], f"{uploaded:.2f}"])
    head = ("round", "validation perplexity", "uploads", "GiB uploaded")
    about_cells = (
        "Penn Treebank on four nodes, 2 × 1500 LSTM, 51.0M parameters: 10 epochs on each node in"
        " turn, then 27 rounds of 2 epochs falling to 1, at rates from 1.0 to 0.05. That is another"
        " schedule than theirs (10 to 20 epochs falling to 1 to 3, rates from 1.0 to 0.27), so the"
        " perplexities themselves are not compared. As many uploads and rounds as theirs are a"
        f" setting, and no result: {row['uploads']} uploads are {gibibytes:.2f} GiB, 21.29 as"
        " printed. There is no committed result of compressed gradients."
    )
    parts = [Part("better than compressed gradients", "not measured yet", Verdict.NOT_RUN)]
    ours = f"{best['test']:.1f} for {row['uploads']} uploads; compressed gradients not measured yet"
    return Judged(ours=ours, parts=parts, details=f"{about_cells}\n\n{table(head, cells)}")


@judge_by_program(
    result="tails",
    command=TAILS,
    name="Table 5",
    about="tails of likelihood ratios, 20 pairs",
    theirs="α from 14.4 to 20.9; the test passes for 19",
)
def table_5(result: Result) -> Judged:
    pairs = result["pairs"]
    shapes = [pair["shape"] for pair in pairs]
    fits = sum(pair["fits"] for pair in pairs)
    cells = []
    for place, pair in enumerate(pairs, 1):
        cells.append(
            [
                place,
                f"{pair['shape']:.1f}",
                f"{pair['scale']:.2f}",
                f"{pair['start']:.2f}",
                f"{pair['statistic']:.2f}",
            ]
        )
    about_cells = (
        "One more round of ten devices after the 300, with all ten and without one of them; 30,000"
        f" texts of ten words. The test passes below {result['critical']:.2f}. **An estimate, not a"
        " guarantee**: these 20 pairs, texts sampled at random, one round."
    )
    head = ("pair", "α", "C", "x₀", "KS statistic")
    shown = f"{min(shapes):.1f} to {max(shapes):.1f}"
    are_near = abs(min(shapes) / 14.4 - 1) < NEAR and abs(max(shapes) / 20.9 - 1) < NEAR
    parts = [
        Part(
            "the test passes for 19 of 20, to one",
            f"{fits}",
            judge_counted(abs(fits - 19) <= 1, ONE),
        ),
        Part("α from 14.4 to 20.9, to a quarter", f"α from {shown}", judge_counted(are_near, ONE)),
    ]
    return Judged(
        ours=f"α from {shown}; {fits} of {len(pairs)}",
        parts=parts,
        details=f"{about_cells}\n\n{table(head, cells)}",
    )


@judge_by_program(
    result="tails",
    command=TAILS,
    name="Table 6",
    about="ε of these tails at δ = 1e-4, 1e-5 and 1e-6, an estimate",
    theirs="0.67, 0.83, 0.99",
)
def table_6(result: Result) -> Judged:
    largest = []
    parts = []
    for delta, theirs in paper_values.POPOV_TABLE_6.items():
        epsilon = max(pair["epsilon"][f"{delta:g}"] for pair in result["pairs"])
        largest.append(f"{epsilon:.2f}")
        is_near = abs(epsilon / theirs - 1) < NEAR
        claim = f"ε = {theirs} at δ = {delta:g}, to a quarter"
        parts.append(Part(claim, f"{epsilon:.2f}", judge_counted(is_near, ONE)))
    details = (
        "**An estimate, not a guarantee**, theirs and ours: these models have none (ε = ∞ in the"
        " ledger), and that the estimate looks like a private one's is why we do not call it one."
    )
    return Judged(ours=", ".join(largest), parts=parts, details=details)


@judge_by_groups(
    paper=PAPER,
    groups="averaging",
    name="Figure 2",
    about="perplexities over rounds",
    theirs="users' falls; without rehearsal the general one rises",
)
def figure_2(averaging: Group) -> Judged:
    curves = {}
    for run in ("rehearsal", "none"):
        rows = averaging.found[run][0]["rows"]
        curves[f"users' text, {run}"] = [(row["round"], math.exp(row["loss"])) for row in rows]
    for run in ("rehearsal", "none"):
        curves[f"general text, {run}"] = _general_perplexities(averaging, run)
    # What was not measured is not drawn.
    curves = {name: points for name, points in curves.items() if points}
    svg = figure(
        "perplexity over rounds of ten devices",
        across="rounds",
        up="perplexity",
        lines=[Line(name=name, points=points) for name, points in curves.items()],
    )
    changes = []
    growth = {}
    for name, points in curves.items():
        first = points[0][1]
        last = points[-1][1]
        changes.append(f"{name} {first:.0f} → {last:.0f}")
        growth[name] = last / first
    with_rehearsal = growth.get("general text, rehearsal")
    without_rehearsal = growth.get("general text, none")
    parts = []
    for run in ("rehearsal", "none"):
        name = f"users' text, {run}"
        fall = Difference(value=1 - growth[name], margin=UNDECIDED, seeds=ONE)
        parts.append(
            Part(f"users' perplexity falls, {run}", _times(growth[name]), judge_more(fall))
        )
    if with_rehearsal is None or without_rehearsal is None:
        parts.append(Part("the general language", "not measured yet", Verdict.NOT_RUN))
    else:
        rise = Difference(value=without_rehearsal - 1, margin=UNDECIDED, seeds=ONE)
        kept = Difference(value=with_rehearsal - 1, margin=UNDECIDED, seeds=ONE)
        claim = "the general perplexity rises without rehearsal"
        parts.append(Part(claim, _times(without_rehearsal), judge_more(rise)))
        claim = "with rehearsal it stays within 10 %"
        parts.append(Part(claim, _times(with_rehearsal), judge_same(kept, 0.1)))
    return Judged(ours="; ".join(changes), parts=parts, figures={"curves.svg": svg})


def _times(growth: float) -> str:
    return f"× {growth:.2f}"


def _general_perplexities(averaging: Group, run: str) -> list[tuple[int, float]]:
    points = []
    for row in averaging.found[run][0]["rows"]:
        perplexity = row.get("general_perplexity", math.nan)
        if math.isfinite(perplexity):
            points.append((row["round"], perplexity))
    return points


@judge_by_program(
    result="tails",
    command=TAILS,
    name="Figure 3",
    about="the tail of one likelihood ratio",
    theirs="falls as a Pareto tail",
)
def figure_3(result: Result) -> Judged:
    first = result["pairs"][0]
    passes = "passes" if first["fits"] else "fails"
    ours = f"the first pair's is one of α = {first['shape']:.1f}; the test {passes}"
    part = Part("the test of a Pareto tail passes", passes, judge_counted(first["fits"], ONE))
    about_pair = (
        "One more round of ten devices after the 300, with all ten and without one of them; the"
        " likelihood ratios of 30,000 texts of ten words that were sampled at random. The first of"
        " the 20 pairs of Table 5."
    )
    details = f"{about_pair}\n\n![the tail of the first pair](tails.png)"
    return Judged(ours=ours, parts=[part], details=details)
