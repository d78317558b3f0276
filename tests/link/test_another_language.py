"""A device that has nothing of Taciturn's (device.mjs, by docs/protocol.md) in rounds with others
that have.
"""

import json
import re
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import CommandFleet
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from wire import HERE, Fleet, until

from enrolling import (
    AUTHORITY,
    NONE_DISMISSED,
    SIGNING_AUTHORITY,
    certificate,
    device_key,
    known,
    load_device_key,
)
from taciturn.core import FailedRound, Message, Public, Report
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import Device
from taciturn.fleets.devices.fleet import ConnectedDevices, DeviceFleet
from taciturn.fleets.devices.own_participation import OwnParticipation, ParticipationLimits
from taciturn.fleets.enrolment import DAY
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import EnrolledDevices, SigningAuthority
from taciturn.fleets.secure_aggregation.messages import (
    Roster,
    SealedShares,
    Survivors,
    Terms,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.fleets.wire.device import run_device
from taciturn.fleets.wire.server import wire_server
from taciturn.fleets.wire.tls import requested_key

NODE, SCRIPT, PAGE = (
    shutil.which("node"),
    HERE / "device.mjs",
    HERE.parents[1] / "docs" / "protocol.md",
)
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node.js")
RECIPE, WORDS = "0123456789abcdef", ("<pad>", "<unk>", "<bos>", "<eos>", "señor")
LENGTH, CLIP_NORM = 50, np.float32(0.1)
LIKE = Message(
    {"matrix": jnp.zeros((3, 4)), "row": jnp.zeros(5)}, Public(jnp.float32(0), jnp.int32(0))
)
MODEL = Message(
    {"matrix": np.arange(12, dtype=np.float32).reshape(3, 4), "row": np.ones(5, np.float32)},
    Public(CLIP_NORM, np.int32(0)),
)
LIMITS = ParticipationLimits(1e-9, 0, 1000)


def model_of(row):
    """Another in each round: a device reports on each once."""
    moved = np.float32(row % 4096)
    return MODEL._replace(params=jax.tree.map(lambda leaf: leaf + moved, MODEL.params))


def terms(bits=20):
    fingerprint = assemble._fingerprint(RECIPE, WORDS, AUTHORITY)
    return Terms(
        fingerprint=fingerprint,
        modulus_bits=bits,
        length=LENGTH,
        dropouts=0.3,
        corrupt=0.05,
        least=3,
        most=6,
    )


def agreement(bits):
    leaves = [[str(leaf.dtype), leaf.shape] for leaf in jax.tree.leaves(LIKE.params)]
    of_terms = {
        "bits": bits,
        "length": LENGTH,
        "dropouts": 0.3,
        "corrupt": 0.05,
        "least": 3,
        "most": 6,
    }
    return {
        "recipe": RECIPE,
        **of_terms,
        **LIMITS._asdict(),
        "leaves": leaves,
        "clip_norm": CLIP_NORM.tobytes().hex(),
    }


class NodeDevice:
    """In a process of its own. `number` is that of its certificate."""

    def __init__(self, folder):
        self.folder, self._log, self.process = folder, folder.with_suffix(".log"), None
        line = subprocess.run(
            [NODE, SCRIPT, folder, "--new"], capture_output=True, text=True, check=True
        ).stdout
        self.key = requested_key(line)  # which checks it

    def given(self, fleet, bits=20):
        there = self.folder / "fleet"
        there.mkdir()
        shutil.copy(fleet.certificate, there / "authority.crt")
        (there / "enrolment.pub").write_text(b"".join(AUTHORITY).hex() + "\n")
        (there / "vocabulary.txt").write_text("".join(f"{word}\n" for word in WORDS))
        (there / "agreement.json").write_text(json.dumps(agreement(bits)))

    def start(self, address, values=None, spoil=None):
        options = [] if spoil is None else ["--spoil", spoil]
        if values is not None:
            (self.folder / "values").write_bytes(values.astype("<u4").tobytes())
            options += ["--values", str(self.folder / "values")]
        with open(self._log, "ab") as log:
            arguments = [NODE, str(SCRIPT), str(self.folder), "--server", address, *options]
            self.process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)

    def log(self):
        return self._log.read_text()

    def record(self):
        return json.loads((self.folder / "record.json").read_text())


