"""The plan of the house, checked: who may import whom, one door to users' data, one place where
noise is drawn.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "taciturn"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    """A package, a module at the top, or a room of `fleets`, which has several.

    A module that has a row of its own in the table is a layer by itself.
    """
    parts = module.split(".")
    if ".".join(parts[:3]) in LAYERS:
        return ".".join(parts[:3])
    return ".".join(parts[:2]) if parts[0] == "fleets" and len(parts) > 1 else parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    return {
        layer(one.removeprefix("taciturn.")) for one in imports(path) if one.startswith("taciturn.")
    }


def calls(path: Path, attribute: str) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == attribute
        for node in nodes
    )


BASE = {"errors", "progress", "names", "core", "trees", "randomness", "files"}
FLEETS = {"fleets.simulation", "fleets.secure_aggregation", "fleets.devices", "fleets.wire"}
LAYERS = {
    "errors": set(),
    "progress": set(),
    "core": set(),
    "names": set(),
    "trees": {"core"},
    "randomness": set(),
    "files": {"errors"},
    "fleets": set(),
    "privacy": BASE,
    "data": BASE,
    "models": BASE,
    "algorithms": BASE | {"privacy", "data", "models"},
    "evaluation": BASE | {"data", "models"},
    "training": {"core", "privacy"},
    "release": BASE | {"privacy", "models"},
    "people": BASE | {"privacy", "data", "release"},
    "recipe": BASE | {"privacy", "data", "models", "algorithms", "evaluation"},
    "export": BASE | {"privacy", "data", "models", "recipe", "release"},
    "keyboard": BASE
    | {"data", "models", "algorithms", "evaluation", "recipe", "release", "export"},
    "fleets.simulation": BASE | {"privacy", "data", "models"},
    "fleets.secure_aggregation": BASE,
    "fleets.devices": BASE | {"privacy", "fleets.simulation", "fleets.secure_aggregation"},
    "fleets.wire": BASE | {"fleets.devices", "fleets.secure_aggregation"},
    "fleets.enrolment": BASE | {"fleets.devices", "fleets.secure_aggregation", "fleets.wire"},
    "fleets.simulation.ray_engine": BASE | {"privacy", "data", "recipe", "fleets.simulation"},
    "fleets.assemble": BASE
    | FLEETS - {"fleets.wire"}
    | {"privacy", "data", "recipe", "fleets.simulation.ray_engine"},
    "fleets.fleet_folders": BASE
    | FLEETS
    | {"data", "recipe", "people", "fleets.assemble", "fleets.enrolment"},
    "audit": BASE
    | {"privacy", "data", "models", "evaluation", "recipe", "training", "fleets.simulation"},
    "planning": {"errors", "names", "progress", "core", "privacy", "fleets.simulation"},
}
LAYERS["runs"] = set(LAYERS)  # what a person does with all of these, in a folder
LAYERS["bench"] = set(LAYERS)
LAYERS["cli"] = set(LAYERS)
LAYERS["__main__"] = {"cli"}
LAYERS[""] = set(LAYERS)  # the public door


def test_no_two_layers_import_each_other():
    above: set[str] = set()
    for one, below in reversed(LAYERS.items()):
        assert not below & above, f"{one} imports from a layer above it"
        above.add(one)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_imports_from_the_layers_below_it_only(path):
    own = layer(name(path))
    assert ours(path) <= LAYERS[own] | {own}


def test_the_network_is_used_in_one_folder():
    network = {"uvicorn", "h11", "redis"}
    users = [
        name(path) for path in MODULES if {one.split(".")[0] for one in imports(path)} & network
    ]
    assert users
    assert all(user.startswith("fleets.wire") for user in users)


@pytest.mark.parametrize("method", ["sum_reports", "_release", "private_mean"])
def test_users_reach_the_server_through_one_door(method):
    doors = {
        "sum_reports": ["privacy.curator"],
        "_release": ["privacy.curator"],
        "private_mean": ["training"],
    }[method]
    passing_on = (
        [
            "bench.round_speed",
            "fleets.simulation.check_in",
            "fleets.simulation.queued",
            "fleets.simulation.ray_engine",
            "fleets.simulation.synthetic_users",
        ]
        if method == "sum_reports"
        else []
    )  # one measures it on random words; fleets hand their own caller the sum of another
    assert [name(path) for path in MODULES if calls(path, method)] == passing_on + doors


def test_a_release_is_named_in_the_mechanism_and_the_curator_only():
    users = [
        name(path)
        for path in MODULES
        if ".release(" in path.read_text() or "mechanism.release" in path.read_text()
    ]
    assert users == ["privacy.curator"]


def test_noise_is_drawn_in_one_place():
    assert not [name(path) for path in MODULES if "random.normal(" in path.read_text()]
    drawing = [name(path) for path in MODULES if "sampler.white(" in path.read_text()]
    assert drawing == ["privacy.noise.mechanism"]
    ciphers = [name(path) for path in MODULES if any("chacha20" in one for one in imports(path))]
    assert ciphers == [
        "privacy.bounding.secagg_encoding",
        "privacy.curator",
        "privacy.noise.sampler",
    ]


def test_the_standard_deviation_is_computed_in_one_place():
    computing = [
        name(path)
        for path in MODULES
        if "noise.multiplier *" in path.read_text() or "noise_multiplier *" in path.read_text()
    ]
    assert computing == ["privacy.noise.mechanism"]


def test_a_population_is_opened_by_the_run_and_read_by_fleets_alone():
    readers = [name(path) for path in MODULES if "population.texts" in path.read_text()]
    # The first hands each user's text to a device of their own; the last counts with no guarantee
    # at all, and is charged so.
    assert readers == [
        "fleets.fleet_folders",
        "fleets.simulation.in_process",
        "runs.ngram_baselines",
    ]


def test_the_clock_and_small_seeds_never_make_a_key():
    for path in MODULES:
        if layer(name(path)) in {"privacy", "randomness", "training", *FLEETS}:
            text = path.read_text()
            assert "random.randint" not in text
            assert "time.time" not in text
            assert "random.key(" not in text


def test_the_layer_check_would_notice_a_wrong_import(tmp_path):
    """The twin that must fail."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from taciturn.fleets.simulation import in_process\n")
    assert not ours(wrong) <= LAYERS["privacy"]


def test_files_hold_one_idea():
    assert {
        name(path): len(path.read_text().splitlines())
        for path in MODULES
        if len(path.read_text().splitlines()) > 600
    } == {}
