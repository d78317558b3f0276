"""Xu et al. 2023, table by table and figure by figure."""

import math

import printed
from drawing import Line, curve, figure
from page import Item, Judged, Verdict, cannot, judged, not_run, table
from results import Group, computed, percent

PAPER = "xu2023"
TITLE = "Xu et al. 2023: federated learning of Gboard language models with differential privacy"
ABOUT = """
Their privacy figures are recomputed; their accuracies are of millions of phones. DP-FTRL is tried on 5,900 bloggers in cohorts of 100 for
590 rounds (LSTM of 1.35M parameters), and on steam users, of whom there are more. So few people leave no small ρ at a usable noise; what
carries over is how noise, report goals and starts compare.
"""
CLOSE = 0.003
STARTS = "a start saves about 1,000 rounds; the adaptive clip norm catches up"


def items() -> list[Item]:
    return [
        tables(),
        table_2(),
        cannot("Figure 1", "three uses of a language model", "", "a picture; all three work here: docs/keyboard.md"),
        cannot("Figure 2", "the system", "", "a drawing; ours is docs/fleet.md"),
        figure_3(),
        figure_4(),
        goals(),
        mechanisms(),
    ]


def tables() -> Item:
    rows, off, near = [], 0.0, 0
    found = {row["model"]: row for row in computed(PAPER)["models"]}
    timed = [row for row in found.values() if "min_separation" in row]
    for name, (rounds, min_separation, max_participations, timer, millions, rho) in printed.XU_MODELS.items():
        row = found[name]
        off = max(off, abs(row["rho"] - rho))
        near += "min_separation" in row and abs(row["min_separation"] / min_separation - 1) < 0.25
        ours = f"{row['min_separation']} / {row['max_participations']}" if "min_separation" in row else ""
        setting = f"{millions:g}M, {timer} h" if millions and timer else ""
        cells = [
            name,
            f"{rounds:,}",
            setting,
            f"{min_separation} / {max_participations}",
            ours,
            rho,
            f"{row['rho']:.3f}",
            f"**{row['blt_rho']:.3f}**",
        ]
        rows.append(cells)
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
    details = "z = 7, 6,500 reports a round. The simulated fleet charges at night, keeps the timer and drops out; a BLT has as much noise "
    details += "on the models of the way as their tree.\n\n"
    ours = f"every ρ to {off:.3f}; MinS within a quarter of the printed one for {near} of {len(timed)} by a simulated fleet"
    verdict, about = Verdict.HOLDS if near == len(timed) else Verdict.PART, "MinS, MaxP and ρ of 21 models"
    command = "python experiments/compute.py"
    return Item("Tables 1 and 2, privacy", about, "ρ = 0.25 to 1.86", ours, verdict, command=command, details=details + table(head, rows))


def table_2() -> Item:
    found = computed(PAPER)["epsilon_of_rho"]
    off = max(abs(found[str(rho)] - epsilon) for rho, epsilon in printed.XU_EPSILON.items())
    rows = [[rho, epsilon, f"{found[str(rho)]:.3f}"] for rho, epsilon in sorted(printed.XU_EPSILON.items())]
    details = table(["ρ", "ε as printed", "recomputed"], rows)
    return Item(
        "Table 2, ε",
        "ρ as ε at δ = 1e-10",
        "4.49 to 13.69",
        f"the same to {off:.3f}",
        Verdict.HOLDS,
        command="python experiments/compute.py",
        details=details,
    )


@judged(PAPER, "starts", "Figure 3", "a public start, and a clip norm that adapts", STARTS)
def figure_3(starts: Group) -> Judged:
    names = {"random": "random start, S = 3", "pretrained": "public start, S = 3", "adaptive": "random start, adaptive"}
    svg = figure("BLT noise at ρ = 78", "round", "AccuracyTop1, %", [curve(starts, run, name) for run, name in names.items()])
    end, rounds = starts.last("random").value, starts.curve("random")[-1][0]
    saved = next((round for round, one in starts.curve("pretrained") if one.value >= end), math.inf)
    apart = end - starts.last("adaptive").value
    ours = (
        f"after {saved} of {rounds} rounds a public start has what a random one ends with; adaptive ends {100 * apart:+.2f} points behind"
    )
    return Judged(ours, Verdict.HOLDS if saved < rounds / 2 and abs(apart) < CLOSE else Verdict.PART, "", {"starts.svg": svg})


def figure_4() -> Item:
    about = "ρ by population, report goal, rounds and MinS"
    curves = computed(PAPER).get("figure_4")
    if not curves:
        return not_run("Figure 4", about, "larger goals and MinS give smaller ρ", "python experiments/compute.py")
    drawn, falls = {}, True
    for across, lines in curves.items():
        made = [Line(name, [(x, y) for x, y in points]) for name, points in lines.items()]
        drawn[f"rho-{across.replace(' ', '-')}.svg"] = figure(
            f"ρ by {across}", across, "ρ (zCDP)", made, log=across != "rounds", log_up=True
        )
        if across != "rounds":
            falls &= all(points[-1][1] < points[0][1] for points in lines.values())
    ours = "so do ours, and a BLT with the same error has less of it everywhere"
    verdict = Verdict.HOLDS if falls else Verdict.FAILS
    return Item(
        "Figure 4", about, "larger goals and MinS give smaller ρ", ours, verdict, command="python experiments/compute.py", figures=drawn
    )


@judged(PAPER, "goals", "§2.2", "report goal and noise raised together", "500 with z = 0.54 and 6,500 with z = 7 end alike")
def goals(found: Group) -> Judged:
    runs = ("100", "650", "1300")
    lines = [curve(found, run, f"{run} reports") for run in runs]
    svg = figure("Report goal and noise raised together, steam", "round", "AccuracyTop1, %", lines)
    apart = found.last("1300").value - found.last("100").value
    ours = f"{', '.join(percent(found.last(run)) for run in runs)} % with {', '.join(runs)} reports"
    return Judged(ours, Verdict.HOLDS if apart > -CLOSE else Verdict.FAILS, "", {"goals.svg": svg})


@judged(PAPER, "mechanisms", "beyond", "better noise at the same ρ", "trees; matrix factorisation named as future work")
def mechanisms(found: Group) -> Judged:
    kinds, costs = ("tree", "honaker", "blt"), ("78", "312", "1250")
    lines = [Line(kind, [(float(cost), 100 * found.last(f"{kind}-{cost}").value) for cost in costs]) for kind in kinds]
    svg = figure("Three kinds of noise, 590 rounds", "ρ", "AccuracyTop1, %", lines, log=True)
    tree, honaker, blt = (found.last(f"{kind}-78") for kind in kinds)
    ours = f"at ρ = 78: tree {percent(tree)}, Honaker {percent(honaker)}, BLT {percent(blt)}; no noise {percent(found.last('none'))}"
    return Judged(ours, Verdict.HOLDS if blt.value > honaker.value else Verdict.FAILS, "", {"mechanisms.svg": svg})