def given_to(values):
    """A local training that comes to these values."""
    return lambda message, user, key: Report(jnp.asarray(values), jnp.int32(0))


class MixedFleet:
    """Four devices of Taciturn's in threads, two others; all over TLS. `values` are the reports, in
    the order of their numbers.
    """

    def __init__(self, fleet, bits, spoil):
        self.fleet, self.bits, self.spoil = fleet, bits, spoil
        self.values = (
            np.random.default_rng(bits).integers(0, 2**bits, (6, LENGTH)).astype(np.uint32)
        )
        self.nodes = [NodeDevice(fleet.folder / f"node-{number}") for number in range(2)]
        self.folders = [fleet.folder / f"device-{number}" for number in range(4)]
        keys = [*map(device_key, self.folders), *(one.key for one in self.nodes)]
        now = int(time.time())
        self.certificates = [
            SIGNING_AUTHORITY.certify(number, key, now - DAY, now + DAY, 0)
            for number, key in enumerate(keys)
        ]

    @contextmanager
    def started(self):
        numbers, stop = {one.key: one.device for one in self.certificates}, threading.Event()
        with (
            wire_server(self.fleet.folder / "server", "127.0.0.1", 0, known(numbers)) as server,
            ExitStack() as ending,
        ):
            ending.callback(stop.set)
            for folder, values in zip(self.folders, self.values, strict=False):
                record = OwnParticipation(folder, LIMITS)
                device = Device(
                    key=load_device_key(folder),
                    authority=AUTHORITY,
                    terms=terms(self.bits),
                    program=given_to(values),
                    message=LIKE,
                    public_part=lambda row: Public(CLIP_NORM, np.int32(row)),
                    user=None,
                    record=record,
                )
                threading.Thread(
                    target=run_device,
                    args=(server.address, folder, device, self.fleet.certificate, False, stop),
                ).start()
            for number, (node, values) in enumerate(zip(self.nodes, self.values[4:], strict=True)):
                ending.callback(node.end)
                node.given(self.fleet, self.bits)
                node.start(server.address, values, self.spoil if number else None)
            until(lambda: len(server.link.devices()) == 6, "that all devices connect")
            connected = ConnectedDevices(
                link=server.link,
                enrolled=lambda: EnrolledDevices(self.certificates, NONE_DISMISSED),
                authority=AUTHORITY,
            )
            private = self.fleet.folder / "private"
            yield (
                DeviceFleet(
                    connected=connected,
                    terms=terms(self.bits),
                    asked=5,
                    deadline=20.0,
                    patience=10.0,
                    folder=private,
                    run_name=lambda: "run 1",
                ),
                server.link,
            )

    def plain(self, devices):
        return self.values[list(devices)].astype(np.uint64).sum(axis=0) % 2**self.bits


def summed(rounds, row=0):
    message = model_of(row)._replace(public=Public(CLIP_NORM, np.int32(row)))
    return np.asarray(
        rounds.sum_reports(None, message, np.arange(6), jax.random.key(3)).update
    ).view(np.uint32)


@pytest.mark.parametrize("bits", [20, 16, 9, 32])
def test_a_sum_with_devices_in_another_language_is_right_to_the_bit(fleet, bits):
    mixed = MixedFleet(fleet, bits, None)
    with mixed.started() as (rounds, link):
        assert rounds.users(lambda devices: devices).tolist() == [0, 1, 2, 3, 4, 5]
        assert np.array_equal(summed(rounds), mixed.plain(range(6)))
        link.ask(fields.COME_BACK, {4: fields.SECONDS.pack(1.0)}, 10)
        until(lambda: 4 not in link.devices(), "that it goes away")
        until(lambda: 4 in link.devices(), "that it comes back")
    (upload,) = mixed.nodes[0].record()["uploads"]
    assert upload["round"] == str(OwnParticipation(mixed.folders[0], LIMITS).uploads[0]["round"])


