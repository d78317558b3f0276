"""Contents in Flower's objects: they come out as they went in, and one that lies about itself is refused before it fills the memory."""

import hashlib

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content

from taciturn.fleets.flower.envelope import CHUNK, HEAD, INLINE, Envelope, EnvelopeRefused, cut, most_objects, seal, unseal

MOST = 20 * 2**20


def forged(body, children=()):
    """An envelope with a root that nobody of ours would make."""
    objects = {hashlib.sha256(child).hexdigest(): child for child in children}
    root = f"Message {','.join(objects)} {len(body)}".encode() + b"\x00" + body
    tree = ObjectTree(object_id=hashlib.sha256(root).hexdigest(), children=[ObjectTree(object_id=name) for name in objects])
    return Envelope(tree, {**objects, tree.object_id: root})


def opened(envelope, most_bytes=MOST):
    return unseal(envelope.tree, envelope.objects.get, most_bytes)


@pytest.mark.parametrize("length", [0, 1, INLINE, INLINE + 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK - 7])
def test_what_comes_out_is_what_went_in(length):
    content = (b"\x00 \n" + bytes(range(256))) * (length // 259 + 1)
    assert opened(seal(cut(content[:length]))) == content[:length]


def test_a_content_of_equal_parts_is_stored_once():
    envelope = seal(cut(bytes(3 * CHUNK)))
    assert len(envelope.objects) == 2
    assert opened(envelope) == bytes(3 * CHUNK)


def test_two_messages_of_the_same_content_share_all_but_their_roots():
    chunks = cut(bytes(range(256)) * 20_000)
    first, second = seal(chunks), seal(chunks)
    assert first.tree.object_id != second.tree.object_id
    assert set(first.objects) - {first.tree.object_id} == set(second.objects) - {second.tree.object_id}


def test_superlink_accepts_every_object():
    for name, content in seal(cut(bytes(CHUNK + 1))).objects.items():
        validate_object_content(content)
        assert name == hashlib.sha256(content).hexdigest()


def test_no_request_is_larger_than_the_gate_lets_through():
    envelope = seal(cut(bytes(range(256)) * (MOST // 256)))
    assert len(envelope.objects) <= most_objects(MOST)
    assert max(map(len, envelope.objects.values())) < CHUNK + INLINE / 2


def test_a_part_that_is_not_there_yet_is_waited_for():
    envelope = seal(cut(bytes(range(256)) * 40_000))
    missing = next(iter(envelope.objects))
    assert unseal(envelope.tree, {**envelope.objects, missing: None}.get, MOST) is None
    assert unseal(envelope.tree, {}.get, MOST) is None


def test_more_than_is_allowed_is_refused_before_it_is_fetched():
    envelope = seal(cut(bytes(CHUNK + 1)))
    fetched = []

    def fetch(name):
        fetched.append(name)
        return envelope.objects[name]

    with pytest.raises(EnvelopeRefused, match="are allowed"):
        unseal(envelope.tree, fetch, CHUNK)
    assert fetched == [envelope.tree.object_id]


def test_one_chunk_named_a_thousand_times_is_refused():
    """Which Flower's own arrays allow: a few bytes for each copy of five million."""
    chunk = b"ArrayChunk  1048576\x00" + bytes(2**20)
    names = hashlib.sha256(chunk).digest() * 1000
    with pytest.raises(EnvelopeRefused, match="longer than it says"):
        opened(forged(HEAD.pack(bytes(16), 2**20, 1000) + names, [chunk]))
    with pytest.raises(EnvelopeRefused, match="are allowed"):
        opened(forged(HEAD.pack(bytes(16), 1000 * 2**20, 1000) + names, [chunk]))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no beginning"),
        (b"nonsense", "no beginning"),
        (HEAD.pack(bytes(16), 5, 0) + b"four", "its length is not what it says"),
        (HEAD.pack(bytes(16), 3, 0) + b"four", "its length is not what it says"),
        (HEAD.pack(bytes(16), 5, 1), "ends before its list"),
        (HEAD.pack(bytes(16), 5, 2**32 - 1) + bytes(32), "ends before its list"),
        (HEAD.pack(bytes(16), 5, 1) + bytes(32), "names objects that are not its own"),
    ],
)
def test_garbage_is_refused(body, why):
    with pytest.raises(EnvelopeRefused, match=why):
        opened(forged(body))


def test_the_objects_of_others_cannot_be_named():
    chunk = b"ArrayChunk  5\x00other"
    name = hashlib.sha256(chunk)
    envelope = forged(HEAD.pack(bytes(16), 5, 1) + name.digest())
    envelope.objects[name.hexdigest()] = chunk
    with pytest.raises(EnvelopeRefused, match="not its own"):
        opened(envelope)
