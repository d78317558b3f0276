"""What a training leaves behind, and what has to hold of it however often it was killed."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Row = dict[str, Any]


def check_charges(rows: Sequence[Row], rounds: int) -> None:
    """Of a run in the ledger: each round was paid for once, in its turn, and each for a release of
    its own.
    """
    charges = [row for row in rows if row["kind"] == "charge"]
    charged = [row["round"] for row in charges]
    assert charged == list(range(rounds)), f"the rounds that were charged are {charged}"
    records = [row["record"] for row in charges]
    assert len(set(records)) == len(records), "two charges are for one record"


def check_starts(rows: Sequence[Row]) -> None:
    """Of a run in the ledger: it was opened once and first, and nothing is drawn alike after two
    starts.
    """
    starts = [row for row in rows if row["kind"] in ("open", "resume")]
    kinds = [row["kind"] for row in starts]
    assert starts[:1] == list(rows[:1]), "a run begins before it is opened"
    assert kinds == ["open", *["resume"] * (len(kinds) - 1)], (
        "a run is opened once, and then taken up again"
    )
    fresh = [row["fresh"] for row in starts]
    assert all(fresh), "a start has no fresh bytes"
    assert len(set(fresh)) == len(fresh), "two starts have the same fresh bytes"


def check_model(rows: Sequence[Row], rounds: int, digest: str) -> None:
    models = [row for row in rows if row["kind"] == "model"]
    assert models, "there is no model in the ledger"
    assert models[-1]["round"] == rounds, "the last model is not that of the last round"
    assert models[-1]["params"] == digest, "the model is not the one that the ledger has"


def check_diaries(
    diaries: Sequence[Sequence[Row]], charges: int, least: int, separation: int, most: int
) -> None:
    """Of all devices, in one run. A round to which a device reported is over for it, also where it
    failed.
    """
    for diary in diaries:
        apart = [later["round"] - before["round"] for before, later in pairwise(diary)]
        assert all(rounds > 0 for rounds in apart), "a device went back to a round that was over"
        assert all(rounds > separation for rounds in apart), "a device took part again too soon"
        assert len(diary) <= most, "a device took part too often"
        times = [upload["at"] for upload in diary]
        assert times == sorted(set(times)), "an upload is twice in a diary"
    for row in range(charges):
        reported = sum(any(upload["row"] == row for upload in diary) for diary in diaries)
        assert reported >= least, (
            f"row {row} is a sum of at least {least} reports, and {reported} devices know of it"
        )


def check_traces(files: Mapping[str, bytes], devices: Sequence[Sequence[bytes]]) -> None:
    """Each file tells as much of one device as of any other: the list of all is no secret, who of
    them took part is one. A device is given by all the ways in which its name could be written.
    """
    for name, content in files.items():
        named = {tuple(content.count(one) for one in device) for device in devices}
        assert len(named) <= 1, f"{name} tells some devices from others"


def written(public_key: bytes) -> list[bytes]:
    """The ways to write a device: its key, as a certificate's line has it and as the wire has
    it.
    """
    return [public_key, b64encode(public_key)[:40]]