@pytest.mark.parametrize(
    ("spoil", "in_the_sum", "why"),
    [
        ("advert", range(5), "advertise: device 5: these keys are not signed by device 5"),
        (
            "cell",
            range(5),
            "report: device 5: this belongs to another round",
        ),  # so that its mask key is put together
        ("survivors", range(6), "sign: device 5: it has not signed who reported"),
        ("seed", None, "unmask: device 5: "),
    ],
)
def test_with_one_byte_changed_it_is_found_out(fleet, spoil, in_the_sum, why):
    """The twin: of what it signs, masks under, or commits to."""
    mixed = MixedFleet(fleet, 20, spoil)
    with mixed.started() as (rounds, _):
        if in_the_sum is None:
            with pytest.raises(FailedRound, match="in cells that continue"):
                summed(rounds)
        else:
            assert np.array_equal(summed(rounds), mixed.plain(in_the_sum))
    assert (fleet.folder / "private" / "refused.log").read_text().startswith(why)
    assert json.loads((fleet.folder / "private" / "left-out.json").read_text()) == [5]


# What it refuses


class Asked:
    """A server that lies, three honest devices in this process, and the one in another language. It
    asks until a stage, and tells that device something else in it.
    """

    def __init__(self, link, node):
        self.link, self.node, self.row = link, node, fields.first_round()
        self.keys = {number: Ed25519PrivateKey.generate() for number in range(1, 4)}
        now = int(time.time())
        self.own = SIGNING_AUTHORITY.certify(0, node.key, now - DAY, now + DAY, 0)
        self.name = b""

    def ask(self, kind, content):
        return self.link.ask(kind, {0: content}, 20).get(0)

    def advertise(
        self,
        lie=lambda name, run, number, about, own, listed: (name, run, number, about, own, listed),
    ):
        """Its advert, or None."""
        self.row += 1
        self.name, run, number, self.key = (
            fields.new_name(),
            b"run",
            str(self.row).encode(),
            b"12345678",
        )
        self.model = fields.arrays_to_bytes(model_of(self.row))
        self.about = fields.message_hash(run=run, round=number, model=self.model, key=self.key)
        own, listed = self.own.to_bytes(), NONE_DISMISSED.to_bytes()
        self.run, self.number = run, number
        return self.ask(
            Stage.ADVERTISE.question,
            fields.pack_fields(*lie(self.name, run, number, self.about, own, listed)),
        )

    def round(self, lies):
        """What it answered to each stage. A lie of a stage gets the honest message, and this, and
        says what it is told instead.
        """
        said = {Stage.ADVERTISE.question: self.advertise()}
        agreed = replace(
            terms(), round=self.name, message=self.about, dismissed=NONE_DISMISSED.digest()
        )
        others = {
            one: DeviceRound(
                terms=agreed,
                key=key,
                certificate=certificate(one, key),
                authority=AUTHORITY,
                dismissed=NONE_DISMISSED,
            )
            for one, key in self.keys.items()
        }
        server = ServerRound(agreed, AUTHORITY, NONE_DISMISSED)
        server.take(
            {0: said[Stage.ADVERTISE.question]}
            | {one: device.advertise().to_bytes() for one, device in others.items()}
        )
        values = np.ones(LENGTH, np.uint32)
        stages = {
            Stage.SHARE.question: (Roster, DeviceRound.share),
            Stage.MASK.question: (
                SealedShares,
                lambda device, message: device.mask(message, values),
            ),
            Stage.SIGN.question: (Survivors, DeviceRound.sign),
            Stage.UNMASK.question: (UnmaskRequest, DeviceRound.unmask),
        }
        for stage, (form, answer) in stages.items():
            questions = server.questions()
            honest = form.from_bytes(questions[0] + server.shared)
            told = lies.get(stage, lambda message, self: message)(honest, self)
            content = told if isinstance(told, bytes) else told.to_bytes()
            if stage == Stage.MASK.question and not isinstance(told, bytes):
                content = fields.pack_fields(content, self.key, self.model)
            said[stage] = self.ask(stage, content)
            if said[stage] is None:
                return said
            answers = {
                one: answer(device, form.from_bytes(questions[one] + server.shared))
                for one, device in others.items()
            }
            written = {
                one: said if isinstance(said, bytes) else said.to_bytes()
                for one, said in answers.items()
            }
            assert not server.take({0: said[stage]} | written)
        assert np.array_equal(server.total().values, 3 * values)  # its own are zeros
        return said


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("lies"))
    node = NodeDevice(fleet.folder / "node")
    with wire_server(fleet.folder / "server", "127.0.0.1", 0, known({node.key: 0})) as server:
        node.given(fleet)
        node.start(server.address)
        try:
            until(lambda: server.link.devices() == [0], "that it connects")
            yield Asked(server.link, node)
        finally:
            node.end()


