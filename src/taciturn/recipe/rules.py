"""What goes with what in a recipe, in two tables.

COMPATIBLE has choices that exclude each other, and RULES everything else. The first row that a
recipe breaks is reported to its author. docs/recipe.md prints both tables
(tests/recipe/reference.py); therefore a rule has its settings in braces, to be filled in for the
recipe that breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from taciturn.privacy.bounding.clipping import MOST_REPORTS
from taciturn.privacy.noise.registry import NOISES, noises_with
from taciturn.privacy.schemes import SCHEMES, Scheme, schemes_with
from taciturn.recipe.sections import ServerSection, TransferSection, UploadSection

if TYPE_CHECKING:
    from taciturn.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Which values of one setting go with which values of another.

    A value that is not named goes with all.
    """

    # `section.name`; `noise` is the recipe's, worked out.
    setting: str
    other: str
    goes_with: dict[str, tuple[str, ...]]
    why: str

    def allows(self, value: str, other: str) -> bool:
        """Tell whether this value of the setting goes with that value of the other."""
        return value not in self.goes_with or other in self.goes_with[value]

    def is_broken_by(self, recipe: Recipe) -> bool:
        """Tell whether the recipe has two values that do not go together."""
        value, other = self._values(recipe)
        return not self.allows(value, other)

    def sentence(self, recipe: Recipe) -> str:
        """Say which value excludes which, and why."""
        value, other = self._values(recipe)
        possible = " or ".join(f'"{allowed}"' for allowed in self.goes_with[value])
        return (
            f'{_name_in_file(self.setting)} = "{value}" goes with {_name_in_file(self.other)} ='
            f' {possible}, not with "{other}": {self.why}'
        )

    def _values(self, recipe: Recipe) -> tuple[str, str]:
        return attrgetter(self.setting, self.other)(recipe)


class Rule(NamedTuple):
    """A condition that no recipe may meet, and what to say of one that does."""

    is_broken_by: Callable[[Recipe], bool]
    text: str

    def sentence(self, recipe: Recipe) -> str:
        """Fill the recipe's settings into the text."""
        return self.text.format(recipe=recipe, **dict(recipe))


def _name_in_file(setting: str) -> str:
    section, _, name = setting.rpartition(".")
    return f"[{section}] {name}" if section else name


def check(recipe: Recipe) -> None:
    """Refuse a recipe that breaks a row, with the sentence of the first that it breaks."""
    for row in (*COMPATIBLE, *RULES):
        if row.is_broken_by(recipe):
            raise ValueError(row.sentence(recipe))


def _strengths(recipe: Recipe) -> set[float]:
    """Return what says how much noise there is: a multiplier, or a budget to work it out from."""
    privacy = recipe.privacy
    settings = (privacy.noise_multiplier, privacy.epsilon, privacy.rho)
    return {value for value in settings if value is not None}


def _devices_drop_out(recipe: Recipe) -> bool:
    return recipe.fleet.kind in ("check-in", "devices")


def _scheme_of(recipe: Recipe) -> Scheme:
    return SCHEMES[recipe.participation.kind]


def _has_other_coefficients(recipe: Recipe) -> bool:
    """Tell whether the recipe has a strategy that is not of its noise."""
    strategy = recipe.privacy.strategy
    return strategy is not None and strategy.keys() != set(NOISES[recipe.noise].coefficients)


def _list_coefficients() -> str:
    """Say which coefficients belong to which noise."""
    phrases = []
    for name, kind in NOISES.items():
        if kind.coefficients:
            phrases.append(f'{" and ".join(kind.coefficients)} for "{name}"')
    return ", ".join(phrases)


