"""A recipe is checked before anything is spent, and says in a sentence what is wrong."""

import re
import tomllib
from pathlib import Path

import pytest
from recipes import FTRL, GOOD, changed
from reference import reference

from harness import tiny_recipe
from taciturn.recipe.text import (
    RecipeError,
    load_recipe,
    model_settings,
    parse_recipe,
    save_recipe,
    to_toml,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"privacy": {"clip_nrom": 1.0}},
            r"\[privacy\] clip_nrom is not a setting; did you mean clip_norm\?",
        ),
        ({"privcy": {"clip_norm": 1.0}}, "privcy is not a setting; did you mean privacy?"),
        ({"run": {"rounds": 0}}, r"\[run\] rounds must be greater than 0, not 0"),
        ({"run": {"rounds": "many"}}, r"\[run\] rounds must be an integer, not 'many'"),
        ({"privacy": {"noise_multiplier": float("inf")}}, "finite"),
        ({"privacy": {"noise_multiplier": None}}, "needs a noise_multiplier, or an epsilon or rho"),
        ({"privacy": {"clip_norm": [[0, 1.0], [5, 2.0]]}}, "may only fall"),
        ({"privacy": {"clip_norm": -1.0}}, "clip norm lies between"),
        ({"privacy": {"delta": 0.01}}, "at least one over the number of users"),
        ({"privacy": {"estimator": "clipped"}}, "least_weight go together"),
        ({"privacy": {"layer_clip_norms": {"a": 1.0}}}, "per-layer"),
        ({"participation": {"cohort": 2000}}, "is more than users = 1000"),
        ({"participation": {"kind": "fixed", "cohort": 10.5}}, "cohort must be an integer"),
        ({"algorithm": "fedavg"}, "has no privacy"),
        ({"algorithm": "dp-fedsgd", "privacy": {"greedy": True}}, "several local steps"),
        ({"model": {"kind": "lstmm"}}, r"\[model\] kind"),
    ],
)
def test_what_is_wrong_is_reported_in_a_sentence(sections, sentence):
    with pytest.raises(RecipeError, match=sentence):
        parse_recipe(changed(**sections))


def test_a_missing_setting_is_named_with_what_it_means():
    content = changed()
    del content["participation"]["users"]
    with pytest.raises(
        RecipeError, match=r"\[participation\] users is missing; add it \(K, the number of users"
    ):
        parse_recipe(content)


def test_defaults_are_those_of_ramaswamy_2020_table_1():
    recipe = parse_recipe(GOOD)
    assert (recipe.server.optimizer, recipe.server.learning_rate, recipe.server.momentum) == (
        "momentum",
        1.0,
        0.99,
    )
    assert (recipe.local.batch_size, recipe.local.learning_rate) == (50, 0.5)
    assert recipe.delta == pytest.approx(1e-6)  # 1/users², where the paper has users^−1.1


def test_settings_win_over_the_file_and_a_recipe_survives_being_saved(tmp_path):
    schedule = parse_recipe(
        changed(privacy={"clip_norm": [[0, 2.0], [5, 1.0]]}, model={"warm_start": 'a "b"'})
    )
    save_recipe(schedule, tmp_path / "recipe.toml")
    assert load_recipe(tmp_path / "recipe.toml") == schedule
    loaded = load_recipe(
        tmp_path / "recipe.toml", ["run.rounds=3", "model.kind=cifg", "run.seed=7"]
    )
    assert (loaded.run.rounds, loaded.model.kind, loaded.run.seed) == (3, "cifg", 7)
    layers = parse_recipe(
        changed(
            privacy={
                "clipping": "per-layer",
                "layer_clip_norms": {"blocks/0/feed_in": 1.0, "b": 2.0},
            }
        )
    )
    save_recipe(layers, tmp_path / "layers.toml")
    assert load_recipe(tmp_path / "layers.toml") == layers


@pytest.mark.parametrize("setting", ["rounds", "run.rounds", "=3", "run.rounds.x=1"])
def test_a_setting_of_another_form_is_refused(tmp_path, setting):
    save_recipe(parse_recipe(GOOD), tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"is not that|is a value, not a section"):
        load_recipe(tmp_path / "recipe.toml", [setting])


@pytest.mark.parametrize("content", [b"rounds = = 3", b"\xff\xfe", b"[run"])
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"not TOML|not text in UTF-8"):
        load_recipe(tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"missing\.toml does not exist"):
        load_recipe(tmp_path / "missing.toml")


def test_the_reference_of_settings_is_in_step_with_the_code():
    written = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert written == reference(), (
        "write it again: python tests/recipe/reference.py > docs/recipe.md"
    )


