"""What a long job calls to say how far it is. Imports nothing of ours, so that processes without JAX may use it."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # how much is done, of how much
StageProgress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def unwatched(*_: object) -> None:
    """For a job that nobody watches."""
