"""The sections of a recipe, each validated for itself; how they go together is recipe/recipe.py."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from taciturn.models.registry import KINDS, model_kind
from taciturn.privacy.accounting import AccountantName
from taciturn.privacy.clipping import clip_schedule

DEFAULT_CLIP_NORM = 0.8  # Ramaswamy et al. 2020, Table 1


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Data(Section):
    population: str = Field(description="folder made by `taciturn data build`")
    layout: Literal["unrolls", "sentences"] = Field(
        default="unrolls",
        description="the text in one go, cut every `local.unroll` tokens (McMahan et al. 2018), or sentence by sentence",
    )
    tokens_per_user: PositiveInt = Field(
        default=1600, description="what one user's local training reads at most, in unrolls"
    )
    sentences_per_user: PositiveInt = Field(default=160, description="the same for sentences")
    sentence_length: PositiveInt = Field(default=20, description="tokens of a sentence; longer ones are cut")
    general: str | None = Field(
        default=None,
        description="folder made by `taciturn data public`: what devices rehearse, or what their predictions are about",
    )
    general_digest: str | None = Field(
        default=None, description="names that text; worked out, and written into the run's own recipe"
    )
    general_test: str | None = Field(
        default=None,
        description="another such folder: measured beside the held-out users, to see what of the general language is forgotten",
    )


class Model(Section):
    kind: str = Field(default="lstm", description=f"{' · '.join(KINDS)}; or one of your own (models/registry.py)")
    width: PositiveInt = Field(default=96, description="of a word's embedding")
    units: PositiveInt | None = Field(
        default=None, description="of the recurrent state (default: LSTM and GRU 256, CIFG 670, deep LSTM 650)"
    )
    tied: bool = Field(default=False, description="CIFG, deep LSTM: one embedding for input and output")
    layers: PositiveInt = Field(default=2, description="Transformer, deep LSTM")
    heads: PositiveInt = Field(default=4, description="Transformer")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    variational: bool = Field(default=False, description="deep LSTM: drop the same all along a sequence")
    warm_start: str | None = Field(default=None, description="run folder or model.safetensors to start from")

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        model_kind(kind)
        return kind


class Local(Section):
    learning_rate: float = Field(
        default=0.5, gt=0, description="η; default of Ramaswamy et al. 2020, Table 1, like the next"
    )
    batch_size: PositiveInt = Field(default=50, description="B")
    unroll: PositiveInt = Field(default=10, description="tokens predicted in a row, in unrolls")
    epochs: PositiveInt = Field(default=1, description="E")
    gradient_norm: float | None = Field(
        default=None, gt=0, description="of one local step, at most; keeps training at high rates from running away"
    )
    update_penalty: float = Field(default=0.0, ge=0, description="L2 penalty on the update")
    keep: Literal["nothing", "rehearsal", "soft-labels"] = Field(
        default="nothing",
        description="so that the general language is not forgotten (Popov et al. 2018): rows of general text beside the user's, or "
        "what the model that was sent would have said",
    )
    user_share: float = Field(
        default=0.5, gt=0, le=1, description="λ: how much of what a device learns from is its user's own"
    )
    precision: Literal["float32", "mixed"] = Field(
        default="float32",
        description="of matrix products; mixed takes them in bfloat16 (parameters, clips, sums and noise stay float32)",
    )


class UploadSection(Section):
    share: float = Field(
        default=1.0, gt=0, le=1, description="of each layer's values, the largest; the others are not sent"
    )
    bits: Literal[32, 16, 8] = Field(default=32, description="of a value, rounded at random before the clip")


class Transfer(Section):
    text: Literal["generated", "general"] = Field(
        default="generated", description="what predictions are about: what the model itself makes up, or data.general"
    )
    rows: PositiveInt = Field(default=200, description="of `length` words, on which every device says what comes next")
    length: PositiveInt = 20
    learning_rate: float = Field(default=0.5, gt=0, description="of the server, learning these predictions")
    epochs: PositiveInt = Field(default=1, description="over them, before the next cycle begins with a new text")
    batch_size: PositiveInt = 20

    @model_validator(mode="after")
    def _fits(self) -> "Transfer":
        if self.rows % self.batch_size:
            raise ValueError(f"{self.rows} rows are no whole number of batches of {self.batch_size}")
        return self


class Server(Section):
    optimizer: Literal["sgd", "momentum", "nesterov", "adam"] = Field(
        default="momentum", description="Ramaswamy et al. 2020, Table 1, like the next"
    )
    learning_rate: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.99, ge=0, lt=1)


class ParticipationSection(Section):
    kind: Literal["poisson", "fixed", "min-separation", "cyclic-poisson"] = Field(
        default="poisson",
        description="min-separation claims no sampling (dp-ftrl, and runs without privacy); with cyclic-poisson users take turns every "
        "privacy.bands rounds (dp-ftrl)",
    )
    users: PositiveInt = Field(
        description="K, the number of users as publicly known; sets q and δ, never counted from the text"
    )
    cohort: float = Field(
        gt=0, le=60_000, description="users a round: expected with poisson, else exact, or the report goal m"
    )
    weight_cap: float | None = Field(
        default=None, gt=0, description="ŵ: a user of n tokens weighs min(n/ŵ, 1); none weighs all alike"
    )
    total_weight: float | None = Field(
        default=None, gt=0, description="W, the total weight as publicly known (default: users)"
    )

    min_separation: int | None = Field(
        default=None, ge=0, description="MinS: rounds strictly between two participations of a user"
    )
    max_participations: PositiveInt | None = Field(
        default=None, description="MaxP (default: as many as the rounds and min_separation allow)"
    )

    @model_validator(mode="after")
    def _fits(self) -> "ParticipationSection":
        separated = self.kind == "min-separation"
        if separated != (self.min_separation is not None) or (self.max_participations is not None and not separated):
            raise ValueError('kind = "min-separation" goes with min_separation, and max_participations only with it')
        if self.min_separation is not None and (self.min_separation + 1) * self.cohort > self.users:
            possible = max(int(self.users // self.cohort) - 1, 0)
            raise ValueError(
                f"with {self.users} users and cohorts of {self.cohort:g} nobody can rest for {self.min_separation} rounds; "
                f"{possible} are possible"
            )
        if self.cohort > self.users:
            raise ValueError(f"a cohort of {self.cohort:g} is more than the {self.users} users there are")
        if self.kind in ("fixed", "min-separation") and self.cohort != int(self.cohort):
            raise ValueError("a fixed cohort is a whole number of users")
        return self

    @property
    def probability(self) -> float:
        return self.cohort / self.users

    @property
    def expected_weight(self) -> float:
        """qW."""
        return self.probability * (self.total_weight or self.users)


class Privacy(Section):
    clip_norm: float | list[tuple[int, float]] | None = Field(
        default=None,
        description="S, or a falling schedule [[round, S], …]; default 0.8 (Ramaswamy et al. 2020), fedavg: none",
    )
    clipping: Literal["flat", "per-layer", "adaptive"] = Field(
        default="flat",
        description="the last follows a quantile from clip_norm on, and is dp-ftrl's (Xu et al. 2023, Algorithm 1)",
    )
    target_quantile: float = Field(default=0.5, gt=0, lt=1, description="γ of adaptive clipping")
    clip_learning_rate: float = Field(default=0.2, gt=0, le=10, description="η_γ of adaptive clipping")
    clipped_count_stddev: float | None = Field(
        default=None, gt=0, description="σ_b of adaptive clipping: noise on its count (default: cohort / 20)"
    )
    layer_clip_norms: dict[str, float] | None = Field(default=None, description="S_j by layer, in place of clip_norm")
    greedy: bool = Field(
        default=False, description="project after every local step (McMahan et al. 2018), not only at the end"
    )
    estimator: Literal["fixed", "clipped"] = Field(default="fixed", description="denominator qW, or max(qW_min, Σ w_k)")
    least_weight: float | None = Field(default=None, gt=0, description="W_min of the clipped denominator")
    noise_multiplier: float | None = Field(
        default=None, ge=1e-3, description="z; left out, it is worked out from the budget"
    )
    noise: Literal["independent", "tree", "honaker", "banded", "blt"] | None = Field(
        default=None, description="how it is correlated over rounds (default: blt for dp-ftrl, else independent)"
    )
    restart_rounds: list[PositiveInt] | None = Field(
        default=None,
        description="correlated noise starts anew after these (default: never; with adaptive clipping 128, 1152, 2176, …)",
    )
    bands: PositiveInt = Field(default=32, description="of banded noise")
    buffers: PositiveInt = Field(default=3, le=4, description="of blt noise")
    strategy: dict[str, list[float]] | None = Field(
        default=None,
        description="coefficients of banded or blt noise, segment after segment; worked out, and written into the run's own recipe",
    )
    encoding: Literal["whole", "modular"] = Field(
        default="whole",
        description="of reports: whole numbers, or residues mod M that a secure sum can add (Xu et al. 2023, Algorithm 2)",
    )
    encoding_bits: PositiveInt | None = Field(
        default=None,
        description="log₂ M, of a parameter in a modular report (default: as few as let noise grow by 0.1 %)",
    )
    epsilon: float | None = Field(default=None, gt=0, description="budget: training stops before it is passed")
    rho: float | None = Field(default=None, gt=0, description="budget in zCDP")
    delta: float | None = Field(default=None, gt=0, lt=1, description="default: 1/users², at least 1e-15")
    accountant: AccountantName = "pld"

    @field_validator("clip_norm")
    @classmethod
    def _schedule(cls, value: float | list[tuple[int, float]] | None) -> float | list[tuple[int, float]] | None:
        if value is not None:
            clip_schedule(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> "Privacy":
        if self.layer_clip_norms and self.clipping != "per-layer":
            raise ValueError('layer_clip_norms belong to clipping = "per-layer"')
        if self.restart_rounds and sorted(set(self.restart_rounds)) != self.restart_rounds:
            raise ValueError("restart_rounds rise from one to the next")
        if self.clipping == "adaptive" and not isinstance(self.clip_norm, float | int | None):
            raise ValueError('clipping = "adaptive" starts from one clip_norm, not from a schedule')
        if (self.estimator == "clipped") != (self.least_weight is not None):
            raise ValueError('estimator = "clipped" and least_weight go together')
        if self.encoding == "modular" and (self.clipping == "adaptive" or self.estimator != "fixed"):
            raise ValueError('encoding = "modular" goes with a clip norm that does not adapt and estimator = "fixed"')
        if self.encoding_bits is not None and self.encoding != "modular":
            raise ValueError('encoding_bits belong to encoding = "modular"')
        return self


class FleetSection(Section):
    kind: Literal["always", "available", "queue", "devices"] = Field(
        default="always",
        description="everyone is there in every round; or devices check in at night, keep a timer and drop out; or they train on the model "
        "they last got and a round closes when enough have reported (Popov et al. 2018); or real devices over a network, whose reports are "
        "added by a secure sum (`taciturn serve`). The last three with min-separation only",
    )
    in_flight: PositiveInt | None = Field(
        default=None, description="queue: devices that train at any moment (default: twice the cohort)"
    )
    timer_hours: float = Field(default=24.0, gt=0, description="for which a device rests after an upload")
    lifetime_participations: PositiveInt | None = Field(
        default=None,
        description="devices: reports that one sends in its life, in whatever runs, summed or not (default: max_participations)",
    )
    over_selection: float = Field(default=1.3, ge=1, description="devices asked for each report that is needed")
    most_reports: PositiveInt | None = Field(
        default=None, description="n_max: later reports are not summed (default: all who were asked)"
    )
    drop_out: float = Field(default=0.06, ge=0, lt=1, description="share of those who are asked")
    deadline: float = Field(default=600.0, gt=0, description="devices: seconds in which a report must arrive")
    patience: float = Field(
        default=3600.0, gt=0, description="devices: seconds for which the server waits until enough of them are there"
    )
    tolerated: float = Field(
        default=0.3,
        ge=0,
        lt=0.5,
        description="devices: share of a cohort that may drop out in the middle of a secure sum",
    )
    corrupt: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="devices: share that may work together with the server against the others",
    )
    time_zones: list[tuple[float, float]] = Field(
        default=[(0.0, 1.0)], min_length=1, description="[[offset in hours, share of users], …]"
    )

    @field_validator("time_zones")
    @classmethod
    def _shares(cls, value: list[tuple[float, float]]) -> list[tuple[float, float]]:
        if any(share <= 0 for _, share in value):
            raise ValueError("every time zone has a positive share of the users")
        return value


class CanarySection(Section):
    text: str | None = Field(
        default=None,
        description="folder made by `taciturn data public`: what synthetic users write beside the secrets they share; none: no canaries",
    )
    rate: float = Field(
        default=0.575,
        gt=0,
        le=1,
        description="with which each of them takes part in a round (Ramaswamy et al. 2020: 1,150 of 2,000 rounds)",
    )
    users: list[PositiveInt] = Field(default=[1, 4, 16], min_length=1, description="n_u, who share a canary")
    copies: list[PositiveInt] = Field(default=[1, 14, 200], min_length=1, description="n_e, that each of them has")
    each: PositiveInt = Field(default=3, description="canaries of every n_u with every n_e")
    sentences: PositiveInt = Field(default=200, description="of a synthetic user, copies among them")

    @model_validator(mode="after")
    def _fits(self) -> "CanarySection":
        if max(self.copies) > self.sentences:
            raise ValueError(f"{max(self.copies)} copies do not fit into {self.sentences} sentences")
        return self

    @property
    def synthetic_users(self) -> int:
        return self.each * len(self.copies) * sum(self.users) if self.text else 0


AUDITED_AT_ONCE = 1024  # audit users whose turn a round may be, in and out


class AuditSection(Section):
    users: int = Field(
        default=0,
        ge=0,
        description="made-up users who send random directions, if a fair coin falls so, by whom `taciturn audit` tests what is "
        "claimed; the same as `train --audit N`. With 1,000 the audit sees noise that is 1.3 times too small, with 10,000 noise 1.1 times "
        "too small, where people do not drown it",
    )

    @field_validator("users")
    @classmethod
    def _enough(cls, value: int) -> int:
        if 0 < value < 16:
            raise ValueError("fewer than 16 users tell nothing; take a thousand")
        return value


class Run(Section):
    rounds: PositiveInt
    evaluate_every: PositiveInt = 20
    save_every: PositiveInt = 10
    seed: int | None = Field(
        default=None, description="makes the run repeatable and a *simulation*: its noise is no secret any more"
    )
