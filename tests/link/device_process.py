"""A device as a process of its own, for tests that kill it: python device_process.py SERVER FOLDER
CERTIFICATE [--insecure].
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where tests have what they share

from answers import handler
from taciturn.fleets.wire.device import run_device

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    server, folder, certificate = sys.argv[1:4]
    insecure = "--insecure" in sys.argv
    run_device(server, Path(folder), handler, None if insecure else Path(certificate), insecure)
