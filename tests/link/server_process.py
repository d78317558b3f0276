"""A server as a process of its own, for tests that kill it: asks whoever is there, and prints who
answered, again and again.
"""

import sys
import time
from pathlib import Path

from taciturn.fleets.wire.server import wire_server

if __name__ == "__main__":
    numbers = {bytes.fromhex(key): number for number, key in enumerate(sys.argv[3:])}
    with wire_server(
        Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), lambda key: numbers.get(key, "a stranger")
    ) as server:
        while True:
            answers = server.link.ask("reverse", dict.fromkeys(server.link.devices(), b"abc"), 5)
            print("answers", *sorted(answers), flush=True)
            time.sleep(0.1)
