"""Counts for Prometheus and lines in JSON: how many and how much, and nobody's name."""

import json
import logging
import re
import urllib.error
import urllib.request

import pytest
from test_front_end import ALICE, Wire, bearer

from taciturn.cli.log_lines import logged_lines
from taciturn.fleets.devices.transport import LOG, LinkError
from taciturn.fleets.wire import metrics
from taciturn.fleets.wire.metrics import Counts, metrics_page
from taciturn.fleets.wire.server import WireLink

LINE = re.compile(r"# HELP [a-z_]+ .+|# TYPE [a-z_]+ (counter|gauge)|[a-z_]+ [0-9]+")


@pytest.fixture
def counts(monkeypatch):
    """Of a process that has just begun."""
    fresh = Counts()
    for module in ("metrics", "front_end", "server"):
        monkeypatch.setattr(f"taciturn.fleets.wire.{module}.COUNTS", fresh)
    return fresh


def values(text):
    return {
        name: int(value)
        for name, value in (line.split() for line in text.splitlines() if not line.startswith("#"))
    }


def test_what_a_front_end_does_is_counted_and_nobody_is_named(counts):
    wire = Wire()
    token = wire.sign_in()
    wire.ask("GET", "/v1/question", **bearer("guess"))
    wire.store.post("q", "kind", {1: b"a question"}, 30)
    wire.ask("GET", "/v1/question?wait=1", **bearer(token))
    wire.ask("PUT", "/v1/answer/q", [b"an answer"], **bearer(token))
    counted = values(counts.to_text())
    assert counted["taciturn_received_bytes_total"] == 9
    assert counted["taciturn_sent_bytes_total"] > 10 + len(token)
    assert counted["taciturn_refused_total"] == 1
    assert ALICE.public_key().public_bytes_raw().hex() not in counts.to_text()
    assert all(
        LINE.fullmatch(line) for line in counts.to_text().splitlines()
    )  # no labels, in which a device could be
    assert not LINE.fullmatch('taciturn_answers_total{device="7"} 1')  # the twin


def test_what_the_server_asks_is_counted(counts):
    wire = Wire()
    wire.sign_in()
    assert WireLink(wire.store).ask("kind", {1: b"", 2: b""}, 0.1) == {}
    assert values(counts.to_text()) | {
        "taciturn_questions_total": 2,
        "taciturn_answers_total": 0,
    } == values(counts.to_text())


def test_figures_are_at_one_address_of_this_machine(counts, monkeypatch):
    bound = []

    class Noted(metrics.ThreadingHTTPServer):
        def __init__(self, address, page):
            super().__init__(address, page)
            bound.append(self.server_address)

    monkeypatch.setattr(metrics, "ThreadingHTTPServer", Noted)
    counts.add("taciturn_answers_total", 3)
    with metrics_page("0"):
        ((host, port),) = bound
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            assert values(page.read().decode()) == {"taciturn_answers_total": 3}
            assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/devices")
        with pytest.raises(LinkError, match="name a free port"), metrics_page(str(port)):
            pass


def test_people_watch_counts_go_up(counts, browser, monkeypatch):
    bound = []
    monkeypatch.setattr(
        metrics.ThreadingHTTPServer,
        "server_activate",
        lambda page: bound.append(page.server_port) or page.socket.listen(),
    )
    counts.add("taciturn_answers_total", 1234)
    counts.show("taciturn_devices_connected", lambda: 17)
    with metrics_page("0"):
        page = browser.new_page(viewport={"width": 360, "height": 640})
        page.goto(f"http://127.0.0.1:{bound[0]}/")
        page.get_by_text("1,234").wait_for()
        assert page.locator("section").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        counts.add("taciturn_answers_total", 1)
        page.get_by_text("1,235").wait_for()
    page.get_by_text("no answer: the process that counts has ended").wait_for()
    page.close()


@pytest.mark.parametrize("wrong", ["", "port", "127.0.0.1:99999"])
def test_a_malformed_address_is_refused(wrong):
    with pytest.raises(LinkError, match="figures cannot be shown"), metrics_page(wrong):
        pass


def test_lines_in_json_name_no_device(capsys):
    with logged_lines(as_json=True):
        LOG.warning("“%s”: no answer from %d of %d devices", "report", 1, 3)
        LOG.setLevel(logging.DEBUG)
        LOG.debug("without an answer: %s", {7: "too late"})
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["level"], said["message"]) == (
        "warning",
        "“report”: no answer from 1 of 3 devices",
    )
    assert said["time"].endswith("+00:00")
    LOG.setLevel(logging.INFO)
