"""The only door from outside, asked directly: what it passes, what it refuses, and that it reads no more than it must."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from taciturn.fleets.flower import news as news_module
from taciturn.fleets.flower.gate import MOST_BODY, Gate
from taciturn.fleets.flower.news import Inside, News, pack

ALICE, BOB, STRANGER = (generate_key_pairs() for _ in range(3))
NUMBERS = {public_key_to_bytes(ALICE[1]): 1, public_key_to_bytes(BOB[1]): 2}
HEARTBEAT = "/v1/fleet/send-node-heartbeat"


def signed(keys, at=None, by=None):
    """The headers of a device with these keys, as Flower's own client writes them."""
    timestamp = (at or datetime.now(UTC)).isoformat()
    signature = sign_message((by or keys)[0], timestamp.encode())
    return {
        "flwr-public-key": base64.b64encode(public_key_to_bytes(keys[1])).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }


class Asked:
    """One request to a gate before an application that remembers what got through."""

    def __init__(self, path, headers, parts=(b"",), method="POST", news=None, most_bytes=10_000):
        self.passed, self.read, self.sent = None, 0, []
        self._parts = list(parts)
        self.hung_up = asyncio.Event()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.gate = Gate(self._app, NUMBERS.get, news or News(), most_bytes)
        self.call = lambda: self.gate(scope, self._receive, self._send)

    async def _receive(self):
        if not self._parts:
            await self.hung_up.wait()
            return {"type": "http.disconnect"}
        self.read += 1
        return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}

    async def _send(self, message):
        self.sent.append(message)

    async def _app(self, scope, receive, send):
        self.passed = (await receive())["body"]

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None


def ask(*arguments, **options):
    asked = Asked(*arguments, **options)
    asyncio.run(asked.call())
    return asked


def test_an_enrolled_device_passes_with_all_it_sent():
    asked = ask(HEARTBEAT, signed(ALICE), [b"one ", b"two"])
    assert asked.passed == b"one two"
    assert asked.sent == []


def test_flower_names_its_headers_as_these_tests_do():
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    assert {FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER} == set(signed(ALICE))


EVERY_PATH = sorted({path for _, path in PROTOBUF_REQUEST_TYPES} | {"/health", "/docs", "/openapi.json", "/", ""})


@pytest.mark.parametrize("path", [path for path in EVERY_PATH if path not in MOST_BODY])
def test_of_all_that_flower_serves_devices_reach_what_they_need_and_nothing_else(path, caplog):
    asked = ask(path, signed(ALICE))
    assert asked.passed is None
    assert asked.status == 403
    assert asked.read == 0
    assert "refused: a request for something else" in caplog.text


def test_the_paths_that_pass_are_flowers():
    assert set(MOST_BODY) <= {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert all(path.startswith("/v1/fleet/") for path in MOST_BODY)


@pytest.mark.parametrize("path", [f"{HEARTBEAT}/", f"{HEARTBEAT}/../register-node", f"/{HEARTBEAT}", HEARTBEAT.upper()])
def test_almost_the_same_path_is_another(path):
    assert ask(path, signed(ALICE)).status == 403


def test_another_method_is_refused():
    assert ask(HEARTBEAT, signed(ALICE), method="GET").status == 403


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (dict, "a device without a key"),
        (lambda: {**signed(ALICE), "flwr-signature": "!"}, "a device without a key"),
        (lambda: {**signed(ALICE), "flwr-timestamp": "yesterday"}, "a device without a key"),
        (lambda: {**signed(ALICE), "flwr-timestamp": "2026-01-01T00:00:00"}, "a device without a key"),
        (lambda: signed(STRANGER), "a device that is not enrolled"),
        (lambda: signed(ALICE, by=STRANGER), "a device that has not the key it names"),
        (lambda: signed(ALICE, at=datetime.now(UTC) - timedelta(hours=1)), "a device whose clock is wrong"),
        (lambda: signed(ALICE, at=datetime.now(UTC) + timedelta(hours=1)), "a device whose clock is wrong"),
    ],
)
def test_strangers_are_refused_before_anything_is_read(headers, reason, caplog):
    asked = ask(HEARTBEAT, headers(), [bytes(1000)] * 10)
    assert asked.status == 403
    assert asked.read == 0
    assert f"refused: {reason}" in caplog.text


