"""Processes that work for several cells of a round at once, as many as there are cores.

Work is a function of its arguments: a process that is killed loses nothing, and its work is done
here instead.
"""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Result = TypeVar("Result")


def for_each(work: Callable[..., Result], *arguments: Sequence[Any]) -> list[Result]:
    """Apply `work` to the first of each of the arguments, to the second, and so on.

    Work for a single cell, or on a single core, is done in this process.
    """
    cores = os.cpu_count() or 1
    if len(arguments[0]) > 1 and cores > 1:
        try:
            return list(_workers().map(work, *arguments))
        except BrokenProcessPool:
            _workers.cache_clear()
    return list(map(work, *arguments))


@functools.cache
def _workers() -> ProcessPoolExecutor:
    """Start workers when they are first needed.

    This process has threads by then, so they are not forks of it.
    """
    return ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Leave Ctrl-C to the server, which ends its workers; end with a server that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = multiprocessing.parent_process()
    # A worker has one.
    assert server is not None
    threading.Thread(
        target=_exit_after,
        args=(server,),
        daemon=True,
    ).start()


def _exit_after(server: BaseProcess) -> None:
    server.join()
    os._exit(1)
