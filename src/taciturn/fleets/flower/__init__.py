"""Flower as the wire between a server and its devices (flwr 1.41.0, and only here).

Flower carries messages and knows devices by their keys; rounds, secure sums, noise and accounts are ours. Most of what is imported from it
is internal to it and moves from version to version, so the version is pinned exactly, and `tests/link` runs the real thing.
"""

import importlib.util
import logging
import os

from taciturn.fleets.devices.transport import LinkError

if importlib.util.find_spec("flwr") is None:
    raise LinkError("a fleet of devices takes Flower to carry its messages: pip install 'taciturn[fleet]'")

# Before any part of flwr is imported: some of it asks the internet for news and reports that it was started.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request is for nobody
