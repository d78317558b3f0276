"""Training on several hosts: how they meet, and what every host but the first does."""

import json
import os
from collections.abc import Callable

import jax

from taciturn.core import Message
from taciturn.fleets import assemble
from taciturn.fleets.simulation.many_hosts import GONE, HostsError, ManyHosts, announced, join
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe


def join_hosts(hosts: str, host: int, coordinator: str | None) -> bool:
    """Meet the other hosts; whether this is the first of them."""
    if hosts == "auto":
        join(None, None, None)
    elif not hosts.isdecimal() or coordinator is None or not 0 <= host < int(hosts):
        raise HostsError("--hosts takes auto, or a number together with --coordinator ADDRESS:PORT and a --host below that number")
    else:
        join(coordinator, int(hosts), host)
    return jax.process_index() == 0


def serve_host(say: Callable[[str], None]) -> None:
    """Train a share of each cohort until host 0 is done. The recipe comes from it, with its noise worked out; secrets do not."""
    say(f"host {jax.process_index()} of {jax.process_count()}: trains a share of each of host 0's cohorts")
    try:
        recipe = Recipe(**json.loads(announced()))
        population = build.population(recipe)
        algorithm = build.algorithm(recipe, len(population.vocabulary))
        params = build.language_model(recipe.model, len(population.vocabulary)).init(jax.random.key(0))
        public = algorithm.mechanism.public(algorithm.mechanism.init(params))
        fleet = assemble.simulated(recipe, population)
        assert isinstance(fleet, ManyHosts)
        fleet.serve(device_program(algorithm), Message(params, public))
    except jax.errors.JaxRuntimeError:
        say(f"taciturn: {GONE}")
        os._exit(2)  # without waiting for those who are gone


def dismiss_hosts() -> None:
    """Host 0 is done."""
    if jax.process_count() > 1:
        ManyHosts.stop()
