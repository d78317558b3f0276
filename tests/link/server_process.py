"""A server as a process of its own, for tests that kill it: asks whoever is there, and prints who answered, again and again."""

import sys
import time
from pathlib import Path

from taciturn.fleets.flower.server import flower_server

if __name__ == "__main__":
    with flower_server(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2])) as server:
        print("child", server._superlink._process.pid, server._superlink.inside, flush=True)
        for public_key in sys.argv[3:]:
            server.enrol(public_key.encode())
        while True:
            answers = server.link.ask("reverse", dict.fromkeys(server.link.devices(), b"abc"), 5)
            print("answers", *sorted(answers), flush=True)
            time.sleep(0.1)
