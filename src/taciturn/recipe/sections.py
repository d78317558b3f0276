"""The settings of a recipe and their limits; what goes with what is in recipe/rules.py.

A default, and the meaning of an omitted setting, may change only together with `recipe.SCHEMA`:
fingerprints leave out defaults.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from taciturn import names
from taciturn.models.registry import KINDS, model_kind
from taciturn.privacy.bounding.clipping import clip_schedule
from taciturn.privacy.noise.registry import NOISES
from taciturn.privacy.noise.white import check_multiplier
from taciturn.privacy.schemes import SCHEMES

# The largest cohort, in users.
MOST_A_ROUND = 60_000
# Audit users whose turn a round may be, counting those who are in and those who stay out.
AUDITED_AT_ONCE = 1024
# Of Ramaswamy et al. 2020, Table 1.
DEFAULT_CLIP_NORM = 0.8


def setting(default: Any, meaning: str, *, for_papers: Any = False, **limits: Any) -> Any:
    """Define a setting.

    Args:
        default: its value where a recipe does not name it.
        meaning: what docs/recipe.md says about it.
        for_papers: true where it only serves to reproduce papers; or those of its values that do,
            and what they mean.
        limits: of its values, as pydantic names them.
    """
    return Field(
        default=default, description=meaning, json_schema_extra={"for_papers": for_papers}, **limits
    )


def must_pass(check: Callable[[Any], object]) -> AfterValidator:
    """Refuse a value for which `check` raises; an omitted one is not checked."""

    def check_value(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return AfterValidator(check_value)


def _check_multiplier_or_zero(noise_multiplier: float) -> None:
    """Refuse a noise multiplier out of range; zero stands for no noise."""
    if noise_multiplier != 0:
        check_multiplier(noise_multiplier)


class Section(BaseModel):
    """A part of a recipe, which is never changed and refuses settings that do not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSection(Section):
    population: str = Field(description="folder made by `taciturn data build`")
    layout: Literal["unrolls", "sentences"] = setting(
        "unrolls", "the text, cut every `local.unroll` tokens; or its sentences"
    )
    tokens_per_user: PositiveInt = setting(
        1600, "what one user's local training reads at most, in unrolls"
    )
    sentences_per_user: PositiveInt = setting(160, "the same for sentences")
    sentence_length: PositiveInt = setting(20, "tokens of a sentence; longer ones are cut")
    general: str | None = setting(
        None, "folder made by `taciturn data public`, to rehearse or to predict on devices"
    )
    general_digest: str | None = setting(
        None, "identifies that text; worked out, and written into the run's own recipe"
    )
    general_test: str | None = setting(
        None, "another such folder, measured beside the held-out users, to see what is forgotten"
    )


class ModelSection(Section):
    kind: Annotated[str, must_pass(model_kind)] = setting(
        "lstm", f"{' · '.join(KINDS)}; or one of your own (models/registry.py)"
    )
    width: PositiveInt = setting(96, "of a word's embedding")
    units: PositiveInt | None = setting(
        None, "of the state (default: LSTM and GRU 256, CIFG 670, deep LSTM 650)"
    )
    tied: bool = setting(False, "CIFG, deep LSTM: one embedding for input and output")
    layers: PositiveInt = setting(2, "of a Transformer or deep LSTM")
    heads: PositiveInt = setting(4, "of a Transformer's attention")
    dropout: float = setting(0.0, "share of units dropped in a training step", ge=0, lt=1)
    variational: bool = setting(
        False, "deep LSTM: drop the same units throughout a sequence", for_papers=True
    )
    warm_start: str | None = setting(
        None,
        "run folder or model.safetensors; taciturn:english is public text and comes with the"
        " package",
    )


class LocalSection(Section):
    learning_rate: float = setting(
        0.5, "η; like the next, from Ramaswamy et al. 2020, Table 1", gt=0
    )
    batch_size: PositiveInt = setting(50, "B: pieces of text in a local step")
    unroll: PositiveInt = setting(10, "tokens predicted in a row, in unrolls")
    epochs: PositiveInt = setting(1, "E: passes of a device over its text")
    max_gradient_norm: float | None = setting(
        None, "of a local step; keeps high learning rates from diverging", gt=0
    )
    update_penalty: float = setting(0.0, "L2 penalty on the update", ge=0)
    loss_power: float = setting(
        0.0,
        "q of the loss (1 − p^q)/q (Zhang and Sabuncu 2018): unpredictable words count less; 0 is"
        " −log p",
        ge=0,
        le=1,
    )
    forgetting: Literal["none", "rehearsal", "distillation"] = setting(
        "none",
        "what is done against forgetting the general language (Popov et al. 2018): nothing; general"
        " text mixed into the user's; or the predictions of the model that was sent, as a second"
        " target",
    )
    user_share: float = setting(
        0.5, "λ: the user's own share of what a device learns from", gt=0, le=1
    )
    precision: names.Precision = setting(
        "float32", "of matrix products; mixed takes them in bfloat16 (all else stays float32)"
    )


