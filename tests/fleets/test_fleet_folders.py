"""A fleet from its folders: what the server keeps, what devices are given, and that both sides can
train with it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from fleet_of_devices import fleet_recipe
from local_link import LocalLink

from enrolling import device_key
from harness import made_up_users, quietly
from taciturn.cli.fleet import device as device_command
from taciturn.data.population import Population, write_population
from taciturn.files import FolderExists
from taciturn.fleets import fleet_folders
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.enrolment import EnrolledFile, read_enrolled
from taciturn.people import open_ledger
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.runs.loop import train_run


@pytest.fixture
def people(tmp_path, vocabulary):
    return write_population(
        tmp_path / "people",
        made_up_users(12),
        made_up_users(12, seed=1),
        vocabulary,
        {"source": "made up"},
    )


@pytest.fixture
def fleet(tmp_path, people):
    fleet_folders.new_fleet(
        tmp_path / "fleet", fleet_recipe(people, run={"rounds": 1, "evaluate_every": 1})
    )
    return tmp_path / "fleet"


def with_text(people, count, folder):
    devices = [folder / f"device-{number}" for number in range(count)]
    for number, device in enumerate(devices):
        fleet_folders.save_text(device, people.texts[number])
    return devices


def train(fleet, devices, run):
    handlers = {number: fleet_folders.open_device(device) for number, device in enumerate(devices)}
    for handler in handlers.values():
        handler._program = handlers[0]._program  # compiled once
    link = LocalLink(handlers)
    connected = ConnectedDevices(
        link=link,
        enrolled=EnrolledFile(fleet).read,
        authority=fleet_folders.fleet_authority(fleet / "for-devices"),
    )
    return train_run(fleet_folders.fleet_recipe(fleet), run, quietly, connected)


def test_a_fleet_from_its_folders_trains(tmp_path, fleet, people):
    devices = with_text(people, 10, tmp_path)
    fleet_folders.enrol(fleet, devices)
    finished = train(fleet, devices, tmp_path / "run")
    assert finished.guarantee.releases == 1
    assert sum((device / "participation.json").exists() for device in devices) == 9
    assert (
        open_ledger(people).runs() == []
    )  # the people are others than the population's, whose words they have


def test_where_a_fleet_is_tried_out_its_people_are_charged(tmp_path, people):
    """They are a population's, and what is released about them adds up with all else that was."""
    recipe = fleet_recipe(people, run={"rounds": 1, "evaluate_every": 1})
    devices = fleet_folders.try_out(tmp_path / "try", recipe, 10, "try-run")
    assert [np.load(device / "tokens.npy").tolist() for device in devices] == [
        np.asarray(people.texts[number]).tolist() for number in range(10)
    ]
    finished = train(tmp_path / "try" / "server", devices, tmp_path / "try" / "try-run")
    ledger = open_ledger(people)
    assert ledger.runs() == ["try-run"]
    assert ledger.guarantee("try-run").releases == finished.guarantee.releases == 1
    with pytest.raises(LinkError, match="already has a run 'try-run': choose another `folder`"):
        fleet_folders.try_out(tmp_path / "again", recipe, 10, "try-run")
    assert not (tmp_path / "again").exists()
    with pytest.raises(LinkError, match="fewer than 13 users"):
        fleet_folders.try_out(tmp_path / "again", recipe, 13, "again-run")


def test_the_server_has_no_text_and_devices_no_key_of_another(tmp_path, fleet, people):
    devices = with_text(people, 3, tmp_path)
    fleet_folders.enrol(fleet, devices)
    assert len(Population(fleet / "population")) == 0
    given = {path.name for path in (devices[0] / "fleet").iterdir()}
    assert given == {
        "agreement.json",
        "authority.crt",
        "enrolment.pub",
        "recipe.toml",
        "vocabulary.json",
        "vocabulary.txt",
    }
    for secret in ("authority.key", "enrolment.key", "server.key", "device.key"):
        found = list(tmp_path.rglob(secret))
        assert found
        assert all(path.stat().st_mode & 0o077 == 0 for path in found)
    assert (devices[0] / "tokens.npy").stat().st_mode & 0o077 == 0