NOT_FTRL = ("dp-fedavg", "dp-fedsgd", "fedavg", "transfer-learning")
NOT_PRIVATE = ("fedavg", "transfer-learning")
# Noise of each round by itself, and schemes that are proved for it and for correlated noise.
UNCORRELATED_NOISE = noises_with(lambda noise: not noise.is_correlated)
FOR_UNCORRELATED = schemes_with(lambda scheme: not scheme.allows_correlation)
FOR_CORRELATED = schemes_with(lambda scheme: scheme.allows_correlation)
# Clipping to a norm that does not adapt.
CONSTANT = ("flat", "per-layer")
COMPATIBLE = (
    Pairing(
        setting="privacy.encoding",
        other="privacy.clipping",
        goes_with={"modular": CONSTANT},
        why="residues need a clip norm that does not adapt",
    ),
    Pairing(
        setting="privacy.encoding",
        other="privacy.estimator",
        goes_with={"modular": ("fixed",)},
        why="a sum of residues does not contain its weight",
    ),
    Pairing(
        setting="algorithm",
        other="privacy.encoding",
        goes_with=dict.fromkeys(NOT_PRIVATE, ("integer",)),
        why="residues encode clipped updates, and a run without privacy adds updates as they are",
    ),
    Pairing(
        setting="algorithm",
        other="participation.kind",
        goes_with={
            "dp-fedavg": FOR_UNCORRELATED,
            "dp-fedsgd": FOR_UNCORRELATED,
            "dp-ftrl": FOR_CORRELATED,
        },
        why="its privacy is proved for these cohorts only",
    ),
    Pairing(
        setting="algorithm",
        other="participation.kind",
        goes_with=dict.fromkeys(NOT_PRIVATE, schemes_with(lambda scheme: not scheme.takes_turns)),
        why="without noise there are no bands to take turns by",
    ),
    Pairing(
        setting="participation.kind",
        other="noise",
        goes_with=dict.fromkeys(
            schemes_with(lambda scheme: scheme.takes_turns),
            tuple(sorted(noises_with(lambda noise: noise.has_bands))),
        ),
        why="two turns of a user must share no noise",
    ),
    Pairing(
        setting="fleet.kind",
        other="participation.kind",
        goes_with=dict.fromkeys(
            ("check-in", "queue", "devices"),
            schemes_with(lambda scheme: not scheme.claims_sampling),
        ),
        why="where devices come and go, no sampling can be claimed",
    ),
    Pairing(
        setting="fleet.kind",
        other="privacy.encoding",
        goes_with={"devices": ("modular",)},
        why="a secure sum adds residues",
    ),
    Pairing(
        setting="fleet.kind",
        other="privacy.encoding",
        goes_with={"queue": ("integer",)},
        why="reports in a queue come from different rounds, each with its own rotation, so residues"
        " cannot be added",
    ),
    Pairing(
        setting="fleet.kind",
        other="privacy.clipping",
        goes_with={"queue": CONSTANT},
        why="a queue sums reports that were made in earlier rounds, so there is one clip norm for"
        " the whole run",
    ),
    Pairing(
        setting="noise",
        other="privacy.clipping",
        goes_with=dict.fromkeys(UNCORRELATED_NOISE, CONSTANT),
        why="independent noise has nothing to restart, so adaptive clip norms belong to algorithm ="
        ' "dp-ftrl" and its correlated noise',
    ),
    Pairing(
        setting="algorithm",
        other="noise",
        goes_with=dict.fromkeys(NOT_FTRL, UNCORRELATED_NOISE),
        why='noise that is correlated over rounds belongs to algorithm = "dp-ftrl"',
    ),
    Pairing(
        setting="algorithm",
        other="privacy.estimator",
        goes_with={"dp-ftrl": ("fixed",)},
        why="every round has the same fixed denominator",
    ),
    Pairing(
        setting="algorithm",
        other="privacy.estimator",
        goes_with=dict.fromkeys(NOT_PRIVATE, ("fixed",)),
        why="without privacy a sum is divided by the actual weight, so leave out estimator and"
        " least_weight",
    ),
    Pairing(
        setting="algorithm",
        other="local.forgetting",
        goes_with={"dp-fedsgd": ("none",)},
        why="its devices send one gradient and do not train",
    ),
)

