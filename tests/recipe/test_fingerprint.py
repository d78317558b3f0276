"""A fingerprint names what shapes a run. It must not change when a setting is added, and must
change with everything that matters.
"""

import jax
import pytest
from pydantic import TypeAdapter, ValidationError
from recipes import GOOD, changed
from reference import choices, settings

from taciturn import trees
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.recipe import build, recipe
from taciturn.recipe.recipe import SCHEMA, Recipe
from taciturn.recipe.sections import DEFAULT_CLIP_NORM, ModelSection, Section, setting
from taciturn.recipe.text import load_recipe, parse_recipe, save_recipe

OLD = {
    "algorithm": "dp-ftrl",
    "data": {
        "population": "people",
        "layout": "sentences",
        "sentences_per_user": 80,
        "sentence_length": 12,
    },
    "model": {
        "kind": "cifg",
        "width": 64,
        "units": 128,
        "tied": True,
        "dropout": 0.1,
        "warm_start": "runs/public",
    },
    "local": {
        "learning_rate": 0.3,
        "batch_size": 8,
        "epochs": 2,
        "max_gradient_norm": 1.5,
        "forgetting": "distillation",
    },
    "server": {"optimizer": "nesterov", "learning_rate": 0.7, "momentum": 0.9},
    "participation": {
        "kind": "min-separation",
        "users": 4000,
        "cohort": 100,
        "min_separation": 20,
        "weight_cap": 800.0,
    },
    "privacy": {
        "clip_norm": 0.4,
        "noise_multiplier": 5.25,
        "noise": "tree",
        "restart_rounds": [64],
        "encoding": "modular",
    },
    "fleet": {
        "kind": "devices",
        "timer_hours": 48.0,
        "over_selection": 1.5,
        "max_dropout": 0.2,
        "time_zones": [[1, 2.0]],
    },
    "canaries": {
        "text": "public",
        "users": [1, 2],
        "copies": [1, 4],
        "per_cell": 2,
        "sentences": 20,
    },
    "audit": {"users": 100},
    "run": {"rounds": 200, "evaluate_every": 10, "save_every": 5, "seed": 3},
}
# Every default there is. A new setting is added here; a default that changes needs another SCHEMA,
# or unfinished runs would go on with it.
DEFAULTS = {
    "": {"algorithm": "dp-fedavg"},
    "data": {
        "layout": "unrolls",
        "tokens_per_user": 1600,
        "sentences_per_user": 160,
        "sentence_length": 20,
        "general": None,
        "general_digest": None,
        "general_test": None,
    },
    "model": {
        "kind": "lstm",
        "width": 96,
        "units": None,
        "tied": False,
        "layers": 2,
        "heads": 4,
        "dropout": 0.0,
        "variational": False,
        "warm_start": None,
    },
    "local": {
        "learning_rate": 0.5,
        "batch_size": 50,
        "unroll": 10,
        "epochs": 1,
        "max_gradient_norm": None,
        "update_penalty": 0.0,
        "loss_power": 0.0,
        "forgetting": "none",
        "user_share": 0.5,
        "precision": "float32",
    },
    "server": {"optimizer": "momentum", "learning_rate": 1.0, "momentum": 0.99},
    "participation": {
        "kind": "poisson",
        "weight_cap": None,
        "total_weight": None,
        "min_separation": None,
        "max_participations": None,
    },
    "upload": {"share": 1.0, "bits": 32},
    "transfer": {
        "text": "generated",
        "rows": 200,
        "length": 20,
        "learning_rate": 0.5,
        "epochs": 1,
        "batch_size": 20,
    },
    "privacy": {
        "clip_norm": None,
        "clipping": "flat",
        "target_quantile": 0.5,
        "clip_learning_rate": 0.2,
        "clipped_count_stddev": None,
        "layer_clip_norms": None,
        "greedy": False,
        "estimator": "fixed",
        "least_weight": None,
        "noise_multiplier": None,
        "noise": None,
        "restart_rounds": None,
        "bands": 32,
        "buffers": 3,
        "strategy": None,
        "encoding": "integer",
        "encoding_bits": None,
        "epsilon": None,
        "rho": None,
        "delta": None,
        "accountant": "pld",
    },
    "fleet": {
        "kind": "simulated",
        "in_flight": None,
        "timer_hours": 24.0,
        "lifetime_participations": None,
        "over_selection": 1.3,
        "most_reports": None,
        "dropout_rate": 0.06,
        "deadline": 600.0,
        "patience": 3600.0,
        "max_dropout": 0.3,
        "max_colluding": 0.05,
        "time_zones": [(0.0, 1.0)],
    },
    "canaries": {
        "text": None,
        "rate": 0.575,
        "users": [1, 4, 16],
        "copies": [1, 14, 200],
        "per_cell": 3,
        "sentences": 200,
    },
    "audit": {"users": 0},
    "run": {"evaluate_every": 20, "save_every": 10, "seed": None},
}


def fingerprint(**sections):
    return parse_recipe(changed(**sections)).fingerprint