class UploadSection(Section):
    share: float = setting(
        1.0, "of each layer's values, the largest; the others are not sent", gt=0, le=1
    )
    bits: Literal[32, 16, 8] = setting(32, "of a value, rounded at random before the clip")


class TransferSection(Section):
    text: Literal["generated", "general"] = setting(
        "generated", "what predictions are about: text of the model's own, or data.general"
    )
    rows: PositiveInt = setting(
        200, "of `length` words, on which every device predicts the next word"
    )
    length: PositiveInt = setting(20, "words of a row")
    learning_rate: float = setting(0.5, "of the server, learning these predictions", gt=0)
    epochs: PositiveInt = setting(
        1, "passes over them, before the next cycle begins with a new text"
    )
    batch_size: PositiveInt = setting(20, "rows in one server step")


class ServerSection(Section):
    optimizer: names.ServerOptimizer = setting(
        "momentum", "this and the next two: Ramaswamy et al. 2020, Table 1"
    )
    learning_rate: float = setting(1.0, "of a step along the estimate", gt=0)
    momentum: float = setting(0.99, "of momentum and nesterov; b1 of adam", ge=0, lt=1)


class ParticipationSection(Section):
    kind: names.SchemeName = setting(
        "poisson",
        "min-separation claims no sampling (dp-ftrl, and runs without privacy); with cyclic-poisson"
        " users take turns every privacy.bands rounds (dp-ftrl)",
        for_papers={name: kind.for_papers for name, kind in SCHEMES.items() if kind.for_papers},
    )
    users: PositiveInt = Field(
        description=(
            "K, the number of users as publicly known; sets q and δ. A recipe states it, and"
            " nothing counts it: only `taciturn train PEOPLE` does, rounds it down and publishes"
            " it here, unless you state it"
        )
    )
    cohort: float = Field(
        gt=0,
        le=MOST_A_ROUND,
        description="m: users a round, expected with poisson; else exact, or a goal",
    )
    weight_cap: float | None = setting(
        None, "ŵ: a user of n tokens weighs min(n/ŵ, 1); without it all weigh the same", gt=0
    )
    total_weight: float | None = setting(
        None, "W, the total weight as publicly known (default: users)", gt=0
    )
    min_separation: int | None = setting(
        None, "MinS: rounds strictly between two participations of a user", ge=0
    )
    max_participations: PositiveInt | None = setting(
        None, "MaxP (default: all that rounds and min_separation allow)"
    )

    @property
    def probability(self) -> float:
        """Return q = m / K."""
        return self.cohort / self.users

    @property
    def expected_weight(self) -> float:
        """Return qW, the weight that a cohort has on average."""
        return self.probability * (self.total_weight or self.users)


class PrivacySection(Section):
    clip_norm: Annotated[float | list[tuple[int, float]] | None, must_pass(clip_schedule)] = (
        setting(
            None,
            "S, or a falling schedule [[round, S], …] (default: 0.8, Ramaswamy et al. 2020; without"
            " privacy none)",
        )
    )
    clipping: names.Clipping = setting(
        "flat",
        "adaptive follows a quantile, from clip_norm on; dp-ftrl only (Xu et al. 2023, Alg. 1)",
    )
    target_quantile: float = setting(0.5, "γ of adaptive clipping", gt=0, lt=1)
    clip_learning_rate: float = setting(0.2, "η_γ of adaptive clipping", gt=0, le=10)
    clipped_count_stddev: float | None = setting(
        None, "σ_b of adaptive clipping (default: cohort / 20)", gt=0
    )
    layer_clip_norms: dict[str, float] | None = setting(None, "S_j by layer, in place of clip_norm")
    greedy: bool = setting(
        False,
        "clip after every local step (McMahan et al. 2018), not only at the end",
        for_papers=True,
    )
    estimator: Literal["fixed", "clipped"] = setting(
        "fixed", "denominator qW, or max(qW_min, Σ w_k)", for_papers=True
    )
    least_weight: float | None = setting(
        None, "W_min of the clipped denominator", gt=0, for_papers=True
    )
    noise_multiplier: Annotated[float | None, must_pass(_check_multiplier_or_zero)] = setting(
        None, "z (default: worked out from the budget); 0 means neither noise nor privacy (ε = ∞)"
    )
    noise: names.NoiseName | None = setting(
        None,
        "how it is correlated over rounds (default: dp-ftrl blt, with cyclic-poisson banded; all"
        " others independent)",
        for_papers={name: kind.for_papers for name, kind in NOISES.items() if kind.for_papers},
    )
    restart_rounds: list[PositiveInt] | None = setting(
        None,
        "correlated noise starts anew after these (default: never; with adaptive clipping 128,"
        " 1152, 2176, …)",
    )
    bands: PositiveInt = setting(32, "of banded noise")
    buffers: PositiveInt = setting(3, "of blt noise", le=4)
    strategy: dict[str, list[float]] | None = setting(
        None,
        "coefficients of banded or blt noise, by segment; worked out, and written into the run's"
        " own recipe",
    )
    encoding: names.ReportEncoding = setting(
        "integer",
        "integers, or residues mod M that a secure sum adds (Xu et al. 2023, Algorithm 2)",
    )
    encoding_bits: PositiveInt | None = setting(
        None, "log₂ M, of a modular parameter (default: as few as let noise grow by 0.1 %)"
    )
    epsilon: float | None = setting(None, "budget: training stops before it is exceeded", gt=0)
    rho: float | None = setting(None, "budget in zCDP", gt=0)
    delta: float | None = setting(None, "of (ε, δ) (default: 1/users², at least 1e-15)", gt=0, lt=1)
    accountant: names.AccountantName = setting(
        "pld",
        "how ε is computed: privacy loss distributions, or Rényi differential privacy",
        for_papers={"moments": "the moments accountant of 2016, as papers of that time print it"},
    )


