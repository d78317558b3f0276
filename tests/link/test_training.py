"""A whole training through the commands that people run, over the real wire, while everything is
killed again and again.
"""

import json
import random
import re
import shutil
import time
from base64 import b64encode

import pytest
from commands import LONGEST, CommandFleet
from records import check_charges, check_diaries, check_model, check_starts, check_traces, written

from taciturn.fleets.fleet_folders import fleet_recipe
from taciturn.fleets.wire.tls import device_request, make_authority
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.release.model_file import load_model, params_digest

# so many devices that those who rest, and those who uploaded in vain, are not missed; rounds for
# all kills
DEVICES, ROUNDS = (
    10,
    26,
)
SAVE_EVERY = 2  # rounds
# After what, and how often. “Door”: the server listens. “Sum”: all reports are in, and become a
# sum, a record and a charge.
KILLS = {
    "server": {"start": 4, "door": 5, "report": 4, "sum": 3, "charge": 2, "save": 2},
    "device": {"door": 3, "report": 3},
}
assert sum(KILLS["server"].values()) == 20
# Seconds from there to the kill, at most.
PAUSE = {"start": 3.0, "door": 3.0, "report": 0.6, "sum": 0.2, "charge": 0.3, "save": 0.3}
LOOK = 0.005  # seconds between two looks whether it has happened
FILES = {"recipe.toml", "vocabulary.txt", "ledger.jsonl", "metrics.jsonl", "metrics.csv"}
FILES |= {"model.safetensors", "guarantee.txt", "guarantee.json", "report.html"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = CommandFleet(tmp_path_factory.mktemp("training"), DEVICES, ROUNDS, SAVE_EVERY)
    try:
        yield fleet
    finally:
        fleet.end()


class Run:
    """One training, and what is on disk of it."""

    def __init__(self, fleet, name):
        self.fleet, self.name, self.folder = fleet, name, fleet.fleet / name
        self.server, self.log_before = fleet.server(self.folder), 0
        self.ledger = fleet.fleet / "population" / "ledger.jsonl"

    def start(self):
        self.log_before = len(self.server.log())
        self.server.start(*(["--resume"] if (self.folder / "recipe.toml").exists() else []))

    def charges(self):
        content = self.ledger.read_bytes() if self.ledger.exists() else b""
        *lines, _ = content.split(b"\n")  # the last may be half a row
        rows = [json.loads(line) for line in lines if b'"charge"' in line]
        return [row for row in rows if row["run"] == self.name]

    def diaries(self):
        return [
            [upload for upload in diary if upload["run"].split()[0] == self.name]
            for diary in self.fleet.diaries
        ]

    def last_to_report(self):
        times = [max((upload["at"] for upload in diary), default=0.0) for diary in self.diaries()]
        return self.fleet.devices[times.index(max(times))]

    def listens(self):
        return "the server listens on" in self.server.log()[self.log_before :]

    def mark(self, when):
        """What is another one as soon as it has happened again."""
        private = self.folder / "private"
        match when:
            case "report":
                return [len(diary) for diary in self.fleet.diaries]
            case "sum":
                return [path.stat().st_mtime_ns for path in private.glob("rounds/counts.json")]
            case "charge":
                return len(self.charges())
            case "save":
                return [path.stat().st_mtime_ns for path in private.glob("state.safetensors")]

    def wait(self, when, pause):
        match when:
            case "start":
                pass
            case "door":
                self.until(self.listens, "an open door")
            case _:
                before = self.mark(when)
                self.until(lambda: self.mark(when) != before, f"another {when}")
        time.sleep(pause)

    def until(self, condition, what):
        given_up = time.monotonic() + LONGEST
        while not condition():
            assert self.server.runs, f"the server ended before {what}:\n{self.server.log()[-2000:]}"
            assert time.monotonic() < given_up, (
                f"{what} did not happen:\n{self.server.log()[-2000:]}"
            )
            time.sleep(LOOK)


def test_strangers_are_refused_with_a_reason_and_the_training_continues(fleet):
    run, trusting, sceptic = (
        Run(fleet, "quiet"),
        fleet.folder / "trusting",
        fleet.folder / "sceptic",
    )
    shutil.copytree(fleet.fleet / "for-devices", trusting / "fleet")
    unknown = fleet.device(trusting)
    unknown.start()
    assert unknown.wait() == 2
    assert "has no key" in unknown.log()
    device_request(trusting)  # which nobody was given
    shutil.copy(make_authority(fleet.folder / "elsewhere"), sceptic / "fleet" / "authority.crt")
    enrolled = fleet.device(sceptic)
    run.start()
    run.until(run.listens, "an open door")
    not_enrolled, no_trust = (
        "a device that is not enrolled",
        "a device that does not trust this server's certificate",
    )
    for stranger, told, said in (
        (unknown, not_enrolled, f"the server refused this device (403): Refused: {not_enrolled}"),
        (enrolled, no_trust, "the server's certificate is not of the authority this device trusts"),
    ):
        stranger.start()
        run.until(lambda told=told: f"refused: {told}" in run.server.log(), told)
        run.until(lambda stranger=stranger, said=said: said in stranger.log(), said)
    fleet.start_devices()
    assert run.server.wait() == 0, run.server.log()
    check_end(run)
    assert len(run.charges()) == ROUNDS
    assert not any((folder / "participation.json").exists() for folder in (trusting, sceptic))
    for stranger in (unknown, enrolled):
        assert stranger.runs  # it goes on trying
        stranger.kill()
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    late = sum(map(int, re.findall(r"“report”: no answer from (\d+)", run.server.log())))
    assert last["uploads"] <= sum(map(len, run.diaries())) <= last["uploads"] + late


def test_a_training_in_which_everything_is_killed_comes_to_its_end_and_paid_for_all_of_it(fleet):
    run, chance = Run(fleet, "killed"), random.Random(12)
    plan = [
        (whom, when)
        for whom, kills in KILLS.items()
        for when, times in kills.items()
        for _ in range(times)
    ]
    chance.shuffle(plan)
    fleet.start_devices()
    run.start()
    began = time.monotonic()
    for whom, when in plan:
        if len(run.charges()) > ROUNDS - 3:  # from where it might end too soon
            when = "door"
        run.wait(when, chance.uniform(0, PAUSE.get(when, 0)))
        print(
            f"{time.monotonic() - began:5.0f} s, {len(run.charges()):2} charges: {whom} after"
            f" “{when}”",
            flush=True,
        )
        if whom == "device":
            device = run.last_to_report() if when == "report" else chance.choice(fleet.devices)
            device.kill()
            device.start()
        else:
            run.server.kill()
            run.start()
    assert run.server.wait() == 0, run.server.log()
    check_end(run)


def check_end(run):
    """That it is whole, its bill complete, nobody took part too often, and nobody can tell who
    did.
    """
    fleet, recipe = run.fleet, fleet_recipe(run.fleet.fleet)
    assert {path.name for path in run.folder.iterdir() if path.suffix != ".partial"} == FILES
    ledger = Ledger(run.ledger)  # which verifies each row
    rows, charges = ledger.run_rows(run.name), run.charges()
    check_charges(rows, ROUNDS)
    check_starts(rows)
    check_model(rows, ROUNDS, params_digest(load_model(run.folder)[0]))
    said, all_of_it = (
        json.loads((run.folder / "guarantee.json").read_text()),
        ledger.guarantee(run.name),
    )
    assert (said["releases"], said["epsilon"]) == (len(charges), all_of_it.epsilon)
    printed = fleet.command(
        f"ledger of {run.name}", "ledger", "show", fleet.fleet / "population"
    ).run()
    assert re.search(rf"│ {run.name} +│ +{len(charges)} │", printed)
    least, separation = int(recipe.participation.cohort), recipe.participation.min_separation or 0
    check_diaries(
        run.diaries(), len(charges), least, separation, recipe.fleet.lifetime_participations
    )
    files = {str(path): path.read_bytes() for path in fleet.fleet.rglob("*") if path.is_file()}
    files["the server's log"] = run.server.log().encode()
    check_traces(files, [written(key) for key in fleet.public_keys()])


ROWS = [
    {"kind": "open", "fresh": "1"},
    {"kind": "charge", "round": 0, "record": "a"},
    {"kind": "charge", "round": 1, "record": "b"},
    {"kind": "resume", "fresh": "2"},
    {"kind": "charge", "round": 2, "record": "c"},
    {"kind": "resume", "fresh": "3"},
    {"kind": "model", "round": 3, "params": "e"},
]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ROWS[2:], r"charged are \[1, 2\]"),
        (ROWS[:4], r"charged are \[0, 1\]"),
        ([*ROWS, ROWS[4] | {"round": 3, "record": "d"}], r"charged are \[0, 1, 2, 3\]"),
        ([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], r"charged are \[1, 0, 2\]"),
        ([*ROWS, ROWS[4] | {"record": "d"}], r"charged are \[0, 1, 2, 2\]"),
        ([*ROWS[:4], ROWS[4] | {"record": "a"}], "one record"),
    ],
)
def test_a_bill_that_is_wrong_is_noticed(wrong, said):
    """The twins: what is asked of the ledger can fail."""
    check_charges(ROWS, 3)
    with pytest.raises(AssertionError, match=said):
        check_charges(wrong, 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ROWS[1:], "before it is opened"),
        ([*ROWS, ROWS[0] | {"fresh": "4"}], "opened once"),
        ([*ROWS, ROWS[5] | {"fresh": ""}], "no fresh bytes"),
        ([*ROWS, ROWS[3]], "the same fresh bytes"),
    ],
)
def test_a_start_that_could_draw_again_what_another_drew_is_noticed(wrong, said):
    check_starts(ROWS)
    with pytest.raises(AssertionError, match=said):
        check_starts(wrong)


