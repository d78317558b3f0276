"""What an export may be asked for, checked before anything is read or written."""

from collections.abc import Iterable
from typing import get_args

from taciturn.names import ExportFormat
from taciturn.release.gate import ExportRefused

# What may be said besides the format: fields of `Export` that are not the run's.
OPTIONS = ("blocklist", "words", "entries", "public_words", "progress")


def check_options(to: str, options: Iterable[str]) -> None:
    """Refuse a format or an argument that no export has.

    >>> check_options("arpa", ["entries"])
    """
    formats = get_args(ExportFormat)
    if to not in formats:
        raise ExportRefused(f"`to` must be one of {', '.join(formats)}, not {to!r}")
    for option in options:
        if option not in OPTIONS:
            raise ExportRefused(
                f"an export has no argument {option!r}; besides `to` and `non_private` it takes"
                f" {', '.join(OPTIONS)}"
            )
