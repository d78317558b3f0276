"""A content in Flower's objects: what SuperLink stores under the hash of its bytes, and devices and server fetch by that hash.

A message is one small object, the root, which holds a short content itself; a longer one is in chunks, its children. Equal chunks have
equal hashes, so that a model for a thousand devices is stored and uploaded once.

Departs from Flower: its own records (a message in a dictionary of records of arrays of chunks) would take five objects where one is
enough, each fetched with a request of its own; and inflating one that a stranger made is unsafe: an `Array` of 5 MB may name a single
chunk so often that it fills any memory. Here the length is known, and checked, before anything is fetched.
"""

import hashlib
import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flwr.proto.message_pb2 import ObjectTree

CHUNK = 4 * 2**20  # bytes in one object and one request
INLINE = 2**14  # a content up to here is in the root itself
SMALL_REQUEST = 2**14  # bytes that are enough for any request but one that brings an object
HEAD = struct.Struct(">16sQI")  # random bytes, length of the content, number of chunks
DIGEST = hashlib.sha256().digest_size

Objects = dict[str, bytes]  # hash → content
Fetch = Callable[[str], bytes | None]  # the object of that hash; None: it is not there yet


class BrokenEnvelope(Exception):
    """An envelope that is larger than allowed, or none at all."""


class Chunks(NamedTuple):
    """A content cut up, to be put into any number of envelopes."""

    length: int
    names: list[str]  # in their order; equal ones are named as often as they occur
    objects: Objects
    inline: bytes


class Envelope(NamedTuple):
    tree: ObjectTree  # the hash of the root, which is the message's id, and those of its children
    objects: Objects


def most_objects(most_bytes: int) -> int:
    """How many an envelope with so many bytes has, with its root."""
    return 1 + -(-most_bytes // CHUNK)


def cut(content: bytes) -> Chunks:
    if len(content) <= INLINE:
        return Chunks(len(content), [], {}, content)
    view = memoryview(content)
    pieces = [_object("ArrayChunk", (), view[start : start + CHUNK]) for start in range(0, len(content), CHUNK)]
    names = [_hash(piece) for piece in pieces]
    return Chunks(len(content), names, dict(zip(names, pieces, strict=True)), b"")


def seal(chunks: Chunks) -> Envelope:
    """The random bytes make every message another, and its id nothing that anybody could guess."""
    children = list(chunks.objects)
    body = HEAD.pack(secrets.token_bytes(16), chunks.length, len(chunks.names))
    body += b"".join(bytes.fromhex(name) for name in chunks.names) + chunks.inline
    root = _object("Message", children, body)
    tree = ObjectTree(object_id=_hash(root), children=[ObjectTree(object_id=child) for child in children])
    return Envelope(tree, {**chunks.objects, tree.object_id: root})


def unseal(tree: ObjectTree, fetch: Fetch, most_bytes: int) -> bytes | None:
    """The content; None where a part of it is not there yet. `fetch` may be asked again, and so should remember what it got."""
    root = fetch(tree.object_id)
    if root is None:
        return None
    body = _body(root)
    if len(body) < HEAD.size:
        raise BrokenEnvelope("it has no beginning")
    _, length, count = HEAD.unpack_from(body)
    if length > most_bytes:
        raise BrokenEnvelope(f"it would be {length:,} bytes long, and {most_bytes:,} are allowed")
    names, inline = _names(body, count)
    if not set(names) <= {child.object_id for child in tree.children}:
        raise BrokenEnvelope("it names objects that are not its own")
    pieces, size = [inline], len(inline)
    for name in names:
        piece = fetch(name)
        if piece is None:
            return None
        pieces.append(_body(piece))
        size += len(pieces[-1])
        if size > length:
            raise BrokenEnvelope("it is longer than it says")
    if size != length:
        raise BrokenEnvelope("its length is not what it says")
    return b"".join(pieces)


def _names(body: memoryview, count: int) -> tuple[list[str], memoryview]:
    end = HEAD.size + count * DIGEST
    if end > len(body):
        raise BrokenEnvelope("it ends before its list of objects does")
    starts: Iterable[int] = range(HEAD.size, end, DIGEST)
    return [body[start : start + DIGEST].hex() for start in starts], body[end:]


def _object(kind: str, children: Sequence[str], body: bytes | memoryview) -> bytes:
    """As SuperLink wants it: it checks the head of whatever is stored."""
    return b"".join((f"{kind} {','.join(children)} {len(body)}".encode(), b"\x00", body))


def _body(content: bytes) -> memoryview:
    return memoryview(content)[content.find(b"\x00") + 1 :]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
