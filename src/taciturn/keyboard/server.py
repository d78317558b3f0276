"""Serve the keyboard's page on this machine: known files to local readers, and nothing else.

The page's policy allows it only its own scripts and styles, so that what is typed there cannot
leave.
"""

import errno
import secrets
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from taciturn.data.vocabulary import DataError

# path → content type, content
Files = dict[str, tuple[str, bytes]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri"
        " 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), clipboard-read=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    # or any other site could load the model as a script
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOCAL = {"localhost", "127.0.0.1", "::1"}
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
PAGE = ("index.html", "style.css", "keys.js", "page.js")
# in index.html
MODELS_HERE = "<!-- models -->"


def page_files(scripts: Sequence[str]) -> Files:
    """Return the page with one model, or two side by side; a script (export/javascript.py) brings
    its model's name and guarantee.
    """
    if len(scripts) not in (1, 2):
        raise DataError(f"the page shows one model, or two side by side, and not {len(scripts)}")
    folder = files("taciturn.keyboard") / "page"
    found = {f"/{name}": (folder / name).read_bytes() for name in PAGE}
    models = {f"/model-{number}.js": script.encode() for number, script in enumerate(scripts, 1)}
    tags = "\n".join(f'<script src="{path[1:]}" data-model defer></script>' for path in models)
    found["/index.html"] = found["/index.html"].replace(MODELS_HERE.encode(), tags.encode())
    return {
        path: (KINDS[PurePosixPath(path).suffix], content)
        for path, content in (found | models).items()
    }


class KeyboardServer:
    """Serve the files at `url`, on 127.0.0.1 only. Port 0 takes a free one. With `secret`, others
    on this machine cannot guess the path.
    """

    def __init__(self, files: Files, port: int = 0, secret: bool = False) -> None:
        self.secret, home = secret, f"/{secrets.token_urlsafe(16)}" if secret else ""
        files = {f"{home}{path}": content for path, content in files.items()}
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(files))
        except (OSError, OverflowError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            other = (
                f"the page cannot be served on port {port}, which must be a number from 0 to 65535:"
                f" {error}"
            )
            used = (
                f"port {port} is in use by another program; choose another one, or 0 for any that"
                " is free"
            )
            raise DataError(used if in_use else other) from None
        self.url = f"http://127.0.0.1:{self._server.server_port}{home}/"
        self._serving = False

    def serve_forever(self) -> None:
        """Serve until `close` is called from another thread, or Ctrl-C."""
        self._serving = True
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        if self._serving:
            # which would wait forever if serving never began
            self._server.shutdown()
        self._server.server_close()


def _handler(files: Files) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # seconds to wait for a silent reader
        timeout = 10

        def do_GET(self) -> None:
            self.wfile.write(self.do_HEAD())

        def do_HEAD(self) -> bytes:
            """Send headers; return the body."""
            # A name that points at this machine (DNS rebinding) would put another site's page into
            # this origin. And no other site's page may load anything here: the browser says which
            # one asks.
            asked_by = self.headers.get("Sec-Fetch-Site", "none")
            if not _is_local(self.headers.get("Host", "")) or asked_by not in (
                "none",
                "same-origin",
            ):
                self.send_error(403, "Only for this machine")
                return b""
            path = self.path.partition("?")[0]
            known = files.get(f"{path}index.html" if path.endswith("/") else path)
            if known is None:
                self.send_error(404, "Not here")
                return b""
            kind, content = known
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def end_headers(self) -> None:
            for name, value in HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def version_string(self) -> str:
            return "taciturn"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: who looks at the page is private."""

    return Handler


def _is_local(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in LOCAL
    except ValueError:
        return False
