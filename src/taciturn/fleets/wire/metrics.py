"""Counts of what a server or a front end has done, for Prometheus and for people to watch.

They say how many and how much, never who.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from taciturn.fleets.devices.transport import LinkError

LIVE = Path(__file__).with_name("live.html")


class Figure(NamedTuple):
    # What Prometheus may do with it: "counter" only rises, "gauge" does not.
    kind: str
    description: str


FIGURES = {
    "taciturn_devices_connected": Figure(
        "gauge", "Devices that are present now, at all front ends."
    ),
    "taciturn_connections": Figure("gauge", "Open connections of this front end."),
    "taciturn_questions_total": Figure(
        "counter", "Questions that the server asked, each of one device."
    ),
    "taciturn_answers_total": Figure("counter", "Answers that arrived in time."),
    "taciturn_received_bytes_total": Figure("counter", "Bytes of answers."),
    "taciturn_sent_bytes_total": Figure("counter", "Bytes of questions and files."),
    "taciturn_refused_total": Figure("counter", "Requests and connections that were refused."),
    "taciturn_rounds_finished": Figure("gauge", "Rounds of the run that were released."),
    "taciturn_rounds_failed": Figure(
        "gauge", "Rounds of the run that failed and released nothing."
    ),
}


class Counts:
    """The figures of a process: some are counted here, others looked up when they are shown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._looked_up: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counted[name] += amount

    def show(self, name: str, look_up: Callable[[], float]) -> None:
        """Show a figure that `look_up` returns."""
        self._looked_up[name] = look_up

    def to_text(self) -> str:
        """Write the counts of this process in Prometheus's format."""
        with self._lock:
            values: dict[str, float] = dict(self._counted)
        for name, look_up in self._looked_up.items():
            values[name] = look_up()
        paragraphs = [_write_figure(name, values[name]) for name in sorted(values)]
        return "".join(paragraphs)


def _write_figure(name: str, value: float) -> str:
    figure = FIGURES[name]
    return f"# HELP {name} {figure.description}\n# TYPE {name} {figure.kind}\n{name} {value:.0f}\n"


COUNTS = Counts()


@contextmanager
def metrics_page(address: str | None) -> Iterator[None]:
    """Serve figures at http://address/metrics and a page at http://address/ within the block.

    A bare port is on this machine; without an address nothing is served.
    """
    if address is None:
        yield
        return
    page = _open_page(address)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        page.shutdown()
        page.server_close()


def _open_page(address: str) -> ThreadingHTTPServer:
    host, _, port = address.rpartition(":")
    try:
        return ThreadingHTTPServer((host or "127.0.0.1", int(port)), _Page)
    except (OSError, ValueError, OverflowError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else "not a port"
        raise LinkError(
            f"figures cannot be shown at {address} ({reason}): name a free port, as in"
            " `metrics=9464`"
        ) from None


class _Page(BaseHTTPRequestHandler):
    # The seconds in which a request has to arrive.
    timeout = 10

    def do_GET(self) -> None:
        match self.path:
            case "/metrics":
                self._respond(200, "text/plain; version=0.0.4", COUNTS.to_text().encode())
            case "/":
                self._respond(200, "text/html", LIVE.read_bytes())
            case _:
                body = b"Figures are at /metrics, and a page that shows them at /.\n"
                self._respond(404, "text/plain", body)

    def _respond(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests for figures are not news."""
