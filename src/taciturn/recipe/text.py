"""Recipes as text: read from TOML, written back, with errors in sentences."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from taciturn.errors import TaciturnError
from taciturn.files import not_a, write_atomically
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection

# by pydantic's kinds of errors
MUST_BE: dict[str, str] = {
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "an integer"
    ),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    "bool_parsing": "true or false",
    "list_type": "a list",
    "string_type": "a word in quotes",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}
Checked = TypeVar("Checked", bound=BaseModel)
# TOML's keys without quotes
BARE = re.compile(r"[A-Za-z0-9_-]+")


class RecipeError(TaciturnError):
    """What is wrong with a recipe or its setting, in a sentence for its author."""


def save_recipe(recipe: Recipe, path: Path) -> None:
    write_atomically(path, to_toml(recipe.model_dump(mode="json", exclude_none=True)).encode())


def load_recipe(path: str | Path, settings: list[str] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: of a file in TOML; docs/recipe.md has every setting.
        settings: `section.key=value`, which win over the file.

    Returns:
        The recipe, valid and consistent; if it is not, the error says what is wrong and where.

    Example:
        recipe = tt.load_recipe("recipe.toml", ["run.rounds=6", "privacy.noise_multiplier=2.0"])
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise RecipeError(
            f"{not_a('a recipe', Path(path))}; name a file in TOML (docs/recipe.md)"
        ) from None
    except UnicodeDecodeError:
        raise RecipeError(
            f"{path} is not text in UTF-8, so it is not a recipe; name a file in TOML"
            " (docs/recipe.md)"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(
            f"{path} is not TOML: {error}; correct that line, or name a recipe (docs/recipe.md)"
        ) from None
    for setting in settings or []:
        _set(content, setting)
    return parse_recipe(content, str(path))


def parse_recipe(content: dict[str, Any], where: str = "recipe") -> Recipe:
    return _checked(Recipe, content, f"{where}: ")


def _checked(section: type[Checked], content: dict[str, Any], where: str) -> Checked:
    try:
        return section(**content)
    except ValidationError as error:
        raise RecipeError(
            "\n".join(dict.fromkeys(f"{where}{_sentence(one, section)}" for one in error.errors()))
        ) from None


def model_settings(settings: list[str]) -> ModelSection:
    """Read the [model] section from `key=value` alone."""
    content: dict[str, Any] = {}
    for setting in settings:
        _set(content, setting)
    return _checked(ModelSection, content, "")


def _set(content: dict[str, Any], setting: str) -> None:
    path, equals, value = setting.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise RecipeError(
            f"--set takes section.key=value, for example run.rounds=500; {setting!r} is not that"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        # a word without quotes
        parsed = value
    target = content
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(
                f"--set {setting}: {section} is a value, not a section; leave out what follows"
                f" {section}"
            )
    target[key] = parsed


def _sentence(error: Any, section: type[BaseModel]) -> str:
    place = [str(part) for part in error["loc"] if part not in ("float", "list[tuple[int, float]]")]
    for part in place[:-1]:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    name = (
        f"[{'.'.join(place[:-1])}] {place[-1]}"
        if len(place) > 1
        else (f"{place[0]}" if place else "")
    )
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place[-1], section.model_fields, 1, 0.5)
        hint = (
            f"did you mean {near[0]}?" if near else f"known are: {', '.join(section.model_fields)}"
        )
        return f"{name} is not a setting; {hint}"
    if error["type"] == "missing":
        about = section.model_fields[place[-1]].description
        return f"{name} is missing; add it" + (f" ({about})" if about else "")
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{name}: {message}" if name else message
    given = error["input"] if not isinstance(error["input"], dict) else "a section"
    if error["type"] == "model_type":
        inside: Any = section.model_fields[name].annotation
        return (
            f"{name} is a section, not a value: set one of {', '.join(inside.model_fields)} in it"
        )
    wanted = (MUST_BE.get(error["type"]) or message.removeprefix("Input should be ")).format(
        **error.get("ctx", {})
    )
    return (
        f"{name} must be"
        f" {'a number, or a schedule [[0, 0.8], [500, 0.4]]' if place[-1] == 'clip_norm' else wanted},"
        f" not {given!r}"
    )


def to_toml(
    content: dict[str, Any], comments: Mapping[tuple[str, str], str] = {}, section: str = ""
) -> str:
    """Write settings as TOML, each with the comment that `comments` has for its section and key, if
    any.
    """
    names = {
        key: key if BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in content
    }
    text = ""
    for key, value in content.items():
        if not isinstance(value, dict):
            comment = comments.get((section, key))
            text += (
                f"{names[key]} ="
                f" {json.dumps(value, ensure_ascii=False)}{f'  # {comment}' if comment else ''}\n"
            )
    text = f"[{section}]\n{text}" if section and text else text
    for key, value in content.items():
        if isinstance(value, dict):
            text += ("\n" if text else "") + to_toml(
                value, comments, f"{section}.{names[key]}" if section else names[key]
            )
    return text
