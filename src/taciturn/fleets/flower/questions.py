"""A run of Flower's, from its server program's side: questions to devices, and their answers.

The server program is this process. SuperLink wants one to be handed in as a bundle before there can be a run; ours is empty, and no
device asks for it. Everything goes through SuperLink's inner socket.
"""

import io
import threading
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, Status
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, Metadata, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.date import now
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from taciturn.fleets.devices.transport import FAILED, GONE, LARGE, LATE, LOG
from taciturn.fleets.flower import news
from taciturn.fleets.flower.envelope import Chunks, EnvelopeRefused, cut, seal, unseal

Client = TypeVar("Client", bound=ProtobufClient)

MESSAGE_TYPE = "query"  # one of those that Flower knows; what is asked is in the group
HEARTBEAT_SECONDS = 10.0  # SuperLink ends a run that was silent for a minute
EMPTY_BUNDLE = """
[project]
name = "taciturn"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "taciturn"

[tool.flwr.app.components]
serverapp = "none:app"
clientapp = "none:app"
"""


def over_socket(kind: type[Client], path: Path, token: str | None = None) -> Client:
    """One of Flower's clients that talks to a socket in the file system."""
    interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="taciturn")]
    if token is not None:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    client = kind("http://superlink", interceptors=interceptors)
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60)
    return client


class Run:
    """From its start to its end, at the latest that of SuperLink. Whatever an earlier one left behind is cleared away."""

    def __init__(self, path: Path, control: ControlHttpClient) -> None:
        self._control = control
        for run_id, run in control.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != Status.FINISHED:
                control.StopRun(StopRunRequest(run_id=run_id))
        self._run_id = control.StartRun(StartRunRequest(fab=_bundle())).run_id
        with over_socket(RuntimeHttpClient, path) as client:
            task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        self._client = over_socket(RuntimeHttpClient, path, task.token)
        self._task_id = self._client.PullTaskInput(PullTaskInputRequest()).task_id
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self._ended = threading.Event()
        threading.Thread(target=self._stay_alive, daemon=True).start()

    def devices(self) -> list[int]:
        return sorted(node.node_id for node in self._client.GetNodes(GetNodesRequest()).nodes)

    def send(self, kind: str, contents: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """The ids of the messages, by which answers are known, and whom they went to."""
        cuts: dict[bytes, Chunks] = {}  # most questions say the same to all
        envelopes = {
            number: seal(cuts[content] if content in cuts else cuts.setdefault(content, cut(content)))
            for number, content in contents.items()
        }
        messages = [_message(self._metadata(kind, number, envelope.tree.object_id, seconds)) for number, envelope in envelopes.items()]
        trees = [envelope.tree for envelope in envelopes.values()]
        answer = self._client.PushMessages(PushAppMessagesRequest(messages_list=messages, message_object_trees=trees))
        objects = {name: content for envelope in envelopes.values() for name, content in envelope.objects.items()}
        for name in answer.objects_to_push:
            request = PushObjectRequest(
                node=self._node, run_id=self._run_id, object_id=name, object_content=objects[name], session_id=answer.session_id
            )
            self._client.PushObject(request)
        self._client._client.post(f"http://superlink{news.PATH}", content=news.pack(contents)).raise_for_status()
        return {name: number for name, number in zip(answer.message_ids, contents, strict=True) if name}

    def replies(self, message_ids: set[str]) -> list[tuple[str, "Arrival | str"]]:
        """Those that have come since: to which message, and the answer or why there is none. Each is told once."""
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=sorted(message_ids)))
        return [
            (message.metadata.reply_to_message_id, _reason(message) or Arrival(tree))
            for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True)
        ]

    def fetch(self, arrival: "Arrival", most_bytes: int) -> bytes | str | None:
        """The answer, why there is none, or None: it is still on its way."""
        try:
            content = unseal(arrival.tree, lambda name: self._object(arrival, name), most_bytes)
        except EnvelopeRefused as error:
            LOG.warning("an answer was refused: %s", error)
            content = LARGE
        if content is not None:
            self.forget(arrival.tree.object_id)
        return content

    def forget(self, message_id: str) -> None:
        """Free what it takes in SuperLink's memory. A device that has not fetched it yet will never see it."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run_id, message_object_id=message_id)
        self._client.ConfirmMessageReceived(request)

    def close(self) -> None:
        self._ended.set()
        with suppress(httpx.HTTPError):
            self._control.StopRun(StopRunRequest(run_id=self._run_id))
        self._client.close()

    def _object(self, arrival: "Arrival", name: str) -> bytes | None:
        if name not in arrival.objects:
            request = PullObjectRequest(node=self._node, run_id=self._run_id, object_id=name)
            answer = self._client.PullObject(request)
            if not answer.object_found:
                raise EnvelopeRefused("a part of it is missing")
            if not answer.object_available:
                return None
            arrival.objects[name] = answer.object_content
        return arrival.objects[name]

    def _metadata(self, kind: str, number: int, message_id: str, seconds: float) -> Metadata:
        return Metadata(
            run_id=self._run_id,
            message_id=message_id,
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=number,
            group_id=kind,
            created_at=now().timestamp(),
            ttl=seconds,  # after which SuperLink takes no answer any more
            message_type=MESSAGE_TYPE,
            src_task_id=self._task_id,
        )

    def _stay_alive(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with suppress(httpx.HTTPError, RuntimeError):  # whoever asks next sees that the run is over
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


class Arrival:
    """An answer that has been announced, and as much of it as has arrived."""

    def __init__(self, tree: ObjectTree) -> None:
        self.tree = tree
        self.objects: dict[str, bytes] = {}


def _message(metadata: Metadata) -> Message:
    return Message(metadata=metadata, content=RecordDict())


def _reason(message: Message) -> str | None:
    """Why this is no answer, if it is none. A device may say why in its own words, of which none are believed but ours."""
    if not message.HasField("error"):
        return None
    if message.error.code == ErrorCode.NODE_UNAVAILABLE:
        return GONE
    if message.error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return LATE
    return LARGE if message.error.reason == LARGE else FAILED


def _bundle() -> Fab:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pyproject.toml", EMPTY_BUNDLE)
    return Fab(content=content.getvalue())


def in_words(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
