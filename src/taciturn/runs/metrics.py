"""What a run measured on its way: a row for every evaluation, in metrics.jsonl and metrics.csv."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from taciturn.core import PyTree
from taciturn.evaluation.accuracy import METRICS, Scores
from taciturn.files import from_json, to_json, write_atomically
from taciturn.fleets.simulation.check_in import AvailableFleet
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.privacy.adaptive_clip import Norms
from taciturn.privacy.ledger import Guarantee
from taciturn.privacy.secagg_encoding import Rotation
from taciturn.recipe import build
from taciturn.train import TrainState

if TYPE_CHECKING:
    from taciturn.fleets.devices.fleet import DeviceFleet
    from taciturn.runs.run import Run

SMOOTHED_OVER = 5  # evaluations (McMahan et al. 2018, §3)


class Metrics:
    """metrics.jsonl and metrics.csv; rows of rounds that a crash undid are dropped when the run goes on."""

    def __init__(self, folder: Path, round: int) -> None:
        self.folder = folder
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [row for row in map(from_json, lines) if row["round"] <= round]

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        write_atomically(self.folder / "metrics.jsonl", "".join(f"{to_json(one)}\n" for one in self.rows).encode())
        table = io.StringIO()
        writer = csv.DictWriter(table, list(row))
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / "metrics.csv", table.getvalue().encode())


def measured(
    run: "Run", state: TrainState, guarantee: Guarantee, scores: Scores, seconds: float, before: list[dict[str, Any]]
) -> dict[str, Any]:
    row = {
        "round": state.round,
        "releases": guarantee.releases,
        "epsilon": guarantee.epsilon,
        "rho": guarantee.rho,
        **{metric: scores[metric].value for metric in METRICS},
        "accuracy_top1_margin": scores["accuracy_top1"].margin,
        **run.evaluate_general(state.server.params),
        **_norms(run.algorithm.mechanism.public(state.mechanism)),
        "uploads": run.uploads(guarantee.releases),
        "upload_bytes": run.uploads(guarantee.releases) * build.upload_size(run.recipe, state.server.params),
        "seconds": round(seconds, 3),
    }
    if isinstance(run.fleet, QueuedFleet):
        row["staleness"] = round(float(run.fleet.staleness.mean()), 3) if len(run.fleet.staleness) else 0.0
    recent = [one["accuracy_top1"] for one in (*before, row)[-SMOOTHED_OVER:]]
    return row | {"accuracy_top1_smoothed": sum(recent) / len(recent)}


def so_far(run: "Run", rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last evaluation, for whoever watches; of devices also what has been spent and sent since, which takes no time to tell."""
    if run.recipe.fleet.kind != "devices":
        return rows[-1]
    fleet, failed = cast("DeviceFleet", run.fleet), run.log.failed if run.log else 0
    since = {"epsilon": run.account.guarantee().epsilon, "uploads": fleet.uploads}
    return rows[-1] | since | {"dropped_out": fleet.dropped_out, "failed_rounds": failed}


def _norms(public: PyTree) -> dict[str, float]:
    """The clip norm in force, and the estimate that is followed where it adapts; both are public."""
    if isinstance(public, Norms):
        return {"clip_norm": float(public.clip_norm), "clip_estimate": float(public.estimate)}
    return {"clip_norm": float(public.clip_norm if isinstance(public, Rotation) else public)}


def observed(run: "Run") -> str:
    """What the log says really happened; printed beside the claim, as Xu et al. 2023 do. Not where who took part is a secret that the
    claim rests on."""
    if run.log is None or run.algorithm.participation.sampled_by_curator:
        return ""
    separation, times = run.log.observed
    rest = (
        "nobody took part twice" if separation is None else f"at least {separation} rounds between two participations"
    )
    came = f"{rest}, at most {times} participations of a user"
    if isinstance(run.fleet, AvailableFleet):
        came += f", counting all who were asked; {run.fleet.days:.1f} simulated days, {run.log.failed} failed rounds"
    if isinstance(run.fleet, QueuedFleet) and len(run.fleet.staleness):
        came += f"; reports were about models {run.fleet.staleness.mean():.1f} rounds old, at most {run.fleet.staleness.max()}"
    return came
