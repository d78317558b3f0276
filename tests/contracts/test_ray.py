"""A cluster of workers: the same bits as one process, whoever dies, joins late or is refused."""

import os
import signal
import sys
import time

import jax
import numpy as np
import pytest

from compiling import compiler, optimised
from harness import compile_with, quietly, tiny_recipe
from taciturn import cli
from taciturn.cli.log_lines import print_warnings
from taciturn.core import Message
from taciturn.fleets import assemble
from taciturn.fleets.simulation import ray_engine
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.fleets.simulation.ray_engine import RayError, RayFleet, SelfTest
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.release.model_file import load_model
from taciturn.runs.loop import train_run

ray = pytest.importorskip("ray", reason="Ray is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each, to which others may be added. Workers compile as for users, and
    so does this process meanwhile.
    """
    before = compiler.get_compile_options
    compile_with(optimised)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    made.add_node(num_cpus=1)
    ray_engine.join(made.address)
    yield made
    ray.shutdown()
    made.shutdown()
    compile_with(before)


@pytest.fixture
def fleet(cluster, population):
    made = RayFleet(tiny_recipe(population), population)
    yield made
    for worker in (*made._workers, *made._refused, *made._tests.values()):
        ray.kill(worker)


@pytest.fixture
def asked(cluster, population):
    """A program, a message, a cohort and a key; and the sum that one process comes to."""
    recipe = tiny_recipe(population)
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    params = build.language_model(recipe.model, len(population.vocabulary)).init(KEY)
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))
    question = device_program(algorithm), message, np.arange(len(population)), KEY
    alone = SimulatedFleet(
        population,
        build.layout(recipe, population.vocabulary),
        weight_cap=recipe.participation.weight_cap,
        cohort=ray_engine.CPU_PIECE,
    )
    return question, alone.sum_reports(*question)


def same_bits(one, other) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def kill(worker) -> None:
    os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def wait_for(workers: int, fleet: RayFleet, asked) -> None:
    """Rounds go on meanwhile, with those who are there."""
    question, expected = asked
    until = time.monotonic() + 100
    while len(fleet._workers) < workers and time.monotonic() < until:
        assert same_bits(fleet.sum_reports(*question), expected)
        time.sleep(0.2)
    assert len(fleet._workers) == workers


@pytest.mark.slow
def test_workers_who_die_and_who_join_late_change_no_bit(cluster, fleet, asked):
    question, expected = asked
    wait_for(2, fleet, asked)
    kill(fleet._workers[0])  # it is given a piece before that is noticed
    assert same_bits(fleet.sum_reports(*question), expected)
    joined = cluster.add_node(num_cpus=1)
    wait_for(3, fleet, asked)
    cluster.remove_node(joined)
    assert same_bits(fleet.sum_reports(*question), expected)
    # The twin: one user less is another sum.
    program, message, cohort, key = question
    assert not same_bits(fleet.sum_reports(program, message, cohort[1:], key), expected)
    assert not any(
        np.any(leaf)
        for leaf in jax.tree.leaves(fleet.sum_reports(program, message, cohort[:0], key))
    )


@pytest.mark.slow
def test_a_worker_that_gives_other_bits_is_refused(fleet, asked, monkeypatch, caplog):
    """Another kind of device, another JAX: here, one that says so."""
    monkeypatch.setattr(ray_engine, "PATIENCE", 60.0)
    fleet._first_test = SelfTest("other bits", "a machine of another kind")
    with pytest.raises(
        RayError, match=r"2 give other bits than the first and were refused. Nothing is lost"
    ):
        fleet.sum_reports(*asked[0])
    assert (
        "gives other bits than the first (a machine of another kind) and is not used" in caplog.text
    )
    assert len(fleet._refused) == 2


def test_a_command_prints_that_a_worker_is_refused_as_a_sentence_of_its_own(capsys):
    print_warnings(ray_engine.LOG)
    print_warnings(ray_engine.LOG)
    ray_engine.LOG.warning("a worker (%s) gives other bits", "a GPU")
    assert capsys.readouterr().err == "taciturn: a worker (a GPU) gives other bits\n"


@pytest.mark.slow
def test_a_sum_that_is_lost_with_its_node_is_made_again_and_not_added_twice(
    fleet, asked, monkeypatch
):
    """The worker had answered, and its answer went with it."""
    question, expected = asked
    wait_for(2, fleet, asked)
    got, lost = ray.get, []

    def loses_one(answer):
        found = got(answer)
        if not lost and not isinstance(found, SelfTest):
            lost.append(answer)
            raise ray.exceptions.ObjectLostError(answer.hex(), None, "")
        return found

    monkeypatch.setattr(ray, "get", loses_one)
    assert same_bits(fleet.sum_reports(*question), expected)
    assert lost
    # The twin: with no end to it, the run ends with a sentence.
    monkeypatch.setattr(ray_engine, "MOST_DEATHS", 3)
    monkeypatch.setattr(ray, "get", lambda answer: lost.clear() or loses_one(answer))
    with pytest.raises(RayError, match="workers end before they have trained any user"):
        fleet.sum_reports(*question)


@pytest.mark.slow
def test_people_who_are_others_elsewhere_are_refused(cluster, population, asked):
    people = type(
        "People",
        (),
        {"id": "others", "texts": population.texts, "vocabulary": population.vocabulary},
    )
    fleet = RayFleet(tiny_recipe(population), people)
    with pytest.raises(RayError, match="has other users on"):
        fleet.sum_reports(*asked[0])


@pytest.mark.slow
def test_a_training_on_a_cluster_makes_the_model_of_one_process(
    cluster, population, tmp_path, monkeypatch
):
    recipe = tiny_recipe(population, run={"rounds": 12, "evaluate_every": 12, "save_every": 4})
    died, fleets = [], []
    monkeypatch.setattr(
        assemble, "RayFleet", lambda *given: fleets.append(RayFleet(*given)) or fleets[0]
    )

    def one_dies(done: int, *_: object) -> None:
        if done in (3, 7):
            kill(fleets[0]._workers[0])
            died.append(done)

    train_run(recipe, tmp_path / "cluster", one_dies)
    monkeypatch.setattr(assemble, "is_joined", lambda: False)
    train_run(recipe, tmp_path / "alone", quietly)
    made, alone = (jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("cluster", "alone"))
    assert died == [3, 7]
    assert same_bits(made, alone)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("rye", "--engine must be ray, or ray:ADDRESS of a cluster, not rye"),
        ("ray:127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_an_engine_that_is_not_there_is_a_sentence(engine, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["taciturn", "train", "recipe.toml", "--engine", engine])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
