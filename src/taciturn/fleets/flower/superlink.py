"""Flower's SuperLink as a process of its own, with our gate before it: `python -m taciturn.fleets.flower.superlink FOLDER ...`.

It serves two sockets: the outside one, which the server process has opened, through the gate; and one for the server process alone, a file
in a folder that nobody else may enter. It ends when its standard input does, which is when the server process ends, whatever the way.

Departs from `flower-superlink`: what devices send is kept in memory and never on disk, for a report is secret; numbers of devices and
their keys are in a file, so that they survive. No program that is handed in is ever run, and nothing is installed.
"""

import asyncio
import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink import main as flower
from starlette.types import ASGIApp

from taciturn.fleets.flower.child import DATABASE
from taciturn.fleets.flower.gate import Gate, tls
from taciturn.fleets.flower.news import Inside, News

FLOWER_LOGGERS = "flwr", "uvicorn"


class Server(uvicorn.Server):
    """One of two in this process; signals are for neither."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(folder: Path, outside: int, inside: Path, most_bytes: int, secure: bool) -> None:
    os.umask(0o077)
    _log_to_the_server()
    threading.Thread(target=_end_with_the_server, args=(inside,), daemon=True).start()
    app = _superlink(folder / DATABASE)
    devices, news = app.state.linkstate_factory.state(), News()
    gate = Gate(app, devices.get_node_id_by_public_key, news, most_bytes)
    asyncio.run(_serve(Inside(app, news), _listen(inside), gate, socket.socket(fileno=outside), folder, secure))


def _superlink(database: Path):
    """Flower's own application. Its tables of devices are in the file, its store of objects in memory."""

    def factories(_: str, federation_manager) -> tuple[ObjectStoreFactory, LinkStateFactory]:
        objects = ObjectStoreFactory()
        return objects, LinkStateFactory(str(database), federation_manager, objects)

    flower.get_objectstore_linkstate_factories = factories
    app = flower.create_app()
    app.state.enable_supernode_auth = True
    return app


async def _serve(superlink: ASGIApp, inside: socket.socket, gate: ASGIApp, outside: socket.socket, folder: Path, secure: bool) -> None:
    common = {"access_log": False, "log_config": None, "ws": "none", "server_header": False}
    private = Server(uvicorn.Config(superlink, **common))
    factory = (lambda config, default: tls(folder)) if secure else None
    public = Server(uvicorn.Config(gate, lifespan="off", ssl_context_factory=factory, **common))
    await asyncio.gather(private.serve([inside]), public.serve([outside]))


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # of one that was killed
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def _log_to_the_server() -> None:
    """Each line with its level and its logger, which the server process sorts."""
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    for name in FLOWER_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
        logger.propagate = True


def _end_with_the_server(inside: Path) -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(inside.parent, ignore_errors=True)  # a server that was killed cannot do it
    os._exit(0)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(Path(arguments[0]), int(arguments[1]), Path(arguments[2]), int(arguments[3]), arguments[4] == "tls")
