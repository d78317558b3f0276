"""The real wire on this machine: SuperLink, TLS, node keys, devices in processes of their own."""

import os
import threading
import time

from wire import until

ALL = 30  # seconds that are enough for everybody


def to_all(server, content):
    return dict.fromkeys(server.link.devices(), content)


def test_three_devices_answer_ten_megabytes_three_times(fleet):
    with fleet.server(devices=3) as (server, _):
        devices = server.link.devices()
        for _ in range(3):
            contents = {number: os.urandom(10_000_000) for number in devices}
            answers = server.link.ask("reverse", contents, ALL)
            assert list(answers) == devices
            assert all(answers[number] == content[::-1] for number, content in contents.items())
        model, shown = os.urandom(10_000_000), []
        answers = server.link.ask("reverse", to_all(server, model), ALL, progress=lambda *seen: shown.append(seen))
        assert list(answers.values()) == [model[::-1]] * 3
        assert shown[-1] == (3, 3)


def test_short_questions_take_less_than_flowers_three_seconds(fleet):
    with fleet.server(devices=3) as (server, _):
        server.link.ask("reverse", to_all(server, b""), ALL)
        began = time.monotonic()
        for stage in (b"advertise", b"share", b"mask", b"unmask"):
            assert list(server.link.ask("reverse", to_all(server, stage), ALL).values()) == [stage[::-1]] * 3
        assert time.monotonic() - began < 4 * 3


def test_a_device_that_fails_is_missing_and_its_words_stay_with_it(fleet, caplog):
    with fleet.server(devices=2) as (server, devices):
        began = time.monotonic()
        assert server.link.ask("fail", to_all(server, b""), ALL) == {}
        assert time.monotonic() - began < ALL
        assert "“fail”: no answer from 2 of 2 devices (2 failed)" in caplog.text
        assert "what the user typed" not in caplog.text
        assert "what the user typed" in devices[0].log()
        assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 2


def test_a_device_that_is_sent_away_leaves_and_comes_back_with_its_number(fleet, caplog):
    with fleet.server(devices=2) as (server, devices):
        away, stays = server.link.devices()
        assert server.link.ask("away", {away: b"8"}, ALL) == {away: b""}
        until(lambda: server.link.devices() == [stays], "that it leaves", 6)
        assert server.link.ask("reverse", {stays: b"abc"}, ALL) == {stays: b"cba"}
        until(lambda: server.link.devices() == [away, stays], "that it comes back")
        assert server.link.ask("reverse", {away: b"abc"}, ALL) == {away: b"cba"}
        assert sum("back in 8 seconds" in device.log() for device in devices) == 1
        assert "no answer" not in caplog.text


def test_enough_answers_end_the_waiting_and_late_ones_are_never_seen(fleet, caplog):
    with fleet.server(devices=2) as (server, _):
        slow, quick = server.link.devices()
        questions = {slow: b"3", quick: b"0"}
        assert server.link.ask("sleep", questions, ALL, enough=1) == {quick: b"awake"}
        assert server.link.ask("sleep", questions, 1) == {quick: b"awake"}  # the slow one is still at the first
        assert "1 too late" in caplog.text
        time.sleep(6)
        assert server.link.ask("reverse", {slow: b"abc", quick: b"abc"}, ALL) == {slow: b"cba", quick: b"cba"}


def test_a_question_that_was_withdrawn_is_not_worked_at(fleet):
    with fleet.server(devices=1) as (server, (device,)):
        (number,) = server.link.devices()
        assert server.link.ask("sleep", {number: b"4"}, 1) == {}
        assert server.link.ask("sleep", {number: b"4"}, 1) == {}
        began = time.monotonic()
        assert server.link.ask("reverse", {number: b"abc"}, ALL) == {number: b"cba"}
        assert time.monotonic() - began < 5  # one sleep, and not two
        assert device.log().count("asleep") == 1


def test_a_device_may_work_for_longer_than_flower_waits_for_a_sign_of_life(fleet):
    with fleet.server(devices=1) as (server, _):
        (number,) = server.link.devices()
        assert server.link.ask("sleep", {number: b"70"}, 100) == {number: b"awake"}


def test_an_answer_that_is_too_large_does_not_arrive(fleet, caplog):
    with fleet.server(devices=2, most_bytes=1_000_000) as (server, devices):
        honest, talkative = server.link.devices()
        answers = server.link.ask("zeros", {honest: b"1000000", talkative: b"9000000"}, 5)
        assert answers == {honest: bytes(1_000_000)}
        assert "refused: more bytes than an answer may have" in caplog.text
        assert any("was not taken" in device.log() for device in devices)
        assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 2


def test_nothing_of_what_devices_send_is_on_the_servers_disk(fleet):
    with fleet.server(devices=1) as (server, _):
        secret = b"a secret of seventeen words " * 1000
        assert list(server.link.ask("reverse", to_all(server, secret), ALL).values()) == [secret[::-1]]
        files = [file for file in (fleet.folder / "server").rglob("*") if file.is_file()]
        assert any(file.name == "devices.sqlite" for file in files)
        assert not any(secret[::-1][:28] in file.read_bytes() or secret[:28] in file.read_bytes() for file in files)
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_questions_leave_nothing_behind_in_superlinks_memory(fleet):
    def resident(server):
        with open(f"/proc/{server._superlink._process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    with fleet.server(devices=1) as (server, _):
        (number,) = server.link.devices()
        for _ in range(3):
            server.link.ask("zeros", {number: b"20000000"}, ALL)
        before = resident(server)
        for _ in range(10):
            server.link.ask("zeros", {number: b"20000000"}, ALL)
            server.link.ask("reverse", {number: os.urandom(20_000_000)}, ALL)
        assert resident(server) - before < 150  # megabytes; 600 went through


def test_sigterm_ends_a_device_in_order_even_at_work(fleet):
    with fleet.server(devices=2) as (server, devices):
        threading.Timer(1, devices[0].process.terminate).start()
        assert len(server.link.ask("sleep", to_all(server, b"2"), 5)) == 1
        assert devices[0].process.wait(1) == 0
        assert len(server.link.devices()) == 1


def test_without_tls_on_this_machine_keys_are_needed_all_the_same(fleet, caplog):
    with fleet.server(insecure=True) as (server, _):
        device = fleet.device("plain", server.address, insecure=True)
        until(lambda: "not enrolled" in device.log(), "that it is refused")
        assert "refused: a device that is not enrolled" in caplog.text
        server.enrol(device.public_key)
        until(lambda: server.link.devices(), "that it connects")
        assert list(server.link.ask("reverse", to_all(server, b"abc"), ALL).values()) == [b"cba"]
