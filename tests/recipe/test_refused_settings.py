"""Settings that would do nothing, or break what is said of a run, are refused."""

import pytest

from harness import tiny_recipe
from taciturn.recipe.text import RecipeError


def test_a_population_of_one_does_not_get_delta_one(population):
    try:
        chosen = tiny_recipe(population, participation={"users": 1, "cohort": 1})
    except RecipeError:
        return
    assert chosen.delta < 0.5


QUEUE = {
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "fleet": {"kind": "queue", "in_flight": 14},
}
FTRL = {"algorithm": "dp-ftrl", "privacy": {"noise": "tree"}, **QUEUE}
BARE = {"noise_multiplier": None, "clip_norm": None}
PER_LAYER = {"clipping": "per-layer", "layer_clip_norms": {"word_bias": 0.5}}
TRANSFER = {
    "algorithm": "transfer-learning",
    "server": {"optimizer": None, "learning_rate": None, "momentum": None},
}
REFUSED = {
    "noise where there is none": ({**TRANSFER, "privacy": {"clip_norm": None}}, "has no privacy"),
    "a budget where there is none": (
        {**TRANSFER, "privacy": {**BARE, "epsilon": 1.0}},
        "has no privacy",
    ),
    "a clip norm of predictions": (
        {**TRANSFER, "privacy": {"noise_multiplier": None}},
        "sums predictions, not updates",
    ),
    "clip norms of layers, of predictions": (
        {**TRANSFER, "privacy": {**BARE, **PER_LAYER}},
        "sums predictions, not updates",
    ),
    "an adaptive clip norm of predictions": (
        {**TRANSFER, "privacy": {**BARE, "clipping": "adaptive"}},
        "belong to algorithm",
    ),
    "correlated noise of predictions": (
        {**TRANSFER, "privacy": {**BARE, "noise": "tree"}},
        "belongs to algorithm",
    ),
    "smaller uploads of predictions": (
        {**TRANSFER, "privacy": BARE, "upload": {"bits": 8}},
        "sums predictions, not updates",
    ),
    "a denominator of predictions": (
        {**TRANSFER, "privacy": {**BARE, "estimator": "clipped", "least_weight": 9.0}},
        "divided by the actual weight",
    ),
    "a denominator where the average is the true one": (
        {"algorithm": "fedavg", "privacy": {**BARE, "estimator": "clipped", "least_weight": 9.0}},
        "divided by the actual weight",
    ),
    "short steps where there is one gradient": (
        {"algorithm": "dp-fedsgd", "local": {"max_gradient_norm": 1.0}},
        "sends one gradient",
    ),
    "predictions about the texts of several models": (
        {**TRANSFER, "privacy": BARE, **QUEUE},
        "generate different texts",
    ),
    "a clip norm that falls while reports wait": (
        {
            "algorithm": "fedavg",
            "privacy": {"noise_multiplier": None, "clip_norm": [[0, 1.0], [3, 0.5]]},
            **QUEUE,
        },
        "there is one clip norm for the whole run",
    ),
    "a clip norm that adapts while reports wait": (
        {**FTRL, "privacy": {"clipping": "adaptive"}},
        "there is one clip norm for the whole run",
    ),
    "cohorts drawn from a queue": ({"fleet": {"kind": "queue"}}, "no sampling can be claimed"),
    "turns in a queue": (
        {
            "algorithm": "dp-ftrl",
            "participation": {"kind": "cyclic-poisson", "cohort": 1},
            "fleet": {"kind": "queue"},
        },
        "no sampling can be claimed",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_setting_that_would_do_nothing_or_break_what_is_said_is_refused(population, what):
    settings, why = REFUSED[what]
    with pytest.raises(RecipeError, match=why):
        tiny_recipe(population, **settings)


TREE = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
}


def test_what_residues_cannot_do_is_refused(population):
    for privacy in ({"clipping": "adaptive"}, {"estimator": "clipped", "least_weight": 20}):
        with pytest.raises(RecipeError, match="modular"):
            tiny_recipe(population, **(TREE | {"privacy": {"encoding": "modular"} | privacy}))
