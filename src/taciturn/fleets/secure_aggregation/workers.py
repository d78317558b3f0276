"""Processes that work for several cells of a round at once, as many as there are cores.

Work is a function of what it is given: a process that is killed loses nothing, and what it was at is done here instead.
"""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Result = TypeVar("Result")


def for_each(work: Callable[..., Result], *arguments: Sequence[Any]) -> list[Result]:
    """What `work` makes of the first of each of the arguments, of the second, and so on; here, where there is no more than one."""
    if len(arguments[0]) > 1 and (os.cpu_count() or 1) > 1:
        try:
            return list(_workers().map(work, *arguments))
        except BrokenProcessPool:
            _workers.cache_clear()
    return list(map(work, *arguments))


@functools.cache
def _workers() -> ProcessPoolExecutor:
    """Started when they are needed first, by which time this process has threads: so they are no forks of it."""
    return ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Ctrl-C is for the server, which ends its workers; and a server that is killed leaves none behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    assert server is not None  # a worker has one
    server.join()
    os._exit(1)
