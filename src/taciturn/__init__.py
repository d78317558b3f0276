"""Taciturn: language models that learn from everyone and repeat no one.

    import taciturn as tt

    people = tt.build_population("messages.csv", "people")
    run = tt.train(people, epsilon=4, minutes=30)
    print(run.guarantee.epsilon, run.evaluate().accuracy_top1)
    print(run.predictor().suggest("see you ").words)
    run.export("model", to="onnx")

What is there:

- `build_population`: people's text, with the ledger that is charged for what is released
- `train`, `resume`: a run for people and an ε, or as a recipe says; interrupted, it resumes
- `FinishedRun`: a run's guarantee, accuracy, predictions, exports, audit and report
- `Recipe`, `load_recipe`: what a run is, made in Python or read from TOML
- `register_model`, `ModelKind`, `LanguageModel`: your own model
- `Curator`, `rounds`: your own loop, through the same door to users
- `Algorithm`, `private_averaging`, `UserData`: your own algorithm
- `TaciturnError`: the base of all errors that a person can act on

`help(tt.train)` and docs/api.md have more. Each name is loaded when it is first used, so that the
command line starts at once.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from taciturn.algorithms.dp_fedavg import private_averaging
    from taciturn.core import Algorithm, LanguageModel, UserData
    from taciturn.errors import TaciturnError
    from taciturn.models.registry import ModelKind, register_model
    from taciturn.people import build_population
    from taciturn.privacy.curator import Curator
    from taciturn.recipe.recipe import Recipe
    from taciturn.recipe.text import load_recipe
    from taciturn.runs.finished import FinishedRun
    from taciturn.runs.train import resume, train
    from taciturn.training import rounds

__version__ = "0.2.0"
__all__ = [
    "Algorithm",
    "Curator",
    "FinishedRun",
    "LanguageModel",
    "ModelKind",
    "Recipe",
    "TaciturnError",
    "UserData",
    "build_population",
    "load_recipe",
    "private_averaging",
    "register_model",
    "resume",
    "rounds",
    "train",
]
_ROOMS = {
    "Algorithm": "core.Algorithm",
    "Curator": "privacy.curator.Curator",
    "FinishedRun": "runs.finished.FinishedRun",
    "LanguageModel": "core.LanguageModel",
    "ModelKind": "models.registry.ModelKind",
    "Recipe": "recipe.recipe.Recipe",
    "TaciturnError": "errors.TaciturnError",
    "UserData": "core.UserData",
    "build_population": "people.build_population",
    "load_recipe": "recipe.text.load_recipe",
    "private_averaging": "algorithms.dp_fedavg.private_averaging",
    "register_model": "models.registry.register_model",
    "resume": "runs.train.resume",
    "rounds": "training.rounds",
    "train": "runs.train.train",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _ROOMS:
        raise AttributeError(f"taciturn has no {name}; it has {', '.join(_ROOMS)}")
    room, _, inside = _ROOMS[name].rpartition(".")
    module = _importlib.import_module(f"taciturn.{room}")
    globals()[name] = getattr(module, inside)
    return globals()[name]


def __dir__() -> list[str]:
    # Only what this module is for: completion and `help` begin here.
    return [*__all__, "__version__"]
