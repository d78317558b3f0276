"""Serve the keyboard's page on this machine: known files to local readers, and nothing else.

The page's policy allows it only its own scripts and styles, so that what is typed there cannot
leave.
"""

import errno
import secrets
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from taciturn.data.vocabulary import DataError

# Content type and content of each path.
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
    # Any other site could otherwise load the model as a script.
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOCAL = {"localhost", "127.0.0.1", "::1"}
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
PAGE = ("index.html", "style.css", "keys.js", "page.js")
# In index.html, where the scripts of the models go.
MODELS_HERE = "<!-- models -->"


def page_files(scripts: Sequence[str]) -> Files:
    """Return the page with one model, or two side by side.

    A script (export/javascript.py) brings its model's name and guarantee.
    """
    if len(scripts) not in (1, 2):
        raise DataError(f"the page shows one model, or two side by side, and not {len(scripts)}")
    models = {f"/model-{number}.js": script.encode() for number, script in enumerate(scripts, 1)}
    contents = _read_page()
    contents["/index.html"] = _name_models(contents["/index.html"], models)
    contents |= models
    return {path: (_kind_of(path), content) for path, content in contents.items()}


def _name_models(index: bytes, paths: Iterable[str]) -> bytes:
    """Write into the page which scripts have its models."""
    tags = [f'<script src="{path[1:]}" data-model defer></script>' for path in paths]
    return index.replace(MODELS_HERE.encode(), "\n".join(tags).encode())


def _read_page() -> dict[str, bytes]:
    folder = files("taciturn.keyboard") / "page"
    return {f"/{name}": (folder / name).read_bytes() for name in PAGE}


def _kind_of(path: str) -> str:
    return KINDS[PurePosixPath(path).suffix]


class KeyboardServer:
    """Serve files at `url`, on 127.0.0.1 only."""

    def __init__(self, files: Files, port: int = 0, secret: bool = False) -> None:
        """Take the port.

        Args:
            files: what is served.
            port: 0 takes a free one.
            secret: whether others on this machine must not be able to guess the path.

        Raises:
            DataError: the port cannot be had.
        """
        self.secret = secret
        home = f"/{secrets.token_urlsafe(16)}" if secret else ""
        handler = _make_handler({f"{home}{path}": content for path, content in files.items()})
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except (OSError, OverflowError) as error:
            raise DataError(_explain_refusal(error, port)) from None
        self.url = f"http://127.0.0.1:{self._server.server_port}{home}/"
        self._serving = False

    def serve_forever(self) -> None:
        """Serve until `close` is called from another thread, or Ctrl-C."""
        self._serving = True
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        # To shut down a server that never began would wait forever.
        if self._serving:
            self._server.shutdown()
        self._server.server_close()


def _explain_refusal(error: OSError | OverflowError, port: int) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use by another program; choose another one, or 0 for any that is"
            " free"
        )
    return (
        f"the page cannot be served on port {port}, which must be a number from 0 to 65535: {error}"
    )


def _make_handler(files: Files) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # Seconds to wait for a silent reader.
        timeout = 10

        def do_GET(self) -> None:
            self.wfile.write(self.do_HEAD())

        def do_HEAD(self) -> bytes:
            """Send headers; return the body."""
            if not self._is_asked_by_own_page():
                self.send_error(403, "Only for this machine")
                return b""
            path = self.path.partition("?")[0]
            if path.endswith("/"):
                path += "index.html"
            if path not in files:
                self.send_error(404, "Not here")
                return b""
            kind, content = files[path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def _is_asked_by_own_page(self) -> bool:
            # A name that points at this machine (DNS rebinding) would put another site's page into
            # this origin.
            host = self.headers.get("Host", "")
            # No other site's page may load anything here: the browser says which one asks.
            asked_by = self.headers.get("Sec-Fetch-Site", "none")
            return _is_local(host) and asked_by in ("none", "same-origin")

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
