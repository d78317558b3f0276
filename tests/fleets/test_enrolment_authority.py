"""The enrolment authority at work: what it signs, what it refuses, what it writes down, and what a
server makes of it.
"""

import base64
import json
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleet_of_devices import FleetOfDevices
from typer.testing import CliRunner

from enrolling import SIGNING_AUTHORITY, device_key, enrolled
from harness import cut_at, quietly
from taciturn.cli import app
from taciturn.fleets import enrolment
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.enrolment import DAY, EnrolledFile, read_enrolled
from taciturn.fleets.secure_aggregation import identities
from taciturn.fleets.wire.tls import REQUEST, device_request
from taciturn.runs.loop import train_run


@pytest.fixture
def authority(tmp_path):
    """Its folder, that of its fleet, and what devices know of it."""
    signing_authority = enrolment.new_authority(tmp_path / "authority", tmp_path / "fleet")
    return tmp_path / "authority", tmp_path / "fleet", signing_authority.authority


def asking(folder, count=3):
    return [device_request(folder / f"device-{number}") for number in range(count)]


def rows(folder):
    return [json.loads(line) for line in (folder / "enrolment.log").read_text().splitlines()]


def test_keys_that_devices_made_get_certificates_that_end(tmp_path, authority):
    folder, fleet, known = authority
    assert enrolment.enrol(folder, fleet, asking(tmp_path)) == [0, 1, 2]
    certificates, dismissed = read_enrolled(fleet)
    assert [one.key for one in certificates] == [
        device_key(tmp_path / f"device-{number}") for number in range(3)
    ]
    assert known.why_not_list(dismissed) is None
    for one in certificates:
        assert known.why_not_device(one, dismissed) is None
        assert 364 * DAY < one.ends - time.time() < 366 * DAY
    assert not list(fleet.rglob("*.key"))  # nothing private is where the server is


def test_who_asks_again_keeps_its_number_and_signs_nothing_new(tmp_path, authority):
    folder, fleet, _ = authority
    requests = asking(tmp_path)
    enrolment.enrol(folder, fleet, requests[:2])
    before = read_enrolled(fleet).certificates
    assert enrolment.enrol(folder, fleet, [requests[1], requests[2], requests[2], requests[0]]) == [
        1,
        2,
        2,
        0,
    ]
    assert read_enrolled(fleet).certificates[:2] == before
    assert [len(row["signed"]) for row in rows(folder)] == [1, 2, 1]


def test_a_malformed_request_enrols_no_device(tmp_path, authority):
    folder, fleet, _ = authority
    with pytest.raises(LinkError, match="is not one that a device made"):
        enrolment.enrol(folder, fleet, [*asking(tmp_path), "nonsense"])
    assert len(rows(folder)) == 1
    assert not read_enrolled(fleet).certificates


def test_lists_have_rising_numbers_and_a_dismissed_key_does_not_come_back(tmp_path, authority):
    folder, fleet, known = authority
    requests = asking(tmp_path)
    enrolment.enrol(folder, fleet, requests)
    assert enrolment.dismiss(folder, fleet, [1]) == 1
    assert enrolment.dismiss(folder, fleet, [1]) == 1  # again is no harm
    assert enrolment.dismiss(folder, fleet, [2, 1]) == 2
    certificates, dismissed = read_enrolled(fleet)
    assert dismissed.devices == {1, 2}
    assert [bool(known.why_not_device(one, dismissed)) for one in certificates] == [
        False,
        True,
        True,
    ]
    with pytest.raises(
        LinkError, match="device 1 was dismissed, and its key with it; no device was enrolled"
    ):
        enrolment.enrol(folder, fleet, [device_request(tmp_path / "new"), requests[1]])
    with pytest.raises(LinkError, match="3 devices, and no device 3"):
        enrolment.dismiss(folder, fleet, [0, 3])
    assert read_enrolled(fleet).dismissed == dismissed
    enrolment.enrol(folder, fleet, [device_request(tmp_path / "new")])
    assert read_enrolled(fleet).certificates[3].after == 2  # beside it no older list is shown