def now(days=0):
    return int(time.time() + days * DAY)


STRANGER = SigningAuthority(bytes(16), Ed25519PrivateKey.generate())
ELSEWHERE = SigningAuthority(b"elsewhere" + bytes(7), SIGNING_AUTHORITY.key)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            lambda key, own, old: {"own": STRANGER.certify(0, key, now(-1), now(1), 0)},
            "not signed by the authority",
        ),
        (
            lambda key, own, old: {"own": ELSEWHERE.certify(0, key, now(-1), now(1), 0)},
            "of another fleet",
        ),
        (
            lambda key, own, old: {"own": SIGNING_AUTHORITY.certify(0, key, now(-2), now(-1), 0)},
            "has not begun, or has run out",
        ),
        (
            lambda key, own, old: {"own": SIGNING_AUTHORITY.certify(0, key, now(1), now(2), 0)},
            "has not begun, or has run out",
        ),
        (
            lambda key, own, old: {"own": SIGNING_AUTHORITY.certify(0, key, now(-1), now(1), 1)},
            "is older than a certificate",
        ),
        (
            lambda key, own, old: {"own": certificate(0, Ed25519PrivateKey.generate())},
            "of another device",
        ),
        (lambda key, own, old: {"own": own.to_bytes()[:-1]}, "144 bytes"),
        (lambda key, own, old: {"listed": STRANGER.dismiss(0, ())}, "not signed by the authority"),
        (lambda key, own, old: {"listed": SIGNING_AUTHORITY.dismiss(1, (0, 5))}, "was dismissed"),
        (lambda key, own, old: {"listed": SIGNING_AUTHORITY.dismiss(0, (5,))}, "or another"),
        (lambda key, own, old: {"name": old}, "or a later one, before"),
        (
            lambda key, own, old: {"name": (now(2) * 10**6).to_bytes(8, "big") + bytes(8)},
            "dated in the future",
        ),
        (
            lambda key, own, old: {"number": str(now(2) * 10**6 << 16).encode()},
            "dated in the future",
        ),
        (lambda key, own, old: {"number": b"1"}, "this round or a later one"),
        (lambda key, own, old: {"number": b"-1"}, "a round has a number"),
    ],
)
def test_it_refuses_to_advertise(asked, changed, why):
    asked.round({})  # so that there is a list, a name and a round that it knows

    def lie(name, run, number, about, own, listed):
        honest = {
            "name": name,
            "run": run,
            "number": number,
            "about": about,
            "own": own,
            "listed": listed,
        }
        lies = changed(asked.node.key, asked.own, asked.before)
        return [
            value if isinstance(value, bytes) else value.to_bytes()
            for value in (honest | lies).values()
        ]

    asked.before = asked.name
    assert asked.advertise(lie) is None
    assert re.search(f"no answer to “advertise”: .*{why}", asked.node.log().splitlines()[-1])
    asked.round({})


def forged(roster, **changes):
    first, *rest = roster.adverts
    return roster._replace(adverts=(first._replace(**changes), *rest))


def without_last(table):
    return dict(list(table.items())[:-1])


