"""A device in a fleet: it keeps its text, and answers a server's questions.

They are a check-in and the stages of a secure sum, one after the other. A round's terms follow from
the device's own recipe; from the server it takes the round's name and number, the model, and what
the enrolment authority has signed: certificates, its own too, and the list of dismissed devices.

**Guarantee:** it trains on a message whose hash is in the terms that it and its whole cell signed,
on which every mask depends, so that a sum is of reports about one model, or there is none. It does
not train on numbers that are not finite, nor under a clip norm that is not its recipe's for the
round. It reports once to a round and once on a model, and answers once under a name
(own_participation.py).

**Assumes:** recipe, words and the enrolment authority's key came to it from someone it trusts; what
protocol.py and own_participation.py assume. A model made to expose one person, and sent to *all*
devices, does so in the sum: only the curator's noise protects against that. Of two models that
differ in a single bit a device reports on both.
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
from taciturn.fleets.secure_aggregation.stages import Stage


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


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """The attempt at a round that a device is in."""

    secure_sum: DeviceRound
    # The device's number.
    device: int
    run: bytes
    round: bytes
    # Of what the device and its cell have agreed to train on.
    message_hash: bytes


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
        """Make a device that is in no round yet.

        Args:
            key: the device's own.
            authority: whom it believes about other devices.
            terms: what follows from its recipe.
            program: what it runs to make a report.
            message: the shapes of what a round sends.
            public_part: the public part of a message, by noise row.
            user: its text.
            record: of its own participation.
            wishes: its owner's.
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
        self._attempt: _Attempt | None = None
        # As last logged.
        self._why_not: str | None = None

    def __call__(self, kind: str, content: bytes) -> bytes:
        """Answer a question; whatever is wrong with it is an error, and no answer leaves."""
        match kind:
            case fields.CHECK_IN:
                return self._check_in(content)
            case fields.COME_BACK:
                (seconds,) = fields.SECONDS.unpack(content)
                raise ComeBackLater(seconds)
            case Stage.ADVERTISE.question:
                return self._advertise(content)
            case Stage.SHARE.question:
                secure_sum = self._current_attempt().secure_sum
                return secure_sum.share(Roster.from_bytes(content)).to_bytes()
            case Stage.MASK.question:
                return self._report(content)
            case Stage.SIGN.question:
                secure_sum = self._current_attempt().secure_sum
                return secure_sum.sign(Survivors.from_bytes(content))
            case Stage.UNMASK.question:
                secure_sum = self._current_attempt().secure_sum
                return secure_sum.unmask(UnmaskRequest.from_bytes(content)).to_bytes()
            case _:
                raise ValueError(f"“{kind}” is not a question for a device")

    def _check_in(self, content: bytes) -> bytes:
        """Say whether the device is ready for a round."""
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
        rest = self._record.rest_seconds
        if rest:
            # Others' shares are of no use any more.
            self._attempt = None
            # This is its own decision: the server does not learn for how long.
            raise ComeBackLater(rest)
        return fields.NOT_NOW

    def _advertise(self, content: bytes) -> bytes:
        """Enter a round, and put the attempt on record before anything is sent in it."""
        # Whatever round it was in is over.
        self._attempt = None
        name, run, round, message_hash, certificate_bytes, dismissed_bytes = fields.unpack_fields(
            content, 6
        )
        certificate = Certificate.from_bytes(certificate_bytes)
        dismissed = DismissedDevices.from_bytes(dismissed_bytes)
        terms = self._terms.for_round(
            name,
            message_hash=message_hash,
            dismissed_hash=dismissed.digest(),
        )
        secure_sum = DeviceRound(
            terms=terms,
            key=self._key,
            certificate=certificate,
            authority=self._authority,
            dismissed=dismissed,
        )
        if len(name) != fields.NAME_BYTES or len(run) > 255:
            raise ValueError(
                f"an attempt has a name of {fields.NAME_BYTES} bytes, and a run one of up to 255"
            )
        why_not = self._wishes.why_not_now() or self._record.enter(
            name=name,
            round=int(round),
            list_number=dismissed.number,
            list_digest=dismissed.digest().hex(),
        )
        if why_not:
            raise NotEligible(why_not)
        self._attempt = _Attempt(
            secure_sum=secure_sum,
            device=certificate.device,
            run=run,
            round=round,
            message_hash=message_hash,
        )
        return secure_sum.advertise().to_bytes()

    def _report(self, content: bytes) -> bytes:
        """Train, mask the report, and put it on record before it leaves."""
        attempt = self._current_attempt()
        delivery, key_bytes, message_bytes = fields.unpack_fields(content, 3)
        message_hash = fields.message_hash(
            run=attempt.run,
            round=attempt.round,
            model=message_bytes,
            key=key_bytes,
        )
        if message_hash != attempt.message_hash:
            raise ValueError(
                "the message is not the one that the devices of this round have agreed to train on"
            )
        message = fields.arrays_from_bytes(message_bytes, self._like)
        self._check_message(message)
        model = fields.model_digest(message.params)
        # Before it trains for nothing.
        why_not = self._record.why_not_model(model)
        if why_not:
            raise NotEligible(why_not)
        values = self._train(message, key_bytes, attempt.device)
        masked = attempt.secure_sum.mask(SealedShares.from_bytes(delivery), values).to_bytes()
        # A device that signs has sent a report: if anything fails from here on, it does not sign.
        self._attempt = None
        why_not = self._record.upload(
            round=int(attempt.round),
            model=model,
            run=attempt.run.decode(),
            row=message.public.row,
            text=self._wishes.text_name,
        )
        if why_not:
            raise NotEligible(why_not)
        self._wishes.on_report()
        self._attempt = attempt
        LOG.info("trained; the masked report is on its way")
        return masked

    def _train(self, message: Message, key_bytes: bytes, number: int) -> np.ndarray:
        """Return the report, uint32; the device's number makes its random choices its own."""
        words = np.frombuffer(key_bytes, "<u4")
        key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
        LOG.info("training for a round")
        report = self._program(message, self._user, jax.random.fold_in(key, number))
        return np.asarray(report.update).astype(np.uint32)

    def _check_message(self, message: Message) -> None:
        """Refuse a message that would single out a device, or ask for more than the recipe does."""
        is_finite = [np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(message)]
        if not all(is_finite):
            raise ValueError(
                "the model has non-finite values: devices that train on it would drop out and leave"
                " the others exposed"
            )
        row = message.public.row
        expected = jax.tree.leaves(self._public_part(row))
        received = jax.tree.leaves(message.public)
        is_equal = [np.array_equal(*pair) for pair in zip(expected, received, strict=True)]
        if not all(is_equal):
            raise ValueError(
                "the clip norm, or another public part of the round, is not what this device's"
                " recipe says"
            )

    def _current_attempt(self) -> _Attempt:
        if self._attempt is None:
            raise ValueError("this device is not in a round")
        return self._attempt