def test_what_ends_soon_is_renewed_for_the_same_key_and_number(tmp_path, authority):
    folder, fleet, known = authority
    requests = asking(tmp_path)
    enrolment.enrol(folder, fleet, requests[:2], days=30)
    enrolment.enrol(folder, fleet, requests[2:])
    enrolment.dismiss(folder, fleet, [0])
    before = read_enrolled(fleet).certificates
    assert (
        enrolment.renew(folder, fleet) == 1
    )  # neither the dismissed one nor the one that is good for a year
    after, dismissed = read_enrolled(fleet)
    assert (after[0], after[2]) == (before[0], before[2])
    assert (after[1].device, after[1].key) == (before[1].device, before[1].key)
    assert after[1].ends > before[1].ends + 300 * DAY
    assert known.why_not_device(after[1], dismissed) is None
    assert enrolment.renew(folder, fleet) == 0


@pytest.mark.parametrize("hours", [1.5, 24, 24 * 400])
def test_what_was_signed_when_the_clock_was_ahead_is_renewed_once_it_is_right(
    tmp_path, authority, monkeypatch, hours
):
    """Or its devices would wait for that day. Twin: without it they do."""
    folder, fleet, known = authority
    with monkeypatch.context() as ahead:
        ahead.setattr(enrolment, "now", lambda at=time.time() + 3600 * hours: at)
        enrolment.enrol(folder, fleet, asking(tmp_path, 1))
    certificates, dismissed = read_enrolled(fleet)
    assert "has not begun" in known.why_not_device(certificates[0], dismissed)
    assert enrolment.renew(folder, fleet) == 1
    assert known.why_not_device(read_enrolled(fleet).certificates[0], dismissed) is None
    assert enrolment.renew(folder, fleet) == 0


@pytest.mark.parametrize(
    "damage",
    [
        "changed",
        "last changed",
        "taken out",
        "older",
        "forked",
        "cut",
        "gone",
        "empty",
        "another's",
    ],
)
def test_with_a_log_that_is_not_its_own_the_authority_signs_nothing(tmp_path, authority, damage):
    """Or it would give a number twice, or two lists one number. A row that was cut short is what a
    crash leaves: nobody has seen it.
    """
    folder, fleet, _ = authority
    requests, log = asking(tmp_path), folder / "enrolment.log"
    enrolment.enrol(folder, fleet, requests[:1])
    enrolment.enrol(folder, fleet, requests[1:2])
    lines = log.read_bytes().splitlines(keepends=True)
    kept = read_enrolled(fleet)
    if damage == "another's":
        enrolment.new_authority(tmp_path / "other", tmp_path / "another")
        with pytest.raises(LinkError, match="authority of another fleet"):
            enrolment.enrol(tmp_path / "other", fleet, requests)
    elif damage == "cut":
        log.write_bytes(b"".join(lines) + lines[-1][:40])
        assert enrolment.enrol(folder, fleet, requests) == [0, 1, 2]  # the twin
        return
    else:
        if (
            damage == "forked"
        ):  # put back to a backup, and then used with a fleet's folder that was lost
            log.write_bytes(b"".join(lines[:2]))
            enrolment.enrol(folder, tmp_path / "lost", requests[2:])
            lines = log.read_bytes().splitlines(keepends=True)
        row = json.loads(lines[2])
        row["signed"][0] = base64.b64encode(base64.b64decode(row["signed"][0])[:-1] + b"x").decode()
        changed = {
            "changed": [lines[0], lines[1].replace(b'"at": 1', b'"at": 2'), lines[2]],
            "last changed": [*lines[:2], json.dumps(row).encode() + b"\n"],
            "taken out": [lines[0], lines[2]],
            "forked": lines,
            "empty": [],
        }
        log.unlink()
        if damage != "gone":
            log.write_bytes(b"".join(changed.get(damage, lines[:2])))
        sentences = dict.fromkeys(["older", "forked"], "lacks what was signed before") | {
            "gone": "not the folder of an enrolment authority"
        }
        with pytest.raises(LinkError, match=sentences.get(damage, "is damaged")):
            enrolment.enrol(folder, fleet, requests)
    assert read_enrolled(fleet) == kept


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"QUJD\nQUJD\n", "swapped"])
def test_a_damaged_list_is_reported(tmp_path, authority, damage):
    folder, fleet, _ = authority
    enrolment.enrol(folder, fleet, asking(tmp_path))
    first, *others = (fleet / "enrolled.txt").read_bytes().splitlines(keepends=True)
    (fleet / "enrolled.txt").write_bytes(
        b"".join([first, *others[::-1]]) if damage == "swapped" else damage
    )
    with pytest.raises(LinkError, match="copy it again from the enrolment authority"):
        read_enrolled(fleet)


