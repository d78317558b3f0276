"""A device's end of the wire: it asks the server for questions, hands them to a handler, and sends the answers. It never listens.

Departs from Flower, whose SuperNode is a process of its own, asks every three seconds, hands each message to another process through a
port that anybody on the device may use, and starts that process anew each time. Here everything is in the process of the handler, so that
JAX stays compiled from round to round; the same requests are sent, signed with the same key. While a handler works, a thread of its own
tells the server that the device is alive.
"""

import random
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, ErrorCode
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from taciturn.files import write_atomically
from taciturn.fleets.devices.transport import FAILED, LARGE, LOG, LOOPBACK, MOST_BYTES, ComeBackLater, Handler, LinkError, answer_of
from taciturn.fleets.flower.authority import load_device_key
from taciturn.fleets.flower.envelope import EnvelopeRefused, cut, seal, unseal

NUMBER = "number"  # the file where a device keeps the number the server gave it
LEAST_SECONDS = 0.5  # between two looks: whether to stop, and for a question, should the gate not wait for one
UPLOAD_SECONDS = 0.2  # between two looks for a part of a question that the server has not stored yet
# the server takes a device for gone after two of Flower's shortest intervals without a sign
ALIVE_SECONDS = HEARTBEAT_MIN_INTERVAL * 0.7
LINGER_SECONDS = 3.0  # before a device leaves: Flower gives nobody the answer of one that has left
RETRY_SECONDS = 1.0, 30.0  # first and longest wait for a server that is not there

Result = TypeVar("Result")


def run_device(
    server: str, folder: Path, handler: Handler, root_certificate: Path | None, insecure: bool = False, stop: threading.Event | None = None
) -> None:
    """Answer the questions of the server at `host:port` until `stop` is set or SIGTERM comes, through whatever happens to it meanwhile.

    The folder holds the device's key (`authority.device_key`). `stop` waits for the end of the question at work; SIGTERM does not."""
    device = _Device(server, folder, root_certificate, insecure)
    stop = stop or threading.Event()
    with _ends_on_sigterm(), device:
        wait, told = RETRY_SECONDS[0], ""
        while not stop.is_set():
            try:
                device.join()
                wait, told = RETRY_SECONDS[0], ""
                device.serve(handler, stop)
            except ComeBackLater as later:
                LOG.info("not needed for now: %s", later)
                stop.wait(LINGER_SECONDS)
                device.leave()
                stop.wait(later.seconds - LINGER_SECONDS)
            except (httpx.HTTPError, ssl.SSLError) as error:
                reason = _reason(error)
                if reason != told:
                    LOG.warning("%s; trying again", reason)
                told = reason
                stop.wait(wait * random.uniform(0.5, 1))  # or all would come back in the same moment
                wait = min(2 * wait, RETRY_SECONDS[1])


