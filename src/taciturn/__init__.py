"""Taciturn: language models that learn from everyone and repeat no one.

    import taciturn as tt

    people = tt.build_population("messages.parquet", "people")
    run = tt.train("recipe.toml", "runs/first")
    print(run.guarantee.epsilon, run.evaluate().accuracy_top1)
    run.export("model", to="onnx")

docs/api.md has all names. Each is loaded when it is first used, so that the command line starts at
once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taciturn.algorithms.dp_fedavg import private_averaging
    from taciturn.core import Algorithm, LanguageModel, UserData
    from taciturn.errors import TaciturnError
    from taciturn.models.registry import ModelKind, register_model
    from taciturn.people import build_population
    from taciturn.privacy.curator import Curator
    from taciturn.recipe.recipe import Recipe
    from taciturn.recipe.text import load_recipe
    from taciturn.runs.finished import FinishedRun
    from taciturn.runs.loop import resume_run as resume
    from taciturn.runs.loop import train_run as train
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
    "resume": "runs.loop.resume_run",
    "rounds": "training.rounds",
    "train": "runs.loop.train_run",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"taciturn has no {name}; it has {', '.join(_ROOMS)}")
    room, _, inside = _ROOMS[name].rpartition(".")
    globals()[name] = getattr(import_module(f"taciturn.{room}"), inside)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