def test_model_settings_alone_are_checked_too():
    assert model_settings(["kind=gru", "width=32"]).width == 32
    with pytest.raises(RecipeError, match="did you mean width"):
        model_settings(["widht=32"])


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"algorithm": "dp-ftrl"}, "goes with"),
        ({"participation": {"kind": "min-separation", "min_separation": 2}}, "goes with"),
        ({"participation": {"min_separation": 2}}, "goes with min_separation"),
        ({"privacy": {"noise": "blt"}}, 'belongs to algorithm = "dp-ftrl"'),
        ({**FTRL, "privacy": {"clip_norm": [[0, 1.0], [2, 0.5]]}}, "one clip norm"),
        ({**FTRL, "privacy": {"estimator": "clipped", "least_weight": 5.0}}, "fixed denominator"),
        ({**FTRL, "privacy": {"strategy": {"decay": [0.5]}}}, "strategy has"),
        ({**FTRL, "privacy": {"noise": "tree", "strategy": {"bands": [1.0]}}}, "strategy has"),
        (
            {**FTRL, "participation": {**FTRL["participation"], "min_separation": 9}},
            "4 rounds of rest are possible, not 9",
        ),
        (
            {**FTRL, "participation": {**FTRL["participation"], "max_participations": 1}},
            "cannot fill",
        ),
        ({"privacy": {"clipping": "adaptive"}}, "belong to algorithm"),
        ({"privacy": {"restart_rounds": [2]}}, "belong to algorithm"),
        (
            {**FTRL, "privacy": {"noise": "independent", "clipping": "adaptive"}},
            "nothing to restart",
        ),
        ({**FTRL, "privacy": {"restart_rounds": [4, 2]}}, "must be strictly increasing"),
        (
            {**FTRL, "privacy": {"clipping": "adaptive", "clip_norm": [[0, 1.0]]}},
            "starts from one clip_norm",
        ),
        (
            {
                **FTRL,
                "privacy": {"restart_rounds": [2], "strategy": {"decay": [0.5], "scale": [0.1]}},
            },
            "2 segments",
        ),
        ({**FTRL, "fleet": {"kind": "check-in", "most_reports": 5}}, "every round would fail"),
        ({**FTRL, "fleet": {"kind": "check-in"}}, "2 rounds of rest are possible, not 4"),
        ({**FTRL, "fleet": {"kind": "check-in", "over_selection": 1.0}}, "most rounds would fail"),
        (
            {
                "algorithm": "dp-ftrl",
                "participation": {
                    "kind": "min-separation",
                    "users": 10**6,
                    "cohort": 60_000,
                    "min_separation": 0,
                },
                "fleet": {"kind": "check-in"},
            },
            "a sum holds 65535",
        ),
        ({**FTRL, "fleet": {"time_zones": [[0, 0.0]]}}, "every share must be positive"),
        ({"fleet": {"kind": "check-in"}}, "no sampling can be claimed"),
        (
            {"algorithm": "dp-ftrl", "participation": {"kind": "cyclic-poisson"}},
            "privacy.bands to 5",
        ),
        (
            {
                "algorithm": "dp-ftrl",
                "participation": {"kind": "cyclic-poisson"},
                "privacy": {"noise": "blt"},
            },
            'goes with noise = "banded"',
        ),
    ],
)
def test_what_does_not_go_with_correlated_noise_is_refused(population, sections, sentence):
    with pytest.raises(RecipeError, match=sentence):
        tiny_recipe(population, **sections)


def test_noise_restarts_with_adaptive_clipping_as_in_the_paper(population):
    adaptive = tiny_recipe(population, **FTRL, privacy={"clipping": "adaptive"})
    assert adaptive.restart_rounds == ()  # six rounds are over before the first
    long = adaptive.with_settings("run", rounds=2500)
    assert long.restart_rounds == (128, 1152, 2176)
    assert long.with_settings("privacy", restart_rounds=[100]).restart_rounds == (100,)


def test_participations_are_capped_by_what_is_possible(population):
    recipe = tiny_recipe(population, **FTRL)
    assert recipe.max_participations == 2  # six rounds, four in between


@pytest.mark.parametrize(
    "page", ["README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
)
def test_recipes_in_the_documentation_are_recipes(page):
    """Each as it stands, with what it leaves out filled in."""
    for block in re.findall(
        r"^```toml\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    ):
        content = tomllib.loads(block)
        algorithm = content.get("algorithm", "dp-ftrl" if "fleet" in content else "dp-fedavg")
        rest = (
            FTRL
            if algorithm == "dp-ftrl"
            else {}
            if algorithm == "dp-fedavg"
            else {"privacy": {"noise_multiplier": None}}
        )
        assert parse_recipe(changed(**(rest | content))).algorithm == algorithm


def test_what_is_written_as_toml_is_read_again_whatever_names_it_has():
    odd = {
        "a.b": 1,
        "": {"x y": [1.5, 2]},
        "sec.tion": {"ü": "ö # no comment", 'in "quotes"': {"😀": True}},
    }
    odd |= {"bare": {"inner": {"k": 0.1}}}
    assert tomllib.loads(to_toml(odd)) == odd
    assert tomllib.loads(to_toml(odd, {("", "a.b"): "why", ("bare.inner", "k"): "why not"})) == odd
