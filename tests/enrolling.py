"""Devices that are enrolled by a test: on a wire by their keys alone, in rounds with certificates
of an authority of the test's.
"""

import time
from contextlib import contextmanager

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.enrolment import DAY
from taciturn.fleets.secure_aggregation.identities import EnrolledDevices, SigningAuthority
from taciturn.fleets.wire import server as wire
from taciturn.fleets.wire.tls import DEVICE_KEY, device_request, load_key

SIGNING_AUTHORITY = SigningAuthority(bytes(16), Ed25519PrivateKey.generate())
AUTHORITY = SIGNING_AUTHORITY.authority
NONE_DISMISSED = SIGNING_AUTHORITY.dismiss(0, ())


def public(key):
    return key.public_key().public_bytes_raw()


def certificate(number, key, signing_authority=SIGNING_AUTHORITY, days=(-1, 1), after=0):
    """For the public key of `key`, from so many days from now to so many."""
    return signing_authority.certify(
        number, public(key), *(int(time.time() + day * DAY) for day in days), after
    )


def enrolled(keys):
    return EnrolledDevices(
        [certificate(number, key) for number, key in enumerate(keys)], NONE_DISMISSED
    )


def load_device_key(folder):
    return load_key(folder / DEVICE_KEY)


def device_key(folder):
    """The public key of a device, which is made if need be."""
    device_request(folder)
    return public(load_device_key(folder))


def known(numbers):
    return lambda key: numbers.get(key, "a device that is not enrolled")


@contextmanager
def wire_server(folder, host, port, **options):
    """A server to which keys can be told while it runs."""
    numbers = {}
    with wire.wire_server(folder, host, port, known(numbers), **options) as server:
        server.enrol = lambda key: numbers.setdefault(key, len(numbers))
        yield server
