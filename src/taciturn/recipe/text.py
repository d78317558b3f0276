"""Recipes as text: read from TOML, written back, with errors in sentences."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from taciturn.errors import TaciturnError
from taciturn.files import not_a, write_atomically
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection

# What a value must be, by pydantic's name for the error. The braces are filled from its context.
MUST_BE: dict[str, str] = {
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "string_type": "a word in quotes",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}
# The two forms of a clip norm, which pydantic counts as places inside the setting.
FORMS_OF_CLIP_NORM = ("float", "list[tuple[int, float]]")
AnySection = TypeVar("AnySection", bound=BaseModel)
# A key that TOML takes without quotes.
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class RecipeError(TaciturnError):
    """What is wrong with a recipe or its setting, in a sentence for its author."""


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the recipe as TOML, all settings included that have a value."""
    settings = recipe.model_dump(mode="json", exclude_none=True)
    write_atomically(path, to_toml(settings).encode())


def load_recipe(path: str | Path, settings: Sequence[str] | None = None) -> Recipe:
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
    return parse_recipe(content, str(path), settings or ())


def parse_recipe(
    content: dict[str, Any], where: str = "recipe", settings: Sequence[str] = ()
) -> Recipe:
    """Build a recipe.

    Args:
        content: its settings by section.
        where: they are; errors begin with it.
        settings: `section.key=value`, which are written into the content.
    """
    check_settings(settings)
    for setting in settings:
        _apply_setting(content, setting)
    return _build_section(Recipe, content, where=f"{where}: ")


def check_settings(settings: Sequence[str]) -> None:
    """Refuse what is not a list of texts; a text by itself is a list of its letters."""
    is_list = isinstance(settings, Sequence) and not isinstance(settings, str)
    if not is_list or not all(isinstance(setting, str) for setting in settings):
        raise RecipeError(
            "`settings` must be a list of section.key=value, for example"
            f' ["run.rounds=500"], not {settings!r}'
        )


def model_settings(settings: list[str]) -> ModelSection:
    """Read the [model] section from `key=value`, without a file."""
    content: dict[str, Any] = {}
    for setting in settings:
        _apply_setting(content, setting)
    return _build_section(ModelSection, content, where="")


def _build_section(section: type[AnySection], content: dict[str, Any], where: str) -> AnySection:
    try:
        return section(**content)
    except ValidationError as error:
        sentences = [f"{where}{_sentence(detail, section)}" for detail in error.errors()]
        # The two forms of a clip norm are refused by the same sentence.
        distinct = dict.fromkeys(sentences)
        raise RecipeError("\n".join(distinct)) from None


def _apply_setting(content: dict[str, Any], setting: str) -> None:
    """Write `section.key=value` into the content of a recipe."""
    path, equals, value = setting.partition("=")
    names = path.strip().split(".")
    *sections, key = names
    if not equals or not key:
        raise RecipeError(
            "`settings` takes section.key=value, for example run.rounds=500;"
            f" {setting!r} is not that"
        )
    target = content
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(
                f"`settings` {setting}: {section} is a value, not a section; leave out what follows"
                f" {section}"
            )
    target[key] = _parse_value(value)


def _parse_value(value: str) -> Any:
    """Read a value as TOML does, and a word without quotes as the word."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


# Errors in sentences.


def _sentence(error: ErrorDetails, recipe: type[BaseModel]) -> str:
    """Say what is wrong, where, and what to do."""
    place = [str(part) for part in error["loc"] if part not in FORMS_OF_CLIP_NORM]
    section = _section_of(place, recipe)
    name = _name_of(place)
    message = error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "extra_forbidden":
            return f"{name} is not a setting; {_suggestion(place[-1], section)}"
        case "missing":
            return f"{name} is missing; add it{_meaning(place[-1], section)}"
        case "value_error":
            return f"{name}: {message}" if name else message
        case "model_type":
            settings = _list_settings(name, section)
            return f"{name} is a section, not a value: set one of {settings} in it"
        case _:
            expected = _what_it_must_be(place[-1], error)
            return f"{name} must be {expected}, not {_describe_input(error)}"


def _meaning(key: str, section: type[BaseModel]) -> str:
    meaning = section.model_fields[key].description
    return f" ({meaning})" if meaning else ""


def _list_settings(key: str, section: type[BaseModel]) -> str:
    """List the settings of a section inside this one."""
    inside: Any = section.model_fields[key].annotation
    return ", ".join(inside.model_fields)


def _describe_input(error: ErrorDetails) -> str:
    value = error["input"]
    return repr("a section") if isinstance(value, dict) else repr(value)


def _section_of(place: list[str], section: type[BaseModel]) -> type[BaseModel]:
    """Return the innermost section that the place lies in."""
    for part in place[:-1]:
        field = section.model_fields.get(part)
        annotation = field.annotation if field else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    return section


def _name_of(place: list[str]) -> str:
    """Write a place as it stands in a file: `[section] key`."""
    if not place:
        return ""
    *sections, key = place
    return f"[{'.'.join(sections)}] {key}" if sections else key


def _suggestion(key: str, section: type[BaseModel]) -> str:
    settings = section.model_fields
    near = difflib.get_close_matches(key, settings, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are: {', '.join(settings)}"


def _what_it_must_be(key: str, error: ErrorDetails) -> str:
    if key == "clip_norm":
        return "a number, or a schedule [[0, 0.8], [500, 0.4]]"
    expected = MUST_BE.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    return expected.format(**error.get("ctx", {}))


# Recipes as TOML.


def to_toml(
    content: dict[str, Any], comments: Mapping[tuple[str, str], str] = {}, section: str = ""
) -> str:
    """Write settings as TOML, each with its comment, if any.

    Args:
        content: values by name, sections as dicts.
        comments: by section and key.
        section: the name of the section that `content` is of; "" above all sections.
    """
    lines = []
    sections = []
    for key, value in content.items():
        if isinstance(value, dict):
            name = f"{section}.{_toml_key(key)}" if section else _toml_key(key)
            sections.append(to_toml(value, comments, section=name))
        else:
            lines.append(_toml_line(key, value, comments.get((section, key))))
    text = "".join(lines)
    if section and text:
        text = f"[{section}]\n{text}"
    for inside in sections:
        text += f"\n{inside}" if text else inside
    return text


def _toml_line(key: str, value: Any, comment: str | None) -> str:
    line = f"{_toml_key(key)} = {json.dumps(value, ensure_ascii=False)}"
    return f"{line}  # {comment}\n" if comment else f"{line}\n"


def _toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
