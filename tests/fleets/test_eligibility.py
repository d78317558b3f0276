"""When a device takes part by its owner's wishes: fake machines, one at a socket, one on a
train.
"""

import os
import time
from functools import partial
from threading import Lock

import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices, fleet_recipe

from harness import made_up_users, quietly
from taciturn.cli.fleet import device as device_command
from taciturn.data.population import write_population
from taciturn.fleets import fleet_folders
from taciturn.fleets.devices import eligibility, fields
from taciturn.fleets.devices.device import NotEligible, OwnerWishes
from taciturn.fleets.devices.eligibility import why_not_now
from taciturn.fleets.devices.own_participation import OwnParticipation
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import train_run

MAINS, BATTERY, MOUSE = (
    {"type": "Mains"},
    {"type": "Battery"},
    {"type": "Battery", "scope": "Device", "status": "Discharging"},
)
MACHINES = {
    "a desktop": ({}, True),
    "a desktop with a mouse": ({"mouse": MOUSE}, True),
    "a laptop at a socket": (
        {"AC": MAINS | {"online": "1"}, "BAT0": BATTERY | {"status": "Charging"}},
        True,
    ),
    "a laptop that is full": (
        {"AC": MAINS | {"online": "1"}, "BAT0": BATTERY | {"status": "Not charging"}},
        True,
    ),
    "a laptop on a train": (
        {"AC": MAINS | {"online": "0"}, "BAT0": BATTERY | {"status": "Discharging"}},
        False,
    ),
    "a phone at a cable": (
        {"usb": {"type": "USB", "online": "1"}, "battery": BATTERY | {"status": "Full"}},
        True,
    ),
    "a phone in a pocket": (
        {"usb": {"type": "USB", "online": "0"}, "battery": BATTERY | {"status": "Discharging"}},
        False,
    ),
    "a board that tells of its battery alone": (
        {"battery": BATTERY | {"status": "Charging"}},
        True,
    ),
    "a board that runs down": ({"battery": BATTERY | {"status": "Unknown"}, "mouse": MOUSE}, False),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_who_is_at_a_socket_charges(tmp_path, monkeypatch, machine):
    supplies, charges = MACHINES[machine]
    for name, about in supplies.items():
        (tmp_path / name).mkdir()
        for file, content in about.items():
            (tmp_path / name / file).write_text(content + "\n")
    monkeypatch.setattr(eligibility, "POWER", tmp_path)
    assert eligibility.is_charging() == charges
    assert (why_not_now(["charging"], None)() is None) == charges


def busctl(folder, monkeypatch, answers):
    """A bus that answers so to the last word of a question."""
    script = folder / "busctl"
    cases = "".join(f'*{name}) echo "{answer}";;\n' for name, answer in answers.items())
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1;;\nesac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("answer", "free"),
    [("u 2", True), ("u 4", True), ("u 1", False), ("u 3", False), ("u 0", False), ("", False)],
)
def test_a_network_that_may_cost_something_is_metered(tmp_path, monkeypatch, answer, free):
    busctl(tmp_path, monkeypatch, {"Metered": answer})
    assert why_not_now(["unmetered"], None)() == (None if free else "it is not unmetered")


@pytest.mark.parametrize(("answer", "idle"), [("b true", True), ("b false", False), ("", False)])
def test_a_device_that_somebody_uses_is_not_idle(tmp_path, monkeypatch, answer, idle):
    busctl(tmp_path, monkeypatch, {"IdleHint": answer})
    assert why_not_now(["idle"], None)() == (None if idle else "it is not idle")


def test_all_wishes_have_to_be_met_and_each_time_anew(tmp_path, monkeypatch):
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(eligibility, "POWER", tmp_path / "none")
    busctl(tmp_path, monkeypatch, {"IdleHint": "b true"})
    why_not = why_not_now(["charging", "idle"], f"test -e {tmp_path / 'flag'}")
    assert why_not() == "--while-command says no"
    (tmp_path / "flag").touch()
    assert why_not() is None
    busctl(tmp_path, monkeypatch, {"IdleHint": "b false"})
    assert why_not() == "it is not idle"


def test_what_cannot_be_known_is_refused_before_anything_is_done(tmp_path, monkeypatch):
    with pytest.raises(LinkError, match="`while` takes charging, unmetered, idle, not 'plugged'"):
        why_not_now(["idle", "plugged"], None)
    with pytest.raises(LinkError, match="no-such-command cannot be asked"):
        why_not_now([], "no-such-command --at all")
    with pytest.raises(LinkError, match="`while_command` is empty"):
        why_not_now([], " ")  # a variable that is not set
    assert why_not_now([], None)() is None  # the twin: no wish
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LinkError, match=r"busctl cannot be asked.*see `while_command`"):
        why_not_now(["unmetered"], None)


def test_a_device_that_its_owner_holds_back_is_not_ready_and_does_not_advertise(
    tmp_path, vocabulary
):
    """Also where a server does not let it check in first. Twin: let go, it does both."""
    fleet, held = FleetOfDevices(tmp_path, vocabulary, count=9), ["it is not charging"]
    fleet.start(2, wishes=OwnerWishes(why_not_now=lambda: held[0] if held else None))
    device = fleet.link._devices[2].handler
    check_in = fields.pack_fields(device._terms.fingerprint, b"9")
    advertise = fields.pack_fields(fields.new_name(), b"run", b"9", bytes(32), *fleet.signed(2))
    assert device(fields.CHECK_IN, check_in) == fields.NOT_NOW
    with pytest.raises(NotEligible, match="it is not charging"):
        device(Stage.ADVERTISE.question, advertise)
    held.clear()
    assert device(fields.CHECK_IN, check_in) == fields.READY
    assert device(Stage.ADVERTISE.question, advertise)


