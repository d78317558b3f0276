"""A server that lies to devices, which are those that are shipped."""

import jax
import jax.numpy as jnp
from fleet_of_devices import FleetOfDevices

from enrolling import AUTHORITY, NONE_DISMISSED
from taciturn.core import Message
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import Device
from taciturn.fleets.secure_aggregation.protocol import Refused
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.recipe import build

KEY = bytes(range(8))
VICTIM = 3


class LyingServer:
    """Asks devices in its own way: each may get another message, and be told another hash of it."""

    def __init__(self, folder, vocabulary, **sections):
        self.fleet = FleetOfDevices(folder, vocabulary, count=9, **sections)
        self.terms = assemble.derive_terms(self.fleet.recipe, vocabulary, AUTHORITY)
        self.modulus = 1 << self.terms.modulus_bits
        mechanism = build.algorithm(self.fleet.recipe, len(vocabulary)).mechanism
        params = build.language_model(self.fleet.recipe.model, len(vocabulary)).init(
            jax.random.key(7)
        )
        self.honest = Message(params, mechanism.public(mechanism.init(params)))

    def change_model(self):
        """Send another model from now on: devices report on each once."""
        params = jax.tree.map(lambda leaf: leaf * 1.5, self.honest.params)
        self.honest = self.honest._replace(params=params)

    def filled(self, value):
        return self.honest._replace(
            params=jax.tree.map(lambda leaf: jnp.full_like(leaf, value), self.honest.params)
        )

    def round(
        self,
        number,
        who=range(9),
        given=None,
        told=None,
        run=b"run",
        name=None,
        authority=AUTHORITY,
        dismissed=NONE_DISMISSED,
        certificates=None,
    ):
        """`given` and `told` are the messages by device: what it gets, and of what it is told the
        hash.
        """
        certificates = certificates or self.fleet.enrolled.certificates
        given = {one: fields.arrays_to_bytes((given or {}).get(one, self.honest)) for one in who}
        told = {one: fields.arrays_to_bytes(told[one]) if told else given[one] for one in who}
        name, round = name or fields.new_name(), str(number).encode()
        hashes = {
            one: fields.message_hash(run=run, round=round, model=message, key=KEY)
            for one, message in told.items()
        }
        server = ServerRound(
            self.terms.for_round(
                name, message_hash=hashes[min(who)], dismissed_hash=dismissed.digest()
            ),
            authority,
            dismissed,
        )
        signed = {one: (certificates[one].to_bytes(), dismissed.to_bytes()) for one in who}

        def take(kind, questions):
            refused = server.take(self.fleet.link.ask(kind, questions, 60))
            if refused:
                raise Refused(next(iter(refused.values())))

        take(
            Stage.ADVERTISE.question,
            {one: fields.pack_fields(name, run, round, hashes[one], *signed[one]) for one in who},
        )
        take(
            Stage.SHARE.question,
            {one: question + server.shared for one, question in server.questions().items()},
        )
        take(
            Stage.MASK.question,
            {
                one: fields.pack_fields(sent, KEY, given[one])
                for one, sent in server.questions().items()
            },
        )
        take(Stage.SIGN.question, server.questions())
        take(Stage.UNMASK.question, server.questions())
        return server.total()

    def device(self, number) -> Device:
        return self.fleet.link._devices[number].handler

    @property
    def reports(self):
        return [report for reports in self.fleet.reports.values() for report in reports]
