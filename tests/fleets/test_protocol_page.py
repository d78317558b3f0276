"""The page from which devices are written in other languages (docs/protocol.md): its test vectors
are what the code here comes to.
"""

import hashlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from enrolling import public
from taciturn.core import Public
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.secure_aggregation import device_side, masks, messages, protocol, shamir
from taciturn.fleets.secure_aggregation.bit_packing import pack
from taciturn.fleets.secure_aggregation.cells import cell_name, cells, threshold
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import SigningAuthority
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Roster, Survivors, Terms
from taciturn.fleets.wire.front_end import sign_in_statement
from taciturn.privacy.bounding import secagg_encoding
from taciturn.privacy.bounding.clipping import flat_clip

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
SEVEN, NINE, AUTHORITY_KEY = (
    Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2, 3)
)


def vectors():
    """Rows of the page's last table."""
    rows = re.findall(
        r"^\| (.+) \| (.+) \|$", PAGE.read_text().partition("## Test vectors")[2], re.MULTILINE
    )
    return dict(rows[1:])


def secret(byte):
    return Secret(bytes([byte]) * 32)


def advertised(terms, listed, key, certificate, mask_key, share_key, seed):
    authority, dismissed = listed
    device = DeviceRound(
        terms=terms, key=key, certificate=certificate, authority=authority, dismissed=dismissed
    )
    device._mask_secret, device._share_secret, device._seed = (
        secret(mask_key),
        secret(share_key),
        secret(seed),
    )
    return device.advertise()


def computed(monkeypatch):
    signing_authority = SigningAuthority(b"\4" * 16, AUTHORITY_KEY)
    dismissed = signing_authority.dismiss(5, ())
    authority = signing_authority.authority
    fingerprint = assemble._fingerprint("0123456789abcdef", ["a", "ö"], authority)
    terms = Terms(
        round=b"\6" * 16,
        message=b"\7" * 32,
        dismissed=dismissed.digest(),
        fingerprint=fingerprint,
        modulus_bits=20,
        length=50,
        dropouts=0.3,
        corrupt=0.05,
        least=3,
        most=1000,
    )
    certificates = [
        signing_authority.certify(number, public(key), 0, 2**32, 5)
        for number, key in ((7, SEVEN), (9, NINE))
    ]
    first = advertised(terms, (authority, dismissed), SEVEN, certificates[0], 8, 9, 10)
    second = advertised(terms, (authority, dismissed), NINE, certificates[1], 11, 12, 13)
    digests = {7: first.digest(), 9: second.digest()}
    cohort = Roster((), digests).cohort(terms)
    cell = cell_name(cohort, *cells(cohort, digests.values()))
    own, pair = (
        protocol.own_mask_key(secret(10), cell),
        protocol.pair_mask_key(secret(8), second, 7, cell),
    )
    share_key = masks.agree_on_key(secret(9), second.share_key, b"shares" + cell)
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda _: 5)
    monkeypatch.setattr(device_side.os, "urandom", lambda count: b"\x0e" * count)
    seeds, mask_keys = shamir.share(secret(10), 2, 2), shamir.share(secret(8), 2, 2)
    sealed = device_side._seal(
        share_key,
        protocol.ends_of(cell, sender=7, receiver=9),
        device_side._Shares(seed=Secret(seeds[1]), mask_key=Secret(mask_keys[1])),
    )
    mask = np.zeros(3, masks.words(20))
    masks.add_masks(mask, [own], [])
    many = [hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(401)]
    (with_first,) = (one for one in cells(b"\x11" * 32, many) if many[0] in one)
    rotation = Public(jnp.float32(1), jnp.int32(5))
    coins = secagg_encoding._coins(
        secagg_encoding.encoding(1200, 10)._replace(padded=1200), rotation
    )
    return [
        SEVEN.sign(sign_in_statement(public(SEVEN), 1_700_000_000, b"\5" * 16)),
        certificates[0].signature,
        dismissed.digest(),
        fingerprint,
        terms.digest(),
        digests[7],
        cohort,
        cell,
        own,
        pair,
        share_key,
        seeds[1],
        sealed,
        mask.astype("<u4").tobytes(),
        pack(np.array([1, 2, 7], np.uint32), 3),
        SEVEN.sign(Survivors(cell, frozenset(digests)).signed_content()),
        fields.message_hash(run=b"r", round=b"65536", model=b"\x0f" * 8, key=b"\x10" * 8),
        hashlib.sha256(b"".join(with_first)).digest(),
        bytes.fromhex(fields.model_digest([np.array([1.5, 0, -0.0, -2], np.float32)])),
        np.packbits(np.asarray(coins, np.uint8), bitorder="little")[:16].tobytes(),
        threshold(20, 20, 0.3, 0.1),
        threshold(1000, 200, 0.3, 0.05),
        threshold(401, 133, 0.1, 0.1),
    ]


def test_the_vectors_are_what_the_code_comes_to(monkeypatch):
    values = [
        value.hex() if isinstance(value, bytes) else str(value) for value in computed(monkeypatch)
    ]
    assert values == list(vectors().values())


def test_the_page_has_every_message_with_its_number():
    said = dict(re.findall(r"^\| ([a-z ]+)[^|]* \| (\d) \|", PAGE.read_text(), re.MULTILINE))
    assert list(said.values()) == [str(number) for number in messages.KINDS.values()]
    assert f"version {messages.VERSION} and a kind" in PAGE.read_text()


def test_a_report_is_made_as_the_page_says():
    """Steps 1 and 2 of its last but one part, in plain numpy; the twin has other signs."""
    encoded, clip = secagg_encoding.encoding(340, 117), np.float32(0.1)
    update = np.random.default_rng(0).normal(size=340).astype(np.float32)
    update *= clip / np.linalg.norm(update)
    bound = secagg_encoding.modular(flat_clip(0.1), {"all": jnp.asarray(update)}, encoded)

    def off_by(row):
        report = bound.pack(
            Public(jnp.float32(clip), jnp.int32(5)),
            {"all": jnp.asarray(update)},
            jax.random.key(0),
        )
        coins = np.asarray(
            secagg_encoding._coins(encoded, Public(jnp.float32(clip), jnp.int32(row)))
        )
        flat = np.pad(update * (encoded.radius / clip), (0, encoded.padded - 340)) * (
            1 - 2.0 * coins
        )
        places = np.arange(encoded.block)
        matrix = np.array(
            [
                [(-1) ** (row & column).bit_count() for column in places.tolist()]
                for row in places.tolist()
            ]
        )
        turned = matrix @ flat.reshape(encoded.block, -1) / np.sqrt(encoded.block)
        whole = np.asarray(secagg_encoding.centre_residues(encoded, report))
        return np.abs(whole - turned.reshape(-1)).max()

    assert off_by(row=5) < 1.001
    assert off_by(row=6) > 10
