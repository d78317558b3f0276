"""Questions go down, answers come up: what every wire promises, on the one without a network."""

import logging
import threading
import time

import pytest
from local_link import LocalLink

from taciturn.fleets.devices.transport import ComeBackLater


def echo(kind, content):
    return kind.encode() + b" " + content


def same(content, *numbers):
    return dict.fromkeys(numbers, content)


def test_every_device_answers_its_own_question():
    link = LocalLink({1: echo, 2: echo, 5: echo})
    assert link.devices() == [1, 2, 5]
    answers = link.ask("sum", {5: b"five", 1: b"one"}, 5)
    assert answers == {5: b"sum five", 1: b"sum one"}
    assert list(answers) == [5, 1]


def test_a_device_that_raises_is_missing_and_says_why_in_its_own_log(caplog):
    def broken(kind, content):
        raise ValueError("the text has no words")

    with caplog.at_level(logging.INFO, "taciturn.fleet"):
        assert LocalLink({1: echo, 2: broken}).ask("sum", same(b"", 1, 2), 5) == {1: b"sum "}
    own, server = caplog.messages
    assert own == "no answer to “sum”: ValueError: the text has no words"
    assert server == "“sum”: no answer from 1 of 2 devices (1 failed)"


def test_a_late_answer_is_never_seen_again(caplog):
    release = threading.Event()

    def slow(kind, content):
        if content == b"first":
            release.wait(10)
        return content

    link = LocalLink({1: echo, 2: slow})
    assert link.ask("sum", same(b"first", 1, 2), 0.2) == {1: b"sum first"}
    assert "1 too late" in caplog.text
    release.set()
    assert link.ask("sum", same(b"second", 1, 2), 10) == {1: b"sum second", 2: b"second"}


def test_a_device_that_goes_away_has_answered_and_comes_back():
    def busy(kind, content):
        if kind == "away":
            raise ComeBackLater(float(content))
        return b"here"

    link = LocalLink({1: busy, 2: echo})
    assert link.ask("away", same(b"0.3", 1), 5) == {1: b""}
    assert link.devices() == [2]
    assert link.ask("sum", same(b"", 1, 2), 5) == {2: b"sum "}
    time.sleep(0.4)
    assert link.devices() == [1, 2]
    assert link.ask("sum", same(b"", 1), 5) == {1: b"here"}


def test_a_device_does_one_thing_at_a_time():
    link = LocalLink({1: lambda kind, content: time.sleep(0.3) or content})
    assert link.ask("sum", {1: b"first"}, 0.1) == {}
    assert link.ask("sum", {1: b"second"}, 0.1) == {}  # still at the first
    assert link.ask("sum", {1: b"third"}, 10) == {1: b"third"}


def test_a_device_that_is_not_connected_is_missing_at_once():
    began = time.monotonic()
    assert LocalLink({1: echo}).ask("sum", same(b"", 1, 9), 30) == {1: b"sum "}
    assert time.monotonic() - began < 10


def test_a_killed_device_does_not_answer_what_it_was_asked_before():
    begun, release = threading.Event(), threading.Event()

    def working(kind, content):
        begun.set()
        release.wait(10)
        return content

    link = LocalLink({1: working})

    def kill():
        begun.wait(10)
        link.remove(1)
        link.add(1, echo)  # restarted: the same number, and nothing known of the question
        release.set()

    threading.Thread(target=kill, daemon=True).start()
    assert link.ask("sum", {1: b"before"}, 10) == {}
    assert link.ask("sum", {1: b"after"}, 10) == {1: b"sum after"}


def test_faults_lose_change_and_delay_answers():
    def fault(number, kind, answer):
        if number == 3:
            time.sleep(2)
        return {1: None, 2: answer + b"!"}.get(number, answer)

    link = LocalLink(dict.fromkeys((1, 2, 3, 4), echo), faults=(fault,))
    assert link.ask("sum", same(b"", 1, 2, 3, 4), 0.5) == {2: b"sum !", 4: b"sum "}


def test_an_answer_that_is_too_large_is_refused(caplog):
    link = LocalLink(
        {1: lambda kind, content: bytes(101), 2: lambda kind, content: bytes(100)}, most_bytes=100
    )
    assert link.ask("sum", same(b"", 1, 2), 5) == {2: bytes(100)}
    assert "1 too large" in caplog.text


def test_progress_is_shown_as_answers_come():
    shown = []
    LocalLink({1: echo, 2: echo}).ask(
        "sum", same(b"", 1, 2), 5, progress=lambda done, all: shown.append((done, all))
    )
    assert shown[-1] == (2, 2)
    assert shown == sorted(set(shown))


def test_which_devices_are_missing_is_for_debug_alone(caplog):
    with caplog.at_level(logging.DEBUG, "taciturn.fleet"):
        LocalLink({}).ask("sum", {987654: b""}, 5)
    lines = {record.levelno: record.getMessage() for record in caplog.records}
    assert "987654" in lines[logging.DEBUG]
    assert not any("987654" in line for level, line in lines.items() if level > logging.DEBUG)


@pytest.mark.parametrize("count", [0, 100])
def test_any_number_of_devices(count):
    link = LocalLink(dict.fromkeys(range(count), echo))
    assert len(link.ask("sum", same(b"", *range(count)), 30)) == count
