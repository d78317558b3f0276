"""Taciturn: language models that learn from everyone and repeat no one.

    import taciturn as tt

    people = tt.build_population("messages.parquet", "people")
    run = tt.train("recipe.toml", "runs/first")
    print(run.guarantee.epsilon, run.evaluate().accuracy_top1)
    run.export("model", to="onnx")

docs/api.md has all names. Each is loaded when it is first used, so that the command line starts at once.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taciturn.algorithms.dp_fedavg import private_averaging as private_averaging
    from taciturn.core import Algorithm as Algorithm
    from taciturn.core import LanguageModel as LanguageModel
    from taciturn.core import UserData as UserData
    from taciturn.errors import TaciturnError as TaciturnError
    from taciturn.models.registry import ModelKind as ModelKind
    from taciturn.models.registry import register_model as register_model
    from taciturn.populations import build_population as build_population
    from taciturn.privacy.curator import Curator as Curator
    from taciturn.recipe.recipe import Recipe as Recipe
    from taciturn.recipe.text import load_recipe as load_recipe
    from taciturn.runs.finished import FinishedRun as FinishedRun
    from taciturn.runs.loop import train as train
    from taciturn.train import rounds as rounds

__version__ = "0.1.0"
_ROOMS = {
    "Algorithm": "core",
    "Curator": "privacy.curator",
    "FinishedRun": "runs.finished",
    "LanguageModel": "core",
    "ModelKind": "models.registry",
    "Recipe": "recipe.recipe",
    "TaciturnError": "errors",
    "UserData": "core",
    "build_population": "populations",
    "load_recipe": "recipe.text",
    "private_averaging": "algorithms.dp_fedavg",
    "register_model": "models.registry",
    "rounds": "train",
    "train": "runs.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"taciturn has no {name}; it has {', '.join(_ROOMS)}")
    globals()[name] = getattr(import_module(f"taciturn.{_ROOMS[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return ["__version__", *_ROOMS]


class _Door(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        """Keeps `taciturn.train` the function, although there is a module of that name, which the import system would put there."""
        if not (name in _ROOMS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