RULES = (
    # Within one section.
    Rule(
        lambda r: r.participation.cohort > r.participation.users,
        "[participation] cohort = {participation.cohort:g} is more than users ="
        " {participation.users}: lower the cohort, or raise users",
    ),
    Rule(
        lambda r: not _scheme_of(r).varies_in_size and r.participation.cohort % 1 != 0,
        '[participation] kind = "{participation.kind}" has cohorts of one size: cohort must be an'
        " integer",
    ),
    Rule(
        lambda r: _scheme_of(r).claims_sampling == (r.participation.min_separation is not None),
        '[participation] kind = "min-separation" goes with min_separation: set both, or neither',
    ),
    Rule(
        lambda r: r.participation.max_participations is not None and _scheme_of(r).claims_sampling,
        '[participation] max_participations belongs to kind = "min-separation"',
    ),
    Rule(
        lambda r: bool(r.privacy.layer_clip_norms) and r.privacy.clipping != "per-layer",
        '[privacy] layer_clip_norms belong to clipping = "per-layer"',
    ),
    Rule(
        lambda r: (r.privacy.estimator == "clipped") != (r.privacy.least_weight is not None),
        '[privacy] estimator = "clipped" and least_weight go together: set both, or neither',
    ),
    Rule(
        lambda r: r.privacy.encoding_bits is not None and r.privacy.encoding != "modular",
        '[privacy] encoding_bits belong to encoding = "modular"',
    ),
    Rule(
        lambda r: sorted(set(r.privacy.restart_rounds or [])) != (r.privacy.restart_rounds or []),
        "[privacy] restart_rounds must be strictly increasing",
    ),
    Rule(
        lambda r: any(share <= 0 for _, share in r.fleet.time_zones),
        "[fleet] time_zones: every share must be positive",
    ),
    Rule(
        lambda r: 0 < r.audit.users < 16,
        "[audit] users = {audit.users} are too few to show anything: take a thousand, or at"
        " least 16",
    ),
    Rule(
        lambda r: r.transfer.rows % r.transfer.batch_size != 0,
        "[transfer] rows = {transfer.rows} must be a multiple of batch_size ="
        " {transfer.batch_size}",
    ),
    Rule(
        lambda r: max(r.canaries.copies) > r.canaries.sentences,
        "[canaries] copies = {canaries.copies} do not fit into {canaries.sentences} sentences:"
        " raise sentences, or lower copies",
    ),
    # Privacy.
    Rule(
        lambda r: r.privacy.noise_multiplier == 0 and r.algorithm not in ("dp-fedavg", "dp-fedsgd"),
        '[privacy] noise_multiplier = 0 belongs to algorithm = "dp-fedavg" or "dp-fedsgd"; without'
        ' privacy, use algorithm = "fedavg"',
    ),
    Rule(
        lambda r: r.privacy.noise_multiplier == 0 and len(_strengths(r)) > 1,
        "[privacy] noise_multiplier = 0 is a run without privacy (ε = ∞), which has no budget:"
        " leave out epsilon and rho, or the zero",
    ),
    Rule(
        lambda r: r.privacy.noise_multiplier == 0 and r.privacy.encoding == "modular",
        '[privacy] noise_multiplier = 0 adds updates as they are: leave out encoding = "modular"',
    ),
    Rule(
        lambda r: r.algorithm in NOT_PRIVATE and bool(_strengths(r)),
        'algorithm = "{algorithm}" has no privacy: leave out noise_multiplier, epsilon and rho, or'
        ' choose "dp-fedavg"',
    ),
    Rule(
        lambda r: r.is_private and not _strengths(r),
        "[privacy] needs a noise_multiplier, or an epsilon or rho to work it out from",
    ),
    Rule(
        lambda r: r.delta * r.participation.users >= 1,
        "δ = {recipe.delta:.2g} is at least one over the number of users, which would allow"
        " publishing one user's text: leave out [privacy] delta (it is then 1/users²), or lower it",
    ),
    Rule(
        lambda r: bool(r.audit.users) and not r.is_private,
        "[audit] users test what a run claims, and one without privacy (noise_multiplier = 0, or"
        ' algorithm = "fedavg") claims nothing',
    ),
    Rule(
        lambda r: r.audit.users > r.most_audit_users,
        "[audit] {audit.users} users are too many for {run.rounds} rounds: take at most"
        " {recipe.most_audit_users}",
    ),
    # Noise that is correlated over rounds.
    Rule(
        lambda r: bool(r.privacy.restart_rounds) and r.noise in UNCORRELATED_NOISE,
        '[privacy] restart_rounds belong to algorithm = "dp-ftrl" and its correlated noise:'
        " independent noise has nothing to restart",
    ),
    Rule(
        lambda r: r.algorithm == "dp-ftrl" and isinstance(r.privacy.clip_norm, list),
        'algorithm = "dp-ftrl" has one clip norm for the whole run, or starts from one clip_norm'
        " and adapts it: leave out the schedule",
    ),
    Rule(
        _has_other_coefficients,
        '[privacy] strategy has other coefficients than noise = "{recipe.noise}": '
        + _list_coefficients(),
    ),
    Rule(
        lambda r: any(
            not values or len(values) % r.noise_segments
            for values in (r.privacy.strategy or {}).values()
        ),
        "[privacy] strategy must have the same number of coefficients for each of the"
        " {recipe.noise_segments} segments of the noise",
    ),
    Rule(
        lambda r: (
            _scheme_of(r).takes_turns
            and r.privacy.bands * r.participation.cohort > r.participation.users
        ),
        "{participation.users} users who take turns every {privacy.bands} rounds cannot fill"
        " cohorts of {participation.cohort:g}: lower the cohort, or privacy.bands to"
        " {recipe.turns}",
    ),
    # Fleets, and how often someone can take part.
    Rule(
        lambda r: (
            _devices_drop_out(r) and (r.fleet.most_reports or math.inf) < r.participation.cohort
        ),
        "[fleet] most_reports = {fleet.most_reports} is less than the report goal,"
        " {participation.cohort:g}: every round would fail",
    ),
    Rule(
        lambda r: (
            _devices_drop_out(r)
            and r.devices_asked * (1 - r.fleet.dropout_rate) < r.participation.cohort
        ),
        "{recipe.devices_asked:.0f} devices are asked, a share of {fleet.dropout_rate:g} drops"
        " out, and {participation.cohort:g} reports are needed: most rounds would fail; raise"
        " [fleet] over_selection",
    ),
    Rule(
        lambda r: _devices_drop_out(r) and math.ceil(r.devices_asked) > MOST_REPORTS,
        f"{{recipe.devices_asked:.0f}} devices are asked in a round, and a sum holds {MOST_REPORTS}"
        " reports: lower the cohort",
    ),
    Rule(
        lambda r: (
            r.participation.min_separation is not None
            and (r.participation.min_separation + 1) * r.devices_asked > r.participation.users
        ),
        "with {participation.users} users, of whom {recipe.devices_asked:.0f} are asked in a round,"
        " {recipe.possible_separation} rounds of rest are possible, not"
        " {participation.min_separation}",
    ),
    Rule(
        lambda r: (
            r.participation.users * (r.participation.max_participations or math.inf)
            < r.participation.cohort * r.run.rounds
        ),
        "[participation] max_participations = {participation.max_participations} of"
        " {participation.users} users cannot fill {run.rounds} rounds of {participation.cohort:g}",
    ),
    Rule(
        lambda r: (
            r.fleet.kind == "queue"
            and r.algorithm == "transfer-learning"
            and r.transfer.text == "generated"
        ),
        "in a queue devices have different models, which generate different texts: predictions"
        ' about them cannot be added. Use [transfer] text = "general"',
    ),
    Rule(
        lambda r: r.fleet.kind == "queue" and isinstance(r.privacy.clip_norm, list),
        'with [fleet] kind = "queue" there is one clip norm for the whole run, not a schedule: a'
        " queue sums reports of earlier rounds",
    ),
    Rule(
        lambda r: r.fleet.kind == "queue" and r.in_flight < r.participation.cohort,
        "[fleet] in_flight = {recipe.in_flight} devices that train at a time never complete a round"
        " of {participation.cohort:g}",
    ),
    # Settings that would silently do nothing.
    Rule(
        lambda r: (r.data.general is None) == r.uses_general_text,
        '[data] general = "a folder of public text" goes with [local] forgetting = "rehearsal" or'
        ' [transfer] text = "general"',
    ),
    Rule(
        lambda r: r.algorithm != "transfer-learning" and r.transfer != TransferSection(),
        '[transfer] belongs to algorithm = "transfer-learning"',
    ),
    Rule(
        lambda r: (
            r.algorithm == "transfer-learning"
            and (
                r.privacy.clip_norm is not None
                or bool(r.privacy.layer_clip_norms)
                or r.upload != UploadSection()
                or r.server != ServerSection()
            )
        ),
        'algorithm = "transfer-learning" sums predictions, not updates: leave out clip norms,'
        " [server] and [upload]",
    ),
    Rule(
        lambda r: r.privacy.encoding == "modular" and r.upload != UploadSection(),
        '[privacy] encoding = "modular" sends every parameter in as many bits as its sum needs:'
        " leave out [upload]",
    ),
    Rule(
        lambda r: r.privacy.greedy and r.algorithm != "dp-fedavg",
        '[privacy] greedy clipping belongs to algorithm = "dp-fedavg", which has several local'
        " steps",
    ),
    Rule(
        lambda r: r.algorithm == "dp-fedsgd" and r.local.max_gradient_norm is not None,
        'algorithm = "dp-fedsgd" sends one gradient, which is clipped: leave out'
        " local.max_gradient_norm",
    ),
    Rule(
        lambda r: r.local.loss_power > 0 and r.local.forgetting == "distillation",
        '[local] loss_power is for learning words, and forgetting = "distillation" learns'
        " predictions: leave out one of them",
    ),
)
