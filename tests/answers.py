"""What devices in tests of the wire answer."""

import logging
import time

from taciturn.fleets.devices.transport import ComeBackLater


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
