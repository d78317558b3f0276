"""A device in a fleet: it keeps its text, and answers a server's questions, one stage of a secure
sum after the other.

A round's terms follow from the device's own recipe; from the server it takes the round's name and
number, the model, and what the
enrolment authority has signed: certificates, its own too, and the list of dismissed devices.

**Guarantee:** it trains on a message whose hash is in the terms that it and its whole cell signed,
on which every mask depends, so that a sum is of reports about one model, or there is none. It does
not train on numbers that are not finite, nor under a clip norm that is not its recipe's for the
round. It reports once to a round, and answers once under a name (participation_record.py).

**Assumes:** recipe, words and the enrolment authority's key came to it from someone it trusts; what
protocol.py and participation_record.py assume. A model made to expose one person, and sent to *all*
devices, does so in the sum: only the curator's noise protects against that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.core import Message, Program, PyTree, UserData
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.own_participation import OwnParticipation
from taciturn.fleets.devices.transport import LOG, ComeBackLater
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import (
    Authority,
    Certificate,
    DismissedDevices,
)
from taciturn.fleets.secure_aggregation.messages import (
    Roster,
    SealedShares,
    Survivors,
    Terms,
    UnmaskRequest,
)


class NotEligible(Exception):
    """The device does not take part, for its own reason."""


@dataclass(frozen=True, kw_only=True)
class OwnerWishes:
    """What the device's owner has chosen."""

    why_not_now: Callable[[], str | None] = lambda: None
    # Called once a report is on record as used, before it leaves.
    on_report: Callable[[], None] = lambda: None
    # Names the text that reports are made of.
    text_name: str = ""


class Device:
    """A `Handler` (transport.py): kind of question and content → answer. One round at a time."""

    def __init__(
        self,
        *,
        key: Ed25519PrivateKey,
        authority: Authority,
        terms: Terms,
        program: Program,
        message: Message,
        public_part: Callable[[int], PyTree],
        user: UserData,
        record: OwnParticipation,
        wishes: OwnerWishes = OwnerWishes(),
    ) -> None:
        """`message` has the shapes of what a round sends, `public_part` gives its public part by noise
        row, `key` is the device's own.
        """
        self._key = key
        self._authority = authority
        self._terms = terms
        self._record = record
        self._wishes = wishes
        self._like = message
        self._public_part = public_part
        self._user = user
        self._program = jax.jit(program)
        self._sum: DeviceRound | None = None
        # as last logged
        self._why_not: str | None = None

    def __call__(self, kind: str, content: bytes) -> bytes:
        match kind:
            case fields.CHECK_IN:
                return self._check_in(content)
            case fields.ADVERTISE:
                return self._advertise(content)
            case fields.REPORT:
                return self._report(content)
            case fields.SHARE:
                return self._in_a_round().share(Roster.from_bytes(content)).to_bytes()
            case fields.SIGN:
                return self._in_a_round().sign(Survivors.from_bytes(content))
            case fields.UNMASK:
                return self._in_a_round().unmask(UnmaskRequest.from_bytes(content)).to_bytes()
            case fields.COME_BACK:
                raise ComeBackLater(*fields.SECONDS.unpack(content))
            case _:
                raise ValueError(f"“{kind}” is not a question for a device")

    def _check_in(self, content: bytes) -> bytes:
        fingerprint, round = fields.unpack_fields(content, 2)
        if fingerprint != self._terms.fingerprint:
            raise NotEligible(
                "the server's recipe or enrolment authority is not the one that this device was"
                " given"
            )
        why_not = self._wishes.why_not_now() or self._record.why_not(int(round))
        if why_not not in (None, self._why_not):
            LOG.info("does not take part now: %s", why_not)
        self._why_not = why_not
        if why_not is None:
            return fields.READY
        if rest := self._record.rests_for:
            # others' shares are of no use any more
            self._sum = None
            # its own decision: the server does not learn for how long
            raise ComeBackLater(rest)
        return fields.NOT_NOW

    def _advertise(self, content: bytes) -> bytes:
        # whatever round it was in is over
        self._sum = None
        name, self._run, self._round, self._message_hash, certificate, dismissed = (
            fields.unpack_fields(content, 6)
        )
        own = Certificate.from_bytes(certificate)
        listed = DismissedDevices.from_bytes(dismissed)
        terms = self._terms.for_round(
            name, message_hash=self._message_hash, dismissed_hash=listed.digest()
        )
        in_a_round = DeviceRound(
            terms=terms,
            key=self._key,
            certificate=own,
            authority=self._authority,
            dismissed=listed,
        )
        if len(name) != fields.NAME_BYTES or len(self._run) > 255:
            raise ValueError(
                f"an attempt has a name of {fields.NAME_BYTES} bytes, and a run one of up to 255"
            )
        if why_not := self._wishes.why_not_now() or self._record.enter(
            name, int(self._round), listed.number, listed.digest().hex()
        ):
            raise NotEligible(why_not)
        self._sum, self._number = in_a_round, own.device
        return self._sum.advertise().to_bytes()

    def _report(self, content: bytes) -> bytes:
        in_a_round = self._in_a_round()
        delivery, key_bytes, message_bytes = fields.unpack_fields(content, 3)
        if (
            fields.message_hash(self._run, self._round, message_bytes, key_bytes)
            != self._message_hash
        ):
            raise ValueError(
                "the message is not the one that the devices of this round have agreed to train on"
            )
        message = fields.arrays_from_bytes(message_bytes, self._like)
        self._check(message)
        key = jax.random.wrap_key_data(
            jnp.asarray(np.frombuffer(key_bytes, "<u4")), impl="threefry2x32"
        )
        LOG.info("training for a round")
        report = self._program(message, self._user, jax.random.fold_in(key, self._number))
        values = np.asarray(report.update).astype(np.uint32)
        masked = in_a_round.mask(SealedShares.from_bytes(delivery), values).to_bytes()
        # a device that signs has sent a report: if anything fails from here on, it does not sign
        self._sum = None
        if why_not := self._record.upload(
            int(self._round), self._run.decode(), int(message.public.round), self._wishes.text_name
        ):
            raise NotEligible(why_not)
        self._wishes.on_report()
        self._sum = in_a_round
        LOG.info("trained; the masked report is on its way")
        return masked

    def _check(self, message: Message) -> None:
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(message)):
            raise ValueError(
                "the model has numbers that are not finite: those who train on it report nothing,"
                " and others stand alone"
            )
        own, given = (
            jax.tree.leaves(one)
            for one in (self._public_part(int(message.public.round)), message.public)
        )
        if not all(np.array_equal(*pair) for pair in zip(own, given, strict=True)):
            raise ValueError(
                "the clip norm, or another public part of the round, is not what this device's"
                " recipe says"
            )

    def _in_a_round(self) -> DeviceRound:
        if self._sum is None:
            raise ValueError("this device is not in a round")
        return self._sum
