"""The real wire on this machine with devices in processes of their own: what takes long, or
much.
"""

import os
import threading

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
        answers = server.link.ask(
            "reverse", to_all(server, model), ALL, progress=lambda *seen: shown.append(seen)
        )
        assert list(answers.values()) == [model[::-1]] * 3
        assert shown[-1] == (3, 3)


def test_a_device_may_work_for_longer_than_one_sign_of_life_counts(fleet):
    with fleet.server(devices=1) as (server, _):
        (number,) = server.link.devices()
        assert server.link.ask("sleep", {number: b"70"}, 100) == {number: b"awake"}


def test_questions_leave_nothing_behind_in_the_servers_memory(fleet):
    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    with fleet.server(devices=1) as (server, _):
        (number,) = server.link.devices()
        for _ in range(3):
            server.link.ask("zeros", {number: b"20000000"}, ALL)
        before = resident()
        for _ in range(10):
            server.link.ask("zeros", {number: b"20000000"}, ALL)
            server.link.ask("reverse", {number: os.urandom(20_000_000)}, ALL)
        assert resident() - before < 150  # megabytes; 600 went through


def test_sigterm_ends_a_device_in_order_even_at_work(fleet):
    with fleet.server(devices=2) as (server, devices):
        threading.Timer(1, devices[0].process.terminate).start()
        assert len(server.link.ask("sleep", to_all(server, b"2"), 5)) == 1
        assert devices[0].process.wait(1) == 0
        assert len(server.link.devices()) == 1
