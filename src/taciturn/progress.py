"""What a long job calls to report its progress.

Imports nothing of ours, so that processes without JAX may use it.
"""

from collections.abc import Callable

# Takes how much is done, and of how much.
Progress = Callable[[int, int], None]
# Takes the name of the stage as well.
StageProgress = Callable[[str, int, int], None]


def ignore_progress(*_: object) -> None:
    """Show nothing: for a job without a display."""
