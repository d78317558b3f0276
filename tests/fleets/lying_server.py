"""A server that lies to devices, which are those that are shipped."""

import jax
import jax.numpy as jnp
from fleet_of_devices import FleetOfDevices

from taciturn.core import Message
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import Device
from taciturn.fleets.secure_aggregation.messages import Advert, MaskedReport, SealedShares, Unmasking
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.recipe import build

KEY = bytes(range(8))
VICTIM = 3


class Credulous:
    """A server that looks at no signature."""

    def verify(self, *signed):
        return True


class LyingServer:
    """Asks devices in its own way: each may get another message, and be told another hash of it."""

    def __init__(self, folder, vocabulary, **sections):
        self.fleet = FleetOfDevices(folder, vocabulary, count=9, **sections)
        self.agreement = assemble.agreement(self.fleet.recipe, vocabulary, self.fleet.enrolled)
        self.modulus = 1 << self.agreement.modulus_bits
        mechanism = build.algorithm(self.fleet.recipe, len(vocabulary)).mechanism
        params = build.language_model(self.fleet.recipe.model, len(vocabulary)).init(jax.random.key(7))
        self.honest = Message(params, mechanism.public(mechanism.init(params)))

    def filled(self, value):
        return self.honest._replace(params=jax.tree.map(lambda leaf: jnp.full_like(leaf, value), self.honest.params))

    def round(self, number, who=range(9), given=None, told=None, run=b"run", identity=None, name=None):
        """`given` and `told` are the messages by device: what it gets, and of what it is told the hash."""
        given = {one: fields.arrays_to_bytes((given or {}).get(one, self.honest)) for one in who}
        told = {one: fields.arrays_to_bytes(told[one]) if told else given[one] for one in who}
        name, round = name or fields.new_name(), str(number).encode()
        hashes = {one: fields.message_hash(run, round, message, KEY) for one, message in told.items()}
        server = ServerRound(self.agreement._replace(round=name, message=hashes[min(who)]), identity or self.fleet.connected.identity)
        ask = self.fleet.link.ask

        def take(taken, kind, contents):
            for one, answer in ask(kind, contents, 60).items():
                taken(one, answer)

        first = {one: fields.pack_fields(name, run, round, hashes[one]) for one in who}
        take(lambda d, a: server.take_advert(d, Advert.from_bytes(a)), fields.ADVERTISE, first)
        rosters = {one: roster.to_bytes() for one, roster in server.rosters().items()}
        take(lambda d, a: server.take_shares(d, SealedShares.from_bytes(a)), fields.SHARE, rosters)
        deliveries = {one: fields.pack_fields(sent.to_bytes(), KEY, given[one]) for one, sent in server.deliveries().items()}
        take(lambda d, a: server.take_report(d, MaskedReport.from_bytes(a)), fields.REPORT, deliveries)
        requests = {one: request.to_bytes() for one, request in server.requests().items()}
        take(lambda d, a: server.take_answer(d, Unmasking.from_bytes(a)), fields.UNMASK, requests)
        return server.total()

    def device(self, number) -> Device:
        return self.fleet.link._devices[number].handler

    @property
    def reports(self):
        return [report for reports in self.fleet.reports.values() for report in reports]
