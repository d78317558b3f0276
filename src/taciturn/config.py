"""A run's recipe: frozen, validated, in TOML. A key that does not exist is an error, and so is a value out of range.

Everything privacy depends on is a constant here, written down before the run: how many users there are, how many take part, how far one may
move the model. Counts measured on users' text are never used in its place.
"""

import difflib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator

from taciturn.files import write_atomically
from taciturn.privacy.accounting import AccountantName
from taciturn.privacy.clipping import clip_schedule
from taciturn.privacy.participation import default_delta
from taciturn.privacy.sensitivity import most_participations

DEFAULT_CLIP_NORM = 0.8  # Ramaswamy et al. 2020, Table 1


class RecipeError(Exception):
    """What is wrong with a recipe, in a sentence for whoever wrote it."""


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


class Model(Section):
    kind: Literal["lstm", "cifg", "gru", "transformer"] = "lstm"
    width: PositiveInt = Field(default=96, description="of a word's embedding")
    units: PositiveInt | None = Field(
        default=None, description="of the recurrent state (default: LSTM and GRU 256, CIFG 670)"
    )
    tied: bool = Field(default=False, description="CIFG: one embedding for input and output")
    layers: PositiveInt = Field(default=2, description="Transformer")
    heads: PositiveInt = Field(default=4, description="Transformer")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    warm_start: str | None = Field(default=None, description="run folder or model.safetensors to start from")


class Local(Section):
    learning_rate: float = Field(
        default=0.5, gt=0, description="η; default of Ramaswamy et al. 2020, Table 1, like the next"
    )
    batch_size: PositiveInt = Field(default=50, description="B")
    unroll: PositiveInt = Field(default=10, description="tokens predicted in a row, in unrolls")
    epochs: PositiveInt = Field(default=1, description="E")
    update_penalty: float = Field(default=0.0, ge=0, description="L2 penalty on the update")


class Server(Section):
    optimizer: Literal["sgd", "momentum", "nesterov", "adam"] = Field(
        default="momentum", description="Ramaswamy et al. 2020, Table 1, like the next"
    )
    learning_rate: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.99, ge=0, lt=1)


class ParticipationSection(Section):
    kind: Literal["poisson", "fixed", "min-separation"] = Field(
        default="poisson", description="the last claims no sampling, and is dp-ftrl's"
    )
    users: PositiveInt = Field(
        description="K, the number of users as publicly known; sets q and δ, never counted from the text"
    )
    cohort: float = Field(gt=0, le=60_000, description="users a round: expected with poisson, exact otherwise (m)")
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
        if self.kind != "poisson" and self.cohort != int(self.cohort):
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
    clipping: Literal["flat", "per-layer"] = "flat"
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
    bands: PositiveInt = Field(default=32, description="of banded noise")
    buffers: PositiveInt = Field(default=3, le=4, description="of blt noise")
    strategy: dict[str, list[float]] | None = Field(
        default=None,
        description="coefficients of banded or blt noise; worked out, and written into the run's own recipe",
    )
    epsilon: float | None = Field(default=None, gt=0, description="budget: training stops before it is passed")
    rho: float | None = Field(default=None, gt=0, description="budget in zCDP")
    delta: float | None = Field(default=None, gt=0, lt=1, description="default: users^−1.1")
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
        if (self.estimator == "clipped") != (self.least_weight is not None):
            raise ValueError('estimator = "clipped" and least_weight go together')
        return self


class Run(Section):
    rounds: PositiveInt
    evaluate_every: PositiveInt = 20
    save_every: PositiveInt = 10
    seed: int | None = Field(
        default=None, description="makes the run repeatable and a *simulation*: its noise is no secret any more"
    )


