"""Counts of what a server or a front end has done, for Prometheus and for people to watch: how many
and how much, never who.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from taciturn.fleets.devices.transport import LinkError

LIVE = Path(__file__).with_name("live.html")
# name: kind, and what it is
DESCRIBED = {
    "taciturn_devices_connected": ("gauge", "Devices that are present now, at all front ends."),
    "taciturn_connections": ("gauge", "Open connections of this front end."),
    "taciturn_questions_total": ("counter", "Questions that the server asked, each of one device."),
    "taciturn_answers_total": ("counter", "Answers that arrived in time."),
    "taciturn_received_bytes_total": ("counter", "Bytes of answers."),
    "taciturn_sent_bytes_total": ("counter", "Bytes of questions and files."),
    "taciturn_refused_total": ("counter", "Requests and connections that were refused."),
    "taciturn_rounds_finished": ("gauge", "Rounds of the run that were released."),
    "taciturn_rounds_failed": ("gauge", "Rounds of the run that failed and released nothing."),
}


class Counts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._looked_at: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counted[name] += amount

    def show(self, name: str, value: Callable[[], float]) -> None:
        self._looked_at[name] = value

    def text(self) -> str:
        """Write the counts of this process in Prometheus's format."""
        with self._lock:
            counted = dict(self._counted)
        values = counted | {name: value() for name, value in self._looked_at.items()}
        about = {name: DESCRIBED[name] for name in sorted(values)}
        return "".join(
            f"# HELP {name} {what}\n# TYPE {name} {kind}\n{name} {values[name]:.0f}\n"
            for name, (kind, what) in about.items()
        )


COUNTS = Counts()


@contextmanager
def metrics_page(address: str | None) -> Iterator[None]:
    """Serve figures at http://address/metrics and a page at http://address/ within the block; a
    bare port is on this machine.
    """
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        page = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _Page)
    except (OSError, ValueError, OverflowError) as error:
        why = (error.strerror or "").lower() if isinstance(error, OSError) else "not a port"
        raise LinkError(
            f"figures cannot be shown at {address} ({why}): name a free port, as in --metrics 9464"
        ) from None
    threading.Thread(target=page.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        page.shutdown()
        page.server_close()


class _Page(BaseHTTPRequestHandler):
    # seconds, for a request to come
    timeout = 10

    def do_GET(self) -> None:
        status, kind, body = (
            404,
            "text/plain",
            b"Figures are at /metrics, and a page that shows them at /.\n",
        )
        if self.path == "/metrics":
            status, kind, body = 200, "text/plain; version=0.0.4", COUNTS.text().encode()
        elif self.path == "/":
            status, kind, body = 200, "text/html", LIVE.read_bytes()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests for figures are not news."""