def test_a_large_body_is_cut_off(caplog):
    limit = MOST_BODY["/v1/fleet/push-object"]
    parts = [bytes(2**20)] * 100
    asked = ask("/v1/fleet/push-object", signed(ALICE), parts)
    assert asked.status == 413
    assert asked.read * 2**20 <= limit + 2 * 2**20
    asked = ask("/v1/fleet/push-object", {**signed(ALICE), "content-length": str(limit + 1)}, parts)
    assert asked.status == 413
    assert asked.read == 0
    assert "more bytes than an answer may have" in caplog.text


def answer(node=1, source=1, objects=1, messages=1):
    tree = ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id="1" * 64)] * (objects - 1))
    return PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[Message(metadata=Metadata(src_node_id=source))] * messages,
        message_object_trees=[tree] * messages,
    ).SerializeToString()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(source=2), "in the name of another"),
        (answer(node=2, source=2), "in the name of another"),
        (answer(objects=3), "more bytes"),
        (answer(messages=2), "garbage"),
        (answer(messages=0), "garbage"),
        (b"\xff\xff", "garbage"),
    ],
)
def test_a_wrong_answer_is_refused(body, reason, caplog):
    assert ask("/v1/fleet/push-messages", signed(ALICE), [body]).status == 403
    assert reason in caplog.text


def test_a_right_answer_passes():
    assert ask("/v1/fleet/push-messages", signed(ALICE), [answer(objects=2)]).passed == answer(objects=2)
    assert ask("/v1/fleet/push-messages", signed(BOB), [answer(2, 2)]).passed == answer(2, 2)


def look(number):
    return PullMessagesRequest(node=Node(node_id=number)).SerializeToString()


def test_a_device_waits_at_the_gate_for_its_question():
    async def scene():
        news = News()
        asked = Asked("/v1/fleet/pull-messages", signed(ALICE), [look(1)], news=news)
        request = asyncio.create_task(asked.call())
        news.announce([2])
        await asyncio.sleep(0.1)
        assert asked.passed is None
        news.announce([1])
        await asyncio.wait_for(request, 5)
        assert asked.passed == look(1)

    asyncio.run(scene())


def test_a_question_that_was_there_before_is_given_at_once():
    news = News()
    news.announce([1])
    assert ask("/v1/fleet/pull-messages", signed(ALICE), [look(1)], news=news).passed == look(1)


def test_patience_has_an_end(monkeypatch):
    monkeypatch.setattr(news_module, "PATIENCE", 0.1)
    assert ask("/v1/fleet/pull-messages", signed(ALICE), [look(1)]).passed == look(1)


def test_a_device_that_hangs_up_takes_no_question_with_it():
    async def scene():
        news = News()
        asked = Asked("/v1/fleet/pull-messages", signed(ALICE), [look(1)], news=news)
        request = asyncio.create_task(asked.call())
        await asyncio.sleep(0.1)
        asked.hung_up.set()
        await asyncio.wait_for(request, 5)
        news.announce([1])
        assert asked.passed is None

    asyncio.run(scene())


def test_nobody_waits_for_the_questions_of_another(caplog):
    assert ask("/v1/fleet/pull-messages", signed(ALICE), [look(2)]).status == 403
    assert "in the name of another device" in caplog.text


def test_the_server_says_whom_it_asked():
    async def scene():
        news, sent = News(), []

        async def receive():
            return {"type": "http.request", "body": pack([1, 2**63]), "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": news_module.PATH, "headers": []}
        await Inside(None, news)(scope, receive, send)
        assert sent[0]["status"] == 204
        assert await news.wait(2**63, asyncio.Event().wait)

    asyncio.run(scene())


def test_a_thousand_knocks_are_not_a_thousand_lines(caplog):
    asked = Asked(HEARTBEAT, {})

    async def knock():
        for _ in range(1000):
            await asked.call()

    asyncio.run(knock())
    assert len(caplog.messages) == 1