class Recipe(Section):
    algorithm: Literal["dp-fedavg", "dp-fedsgd", "dp-ftrl", "fedavg"] = Field(
        default="dp-fedavg", description="fedavg has no privacy (ε = ∞)"
    )
    data: Data
    model: Model = Model()
    local: Local = Local()
    server: Server = Server()
    participation: ParticipationSection
    privacy: Privacy = Privacy()
    run: Run

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        limits = (self.privacy.noise_multiplier, self.privacy.epsilon, self.privacy.rho)
        if self.algorithm == "fedavg" and any(limit is not None for limit in limits):
            raise ValueError(
                'algorithm = "fedavg" has no privacy: leave noise_multiplier, epsilon and rho out, or choose "dp-fedavg"'
            )
        if self.algorithm != "fedavg" and all(limit is None for limit in limits):
            raise ValueError("[privacy] needs a noise_multiplier, or an epsilon or rho to work it out from")
        if self.privacy.greedy and self.algorithm != "dp-fedavg":
            raise ValueError('greedy clipping belongs to algorithm = "dp-fedavg", which has several local steps')
        if (self.algorithm == "dp-ftrl") != (self.participation.kind == "min-separation"):
            raise ValueError(
                'algorithm = "dp-ftrl" goes with [participation] kind = "min-separation", and no other does'
            )
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
        if self.delta * self.participation.users >= 1:
            raise ValueError(
                f"δ = {self.delta:g} is more than one over the number of users: it would allow giving one user away whole"
            )
        return self

    @property
    def delta(self) -> float:
        return self.privacy.delta or default_delta(self.participation.users)

    @property
    def fingerprint(self) -> str:
        """Names everything that shapes the run; where its files lie does not."""
        content = self.model_dump(mode="json")
        del content["data"]["population"], content["model"]["warm_start"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def noise(self) -> str:
        """How it is correlated over rounds."""
        return self.privacy.noise or ("blt" if self.algorithm == "dp-ftrl" else "independent")

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

    def save(self, path: Path) -> None:
        write_atomically(path, _toml(self.model_dump(mode="json", exclude_none=True)).encode())


def reference() -> str:
    """Every setting of a recipe, for docs/recipe.md."""
    lines = ["# Every setting of a recipe", "", "Made from `src/taciturn/config.py`; a test keeps it in step.", ""]
    sections = {name: field.annotation for name, field in Recipe.model_fields.items()}
    for section, kind in {"": Recipe, **sections}.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            continue
        lines += [f"## [{section}]" if section else "## top", "", "| setting | default | meaning |", "|---|---|---|"]
        for name, field in kind.model_fields.items():
            if section or name not in sections or name == "algorithm":
                default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
                choices = (
                    " · ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
                )
                meaning = "; ".join(part for part in (choices, field.description) if part)
                lines.append(f"| `{name}` | {default.replace('`null`', 'none')} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def load_recipe(path: Path, settings: list[str] | None = None) -> Recipe:
    """Read a recipe; `settings` are `section.key=value` and win over the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None
    for setting in settings or []:
        _set(content, setting)
    return parse_recipe(content, str(path))


def parse_recipe(content: dict[str, Any], where: str = "recipe") -> Recipe:
    try:
        return Recipe(**content)
    except ValidationError as error:
        raise RecipeError("\n".join(f"{where}: {_sentence(one)}" for one in error.errors())) from None


def model_settings(settings: list[str]) -> Model:
    """The [model] section from `key=value` alone."""
    content: dict[str, Any] = {}
    for setting in settings:
        _set(content, setting)
    try:
        return Model(**content)
    except ValidationError as error:
        raise RecipeError("\n".join(_sentence(one, Model) for one in error.errors())) from None


def _set(content: dict[str, Any], setting: str) -> None:
    path, equals, value = setting.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise RecipeError(f"--set takes section.key=value; {setting!r} is not that")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a word without quotes
    target = content
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(f"--set {setting}: {section} is a value, not a section")
    target[key] = parsed


def _sentence(error: Any, section: type[BaseModel] = Recipe) -> str:
    place = [str(part) for part in error["loc"] if part not in ("float", "list[tuple[int, float]]")]
    for part in place[:-1]:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    name = f"[{'.'.join(place[:-1])}] {place[-1]}" if len(place) > 1 else (f"{place[0]}" if place else "")
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place[-1], section.model_fields, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(section.model_fields)}"
        return f"{name} is not a setting; {hint}"
    if error["type"] == "missing":
        about = section.model_fields[place[-1]].description
        return f"{name} is missing" + (f" ({about})" if about else "")
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{name}: {message}" if name else message
    given = error["input"] if not isinstance(error["input"], dict) else "a section"
    return f"{name}: {message[0].lower()}{message[1:]} (it is {given!r})"


def _toml(content: dict[str, Any], section: str = "") -> str:
    values = {key: value for key, value in content.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    text = (f"[{section}]\n" if section and lines else "") + "".join(f"{line}\n" for line in lines)
    for key, value in content.items():
        if isinstance(value, dict):
            inner = f"{section}.{key}" if section else key
            text += ("\n" if text else "") + _toml(
                {json.dumps(k) if "/" in k else k: v for k, v in value.items()}, inner
            )
    return text
