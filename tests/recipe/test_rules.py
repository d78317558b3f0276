"""Every row of the tables of rules refuses a recipe that nothing else refuses, and what they allow
together is just what is accepted.
"""

import itertools
import re
from operator import attrgetter

import pytest
from recipes import changed
from reference import choices, settings

from taciturn.recipe import rules
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.rules import COMPATIBLE, RULES, Rule
from taciturn.recipe.text import RecipeError, parse_recipe

SEPARATED = {"kind": "min-separation", "min_separation": 2}
FTRL = {"algorithm": "dp-ftrl", "participation": SEPARATED}
CYCLIC = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "cyclic-poisson"},
    "privacy": {"bands": 5},
}
OPEN = {"privacy": {"noise_multiplier": None}}  # no privacy
FEDAVG, TRANSFER = ({"algorithm": name, **OPEN} for name in ("fedavg", "transfer-learning"))


def with_(base, **sections):
    merged = {
        section: dict(values) if isinstance(values, dict) else values
        for section, values in base.items()
    }
    for section, values in sections.items():
        merged[section] = {**merged.get(section, {}), **values}
    return merged


EXAMPLES = [
    with_(FTRL, privacy={"encoding": "modular", "clipping": "adaptive"}),
    {"privacy": {"encoding": "modular", "estimator": "clipped", "least_weight": 5.0}},
    with_(FEDAVG, privacy={"encoding": "modular"}),
    {"participation": SEPARATED},
    with_(FEDAVG, participation={"kind": "cyclic-poisson"}, privacy={"bands": 5}),
    with_(CYCLIC, privacy={"noise": "blt"}),
    with_(FEDAVG, fleet={"kind": "check-in"}),
    with_(FTRL, fleet={"kind": "devices"}),
    with_(FTRL, fleet={"kind": "queue"}, privacy={"encoding": "modular"}),
    with_(FTRL, fleet={"kind": "queue"}, privacy={"clipping": "adaptive"}),
    with_(FTRL, privacy={"clipping": "adaptive", "noise": "independent"}),
    {"privacy": {"noise": "blt"}},
    with_(FTRL, privacy={"estimator": "clipped", "least_weight": 5.0}),
    with_(FEDAVG, privacy={"estimator": "clipped", "least_weight": 5.0}),
    {"algorithm": "dp-fedsgd", "local": {"forgetting": "distillation"}},
    {"participation": {"cohort": 2000}},
    {"participation": {"kind": "fixed", "cohort": 10.5}},
    {"participation": {"min_separation": 2}},
    {"participation": {"max_participations": 20}},
    {"privacy": {"layer_clip_norms": {"a": 1.0}}},
    {"privacy": {"least_weight": 5.0}},
    {"privacy": {"encoding_bits": 20}},
    with_(FTRL, privacy={"restart_rounds": [4, 2]}),
    {"fleet": {"time_zones": [[0, 1.0], [1, 0.0]]}},
    {"audit": {"users": 15}},
    with_(TRANSFER, transfer={"rows": 33}),
    {"canaries": {"copies": [201]}},
    with_(FTRL, privacy={"noise_multiplier": 0.0}),
    {"privacy": {"noise_multiplier": 0.0, "epsilon": 4.0}},
    {"privacy": {"noise_multiplier": 0.0, "encoding": "modular"}},
    {"algorithm": "fedavg"},
    OPEN,
    {"privacy": {"delta": 0.01}},
    with_(FEDAVG, audit={"users": 16}),
    {"audit": {"users": 10_241}},
    {"privacy": {"restart_rounds": [2]}},
    with_(FTRL, privacy={"clip_norm": [[0, 1.0], [2, 0.5]]}),
    with_(FTRL, privacy={"strategy": {"decay": [0.5]}}),
    with_(FTRL, privacy={"restart_rounds": [2], "strategy": {"decay": [0.5], "scale": [0.1]}}),
    with_(CYCLIC, privacy={"bands": 11}),
    with_(FTRL, fleet={"kind": "check-in", "most_reports": 99}),
    with_(FTRL, fleet={"kind": "check-in", "over_selection": 1.0}),
    with_(FTRL, participation={"users": 10**6, "cohort": 60_000}, fleet={"kind": "check-in"}),
    with_(FTRL, participation={"min_separation": 10}),
    with_(FTRL, participation={"users": 300, "max_participations": 1}),
    with_(TRANSFER, participation=SEPARATED, fleet={"kind": "queue"}),
    with_(
        FEDAVG,
        participation=SEPARATED,
        fleet={"kind": "queue"},
        privacy={"clip_norm": [[0, 1.0], [2, 0.5]]},
    ),
    with_(FTRL, fleet={"kind": "queue", "in_flight": 99}),
    {"data": {"general": "somewhere"}},
    {"transfer": {"rows": 40}},
    with_(TRANSFER, server={"momentum": 0.5}),
    {"privacy": {"encoding": "modular"}, "upload": {"bits": 8}},
    {"algorithm": "dp-fedsgd", "privacy": {"greedy": True}},
    {"algorithm": "dp-fedsgd", "local": {"max_gradient_norm": 1.0}},
    {"local": {"forgetting": "distillation", "loss_power": 0.1}},
]