def test_old_recipes_have_the_fingerprints_they_had():
    """Unfinished runs, ledgers and fleets know them by these. If one has to change, so has
    SCHEMA.
    """
    assert SCHEMA == 1
    assert parse_recipe(GOOD).fingerprint == "3755a4d6c790969a"
    assert parse_recipe(OLD).fingerprint == "f3c9e26eb240c251"


def test_defaults_change_with_the_schema_alone():
    found = {}
    for section, name, field in settings():
        if not field.is_required():
            found.setdefault(section, {})[name] = field.default
    assert (SCHEMA, found) == (1, DEFAULTS)


def test_what_a_setting_that_is_left_out_means_changes_with_the_schema_alone():
    separated = {"kind": "min-separation", "min_separation": 2}
    plain, ftrl = (
        parse_recipe(GOOD),
        parse_recipe(changed(algorithm="dp-ftrl", participation=separated)),
    )
    cyclic = parse_recipe(
        changed(algorithm="dp-ftrl", participation={"kind": "cyclic-poisson"}, privacy={"bands": 5})
    )
    adaptive = parse_recipe(
        changed(
            algorithm="dp-ftrl",
            participation=separated,
            privacy={"clipping": "adaptive"},
            run={"rounds": 2000},
        )
    )
    assert SCHEMA == 1
    assert (plain.noise, ftrl.noise, cyclic.noise) == ("independent", "blt", "banded")
    assert (plain.delta, plain.restart_rounds, ftrl.max_participations, ftrl.in_flight) == (
        1e-6,
        (),
        4,
        200,
    )
    assert adaptive.restart_rounds == (128, 1152)
    assert build.bound(plain).reach == flat_clip(0.8).reach
    assert DEFAULT_CLIP_NORM == 0.8
    sizes = [
        trees.size(
            jax.eval_shape(
                build.language_model(ModelSection(kind=kind), 100).init, jax.random.key(0)
            )
        )
        for kind in ("lstm", "cifg", "gru", "transformer", "deep-lstm")
    ]
    assert sizes == [395748, 471550, 305380, 231364, 5399500]


def test_a_setting_that_is_added_later_changes_no_fingerprint_until_it_is_used():
    class LaterModel(ModelSection):
        novelty: int = setting(7, "of a later version")

    class LaterSection(Section):
        more: float = 0.5

    class LaterRecipe(Recipe):
        model: LaterModel = LaterModel()
        later: LaterSection = LaterSection()

    for content in (GOOD, OLD):
        before = parse_recipe(content).fingerprint
        assert LaterRecipe(**content).fingerprint == before
        used = {**content, "model": {**content.get("model", {}), "novelty": 8}}
        assert LaterRecipe(**used).fingerprint != before
        assert LaterRecipe(**content, later={"more": 0.6}).fingerprint != before


def other_value(field, value):
    """Another one of the same type, in or out of range."""
    for other in (
        *choices(field.annotation),
        3,
        5,
        16,
        0.25,
        True,
        False,
        "another",
        [2],
        [(2, 3)],
        {"a": 1},
        {"a": [1]},
    ):
        try:
            found = TypeAdapter(field.annotation).validate_python(other)
        except ValidationError:
            continue
        if found != value:
            return found
    raise AssertionError(f"no other value for {field}")


FILES = {"data.population", "data.general", "data.general_test", "model.warm_start"}


@pytest.mark.parametrize("content", [GOOD, OLD], ids=["few settings", "many settings"])
@pytest.mark.parametrize(
    ("section", "name", "field"),
    [pytest.param(*one, id=f"{one[0]}.{one[1]}") for one in settings()],
)
def test_any_setting_that_changes_changes_the_fingerprint_but_the_names_of_files(
    content, section, name, field
):
    one = parse_recipe(content)
    part = getattr(one, section) if section else one
    part = part.model_copy(
        update={name: other_value(field, getattr(part, name))}
    )  # without a check
    another = one.model_copy(update={section: part}) if section else part
    same = f"{section}.{name}" in FILES or (section, name, content) == (
        "canaries",
        "text",
        OLD,
    )  # which has one already
    assert (another.fingerprint == one.fingerprint) == same


def test_whether_there_is_a_text_for_canaries_counts_and_where_it_lies_does_not():
    planted = [fingerprint(canaries={"text": text}) for text in ("here", "there")]
    assert planted[0] == planted[1] != fingerprint()


def test_the_schema_is_part_of_it(monkeypatch):
    before = fingerprint()
    monkeypatch.setattr(recipe, "SCHEMA", SCHEMA + 1)
    assert fingerprint() != before


@pytest.mark.parametrize("content", [GOOD, OLD], ids=["few settings", "many settings"])
def test_a_recipe_that_was_saved_with_all_its_defaults_is_the_same(tmp_path, content):
    save_recipe(parse_recipe(content), tmp_path / "recipe.toml")
    assert "target_quantile" in (tmp_path / "recipe.toml").read_text()
    assert load_recipe(tmp_path / "recipe.toml").fingerprint == parse_recipe(content).fingerprint


def test_a_setting_that_may_be_none_is_none_by_default():
    """TOML has no none: saved and loaded, another default would come back in its place."""
    assert not [
        name
        for _, name, field in settings()
        if "None" in str(field.annotation) and field.default is not None
    ]