def test_enrolled_again_a_device_keeps_its_number_and_a_stranger_is_refused(
    tmp_path, fleet, people
):
    devices = with_text(people, 3, tmp_path)
    fleet_folders.enrol(fleet, devices)
    fleet_folders.enrol(fleet, [devices[2], devices[0]])
    assert [one.key for one in read_enrolled(fleet).certificates] == [
        device_key(device) for device in devices
    ]
    stranger = tmp_path / "stranger"
    fleet_folders.save_text(stranger, np.arange(5))
    with pytest.raises(LinkError, match="does not belong to a fleet yet"):
        fleet_folders.open_device(stranger)
    (devices[0] / "device.key").unlink()
    with pytest.raises(LinkError, match="has no key"):
        fleet_folders.open_device(devices[0])


def test_whoever_opts_out_has_no_text_left_and_takes_part_in_nothing(tmp_path, fleet, people):
    devices = with_text(people, 3, tmp_path)
    fleet_folders.enrol(fleet, devices)
    device_command(devices[1], opt_out=True)
    assert not (devices[1] / "tokens.npy").exists()
    assert json.loads((devices[1] / "participation.json").read_text())["opted_out"]
    with pytest.raises(LinkError, match="has no text"):
        fleet_folders.open_device(devices[1])


def test_text_of_one_person_becomes_a_devices_and_that_of_two_does_not(tmp_path, fleet, people):
    device = tmp_path / "phone"
    fleet_folders.enrol(fleet, [device])
    (tmp_path / "messages.txt").write_text("word1 word2 word3\nword4 word5\n")
    with pytest.raises(LinkError, match="name the server"):
        device_command(device, data=tmp_path / "messages.txt")
    assert np.load(device / "tokens.npy").tolist()[-1] == 3  # END
    (tmp_path / "two.csv").write_text("user,text\na,word1 word2\nb,word3 word4\n")
    with pytest.raises(Exception, match="2 people"):
        device_command(device, data=tmp_path / "two.csv")


def test_a_fleet_is_never_made_over_another(fleet, people):
    with pytest.raises(FolderExists, match="never replaced"):
        fleet_folders.new_fleet(fleet, fleet_recipe(people))


@pytest.mark.parametrize("tried_out", [True, False])
def test_a_fleets_people_are_charged_wherever_the_server_is_started(
    tmp_path, vocabulary, monkeypatch, tried_out
):
    """Two populations, or two fleets, by the same path from where one stands; the people are those
    of the one there.
    """
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        population = write_population(
            tmp_path / place / "people",
            made_up_users(12),
            made_up_users(12, seed=1),
            vocabulary,
            {"source": place},
        )
        recipe = fleet_recipe(population, run={"rounds": 1, "evaluate_every": 1})
        recipe = recipe.with_settings("data", population="people")
        if tried_out:
            fleet, devices = (
                Path("try/server"),
                fleet_folders.try_out(Path("try"), recipe, 10, "try-run"),
            )
        else:
            fleet, devices = Path("try"), with_text(population, 10, Path())
            fleet_folders.new_fleet(fleet, recipe)
            fleet_folders.enrol(fleet, devices)
    monkeypatch.chdir(tmp_path / "here")
    train("../there" / fleet, ["../there" / device for device in devices], tmp_path / "run")
    charged = {
        place: [row["run"] for row in Ledger(path).rows if row["kind"] == "charge"]
        for place in ("here", "there")
        for path in (tmp_path / place).rglob("ledger.jsonl")
        if path.parent.parent != tmp_path / "run"
    }
    assert charged["there"] == ["run"]
    assert not charged.get("here")


def test_whoever_tries_a_fleet_out_writes_over_nobodys_text(tmp_path, people):
    fleet_folders.save_text(tmp_path / "try" / "device-0", np.array([4, 4, 4], np.int32))
    with pytest.raises(FolderExists, match="choose another `folder`"):
        fleet_folders.try_out(tmp_path / "try", fleet_recipe(people), 10, "try-run")
    assert np.load(tmp_path / "try" / "device-0" / "tokens.npy").tolist() == [4, 4, 4]


def test_the_guarantee_of_a_fleet_that_is_tried_out_says_that_its_people_are_simulated(
    tmp_path, vocabulary
):
    about = {"source": "made up", "simulated": "public text"}
    people = write_population(
        tmp_path / "people", made_up_users(12), made_up_users(12, seed=1), vocabulary, about
    )
    recipe = fleet_recipe(people, run={"rounds": 1, "evaluate_every": 1})
    devices = fleet_folders.try_out(tmp_path / "try", recipe, 10, "try-run")
    finished = train(tmp_path / "try" / "server", devices, tmp_path / "try" / "try-run")
    assert finished.guarantee.unit == "one simulated user (public text)"