@pytest.fixture
def phone(tmp_path, vocabulary):
    people = write_population(
        tmp_path / "people",
        made_up_users(12),
        made_up_users(12, seed=1),
        vocabulary,
        {"source": "made up"},
    )
    fleet_folders.new_fleet(tmp_path / "fleet", fleet_recipe(people))
    fleet_folders.save_text(tmp_path / "phone", people.texts[0])
    fleet_folders.enrol(tmp_path / "fleet", [tmp_path / "phone"])
    return tmp_path / "phone"


def test_too_little_text_takes_no_part(phone):
    tokens = len(np.load(phone / "tokens.npy"))
    for least, answer in ((tokens, fields.READY), (tokens + 1, fields.NOT_NOW)):
        device = fleet_folders.open_device(phone, least_tokens=least)
        assert (
            device(fields.CHECK_IN, fields.pack_fields(device._terms.fingerprint, b"9")) == answer
        )


@pytest.mark.parametrize("delete_used", [False, True])
def test_text_that_a_report_was_made_of_is_deleted_if_the_owner_says_so(
    tmp_path, vocabulary, phone, delete_used
):
    """Once the report is on record; after a crash, when the device is started again. Text that came
    later stays.
    """
    fleet = FleetOfDevices(
        tmp_path / "train", vocabulary, count=9, run={"rounds": 1, "evaluate_every": 1}
    )
    seen, one_at_a_time = [], Lock()  # the devices here share one text, which each would delete
    wishes = fleet_folders.open_device(phone, delete_used=delete_used)._wishes

    def reported(record: OwnParticipation) -> None:
        with one_at_a_time:
            seen.append(len(record.uploads))
            wishes.on_report()

    for number in range(9):
        record = OwnParticipation(
            tmp_path / "train" / f"device-{number}",
            fleet.link._devices[number].handler._record._limits,
        )
        fleet.start(number, wishes=OwnerWishes(on_report=partial(reported, record)))
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert seen == [1] * 9  # on record by then
    assert (phone / "tokens.npy").exists() != delete_used
    assert (wishes.why_not_now() == "its text was used, and is deleted") == delete_used


@pytest.mark.parametrize("hours", [-24, 0, 24])
@pytest.mark.parametrize("later", [False, True])
def test_after_a_crash_used_text_is_deleted_and_later_text_is_not(phone, later, hours):
    """Whatever the clock said when it took part, and when the text came. Twin: text that came
    later.
    """
    os.utime(phone / "tokens.npy", (at := time.time() + 3600 * hours, at))
    device = fleet_folders.open_device(phone)
    device._record.upload(round=1, model="1", run="run", row=0, text=device._wishes.text_name)
    if later:
        fleet_folders.save_text(phone, np.load(phone / "tokens.npy"))
        os.utime(phone / "tokens.npy", (at := time.time() - 3600 * hours, at))
        fleet_folders.open_device(phone, delete_used=True)
    else:
        with pytest.raises(LinkError, match="has no text"):
            fleet_folders.open_device(phone, delete_used=True)
    assert (phone / "tokens.npy").exists() == later


@pytest.mark.parametrize("replaced", [False, True])
def test_text_that_comes_while_a_device_runs_is_not_deleted_nor_the_old_one_used(phone, replaced):
    """The device has the old one in its memory. Twin: no other came."""
    device = fleet_folders.open_device(phone, delete_used=True)
    check_in = fields.pack_fields(device._terms.fingerprint, b"9")
    if replaced:
        fleet_folders.save_text(phone, np.arange(9))
    assert device(fields.CHECK_IN, check_in) == (fields.NOT_NOW if replaced else fields.READY)
    device._wishes.on_report()  # of a round that it was in already
    assert (phone / "tokens.npy").exists() == replaced
    fleet_folders.save_text(phone, np.arange(9))
    assert (
        device(fields.CHECK_IN, check_in) == fields.NOT_NOW
    )  # its own text was deleted: it waits to be started with this one


def test_whoever_opts_out_has_no_text_left_of_a_crash_either(phone):
    (phone / ".tokens.npy.17.partial").write_bytes(b"half of it")
    fleet_folders.opt_out(phone)
    assert not list(phone.glob("*tokens*"))
    assert not list(phone.glob(".*tokens*"))


@pytest.mark.parametrize("machine", ["no Linux", "a sandbox"])
def test_a_machine_that_does_not_say_whether_it_charges_is_not_taken_for_one_that_does(
    tmp_path, monkeypatch, machine
):
    """Twin: one that says that it has no battery."""
    monkeypatch.setattr(eligibility, "POWER", tmp_path / "power")
    (tmp_path / "power").mkdir()
    assert why_not_now(["charging"], None)() is None
    (tmp_path / "power").rmdir()
    if machine == "a sandbox":

        def refuse(folder):
            raise PermissionError(13, "Permission denied", str(folder))

        monkeypatch.setattr(type(tmp_path), "iterdir", refuse)
    with pytest.raises(
        LinkError, match=r"power cannot be asked whether this device charges.*see `while_command`"
    ):
        why_not_now(["charging"], None)


def test_a_wrong_word_on_the_command_line_is_answered_with_the_right_ones(phone):
    with pytest.raises(LinkError, match="`while` takes charging, unmetered, idle"):
        device_command(phone, server="localhost:1", while_="charging,sunny")
