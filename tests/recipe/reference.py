"""docs/recipe.md: every setting of a recipe, what goes with what, and what is there only to
reproduce papers.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import product
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from taciturn.recipe.recipe import Recipe
from taciturn.recipe.rules import COMPATIBLE, RULES

SETTINGS = ("setting", "default", "meaning")


def reference() -> str:
    usual, papers = {}, []
    for section, name, field in settings():
        path, marked = f"{section}.{name}".strip("."), _for_papers(section, field)
        if marked is True:
            papers.append(_row(path, field))
        else:
            usual.setdefault(f"[{section}]" if section else "top", []).append(
                _row(name, field, marked)
            )
            papers += [(f'`{path} = "{value}"`', "", about) for value, about in marked.items()]
    sections = [f"## {section}\n\n{_table(SETTINGS, rows)}" for section, rows in usual.items()]
    said = ("- " + re.sub(r"{[^}]*}", "…", rule.text) for rule in RULES)
    rules = "\n".join(
        fill(one, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for one in said
    )
    return "\n".join(
        [
            (
                "# Every setting of a recipe\n\nMade by `tests/recipe/reference.py`; a test keeps"
                " it in step.\n"
            ),
            *sections,
            f"## What goes with what\n\nWhat is possible with each algorithm:\n\n{_matrix()}",
            (
                "The choices that exclude each"
                f" other:\n\n{_table(('choice', 'goes with', 'because'), _pairs())}"
            ),
            f"What else is refused, where … is what the recipe says:\n\n{rules}\n",
            f"## For reproducing papers\n\nNothing else needs these.\n\n{_table(SETTINGS, papers)}",
        ]
    )


def settings() -> Iterator[tuple[str, str, FieldInfo]]:
    """Section, name and definition of each."""
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ((name, inner, one) for inner, one in field.annotation.model_fields.items())
        else:
            yield "", name, field


def choices(annotation: Any) -> list[str]:
    """The values of a setting that has names for them."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for one in get_args(annotation) for value in choices(one)]


def _for_papers(section: str, field: FieldInfo) -> Any:
    """True, or those values of a setting, with their meaning, that are there to reproduce
    papers.
    """
    extras = (one.json_schema_extra for one in (Recipe.model_fields.get(section), field) if one)
    return next(
        (one["for_papers"] for one in extras if isinstance(one, dict) and one["for_papers"]), {}
    )


def _row(name: str, field: FieldInfo, hidden: Iterable[str] = ()) -> tuple[str, str, str]:
    default = (
        f"`{json.dumps(field.default)}`".replace("`null`", "none")
        if not field.is_required()
        else "required"
    )
    listed = " · ".join(value for value in choices(field.annotation) if value not in hidden)
    return f"`{name}`", default, "; ".join(filter(None, (listed, field.description)))


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(columns)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _matrix() -> str:
    """All that COMPATIBLE leaves. What one row excludes may exclude something else, so this says
    more than the rows do.
    """
    known = {
        f"{section}.{name}".strip("."): choices(field.annotation)
        for section, name, field in settings()
    }
    known["noise"] = known["privacy.noise"]
    axes = list(
        dict.fromkeys(path for one in COMPATIBLE for path in ("algorithm", one.setting, one.other))
    )
    combined = [
        dict(zip(axes, one, strict=True)) for one in product(*(known[axis] for axis in axes))
    ]
    left = [
        one
        for one in combined
        if all(pair.allows(one[pair.setting], one[pair.other]) for pair in COMPATIBLE)
    ]
    rows = (
        [
            " · ".join(
                value
                for value in known[axis]
                if any(one[axis] == value for one in left if one["algorithm"] == algorithm)
            )
            for axis in axes
        ]
        for algorithm in known["algorithm"]
    )
    return _table((f"`{axis}`" for axis in axes), rows)


def _pairs() -> Iterator[tuple[str, str, str]]:
    for pairing in COMPATIBLE:
        goes_with = pairing.goes_with
        for allowed in dict.fromkeys(goes_with.values()):
            values = " · ".join(value for value, one in goes_with.items() if one == allowed)
            choice = f"`{pairing.setting}` {values}"
            yield choice, f"`{pairing.other}` {' · '.join(allowed)}", pairing.why


if __name__ == "__main__":
    print(reference(), end="")