def refusal(sections):
    try:
        parse_recipe(changed(**sections))
    except RecipeError as refused:
        return str(refused)
    return None


def says(row, sentence):
    if isinstance(row, Rule):
        return re.fullmatch(
            "recipe: " + ".+".join(map(re.escape, re.split(r"{[^}]*}", row.text))), sentence
        )
    return sentence.endswith(f": {row.why}") and re.match(
        rf"recipe: (\[\w+\] )?{row.setting.split('.')[-1]} = ", sentence
    )


@pytest.mark.parametrize(
    "row", [*COMPATIBLE, *RULES], ids=lambda row: row.text if isinstance(row, Rule) else row.why
)
def test_every_row_refuses_a_recipe_that_no_other_would(monkeypatch, row):
    """A row without an example fails here, and so does one that the others make superfluous."""
    examples = [one for one in EXAMPLES if says(row, refusal(one) or "")]
    assert examples, "EXAMPLES has no recipe that this row refuses"
    for table in ("COMPATIBLE", "RULES"):
        monkeypatch.setattr(
            rules, table, tuple(one for one in getattr(rules, table) if one is not row)
        )
    assert refusal(examples[0]) is None


def test_every_example_is_of_a_row():
    assert all(any(says(row, refusal(one)) for row in (*COMPATIBLE, *RULES)) for one in EXAMPLES)


def known_choices():
    return {
        f"{section}.{name}".strip("."): choices(field.annotation)
        for section, name, field in settings()
    }


def test_the_matrix_names_settings_and_values_that_exist():
    known = known_choices()
    known["noise"] = known["privacy.noise"]
    for pairing in COMPATIBLE:
        assert set(pairing.goes_with) <= set(known[pairing.setting])
        for allowed in pairing.goes_with.values():
            assert set(allowed) < set(known[pairing.other])  # or nothing would be excluded


def test_what_the_matrix_allows_is_what_is_accepted():
    """All combinations of its choices, each with the settings that they ask for."""
    known, accepted = known_choices(), 0
    axes = [
        "algorithm",
        "participation.kind",
        "privacy.noise",
        "fleet.kind",
        "privacy.clipping",
        "privacy.encoding",
    ]
    for values in itertools.product(*(known[axis] for axis in axes)):
        chosen = dict(zip(axes, values, strict=True))
        content = changed(privacy={"bands": 5})
        for path, value in chosen.items():
            section, _, name = path.rpartition(".")
            (content.setdefault(section, {}) if section else content)[name] = value
        if chosen["participation.kind"] == "min-separation":
            content["participation"]["min_separation"] = 2
        if chosen["algorithm"] in ("fedavg", "transfer-learning"):
            del content["privacy"]["noise_multiplier"]
        if chosen["algorithm"] == "transfer-learning":
            content |= {
                "transfer": {"text": "general"},
                "data": {"population": "somewhere", "general": "public"},
            }
        chosen |= {
            "noise": chosen["privacy.noise"],
            "privacy.estimator": "fixed",
            "local.forgetting": "none",
        }
        allowed = all(one.allows(chosen[one.setting], chosen[one.other]) for one in COMPATIBLE)
        try:
            recipe = Recipe(**content)
        except ValueError:
            assert not allowed, chosen
        else:
            accepted += 1
            assert allowed, chosen
            assert attrgetter(*axes)(recipe) == values
    assert accepted > 50


def test_a_matrix_that_allowed_more_would_be_noticed(monkeypatch):
    """The twin that must fail."""
    queue = next(
        one for one in COMPATIBLE if "queue" in one.goes_with and one.other == "privacy.clipping"
    )
    monkeypatch.setattr(rules, "COMPATIBLE", tuple(one for one in COMPATIBLE if one is not queue))
    with pytest.raises(AssertionError, match="queue"):
        test_what_the_matrix_allows_is_what_is_accepted()