class _Device:
    def __init__(self, server: str, folder: Path, root_certificate: Path | None, insecure: bool) -> None:
        self._key, self._folder = load_device_key(folder), folder
        self._client = FleetHttpClient.from_server_address(
            server,
            insecure,
            _root(server, root_certificate, insecure),
            interceptors=[NodeAuthHttpInterceptor(self._key, self._key.public_key())],
        )
        self._node = Node()
        self._joined = False

    def __enter__(self) -> "_Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._client.close()

    def leave(self) -> None:
        if self._joined:
            with suppress(httpx.HTTPError):  # or else the server notices by itself
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._joined = False

    def join(self) -> None:
        """Tell the server that this device is here, by the number it had before, or as new."""
        if not self._is_known():
            request = ActivateNodeRequest(public_key=public_key_to_bytes(self._key.public_key()), heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
            write_atomically(self._folder / NUMBER, str(self._node.node_id).encode(), mode=0o600)
        self._joined = True
        LOG.info("connected to the server")

    def serve(self, handler: Handler, stop: threading.Event) -> None:
        with self._sign_of_life() as lost:
            while not stop.is_set() and not lost.is_set():
                began = time.monotonic()
                pulled = _unless((stop, lost), lambda: self._client.PullMessages(PullMessagesRequest(node=self._node)))
                if pulled is None:
                    return
                for message, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
                    self._answer(handler, message.metadata, tree)
                if not pulled.messages_list and time.monotonic() - began < LEAST_SECONDS:
                    stop.wait(LEAST_SECONDS)

    def _answer(self, handler: Handler, question: Metadata, tree: ObjectTree) -> None:
        deadline = time.monotonic() + question.ttl
        try:
            content = self._fetch(question, tree, deadline)
        except (EnvelopeRefused, httpx.HTTPStatusError) as error:
            LOG.info("a question was withdrawn: %s", error)
            return
        away: ComeBackLater | None = None
        try:
            answer = answer_of(handler, question.group_id, content)
        except ComeBackLater as later:
            answer, away = b"", later
        if answer is not None and len(answer) > MOST_BYTES:
            LOG.warning("no answer to “%s”: it would have %d bytes, and %d are allowed", question.group_id, len(answer), MOST_BYTES)
            answer, reason = None, LARGE
        else:
            reason = FAILED
        del content
        try:
            self._send(question, answer, reason, deadline)
        except httpx.HTTPStatusError as error:  # the round may be over, or this device dismissed; the next look will tell
            LOG.warning("the answer to “%s” was not taken: %s", question.group_id, error.response.text[:200])
        if away:
            raise away

    def _fetch(self, question: Metadata, tree: ObjectTree, deadline: float) -> bytes:
        objects: dict[str, bytes] = {}

        def fetch(name: str) -> bytes | None:
            if name not in objects:
                request = PullObjectRequest(node=self._node, run_id=question.run_id, object_id=name)
                answer = _persistently(lambda: self._client.PullObject(request), deadline)
                if not answer.object_found:
                    raise EnvelopeRefused("the server has taken it back")
                if not answer.object_available:
                    return None
                objects[name] = answer.object_content
            return objects[name]

        while (content := unseal(tree, fetch, MOST_BYTES)) is None:
            if time.monotonic() > deadline:
                raise EnvelopeRefused("it did not arrive in time")
            time.sleep(UPLOAD_SECONDS)
        return content

    def _send(self, question: Metadata, answer: bytes | None, reason: str, deadline: float) -> None:
        """Nothing about a failure but that it was one: an exception's words may be the user's."""
        envelope = seal(cut(answer or b""))
        reply = Message(metadata=_reply_to(question, envelope.tree.object_id))
        if answer is None:
            reply.error.CopyFrom(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason))
        else:
            reply.content.CopyFrom(RecordDict())
        request = PushMessagesRequest(node=self._node, messages_list=[reply], message_object_trees=[envelope.tree])
        pushed = _persistently(lambda: self._client.PushMessages(request), deadline)
        if not pushed.objects_to_push:
            LOG.info("the answer to “%s” came too late", question.group_id)
        for name in pushed.objects_to_push:
            part = PushObjectRequest(
                node=self._node, run_id=question.run_id, object_id=name, object_content=envelope.objects[name], session_id=pushed.session_id
            )
            _persistently(lambda part=part: self._client.PushObject(part), deadline)

    def _is_known(self) -> bool:
        """Whether the server still knows the number in the file as this key's; saying so is a sign of life."""
        with suppress(FileNotFoundError, ValueError):
            self._node = Node(node_id=int((self._folder / NUMBER).read_bytes()))
            try:
                return self._beat()
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.UNAUTHORIZED:
                    raise
        return False

    def _beat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        return self._client.SendNodeHeartbeat(request).success

    @contextmanager
    def _sign_of_life(self) -> Iterator[threading.Event]:
        """Until the end of the block. The event says that the server does not know this device any more."""
        ended, lost = threading.Event(), threading.Event()

        def beat() -> None:
            while not ended.wait(ALIVE_SECONDS):
                try:
                    if not self._beat():
                        lost.set()
                except httpx.HTTPStatusError:
                    lost.set()
                except (httpx.HTTPError, RuntimeError):
                    pass  # no connection; whoever asks for questions notices

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            ended.set()


def _root(server: str, root_certificate: Path | None, insecure: bool) -> bytes | None:
    """The authority this device trusts, and no other: not those that its system trusts either."""
    if insecure:
        if server.rpartition(":")[0].strip("[]") not in LOOPBACK:
            raise LinkError(f"without TLS a device talks to this machine alone, and {server} may be another")
        return None
    if root_certificate is None:
        raise LinkError("a device needs the certificate of its server's authority")
    try:
        return root_certificate.read_bytes()
    except OSError as error:
        raise LinkError(f"the authority's certificate cannot be read: {error}") from None


def _reply_to(question: Metadata, message_id: str) -> Metadata:
    """With the question's own time and patience, so that it does not matter what this device's clock says."""
    return Metadata(
        run_id=question.run_id,
        message_id=message_id,
        src_node_id=question.dst_node_id,
        dst_node_id=question.src_node_id,
        reply_to_message_id=question.message_id,
        group_id=question.group_id,
        created_at=question.created_at,
        ttl=question.ttl,
        message_type=question.message_type,
        dst_task_id=question.src_task_id,
    )


def _unless(ends: Sequence[threading.Event], call: Callable[[], Result]) -> Result | None:
    """The result of a call that may take long, for the gate waits until there is a question; None as soon as nobody wants it any more."""
    future: Future[Result] = Future()
    ended = threading.Event()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    while not ended.wait(LEAST_SECONDS):
        if any(end.is_set() for end in ends):
            return None
    return future.result()


def _persistently(call: Callable[[], Result], deadline: float) -> Result:
    """A moment without a network loses no answer."""
    while True:
        try:
            return call()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS[0])


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """In the middle of whatever it does, but in order. Only the main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server refused this device ({error.response.status_code}): {error.response.text[:200]}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the server's certificate is not of the authority this device trusts ({error})"
    return f"no connection to the server ({type(error).__name__}: {error})"
