"""The audit of the noise itself: it notices noise that two parts of a model share, or that is
missing in a part, and accuses nobody whatever people do.
"""

import time

import numpy as np
import pytest

from taciturn.audit import repeated_noise
from taciturn.audit.one_run import audit_scores
from taciturn.audit.repeated_noise import audit_noise
from taciturn.names import NoiseName
from taciturn.privacy.noise.rows import toeplitz_rows, tree_rows

LAYERS = [30_000, 10_000, 12, 300, 12, 20_000]
SIZE = sum(LAYERS)
START = dict(zip("abcdef", np.cumsum([0, *LAYERS[:-1]]).tolist(), strict=True))


def white(rows=8, size=SIZE, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, size))


def people(rows=8, size=SIZE, seed=0, far=1.0):
    """What people do: much in a few parameters, the same in many, and more or less of it each
    round, as rows of a matrix that follow one direction do.
    """
    generator = np.random.default_rng([seed, 1])
    direction = np.resize(generator.normal(size=96), size)
    weights = np.repeat(generator.pareto(2.0, -(-size // 96)), 96)[:size]
    steady = generator.normal(size=size)
    each = 1 + 0.5 * generator.normal(size=(rows, 1))
    return far * (each * direction * weights / 2 + steady / 2)


def audit(noise, added=0.0, layers=LAYERS, rows_of_noise=None, **settings):
    """Of what is kept in sixteen bits, as a run keeps it."""
    shares = np.eye(len(noise)) if rows_of_noise is None else rows_of_noise
    kept = (shares @ noise + added).astype(np.float16).astype(np.float32)
    return audit_noise(kept, shares, layers, **settings)


def copy(noise, of, to, length, sign=1.0):
    noise = noise.copy()
    noise[:, to : to + length] = sign * noise[:, of : of + length]
    return noise


HALF = SIZE // 2
BROKEN = {
    "two halves": lambda noise: copy(noise, 0, HALF, HALF),
    "two halves, negated": lambda noise: copy(noise, 0, HALF, HALF, -1.0),
    "one stream for two layers": lambda noise: copy(noise, START["a"], START["b"], 10_000),
    "two layers of one shape": lambda noise: copy(noise, START["c"], START["e"], 12),
    "a layer of few parameters": lambda noise: copy(noise, START["a"], START["d"], 300),
    "one block of 4,096": lambda noise: copy(noise, 1000, 40_500, 4096),
    "one block of 4,096, negated": lambda noise: copy(noise, 1000, 40_500, 4096, -1.0),
    "one block of 1,024": lambda noise: copy(noise, 1111, 33_333, 1024),
    "two halves, shifted by 77": lambda noise: copy(noise, 0, HALF + 77, HALF - 77),
    "blocks that repeat": lambda noise: np.tile(noise[:, :4096], (1, 15))[:, :SIZE],
    "each number twice": lambda noise: np.repeat(noise, 2, axis=1)[:, 1 : SIZE + 1],
    "a share of it": lambda noise: np.hstack(
        [noise[:, :HALF], 0.6 * noise[:, HALF:] + 0.8 * noise[:, :HALF]]
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("far", [0.0, 0.3])
def test_noise_that_two_parts_share_is_noticed(kind, far):
    found = audit(BROKEN[kind](white()), people(far=far))
    assert found.is_refuted
    assert found.repeated > 0
    assert found.quiet == 0


def test_it_says_how_much_is_shared_how_far_apart_and_whether_to_subtract_or_add():
    found = audit(BROKEN["two halves, negated"](white()))
    assert found.distance == (HALF, -1)
    assert found.repeated > 0.99 * SIZE
    found = audit(BROKEN["two layers of one shape"](white()))
    assert found.distance == (START["e"] - START["c"], 1)
    assert found.repeated == 24


@pytest.mark.parametrize("far", [0.0, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_sound_mechanism_is_not_accused_whatever_people_do(far, rows):
    found = audit(white(rows), people(rows, far=far))
    assert not found.is_refuted
    assert found.distance is None


def test_people_who_follow_the_noise_of_the_round_before_do_not_accuse_it():
    """Each parameter steps back by half of what its neighbour was pushed by."""
    noise = white()
    released = noise.copy()
    for row in range(1, len(noise)):
        released[row] -= 0.5 * np.roll(released[row - 1], 1)
    assert not audit(released).is_refuted


CORRELATED: dict[NoiseName, np.ndarray] = {
    "tree": tree_rows(8, honaker=False, is_completed=False),
    "honaker": tree_rows(8, honaker=True, is_completed=True),
    "blt": toeplitz_rows(np.array([1.0, 0.5, 0.35, 0.3, 0.25, 0.2, 0.2, 0.1])),
}


@pytest.mark.parametrize("kind", CORRELATED)
def test_noise_that_is_correlated_over_rounds_is_told_from_noise_that_repeats_within_one(kind):
    shares = CORRELATED[kind]
    noise = white(shares.shape[1])
    assert not audit(noise, people(far=0.3), rows_of_noise=shares).is_refuted
    halves = BROKEN["two halves"](noise)
    assert audit(halves, people(far=0.3), rows_of_noise=shares).repeated > 0.9 * SIZE


def test_at_a_level_of_one_in_ten_few_audits_are_false_alarms():
    """The level is an upper bound: all pairs count, and far fewer are looked at."""
    alarms = 0
    for seed in range(200):
        found = audit(white(1, 3000, seed), layers=[2000, 1000], level=0.1)
        alarms += found.is_refuted
    # One in ten thousand sets of such audits has more.
    assert alarms <= 36


def test_without_counting_all_pairs_the_innocent_would_be_accused(monkeypatch):
    """The twin: the surprise that one pair is allowed, for every pair that is looked at."""
    one_pair = repeated_noise._least_mean.__wrapped__
    monkeypatch.setattr(repeated_noise, "_least_mean", lambda count, _: one_pair(count, 1e-2))
    alarms = sum(audit(white(1, 3000, seed), layers=[2000, 1000]).is_refuted for seed in range(40))
    # Of 40, where one in a hundred is allowed.
    assert alarms > 8


@pytest.mark.parametrize(("start", "length"), [(START["c"], 12), (5000, 512), (START["d"], 300)])
def test_a_part_without_noise_is_noticed(start, length):
    noise = white()
    noise[:, start : start + length] = 0.0
    found = audit(noise, people(far=0.3))
    assert found.is_refuted
    assert found.quiet > 0
    assert found.repeated == 0


@pytest.mark.parametrize("times", [1.05, 1.5, 1e3])
def test_noise_that_is_too_small_everywhere_is_noticed_and_not_called_repeated(times):
    found = audit(white() / times)
    assert found.is_refuted
    assert 1 < found.times_at_least <= times * 1.001
    assert found.repeated == 0


def test_what_it_says_it_would_notice_it_does_notice():
    for far in (0.0, 0.3):
        sound = audit(white(), people(far=far))
        assert sound.caught < 1.2
        noticed = [
            audit(white(seed=seed) / sound.caught, people(far=far)).is_refuted
            for seed in range(1, 21)
        ]
        assert np.mean(noticed) >= 0.8
    # What one repetition must measure.
    length = audit(white()).noticed_from
    noticed = []
    for seed in range(1, 21):
        generator = np.random.default_rng(seed)
        start, to = generator.integers(0, [HALF - length, HALF - length]).tolist()
        broken = copy(white(seed=seed), start, HALF + to, length)
        noticed.append(audit(broken).repeated > 0)
    assert np.mean(noticed) >= 0.8


def test_where_people_hide_the_noise_it_says_so():
    loud = audit(white(), people(far=100.0))
    assert loud.caught == np.inf
    assert loud.noticed < 0.2
    assert audit(white(), people(far=0.1)).noticed > 0.9
    # The twin: it is so indeed.
    assert not audit(BROKEN["one block of 1,024"](white()), people(far=100.0)).is_refuted


def test_noise_that_is_missing_altogether_is_noticed_where_nobody_does_anything():
    found = audit(0 * white())
    assert found.is_refuted
    assert found.quiet == SIZE
    assert found.repeated == 0


@pytest.mark.parametrize("loud_rows", [1, 8])
def test_where_people_hide_all_of_the_noise_nothing_is_said_of_it(loud_rows):
    noise = BROKEN["two halves"](white())
    added = np.zeros((8, 1))
    added[:loud_rows] = 2000.0
    found = audit(noise, added)
    assert not found.is_refuted
    assert found.noticed == 0
    assert found.caught == np.inf


@pytest.mark.parametrize("layers", [[1], [2], [1, 1], [512, 0], [0, 300, 0, 300]])
def test_tiny_models_and_layers_without_parameters_are_audited(layers):
    size = sum(layers)
    assert not audit(white(8, size), layers=layers).is_refuted
    assert audit(0 * white(8, size), layers=layers).is_refuted


def test_scores_of_audit_users_do_not_notice_it():
    """The twin of all: with the noise of one half in the other, a score that adds up all
    parameters is what it always was, but for a spread that is another in the mean of no users.
    """
    generator = np.random.default_rng(3)
    users = 400
    size = 8192
    directions = 1.0 - 2.0 * generator.integers(0, 2, (users, size))
    noise = generator.normal(size=size)
    noise[size // 2 :] = noise[: size // 2]
    included = generator.random(users) < 0.5
    scores = included + directions @ noise / np.sqrt(size)
    assert not audit_scores(scores, np.ones(users), included).is_refuted
    assert audit(np.stack([noise]), layers=[size]).is_refuted


def test_a_model_of_which_only_stretches_are_kept_is_compared_where_both_are():
    generator = np.random.default_rng(0)
    is_kept = np.repeat(generator.random(SIZE // 64 + 1) < 0.5, 64)[:SIZE]
    for broken in (False, True):
        noise = BROKEN["two halves"](white()) if broken else white()
        found = audit(noise[:, is_kept], is_kept=is_kept)
        assert found.is_refuted == broken
        assert found.parameters == is_kept.sum()


@pytest.mark.slow
def test_two_and_a_half_million_parameters_take_seconds():
    noise = white(8, 2_400_000).astype(np.float32)
    began = time.process_time()
    found = audit(copy(noise, 1000, 700_000, 4096), layers=[960_000, 10_000, 900_000, 530_000])
    assert found.repeated == 8192
    assert time.process_time() - began < 60