@pytest.mark.parametrize(
    ("stage", "lie", "why"),
    [
        (
            Stage.SHARE.question,
            lambda one, asked: forged(one, signature=bytes(64)),
            "devices of its cell",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: one._replace(adverts=one.adverts[1:]),
            "devices of its cell",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: one._replace(digests=one.digests | {0: bytes(32)}),
            "advert of this device",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: one._replace(digests=one.digests | {9: one.digests[1]}),
            "twice",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: with_advert(one, signature=bytes(64)),
            "not signed by their device",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: with_advert(
                one, certificate=SIGNING_AUTHORITY.certify(1, bytes(32), 1, 2, 0)
            ),
            "has run out",
        ),
        (
            Stage.SHARE.question,
            lambda one, asked: in_another_row(one),
            "another advert in the list",
        ),
        (Stage.SHARE.question, lambda one, asked: few(one), "so many devices"),
        (Stage.SHARE.question, lambda one, asked: one.to_bytes() + b"x", "after its end"),
        (Stage.MASK.question, lambda one, asked: one._replace(cell=bytes(32)), "another cell"),
        (
            Stage.MASK.question,
            lambda one, asked: one._replace(shares=one.shares | {9: bytes(94)}),
            "not in this cell",
        ),
        (
            Stage.MASK.question,
            lambda one, asked: one._replace(shares=dict.fromkeys(one.shares, bytes(94))),
            "too few",
        ),
        (Stage.MASK.question, lambda one, asked: other_message(one, asked), "not the one that"),
        (
            Stage.SIGN.question,
            lambda one, asked: one._replace(devices=one.devices - {0}),
            "not listed so",
        ),
        (
            Stage.SIGN.question,
            lambda one, asked: one._replace(devices=one.devices | {9}),
            "shared no secret",
        ),
        (
            Stage.SIGN.question,
            lambda one, asked: one._replace(devices=frozenset({0, 1})),
            "too few",
        ),
        (Stage.SIGN.question, lambda one, asked: one._replace(cell=bytes(32)), "another cell"),
        (
            Stage.UNMASK.question,
            lambda one, asked: one._replace(signatures=dict(list(one.signatures.items())[:2])),
            "too few",
        ),
        (
            Stage.UNMASK.question,
            lambda one, asked: one._replace(signatures=dict.fromkeys(one.signatures, bytes(64))),
            "too few",
        ),
        (Stage.UNMASK.question, lambda one, asked: one._replace(cell=bytes(32)), "another cell"),
    ],
)
def test_it_refuses_what_a_server_may_not_say(asked, stage, lie, why):
    assert asked.round({stage: lie})[stage] is None
    assert re.search(f"no answer to “{stage}”: .*{why}", asked.node.log().splitlines()[-1])
    for again in (Stage.SIGN.question, Stage.UNMASK.question):
        if stage == Stage.SHARE.question:
            assert asked.ask(again, b"") is None


def with_advert(roster, **changes):
    """One that stands in the list."""
    first, *_ = (forged(roster, **changes)).adverts
    return forged(roster, **changes)._replace(
        digests=roster.digests | {first.device: first.digest()}
    )


def in_another_row(roster):
    return roster._replace(digests={**roster.digests, 1: roster.digests[2], 2: roster.digests[1]})


def few(roster):
    return Roster(roster.adverts[:1], {device: roster.digests[device] for device in (0, 1)})


def other_message(delivery, asked):
    return fields.pack_fields(
        delivery.to_bytes(), asked.key, asked.model[:-5] + b"\xff" + asked.model[-4:]
    )


@pytest.mark.parametrize(
    ("place", "number"), [(0, np.float32(np.nan)), (17, np.float32(0.2)), (16, np.float32(-np.inf))]
)
def test_it_trains_on_no_model_that_is_not_finite_or_has_another_clip_norm(
    asked, monkeypatch, place, number
):
    """All devices would have agreed on it."""
    spoilt = np.frombuffer(fields.arrays_to_bytes(MODEL), "<f4").copy()
    spoilt[place] = number
    with monkeypatch.context() as patch:
        patch.setattr(fields, "arrays_to_bytes", lambda _: spoilt.tobytes())
        assert asked.round({})[Stage.MASK.question] is None
    assert re.search(
        "numbers that are not finite|non-finite values|clip norm", asked.node.log().splitlines()[-1]
    )