def test_a_running_server_knows_of_the_newest_file(tmp_path, authority, monkeypatch):
    folder, fleet, _ = authority
    enrolment.enrol(folder, fleet, asking(tmp_path, 2))
    now, keys = (
        EnrolledFile(fleet),
        [device_key(tmp_path / f"device-{number}") for number in range(3)],
    )
    assert [now.number_of(key) for key in keys] == [0, 1, "a device that is not enrolled"]
    enrolment.enrol(folder, fleet, asking(tmp_path))
    enrolment.dismiss(folder, fleet, [0])
    assert [now.number_of(key) for key in keys] == ["a device that was dismissed", 1, 2]
    monkeypatch.setattr(identities, "now", lambda at=time.time() + 400 * DAY: at)
    assert now.number_of(keys[1]) == "a device whose certificate has expired"


@pytest.mark.parametrize(
    "found", ["half", "a row less", "older", "gone", "not to be read", "newer"]
)
def test_a_file_that_is_just_being_copied_or_older_changes_nothing_for_a_running_server(
    tmp_path, authority, found
):
    """Or a training would end, or whoever was dismissed be back. Twin: the newer one."""
    folder, fleet, _ = authority
    enrolment.enrol(folder, fleet, asking(tmp_path, 2))
    path, older = fleet / "enrolled.txt", (fleet / "enrolled.txt").read_bytes()
    enrolment.dismiss(folder, fleet, [1])
    now, whole = EnrolledFile(fleet), path.read_bytes()
    keys = [device_key(tmp_path / f"device-{number}") for number in range(3)]
    enrolment.enrol(folder, tmp_path / "copy", asking(tmp_path)[2:])
    newer = (tmp_path / "copy" / "enrolled.txt").read_bytes()
    lines = whole.splitlines(keepends=True)
    files = {
        "half": newer[:-40],
        "a row less": b"".join(lines[:-1]),
        "older": older,
        "newer": newer,
    }
    path.unlink() if found not in files else path.write_bytes(files[found])
    if found == "not to be read":
        path.mkdir()  # root reads all files
    third = 2 if found == "newer" else "a device that is not enrolled"
    for _ in range(2):
        assert [now.number_of(key) for key in keys] == [0, "a device that was dismissed", third]
    if path.is_dir():
        path.rmdir()
    path.write_bytes(newer)
    assert now.number_of(keys[2]) == 2


def test_a_crash_between_log_and_file_is_mended_by_the_next_command(
    tmp_path, authority, monkeypatch
):
    """Whichever it is: the number is given, and the dismissal stands."""
    folder, fleet, _ = authority
    requests = asking(tmp_path)

    def crashed(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as crash:
        crash.setattr(enrolment, "write_atomically", crashed)
        for signed in (
            lambda: enrolment.enrol(folder, fleet, requests[:2]),
            lambda: enrolment.dismiss(folder, fleet, [0]),
        ):
            with pytest.raises(OSError, match="No space left"):
                signed()
    assert not read_enrolled(fleet).certificates
    assert enrolment.enrol(folder, fleet, requests[1:]) == [1, 2]
    certificates, dismissed = read_enrolled(fleet)
    assert (len(certificates), dismissed.devices, dismissed.number) == (3, {0}, 1)


@pytest.mark.parametrize("more", [[], [10], [2**63, -1]])
def test_a_device_that_a_front_end_knows_and_the_server_does_not_yet_is_not_there(
    tmp_path, vocabulary, more
):
    """Its file is copied to one of them first; and whoever has the Redis may say anything. The run
    goes on. Twin: nobody more.
    """
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, run={"rounds": 1, "evaluate_every": 1})
    devices, ask, asked = fleet.link.devices, fleet.link.ask, set()

    def noted(kind, contents, *rest, **settings):
        asked.update(contents)
        return ask(kind, contents, *rest, **settings)

    fleet.link.devices, fleet.link.ask = lambda: [*devices(), *more], noted
    assert (
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee.releases == 1
    )
    assert asked == set(range(10))


