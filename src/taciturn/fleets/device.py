"""A device in a fleet: it keeps its text, and answers a server's questions, one stage of a secure sum after the other.

Which terms a round has follows from the device's own recipe; from the server it takes the name of the round, the model and other
devices' keys. What leaves it is its keys, sealed shares, one report behind masks, and shares of others' secrets.
"""

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import Message, Program, UserData
from taciturn.fleets import wire
from taciturn.fleets.diary import Diary
from taciturn.fleets.identities import Identity
from taciturn.fleets.link import LOG, Later
from taciturn.fleets.sum_device import DeviceRound
from taciturn.fleets.sum_messages import Roster, SealedShares, UnmaskRequest
from taciturn.fleets.terms import Agreement


class NotNow(Exception):
    """The device does not take part, for a reason of its own."""


class Device:
    """A `Handler` (link.py): kind of question and content → answer. One round at a time."""

    def __init__(
        self,
        number: int,
        identity: Identity,
        agreement: Agreement,
        program: Program,
        message: Message,
        user: UserData,
        diary: Diary,
    ) -> None:
        """`message` has the shapes of what a round sends. `number` is the device's place among those enrolled."""
        self._number, self._identity, self._agreement, self._diary = number, identity, agreement, diary
        self._like, self._user = message, user
        self._program = jax.jit(lambda message, user, key: program(message, user, key))
        self._sum: DeviceRound | None = None
        self._why_not: str | None = None  # as it was said last

    def __call__(self, kind: str, content: bytes) -> bytes:
        match kind:
            case wire.CHECK_IN:
                return self._check_in(content)
            case wire.ADVERTISE:
                return self._advertise(content)
            case wire.SHARE:
                return self._in_a_round().share(Roster.from_bytes(content)).to_bytes()
            case wire.REPORT:
                return self._report(content)
            case wire.UNMASK:
                return self._in_a_round().unmask(UnmaskRequest.from_bytes(content)).to_bytes()
            case wire.COME_BACK:
                raise Later(wire.seconds_from_bytes(content))
            case _:
                raise ValueError(f"“{kind}” is no question for a device")

    def _check_in(self, content: bytes) -> bytes:
        fingerprint, run, round = wire.parted(content, 3)
        if fingerprint != self._agreement.fingerprint:
            raise NotNow("the server trains by another recipe, or for other devices, than this device was given")
        why_not = self._diary.why_not(run.decode(), int(round))
        if why_not not in (None, self._why_not):
            LOG.info("takes no part now: %s", why_not)
        self._why_not = why_not
        if why_not is None:
            return wire.READY
        if rest := self._diary.rests_for:
            self._sum = None  # others' shares are no use any more
            raise Later(rest)  # on its own account: nobody is told for how long
        return wire.NOT_NOW

    def _advertise(self, content: bytes) -> bytes:
        self._sum = None  # whatever round it was in is over
        name, run, round = wire.parted(content, 3)
        if why_not := self._diary.why_not(run.decode(), int(round)):
            raise NotNow(why_not)
        self._run, self._round = run.decode(), int(round)
        self._sum = DeviceRound(self._agreement.terms(name), self._number, self._identity)
        return self._sum.advertise().to_bytes()

    def _report(self, content: bytes) -> bytes:
        in_a_round = self._in_a_round()
        delivery, message_bytes, key_bytes = wire.parted(content, 3)
        message = wire.arrays_from_bytes(message_bytes, self._like)
        if int(message.public.round) != self._round:
            raise ValueError("the model is another round's than the one that was asked about")
        key = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(key_bytes, "<u4")), impl="threefry2x32")
        report = self._program(message, self._user, jax.random.fold_in(key, self._number))
        values = np.asarray(report.update).astype(np.uint32)
        if why_not := self._diary.upload(self._run, self._round):
            raise NotNow(why_not)
        return in_a_round.mask(SealedShares.from_bytes(delivery), values).to_bytes()

    def _in_a_round(self) -> DeviceRound:
        if self._sum is None:
            raise ValueError("this device is in no round")
        return self._sum
