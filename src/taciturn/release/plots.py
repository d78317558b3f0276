"""Plots for audits: how far one user moves a model, and how well audit users can be told apart."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from taciturn.files import write_atomically

Curve = Callable[[np.ndarray], np.ndarray]
INK, ACCENT, SECOND = "#222222", "#1b6ca8", "#c05621"


def plot_tail(path: Path, log_ratios: np.ndarray, shape: float, scale: float, start: float) -> None:
    """Draw likelihood ratios of texts under two models beside Pareto's law, as in Popov et al. 2018, Figure 3: their tail P(c > x), and by
    how many samples the two differ there, with the standard error of that count."""
    figure, (tails, difference) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    ordered = np.sort(log_ratios)
    above = len(ordered) - np.arange(len(ordered))  # how many are at least as large
    tails.step(ordered, above / len(ordered), color=ACCENT, where="post", label="samples")
    xs = np.linspace(math.log(start), max(ordered[-1], math.log(start) + 1e-6), 200)
    law = np.minimum(scale * np.exp(-shape * xs), 1.0)
    tails.plot(xs, law, color=SECOND, label=f"Pareto, α = {shape:.1f}")
    tails.axvline(math.log(start), color=INK, lw=0.6, ls=":")
    tails.set(yscale="log", xlabel="log c(s)", ylabel="P(c > x)")
    tails.legend(frameon=False)
    counted = len(ordered) - np.searchsorted(ordered, xs, side="right")
    spread = np.sqrt(len(ordered) * law * (1 - law))
    difference.fill_between(xs, -spread, spread, color=INK, alpha=0.12, lw=0, label="standard error")
    difference.plot(xs, counted - len(ordered) * law, color=ACCENT, label="samples − law")
    difference.set(xlabel="log c(s)", ylabel="samples")
    difference.legend(frameon=False)
    _write(path, figure)


def plot_audit(
    path: Path, scores: np.ndarray, included: np.ndarray, found: tuple[np.ndarray, np.ndarray], claimed: Curve, title: str
) -> None:
    """Draw how well the scores of audit users tell who was in, as false and true positives, beside the most that is claimed; and the
    scores themselves."""
    figure, (roc, both) = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    false, true = found
    least = 1 / len(scores)
    roc.step(np.maximum(false, least), np.maximum(true, least), where="post", color=ACCENT, lw=1.2, label="found")
    wrong = np.geomspace(least, 1 - least, 200)
    roc.plot(wrong, claimed(wrong), color=SECOND, lw=1.2, label="claimed: no more than this")
    roc.plot([least, 1], [least, 1], color=INK, lw=0.6, ls=":", label="guessing")
    roc.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    roc.set(xlabel="false positives: guessed in, were out", ylabel="true positives: guessed in, were in")
    roc.set_title(title, loc="left", fontsize=11, color=INK)
    roc.legend(frameon=False, loc="lower right")
    bins = np.histogram_bin_edges(scores, 40)
    for name, part, color in (("were in", included, ACCENT), ("were not", ~included, INK)):
        both.hist(scores[part], bins=bins, density=True, histtype="step", color=color, label=name)
    both.set(xlabel="score, in deviations of the claimed noise", ylabel="density")
    both.legend(frameon=False)
    _write(path, figure)


def _write(path: Path, figure: Figure) -> None:
    for panel in figure.axes:
        panel.grid(alpha=0.25, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    pyplot.close(figure)
    write_atomically(path, picture.getvalue())