@pytest.mark.parametrize("twin", [False, True])
def test_a_device_that_is_dismissed_while_a_run_goes_on_is_not_asked_any_more(
    tmp_path, vocabulary, twin
):
    """Though it is connected. Twin: not dismissed, it is."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, run={"rounds": 6, "evaluate_every": 6})
    asked, ask, out = [], fleet.link.ask, 4

    def noted(kind, contents, *more, **settings):
        asked.append(out in contents)
        return ask(kind, contents, *more, **settings)

    def dismiss(done, rounds, row):
        if done == 2 and not twin:
            fleet.enrolled = enrolled(fleet.keys)._replace(
                dismissed=SIGNING_AUTHORITY.dismiss(1, (out,))
            )
            asked.clear()

    fleet.link.ask = noted
    train_run(fleet.recipe, tmp_path / "run", dismiss, fleet.connected)
    assert any(asked) == twin


def test_a_fleet_whose_devices_are_mostly_dismissed_is_too_small(tmp_path, vocabulary):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, run={"rounds": 1, "evaluate_every": 1})
    fleet.enrolled = fleet.enrolled._replace(dismissed=SIGNING_AUTHORITY.dismiss(1, (1, 2)))
    with pytest.raises(Exception, match="8 devices are too few"):
        train_run(fleet.recipe, tmp_path / "run", cut_at(0), fleet.connected)


def test_the_commands_from_a_key_to_a_dismissal(tmp_path):
    def run(*words):
        result = CliRunner().invoke(app, ["fleet", *map(str, words)])
        return result.exit_code, result.output.replace("\n", " ")

    fleet = tmp_path / "keyboard"
    enrolment.new_authority(tmp_path / "elsewhere", fleet)
    _, said = run("device", tmp_path / "phone", "--new")
    line = (tmp_path / "phone" / "request.txt").read_text().strip()
    assert line in said
    where = "--authority", tmp_path / "elsewhere"
    assert "device 0:" in run("enrol", fleet, line, *where)[1]
    device_request(tmp_path / "other")
    status, said = run("enrol", fleet, tmp_path / "other" / "request.txt", *where)
    assert status == 0
    assert "2 devices are enrolled" in said
    assert "0 certificates renewed" in run("renew", fleet, *where)[1]
    assert "1 devices are dismissed (list 1)" in run("dismiss", fleet, 0, *where)[1]
    assert read_enrolled(fleet).dismissed.devices == {0}
    assert run("dismiss", fleet, 0)[0] != 0  # beside the fleet there is no authority


@pytest.mark.slow
def test_ten_thousand_devices_are_enrolled_and_read_in_no_time(tmp_path, authority):
    """A server that is started again reads the file, and that is all it does with it: linear, and
    far below the two seconds.
    """
    folder, fleet, _ = authority

    def request(key):
        own = key.public_key().public_bytes_raw()
        return REQUEST + base64.b64encode(own + key.sign(REQUEST.encode() + own)).decode()

    requests = [request(Ed25519PrivateKey.generate()) for _ in range(10_000)]
    began = time.monotonic()
    assert enrolment.enrol(folder, fleet, requests) == list(range(10_000))
    enrolling, began = time.monotonic() - began, time.monotonic()
    now = EnrolledFile(fleet)
    assert len(now.read().certificates) == 10_000
    assert time.monotonic() - began < 2
    assert enrolling < 30
    print(f"enrolled in {enrolling:.2f} s, read in {time.monotonic() - began:.2f} s")
    assert np.all([now.number_of(one.key) == one.device for one in now.read().certificates])


def test_a_list_that_another_thread_replaces_is_read_whole(tmp_path, authority, monkeypatch):
    """While a front end looks a key up, the thread of the training may read a longer list: numbers
    of one list are never looked up in certificates of another.
    """
    folder, fleet, _ = authority
    first, second = asking(tmp_path, 2)
    enrolment.enrol(folder, fleet, [first])
    now = EnrolledFile(fleet)
    read = EnrolledFile._newest

    def replace_meanwhile(self):
        listed = read(self)
        monkeypatch.setattr(EnrolledFile, "_newest", read)
        enrolment.enrol(folder, fleet, [second])
        assert len(now.read().certificates) == 2
        return listed

    monkeypatch.setattr(EnrolledFile, "_newest", replace_meanwhile)
    late = device_key(tmp_path / "device-1")
    assert now.number_of(late) == "a device that is not enrolled"
    assert now.number_of(late) == 1
