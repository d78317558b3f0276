"""What leaves the curator, seen from outside: whether the ledger on disk had it before, and which
noise met which total.
"""

import hashlib
import json

import jax
import numpy as np

from taciturn.privacy.curator import Curator


class WatchedReleases:
    """Counts what is given out. A total that was noised and then lost in a crash has met nobody."""

    def __init__(self, monkeypatch, ledger):
        self.left, self.met, self.uncharged = (
            {},
            {},
            [],
        )  # (run, round) → estimates; noise keys → totals
        whole = Curator.private_mean

        def noted(curator, params, state, round):
            run, release, meeting = curator.account.terms.name, curator._release, []

            def noising(state, total, key):
                meeting.append((np.asarray(key).tobytes(), digest(total)))
                return release(state, total, key)

            curator._release = noising
            try:
                estimate, after = whole(curator, params, state, round)
            finally:
                curator._release = release
            rows = [json.loads(line) for line in ledger.read_text().splitlines()]
            if not any(
                row["kind"] == "charge" and (row["run"], row["round"]) == (run, round)
                for row in rows
            ):
                self.uncharged.append(round)
            self.left.setdefault((run, round), set()).add(digest(estimate))
            for key, total in meeting:
                self.met.setdefault(key, set()).add(total)
            return estimate, after

        monkeypatch.setattr(Curator, "private_mean", noted)

    def check(self):
        assert not self.uncharged
        assert all(len(estimates) == 1 for estimates in self.left.values())
        assert all(len(totals) == 1 for totals in self.met.values())


def digest(arrays) -> str:
    return hashlib.sha256(
        b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(arrays))
    ).hexdigest()