class FleetSection(Section):
    kind: names.FleetKind = setting(
        "simulated",
        "users simulated here, everyone in every round; or simulated devices that check in at"
        " night, keep a timer and drop out; or real devices over a network, whose reports are added"
        " by a secure sum (`taciturn fleet serve`)",
        for_papers={
            "queue": (
                "devices train on the model they last got, and a round closes when enough have"
                " reported (Popov et al. 2018)"
            )
        },
    )
    in_flight: PositiveInt | None = setting(
        None, "queue: devices that train at once (default: 2 × cohort)", for_papers=True
    )
    timer_hours: float = setting(24.0, "that a device rests after an upload", gt=0)
    lifetime_participations: PositiveInt | None = setting(
        None,
        "devices: reports that one sends in its lifetime, in all runs, summed or not (default:"
        " max_participations)",
    )
    over_selection: float = setting(1.3, "devices asked for each report that is needed", ge=1)
    most_reports: PositiveInt | None = setting(
        None, "n_max: later reports are not summed (default: all who were asked)"
    )
    dropout_rate: float = setting(
        0.06, "average share of devices asked that never report", ge=0, lt=1
    )
    deadline: float = setting(600.0, "devices: seconds in which a report must arrive", gt=0)
    patience: float = setting(
        3600.0, "devices: seconds that the server waits for enough of them", gt=0
    )
    max_dropout: float = setting(
        0.3, "devices: share of a cohort that a secure sum can lose midway", ge=0, lt=0.5
    )
    max_colluding: float = setting(
        0.05, "devices: share of a cohort that may collude with the server", ge=0, lt=0.5
    )
    time_zones: list[tuple[float, float]] = setting(
        [(0.0, 1.0)], "[[offset in hours, share of users], …]", min_length=1
    )


class CanarySection(Section):
    text: str | None = setting(
        None,
        "folder made by `taciturn data public`: what synthetic users write besides secrets; none:"
        " no canaries",
    )
    rate: float = setting(
        0.575,
        "probability that each takes part in a round (Ramaswamy et al. 2020: 1,150 of 2,000"
        " rounds)",
        gt=0,
        le=1,
    )
    users: list[PositiveInt] = setting([1, 4, 16], "n_u, who share a canary", min_length=1)
    copies: list[PositiveInt] = setting([1, 14, 200], "n_e, copies for each of them", min_length=1)
    per_cell: PositiveInt = setting(3, "canaries of every n_u with every n_e")
    sentences: PositiveInt = setting(200, "of a synthetic user, including copies")

    @property
    def synthetic_users(self) -> int:
        """Return how many users type the canaries, in all cells together."""
        if not self.text:
            return 0
        return self.per_cell * len(self.copies) * sum(self.users)


class AuditSection(Section):
    users: int = setting(
        0,
        "synthetic users who send random directions, by a fair coin, with whom `taciturn audit run`"
        " tests what is claimed; the same as `train --audit N`. With 1,000 the audit sees noise"
        " that is 1.3 times too small, with 10,000 noise 1.1 times too small, where people do not"
        " drown it",
        ge=0,
    )


class RunSection(Section):
    rounds: PositiveInt = Field(description="T")
    evaluate_every: PositiveInt = setting(20, "rounds between two measurements on held-out users")
    save_every: PositiveInt = setting(
        10, "rounds between two states that the run can be resumed from"
    )
    seed: int | None = setting(
        None, "makes the run repeatable and a *simulation*: its noise is no longer secret", ge=0
    )