@pytest.mark.parametrize(("zero", "factor"), [(0.0, -3), (-0.0, -5)])
def test_it_reports_on_a_model_once(asked, monkeypatch, zero, factor):
    model = MODEL

    def report_on(change):
        """Return its report on a model that it has not seen in another test, with one change."""
        nonlocal model
        model = MODEL._replace(
            params=jax.tree.map(lambda leaf: change(leaf * factor), MODEL.params)
        )
        return asked.round({})[Stage.MASK.question]

    monkeypatch.setitem(globals(), "model_of", lambda row: model)
    assert report_on(np.abs) is not None
    assert report_on(lambda leaf: np.where(leaf == 0, np.float32(zero), np.abs(leaf))) is None
    assert "reported on this model" in asked.node.log().splitlines()[-1]
    # The twin: another model.
    assert report_on(lambda leaf: np.abs(leaf) + np.float32(0.5)) is not None


def test_it_answers_once_and_a_list_it_was_shown_stays_with_it(asked):
    asked.round(
        {
            Stage.SIGN.question: lambda one, asked: (
                asked.__setattr__("survivors", one.to_bytes()) or one
            )
        }
    )
    assert asked.ask(Stage.SIGN.question, asked.survivors) is None
    newer = SIGNING_AUTHORITY.dismiss(3, (77,))
    assert asked.advertise(lambda *parts: (*parts[:-1], newer.to_bytes())) is not None
    assert asked.advertise() is None  # the list of before
    assert asked.node.record()["list"] == ["3", newer.digest().hex()]


# Numbers, without a server


def test_its_cells_thresholds_and_packing_are_the_pages():
    script = """
        import { cellOf, pack, sha256, termsDigest, threshold } from DEVICE;
        const name = (at) => Buffer.from(at.toString(16).padStart(16, "0"), "hex");
        const digests = Array.from({ length: 401 }, (_, at) => sha256(name(at)));
        const cell = sha256(...cellOf(Buffer.alloc(32, 0x11), digests, digests[0]));
        const sizes = [[20, 20, 0.3, 0.1], [1000, 200, 0.3, 0.05], [401, 133, 0.1, 0.1]];
        const thresholds = sizes.map((size) => threshold(...size));
        const packed = pack(Uint32Array.from([1, 2, 7]), 3);
        console.log([packed.toString("hex"), cell.toString("hex"), ...thresholds].join("\\n"));
    """.replace("DEVICE", json.dumps(SCRIPT.as_uri()))
    found = subprocess.run(
        [NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=True
    ).stdout.split()
    page = dict(
        re.findall(
            r"^\| (.+) \| (.+) \|$", PAGE.read_text().partition("## Test vectors")[2], re.MULTILINE
        )
    )
    wanted = ("numbers 1, 2, 7", "H of the digests", "t: N = n = 20", "t: N = 1000", "t: N = 401")
    assert found == [
        value for start in wanted for what, value in page.items() if what.startswith(start)
    ]


# As people run it


def test_a_training_whose_devices_are_partly_in_another_language(tmp_path):
    """Three are asked in each of two rounds, and rest for one: all six take part in one."""
    fleet = CommandFleet(tmp_path, devices=4, rounds=2, save_every=1)
    nodes = [NodeDevice(tmp_path / f"node-{number}") for number in range(2)]
    fleet.command(
        "enrol more", "fleet", "enrol", fleet.fleet, *(one.folder / "request.txt" for one in nodes)
    ).run()
    for node in nodes:
        shutil.copytree(fleet.fleet / "for-devices", node.folder / "fleet")
    server = fleet.server(tmp_path / "run")
    try:
        server.start()
        fleet.start_devices()
        for node in nodes:
            node.start(fleet.address)
        assert server.wait() == 0, server.log()
    finally:
        fleet.end()
        for node in nodes:
            node.end()
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    theirs, others = (
        [len(uploads) for uploads in diaries]
        for diaries in ([one.record()["uploads"] for one in nodes], fleet.diaries)
    )
    late = sum(
        map(int, re.findall(r"“report”: no answer from (\d+)", server.log()))
    )  # of those that compile first
    assert all(theirs), [one.log() for one in nodes]
    assert not any("too late" in one.log() or "no answer to" in one.log() for one in nodes)
    assert sum(theirs) <= last["uploads"] <= sum(theirs) + sum(others) <= last["uploads"] + late
    assert "discarded" not in server.log()
