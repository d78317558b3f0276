"""A run's recipe: frozen, validated, in TOML. A key that does not exist is an error, and so is a value out of range.

Everything privacy depends on is a constant here, written down before the run: how many users there are, how many take part, how far one may
move the model. Counts measured on users' text are never used in its place.
"""

import hashlib
import json
import math
from typing import Any, Literal

from pydantic import Field, model_validator

from taciturn.privacy.clipping import MOST_REPORTS
from taciturn.privacy.figures import delta_text
from taciturn.privacy.participation import default_delta
from taciturn.privacy.sensitivity import most_participations
from taciturn.recipe.sections import (
    AUDITED_AT_ONCE,
    AuditSection,
    CanarySection,
    Data,
    FleetSection,
    Local,
    Model,
    ParticipationSection,
    Privacy,
    Run,
    Section,
    Server,
    Transfer,
    UploadSection,
)


class Recipe(Section):
    algorithm: Literal["dp-fedavg", "dp-fedsgd", "dp-ftrl", "fedavg", "transfer-learning"] = Field(
        default="dp-fedavg",
        description="the last two have no privacy (ε = ∞); transfer-learning learns from devices' average prediction, not their updates",
    )
    data: Data
    model: Model = Model()
    local: Local = Local()
    server: Server = Server()
    participation: ParticipationSection
    upload: UploadSection = UploadSection()
    transfer: Transfer = Transfer()
    privacy: Privacy = Privacy()
    fleet: FleetSection = FleetSection()
    canaries: CanarySection = CanarySection()
    audit: AuditSection = AuditSection()
    run: Run

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        limits = (self.privacy.noise_multiplier, self.privacy.epsilon, self.privacy.rho)
        if not self.is_private and any(limit is not None for limit in limits):
            raise ValueError(
                f'algorithm = "{self.algorithm}" has no privacy: leave noise_multiplier, epsilon and rho out, or choose "dp-fedavg"'
            )
        if self.is_private and all(limit is None for limit in limits):
            raise ValueError("[privacy] needs a noise_multiplier, or an epsilon or rho to work it out from")
        if self.privacy.encoding == "modular" and not self.is_private:
            raise ValueError(
                f'[privacy] encoding = "modular" is for updates that are clipped; algorithm = "{self.algorithm}" adds them as they are'
            )
        if self.privacy.greedy and self.algorithm != "dp-fedavg":
            raise ValueError('greedy clipping belongs to algorithm = "dp-fedavg", which has several local steps')
        possible = ("poisson", "fixed") if self.is_private else ("poisson", "fixed", "min-separation")
        if self.algorithm == "dp-ftrl":
            possible = ("min-separation", "cyclic-poisson")
        if self.participation.kind not in possible:
            named = ", ".join(f'"{kind}"' for kind in possible)
            raise ValueError(
                f'algorithm = "{self.algorithm}" goes with [participation] kind = {named}, not with "{self.participation.kind}"'
            )
        if self.participation.kind == "cyclic-poisson":
            self._check_turns()
        if self.fleet.kind != "always" and self.participation.kind != "min-separation":
            raise ValueError(
                f'where devices come and go, no sampling can be claimed: [fleet] kind = "{self.fleet.kind}" goes with '
                'kind = "min-separation"'
            )
        if self.fleet.kind in ("available", "devices"):
            self._check_fleet()
        if self.fleet.kind == "devices" and self.privacy.encoding != "modular":
            raise ValueError(
                '[fleet] kind = "devices" adds reports by a secure sum: set [privacy] encoding = "modular"'
            )
        if self.fleet.kind == "queue":
            self._check_queue()
        if self.algorithm != "dp-ftrl" and (self.privacy.clipping == "adaptive" or self.privacy.restart_rounds):
            raise ValueError('adaptive clipping and restarts of the noise belong to algorithm = "dp-ftrl"')
        if self.noise == "independent" and (self.privacy.clipping == "adaptive" or self.privacy.restart_rounds):
            raise ValueError("independent noise has nothing to restart, so no clip norm can be adapted there")
        if self.algorithm != "dp-ftrl" and self.privacy.noise not in (None, "independent"):
            raise ValueError(
                f'noise = "{self.privacy.noise}" is correlated over rounds and belongs to algorithm = "dp-ftrl"'
            )
        if self.algorithm == "dp-ftrl" and (
            self.privacy.least_weight or not isinstance(self.privacy.clip_norm, float | int | None)
        ):
            raise ValueError('algorithm = "dp-ftrl" has a fixed denominator and one clip norm for the whole run')
        if self.participation.max_participations is not None:
            places = self.participation.users * self.participation.max_participations
            if places < self.participation.cohort * self.run.rounds:
                raise ValueError(
                    f"[participation] max_participations = {self.participation.max_participations} of {self.participation.users} users "
                    f"do not fill {self.run.rounds} rounds of {self.participation.cohort:g}"
                )
        wanted = {"blt": {"decay", "scale"}, "banded": {"bands"}}.get(self.noise, set())
        if self.privacy.strategy is not None and self.privacy.strategy.keys() != wanted:
            raise ValueError(
                f"[privacy] strategy has {sorted(self.privacy.strategy)}, where this noise has {sorted(wanted)}"
            )
        parts = len(self.restart_rounds) + 1
        if any(not values or len(values) % parts for values in (self.privacy.strategy or {}).values()):
            raise ValueError(
                f"[privacy] strategy has as many coefficients for each of the {parts} segments of the noise"
            )
        if self.local.keep != "nothing" and self.algorithm == "dp-fedsgd":
            raise ValueError(
                f'[local] keep = "{self.local.keep}" is for devices that train; dp-fedsgd sends one gradient'
            )
        if (self.data.general is None) == self.uses_general_text:
            raise ValueError(
                '[data] general = "a folder of public text" goes with [local] keep = "rehearsal" or [transfer] text = "general"'
            )
        if self.algorithm != "transfer-learning" and self.transfer != Transfer():
            raise ValueError('[transfer] belongs to algorithm = "transfer-learning"')
        self._check_unused()
        if self.audit.users and not self.is_private:
            raise ValueError(f'[audit] users test what a run claims, and algorithm = "{self.algorithm}" claims nothing')
        if self.audit.users > AUDITED_AT_ONCE * self.run.rounds:
            raise ValueError(
                f"[audit] {self.audit.users} users are too many for {self.run.rounds} rounds: take at most "
                f"{AUDITED_AT_ONCE * self.run.rounds}"
            )
        if self.delta * self.participation.users >= 1:
            raise ValueError(
                f"δ = {delta_text(self.delta)} is more than one over the number of users: it would allow giving one user away whole"
            )
        return self

    def _check_turns(self) -> None:
        turns, users = self.privacy.bands * self.participation.cohort, self.participation.users
        if self.noise not in ("banded", "independent"):
            raise ValueError(f'kind = "cyclic-poisson" goes with noise = "banded", not with "{self.noise}"')
        if turns > users:
            raise ValueError(
                f"{users} users who take turns every {self.privacy.bands} rounds do not fill cohorts of "
                f"{self.participation.cohort:g}: lower the cohort, or privacy.bands to {int(users // self.participation.cohort)}"
            )

    def _check_fleet(self) -> None:
        most, goal = self.fleet.most_reports, self.participation.cohort
        if most is not None and most < goal:
            raise ValueError(
                f"[fleet] most_reports = {most} is less than the report goal, {goal:g}: every round would fail"
            )
        asked = self.fleet.over_selection * goal
        expected = asked * (1 - self.fleet.drop_out)
        if expected < goal:
            raise ValueError(
                f"of {asked:.0f} devices that are asked about {expected:.0f} report, {goal:g} are needed: most rounds would fail; raise "
                "[fleet] over_selection"
            )
        if math.ceil(asked) > MOST_REPORTS:
            raise ValueError(
                f"{asked:.0f} devices are asked in a round, and a sum holds {MOST_REPORTS} reports: lower the cohort"
            )
        if asked * ((self.participation.min_separation or 0) + 1) > self.participation.users:
            raise ValueError(
                f"{asked:.0f} devices are asked in a round, and each has to rest: with {self.participation.users} users "
                f"{max(int(self.participation.users // asked) - 1, 0)} rounds of rest are possible, not {self.participation.min_separation}"
            )

    def _check_unused(self) -> None:
        """Settings that would do nothing, and whoever wrote them thinks that they do."""
        clips = self.privacy.clip_norm is not None or self.privacy.layer_clip_norms
        if self.algorithm == "transfer-learning" and (
            clips or self.upload != UploadSection() or self.server != Server()
        ):
            raise ValueError(
                'algorithm = "transfer-learning" sums predictions, not updates: leave clip norms, [server] and [upload] out'
            )
        if not self.is_private and self.privacy.least_weight is not None:
            raise ValueError(f'algorithm = "{self.algorithm}" divides by the weight that came: leave estimator out')
        if self.privacy.encoding == "modular" and self.upload != UploadSection():
            raise ValueError(
                '[privacy] encoding = "modular" sends every parameter in as many bits as its sum takes: leave [upload] out'
            )
        if self.algorithm == "dp-fedsgd" and self.local.gradient_norm is not None:
            raise ValueError(
                'algorithm = "dp-fedsgd" sends one gradient, which is clipped: leave local.gradient_norm out'
            )

    def _check_queue(self) -> None:
        if self.privacy.encoding == "modular":
            raise ValueError(
                'in a queue reports come from different rounds, each with a rotation of its own: [privacy] encoding = "modular" cannot '
                "add them"
            )
        if self.algorithm == "transfer-learning" and self.transfer.text == "generated":
            raise ValueError(
                "in a queue devices have different models, which make up different texts: predictions about them cannot be added. Use "
                '[transfer] text = "general"'
            )
        if self.privacy.clipping == "adaptive" or not isinstance(self.privacy.clip_norm, float | int | None):
            raise ValueError(
                'a queue sums reports that were made under the clip norms of earlier rounds: with [fleet] kind = "queue" there is one '
                "clip norm for the whole run"
            )
        if self.in_flight < self.participation.cohort:
            raise ValueError(
                f"[fleet] in_flight = {self.in_flight} devices that train at a time never make a round of {self.participation.cohort:g}"
            )

    @property
    def in_flight(self) -> int:
        """Devices that train at any moment, where there is a queue."""
        return self.fleet.in_flight or 2 * int(self.participation.cohort)

    @property
    def restart_rounds(self) -> tuple[int, ...]:
        """R: after which rounds the noise starts anew."""
        chosen = self.privacy.restart_rounds
        if chosen is None and self.privacy.clipping == "adaptive":
            chosen = list(range(128, self.run.rounds, 1024))
        return tuple(restart for restart in chosen or () if restart < self.run.rounds)

    @property
    def is_private(self) -> bool:
        return self.algorithm not in ("fedavg", "transfer-learning")

    @property
    def uses_general_text(self) -> bool:
        predicted = self.algorithm == "transfer-learning" and self.transfer.text == "general"
        return predicted or self.local.keep == "rehearsal"

    @property
    def delta(self) -> float:
        return self.privacy.delta or default_delta(self.participation.users)

    @property
    def fingerprint(self) -> str:
        """Names everything that shapes the run; where its files lie does not."""
        content = self.model_dump(mode="json")
        del content["data"]["population"], content["model"]["warm_start"], content["data"]["general"]
        del content["data"]["general_test"]
        content["canaries"]["text"] = self.canaries.text is not None
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def noise(self) -> str:
        """How it is correlated over rounds."""
        correlated = "banded" if self.participation.kind == "cyclic-poisson" else "blt"
        return self.privacy.noise or (correlated if self.algorithm == "dp-ftrl" else "independent")

    @property
    def max_participations(self) -> int:
        """MaxP as claimed."""
        claimed, rest = self.participation.max_participations, self.participation.min_separation
        possible = most_participations(self.run.rounds, rest or 0)
        return possible if claimed is None else min(claimed, possible)

    def with_settings(self, section: str, **values: Any) -> "Recipe":
        content = self.model_dump(mode="json")
        content[section].update(values)
        return Recipe(**content)
