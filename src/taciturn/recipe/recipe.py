"""A run's recipe: frozen, validated, in TOML. A key that does not exist is an error, and so is a
value out of range.

Everything privacy depends on is a constant here, written down before the run: how many users there
are, how many take part, how far one may move the model. Counts measured on users' text are never
used instead.
"""

import hashlib
import json
from typing import Any

from pydantic import model_validator

from taciturn.names import AlgorithmName, NoiseKind
from taciturn.privacy.noise.sensitivity import most_participations
from taciturn.privacy.participation import default_delta
from taciturn.recipe import rules, sections
from taciturn.recipe.sections import Section, setting

# counts changes in the meaning of omitted settings
SCHEMA = 1
FOR_PAPERS = {
    "transfer-learning": (
        "learns from devices' average prediction, not their updates; no privacy (ε = ∞)"
    )
}
NAMES_OF_FILES = {
    "data": {"population", "general", "general_test"},
    "model": {"warm_start"},
    "canaries": {"text"},
}


class Recipe(Section):
    """What a run is, before it begins. Sections may be dicts: `Recipe(data={"population":
    "people"}, …)`; docs/recipe.md lists all.
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
    def _goes_together(self) -> "Recipe":
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
        # sections of file paths only
        content = {name: value for name, value in settings.items() if value != {}}
        content |= {"schema": SCHEMA, "canaries_planted": self.canaries.text is not None}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def is_private(self) -> bool:
        return (
            self.algorithm not in ("fedavg", "transfer-learning")
            and self.privacy.noise_multiplier != 0
        )

    @property
    def uses_general_text(self) -> bool:
        predicted = self.algorithm == "transfer-learning" and self.transfer.text == "general"
        return predicted or self.local.forgetting == "rehearsal"

    @property
    def delta(self) -> float:
        return self.privacy.delta or default_delta(self.participation.users)

    @property
    def noise(self) -> NoiseKind:
        """Return how it is correlated over rounds."""
        correlated = "banded" if self.participation.kind == "cyclic-poisson" else "blt"
        return self.privacy.noise or (correlated if self.algorithm == "dp-ftrl" else "independent")

    @property
    def restart_rounds(self) -> tuple[int, ...]:
        """Return R: the rounds after which the noise starts anew."""
        chosen = self.privacy.restart_rounds
        if chosen is None and self.privacy.clipping == "adaptive":
            chosen = list(range(128, self.run.rounds, 1024))
        return tuple(restart for restart in chosen or () if restart < self.run.rounds)

    @property
    def noise_segments(self) -> int:
        return len(self.restart_rounds) + 1

    @property
    def over_selection(self) -> float:
        """Return the devices asked for each report needed: more than one where some drop out."""
        return self.fleet.over_selection if self.fleet.kind in ("check-in", "devices") else 1.0

    @property
    def asked(self) -> float:
        """Return the devices asked in a round."""
        return self.over_selection * self.participation.cohort

    @property
    def turns(self) -> int:
        """Return the rounds after which everyone was asked once."""
        return int(self.participation.users // self.asked)

    @property
    def possible_separation(self) -> int:
        return max(self.turns - 1, 0)

    @property
    def max_participations(self) -> int:
        """Return MaxP as claimed."""
        claimed, rest = self.participation.max_participations, self.participation.min_separation
        possible = most_participations(self.run.rounds, rest or 0)
        return possible if claimed is None else min(claimed, possible)

    @property
    def in_flight(self) -> int:
        """Return how many devices train at any moment, where there is a queue."""
        return self.fleet.in_flight or 2 * int(self.participation.cohort)

    @property
    def most_audit_users(self) -> int:
        return sections.AUDITED_AT_ONCE * self.run.rounds

    def with_settings(self, section: str, **values: Any) -> "Recipe":
        content = self.model_dump(mode="json")
        content[section].update(values)
        return Recipe(**content)
