"""What a long job calls to report its progress. Imports nothing of ours, so that processes without
JAX may use it.
"""

from collections.abc import Callable

# done, of how many
Progress = Callable[[int, int], None]
# stage, done, of how many
StageProgress = Callable[[str, int, int], None]


def ignore_progress(*_: object) -> None:
    """Ignore progress: for a job without a display."""
