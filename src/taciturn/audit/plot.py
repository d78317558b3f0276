"""Draw how well audit users can be told apart."""

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from taciturn.audit.one_run import claimed_curve, curve
from taciturn.audit.report import MembershipResults
from taciturn.files import write_atomically

INK, ACCENT, SECOND = "#222222", "#1b6ca8", "#c05621"


def plot_audit(path: Path, found: MembershipResults, title: str) -> None:
    """Draw how well the scores of audit users tell who was in, as false and true positives, beside the most that is claimed; and the
    scores themselves."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    roc, both = figure.subplots(1, 2)
    false, true = curve(found.scores, found.included)
    least = 1 / len(found.scores)
    roc.step(np.maximum(false, least), np.maximum(true, least), where="post", color=ACCENT, lw=1.2, label="found")
    wrong = np.geomspace(least, 1 - least, 200)
    roc.plot(wrong, claimed_curve(wrong, found.mu), color=SECOND, lw=1.2, label="claimed: no more than this")
    roc.plot([least, 1], [least, 1], color=INK, lw=0.6, ls=":", label="guessing")
    roc.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    roc.set(xlabel="false positives: guessed in, were out", ylabel="true positives: guessed in, were in")
    roc.set_title(title, loc="left", fontsize=11, color=INK)
    roc.legend(frameon=False, loc="lower right")
    bins = np.histogram_bin_edges(found.scores, 40)
    for name, part, color in (("were in", found.included, ACCENT), ("were not", ~found.included, INK)):
        both.hist(found.scores[part], bins=bins, density=True, histtype="step", color=color, label=name)
    both.set(xlabel="score, in deviations of the claimed noise", ylabel="density")
    both.legend(frameon=False)
    for panel in figure.axes:
        panel.grid(alpha=0.25, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_atomically(path, picture.getvalue())
