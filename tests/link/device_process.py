"""A device as a process of its own, for tests that kill it: python device_process.py SERVER FOLDER CERTIFICATE [--insecure]."""

import logging
import sys
import time
from pathlib import Path

from taciturn.fleets.devices.transport import ComeBackLater
from taciturn.fleets.wire.device import run_device


def handler(kind: str, content: bytes) -> bytes:
    if kind == "sleep":
        logging.getLogger("test").info("asleep")
        time.sleep(float(content))
        return b"awake"
    if kind == "away":
        raise ComeBackLater(float(content))
    if kind == "zeros":
        return bytes(int(content))
    if kind == "fail":
        raise ValueError("what the user typed")
    return content[::-1]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    server, folder, certificate = sys.argv[1:4]
    insecure = "--insecure" in sys.argv
    run_device(server, Path(folder), handler, None if insecure else Path(certificate), insecure)