@pytest.mark.parametrize(
    ("rows", "rounds", "digest", "said"),
    [
        (ROWS[:6], 3, "e", "no model"),
        (ROWS, 4, "e", "last round"),
        ([*ROWS, ROWS[6] | {"params": "f"}], 3, "e", "not the one"),
    ],
)
def test_a_model_that_is_another_is_noticed(rows, rounds, digest, said):
    check_model(ROWS, 3, "e")
    with pytest.raises(AssertionError, match=said):
        check_model(rows, rounds, digest)


def diary(*rounds):
    return [
        {"round": 700 + round, "row": round, "at": float(time)} for time, round in enumerate(rounds)
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (diary(0, 1), "too soon"),
        (diary(0, 2, 4), "too often"),
        (diary(2, 0), "went back"),
        (diary(0, 0), "went back"),
        ([*diary(0), diary(2)[0]], "twice in a diary"),
        (diary(), "row 0 is a sum of at least 2 reports, and 1 devices know of it"),
    ],
)
def test_a_wrong_participation_record_is_noticed(wrong, said):
    others = [diary(0, 2), diary(1), diary(1)]
    check_diaries([*others, diary(0, 2)], 3, 2, separation=1, most=2)
    with pytest.raises(AssertionError, match=said):
        check_diaries([*others, wrong], 3, 2, separation=1, most=2)


KEYS = [b64encode(bytes([number]) * 51) for number in (1, 2)]


@pytest.mark.parametrize("trace", written(KEYS[0]))
def test_a_file_that_tells_who_took_part_is_noticed(trace):
    devices = [written(key) for key in KEYS]
    check_traces(
        {"the list of all": b"".join(one for device in devices for one in device)}, devices
    )
    with pytest.raises(AssertionError, match="some log tells some devices from others"):
        check_traces({"some log": b"took part: " + trace}, devices)
