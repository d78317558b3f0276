"""Who does not get in, with the reason in the logs of both sides."""

import os
import socket
import ssl

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from wire import until

from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.flower.authority import device_key, load_device_key, make_authority
from taciturn.fleets.flower.device import _reply_to
from taciturn.fleets.flower.envelope import cut, seal
from taciturn.fleets.flower.questions import Run, over_socket


def test_an_unenrolled_device(fleet, caplog):
    with fleet.server(devices=1) as (server, _):
        stranger = fleet.device("stranger", server.address)
        until(lambda: "refused this device (403): Refused: a device that is not enrolled" in stranger.log(), "refusal")
        assert "refused: a device that is not enrolled" in caplog.text
        assert len(server.link.devices()) == 1
        assert stranger.process.poll() is None  # it goes on trying: perhaps it will be enrolled
        server.enrol(stranger.public_key)
        until(lambda: len(server.link.devices()) == 2, "that it connects")


def test_a_dismissed_device(fleet):
    with fleet.server(devices=2) as (server, devices):
        gone = next(number for number, key in server.enrolled().items() if key == devices[0].public_key)
        server.dismiss(gone)
        until(lambda: gone not in server.link.devices(), "that it is gone")
        assert gone not in server.enrolled()
        with pytest.raises(LinkError, match="dismissed"):
            server.enrol(devices[0].public_key)
        until(lambda: "not enrolled" in devices[0].log(), "that it is refused")
        assert len(server.link.ask("reverse", dict.fromkeys(server.link.devices(), b"abc"), 30)) == 1


def test_a_device_that_trusts_another_authority(fleet, caplog):
    other = make_authority(fleet.folder / "other")
    with fleet.server() as (server, _):
        device = fleet.device("device", server.address, certificate=other)
        server.enrol(device.public_key)
        until(lambda: "not of the authority this device trusts" in device.log(), "that it refuses the server")
        until(lambda: "refused: a device that does not trust this server's certificate" in caplog.text, "a line")
        assert server.link.devices() == []


def test_a_device_without_tls(fleet, caplog):
    with fleet.server() as (server, _):
        device = fleet.device("device", server.address, insecure=True)
        server.enrol(device.public_key)
        until(lambda: "no connection to the server" in device.log(), "that it gets no connection")
        until(lambda: "refused: a connection without TLS" in caplog.text, "a line")
        assert server.link.devices() == []


def test_old_tls(fleet, caplog):
    with fleet.server() as (server, _):
        context = ssl.create_default_context(cafile=str(fleet.certificate))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain, pytest.raises(ssl.SSLError, match=r"EOF|PROTOCOL|protocol"):
            context.wrap_socket(plain, server_hostname="localhost")
        until(lambda: "that is no TLS 1.3" in caplog.text, "a line")


@pytest.mark.parametrize("with_key", [False, True])
def test_control_and_runtime_from_outside(fleet, caplog, with_key):
    with fleet.server() as (server, _):
        device_key(fleet.folder / "insider")
        server.enrol(device_key(fleet.folder / "insider"))
        key = load_device_key(fleet.folder / "insider")
        root = fleet.certificate.read_bytes()
        interceptors = [NodeAuthHttpInterceptor(key, key.public_key())] if with_key else []
        control = ControlHttpClient.from_server_address(server.address, False, root, interceptors)
        new = b"a key"
        for call in (
            lambda: control.ListNodes(ListNodesRequest()),
            lambda: control.RegisterNode(RegisterNodeRequest(public_key=new)),
            lambda: control.StartRun(StartRunRequest()),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
                call()
        context = ssl.create_default_context(cafile=str(fleet.certificate))
        with httpx.Client(verify=context) as client:
            for path in ("/", "/docs", "/health", "/v1/runtime/acquire-task", "/taciturn/news", "/v1/fleet/register-node"):
                assert client.post(f"https://{server.address}{path}").status_code == 403
                assert client.get(f"https://{server.address}{path}").status_code == 403
        assert "refused: a request for something else than a device needs" in caplog.text
        assert len(server.enrolled()) == 1


def test_no_socket_of_superlink_is_open_to_other_people_of_this_machine(fleet):
    with fleet.server() as (server, _):
        inside = server._superlink.inside
        assert inside.parent.stat().st_mode & 0o777 == 0o700
        listening = []
        with open("/proc/net/tcp") as table:
            inodes = {line.split()[9]: int(line.split()[1].split(":")[1], 16) for line in table if " 0A " in line}
        folder = f"/proc/{server._superlink._process.pid}/fd"
        for name in os.listdir(folder):
            inode = os.readlink(f"{folder}/{name}").removeprefix("socket:[").removesuffix("]")
            if inode in inodes:
                listening.append(inodes[inode])
        assert set(listening) == {int(server.address.rpartition(":")[2])}


def test_an_answer_in_the_name_of_another_device(fleet, caplog):
    """Flower takes it, as the twin shows: its door for devices checks who asks, and then believes who is said to have answered."""
    with fleet.server() as (server, _):
        for name in ("alice", "mallory"):
            server.enrol(device_key(fleet.folder / name))
        numbers = {key: number for number, key in server.enrolled().items()}
        alice, mallory = (numbers[device_key(fleet.folder / name)] for name in ("alice", "mallory"))
        client(fleet, server, "alice").ActivateNode(  # to a device that was never there nothing can be sent
            ActivateNodeRequest(public_key=pem(fleet, "alice"), heartbeat_interval=30)
        )
        assert server.link.devices() == [alice]
        run: Run = server.link._run
        (question,) = run.send("reverse", {alice: b"abc"}, 60)
        outside = client(fleet, server, "mallory")
        request = forged_answer(run, question, alice, mallory)
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden") as refusal:
            outside.PushMessages(request)
        assert "an answer in the name of another device" in refusal.value.response.text
        assert "refused: an answer in the name of another device" in caplog.text
        assert run.replies({question}) == []

        without_a_gate = over_socket(FleetHttpClient, server._superlink.inside)
        without_a_gate._interceptors = outside._interceptors
        assert without_a_gate.PushMessages(request).objects_to_push
        ((message_id, _),) = run.replies({question})
        assert message_id == question


def client(fleet, server, name):
    """Flower's own, with a device's key, for what no device of ours would do."""
    key, root = load_device_key(fleet.folder / name), fleet.certificate.read_bytes()
    interceptors = [NodeAuthHttpInterceptor(key, key.public_key())]
    return FleetHttpClient.from_server_address(server.address, False, root, interceptors)


def pem(fleet, name):
    return public_key_to_bytes(load_device_key(fleet.folder / name).public_key())


def forged_answer(run, question, alice, mallory):
    asked = run._metadata("reverse", alice, question, 50)
    envelope = seal(cut(b"what alice never said"))
    reply = Message(metadata=_reply_to(asked, envelope.tree.object_id), content=RecordDict())
    return PushMessagesRequest(node=Node(node_id=mallory), messages_list=[reply], message_object_trees=[envelope.tree])


def test_a_public_key_comes_back_as_it_was_given(fleet):
    with fleet.server() as (server, _):
        line = device_key(fleet.folder / "device")
        server.enrol(line)
        server.enrol(line)
        assert list(server.enrolled().values()) == [line]
