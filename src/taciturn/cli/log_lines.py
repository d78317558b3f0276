"""What the library logs, as lines of a command."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.logging import RichHandler

from taciturn.cli.output import console


@contextmanager
def logged_lines(as_json: bool = False) -> Iterator[None]:
    """Print the fleet's log. No line names a device: those that do are at DEBUG, and not shown."""
    log = logging.getLogger("taciturn.fleet")
    handler = _make_json_handler() if as_json else RichHandler(console=console, show_path=False)
    handler.setLevel(logging.INFO)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _make_json_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLine())
    return handler


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        content = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        return json.dumps(content, ensure_ascii=False)


class _Warnings(logging.Handler):
    """Print what a library logs as a sentence of this command, above progress that is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"taciturn: {record.getMessage()}", file=sys.stderr)


_WARNINGS = _Warnings(logging.WARNING)


def print_warnings(log: logging.Logger) -> None:
    """Print the warnings of this log from now on."""
    log.addHandler(_WARNINGS)
