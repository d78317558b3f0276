"""A run's recipe: frozen, validated, in TOML.

A key that does not exist is an error, and so is a value out of range.

Everything privacy depends on is a constant here, written down before the run: how many users there
are, how many take part, how far one may move the model. Counts measured on users' text are never
used instead.
"""

import hashlib
import json
import math
from typing import Any

from pydantic import model_validator

from taciturn.names import AlgorithmName, NoiseName
from taciturn.privacy.bounding.clipping import MOST_REPORTS
from taciturn.privacy.noise.registry import UNCORRELATED
from taciturn.privacy.noise.sensitivity import most_participations
from taciturn.privacy.participation import default_delta, spare_rounds
from taciturn.privacy.schemes import SCHEMES
from taciturn.recipe import rules, sections
from taciturn.recipe.sections import Section, setting

# Raised with every change in the meaning of an omitted setting.
SCHEMA = 1
# Algorithms that only serve to reproduce papers.
FOR_PAPERS = {
    "transfer-learning": (
        "learns from devices' average prediction, not their updates; no privacy (ε = ∞)"
    )
}
# Settings that say where files are, by section.
NAMES_OF_FILES = {
    "data": {"population", "general", "general_test"},
    "model": {"warm_start"},
    "canaries": {"text"},
}


class Recipe(Section):
    """What a run is, before it begins.

    Sections may be dicts: `Recipe(data={"population": "people"}, …)`; docs/recipe.md lists all.
    """

    algorithm: AlgorithmName = setting(
        "dp-fedavg", "fedavg has no privacy (ε = ∞)", for_papers=FOR_PAPERS
    )
    data: sections.DataSection
    model: sections.ModelSection = sections.ModelSection()
    local: sections.LocalSection = sections.LocalSection()
    server: sections.ServerSection = sections.ServerSection()
    participation: sections.ParticipationSection
    upload: sections.UploadSection = setting(sections.UploadSection(), "", for_papers=True)
    transfer: sections.TransferSection = setting(sections.TransferSection(), "", for_papers=True)
    privacy: sections.PrivacySection = sections.PrivacySection()
    fleet: sections.FleetSection = sections.FleetSection()
    canaries: sections.CanarySection = sections.CanarySection()
    audit: sections.AuditSection = sections.AuditSection()
    run: sections.RunSection

    @model_validator(mode="after")
    def _check_rules(self) -> "Recipe":
        rules.check(self)
        return self

    @property
    def fingerprint(self) -> str:
        """Return a digest of everything that shapes the run; where its files are does not.

        Only what differs from the defaults is hashed: a setting that is added later, with a default
        that keeps the old behaviour, changes no fingerprint, so that unfinished runs can be resumed
        and devices of different versions agree. Therefore a default, or the meaning of an omitted
        setting (a δ, a noise, a clip norm), may only be changed together with SCHEMA.
        """
        settings = self.model_dump(mode="json", exclude_defaults=True, exclude=NAMES_OF_FILES)
        # A section that only names files is empty by now.
        content = {name: value for name, value in settings.items() if value != {}}
        content["schema"] = SCHEMA
        content["canaries_planted"] = self.canaries.text is not None
        written = json.dumps(content, sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]

    @property
    def is_private(self) -> bool:
        """Tell whether the run promises anything: it has an algorithm with noise, and noise."""
        if self.algorithm in ("fedavg", "transfer-learning"):
            return False
        return self.privacy.noise_multiplier != 0

    @property
    def uses_general_text(self) -> bool:
        """Tell whether devices rehearse or predict public text."""
        if self.local.forgetting == "rehearsal":
            return True
        return self.algorithm == "transfer-learning" and self.transfer.text == "general"

    @property
    def delta(self) -> float:
        """Return δ, by default the one for this number of users."""
        return self.privacy.delta or default_delta(self.participation.users)

    @property
    def noise(self) -> NoiseName:
        """Return how the noise is correlated over rounds."""
        if self.privacy.noise:
            return self.privacy.noise
        if self.algorithm != "dp-ftrl":
            return UNCORRELATED
        return SCHEMES[self.participation.kind].default_noise

    @property
    def restart_rounds(self) -> tuple[int, ...]:
        """Return R: the rounds after which the noise starts anew."""
        restarts = self.privacy.restart_rounds
        if restarts is None and self.privacy.clipping == "adaptive":
            restarts = list(range(128, self.run.rounds, 1024))
        return tuple(restart for restart in restarts or () if restart < self.run.rounds)

    @property
    def noise_segments(self) -> int:
        """Return how many times the noise starts, counting the first."""
        return len(self.restart_rounds) + 1

    @property
    def most_releases(self) -> int:
        """Return how many releases the run may make, spare ones included."""
        return self.run.rounds + spare_rounds(self.run.rounds)

    @property
    def over_selection(self) -> float:
        """Return the devices asked for each report needed: more than one where some drop out."""
        return self.fleet.over_selection if self.fleet.kind in ("check-in", "devices") else 1.0

    @property
    def devices_asked(self) -> float:
        """Return how many devices are asked in a round."""
        return self.over_selection * self.participation.cohort

    @property
    def turns(self) -> int:
        """Return the rounds after which everyone was asked once."""
        return int(self.participation.users // self.devices_asked)

    @property
    def possible_separation(self) -> int:
        """Return the longest rest, in rounds, that all users can have between two turns."""
        return max(self.turns - 1, 0)

    @property
    def max_participations(self) -> int:
        """Return MaxP as claimed."""
        separation = self.participation.min_separation or 0
        possible = most_participations(self.run.rounds, separation)
        claimed = self.participation.max_participations
        return possible if claimed is None else min(claimed, possible)

    @property
    def in_flight(self) -> int:
        """Return how many devices train at any moment, where there is a queue."""
        return self.fleet.in_flight or 2 * int(self.participation.cohort)

    @property
    def most_audit_users(self) -> int:
        """Return how many audit users the rounds have room for."""
        return sections.AUDITED_AT_ONCE * self.run.rounds

    @property
    def users_beside_cohort(self) -> int:
        """Return the most synthetic and audit users in a round, beside its cohort."""
        return self.canaries.synthetic_users + min(self.audit.users, sections.AUDITED_AT_ONCE)

    @property
    def largest_total(self) -> int:
        """Return n_max: the most reports in a total.

        Raises:
            ValueError: a total cannot hold them.
        """
        beside = self.users_beside_cohort
        n_max = min(MOST_REPORTS, self._largest_cohort) + beside
        if n_max > MOST_REPORTS:
            raise ValueError(
                f"{beside} synthetic users beside a cohort of {self.participation.cohort:g} are"
                f" more than the {MOST_REPORTS} reports that a total holds: lower canaries.users or"
                " canaries.per_cell, or audit with fewer"
            )
        return n_max

    @property
    def _largest_cohort(self) -> int:
        cohort = self.participation.cohort
        # The size of a drawn cohort varies; it is never larger than this by accident.
        most_drawn = math.ceil(cohort + 10 * math.sqrt(cohort) + 100)
        if SCHEMES[self.participation.kind].claims_sampling:
            return most_drawn
        return max(most_drawn, math.ceil(self.devices_asked))

    def with_settings(self, section: str, **values: Any) -> "Recipe":
        """Return the recipe with other values in one section; it is validated anew."""
        content = self.model_dump(mode="json")
        content[section].update(values)
        return Recipe(**content)
