"""Attacks on the last bits of a release. Against noise made of floats they always succeed; against
integers they only guess.

Each is run on the mechanism as it is and on a *twin* in which float32 noise is put back, as it was
drawn before.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from harness import mostly_slow
from taciturn.core import Release
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.bounding.clipping import flat_clip, per_layer_clip
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.bounding.secagg_encoding import encoding, modular
from taciturn.privacy.noise import chacha20, int64, sampler
from taciturn.privacy.noise import mechanism as mechanisms
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.noise.mechanism import adaptive_mechanism, mechanism
from taciturn.privacy.noise.white import gaussian

SIZE, ROWS, CLIP_NORM = 3000, 7, 0.8
LIKE = {"a": jnp.zeros((SIZE - 1000) // 50 * 50).reshape(-1, 50), "b": jnp.zeros(1000)}
NOISES = {
    "independent": lambda: gaussian(20.0),
    "tree": lambda: tree(20.0, ROWS, honaker=False),
    "honaker": lambda: tree(20.0, ROWS),
    "honaker, restarted": lambda: tree(20.0, 3, 4),
    "banded": lambda: banded_toeplitz(20.0, Bands(ROWS, [1.0, 0.5, 0.375])),
    "blt": lambda: blt(20.0, Buffers(ROWS, (0.97, 0.4), (0.3, 0.2))),
    "blt, restarted": lambda: blt(
        20.0, Buffers(3, (0.9,), (0.4,)), Buffers(4, (0.97, 0.4), (0.3, 0.2))
    ),
}


def made(kind: str):
    """Build a mechanism from the names of its parts."""
    noise, _, more = kind.partition(" + ")
    match more:
        case "adaptive clip":
            return adaptive_mechanism(
                AdaptiveClip(start=CLIP_NORM, count_stddev=30.0), 100.0, NOISES[noise](), 300
            )
        case "clipped denominator":
            return mechanism(flat_clip(CLIP_NORM), clipped_denominator(20.0), NOISES[noise](), 300)
        case "per layer":
            return mechanism(
                per_layer_clip(CLIP_NORM), fixed_denominator(100.0), NOISES[noise](), 300
            )
        case "schedule":
            return mechanism(
                flat_clip([(0, 0.8), (2, 0.5)]), fixed_denominator(100.0), NOISES[noise](), 300
            )
        case "residues":
            encoded = encoding(SIZE, 300)
            return mechanism(
                modular(flat_clip(CLIP_NORM), LIKE, encoded),
                fixed_denominator(100.0),
                NOISES[noise](),
                300,
            )
        case _:
            return mechanism(flat_clip(CLIP_NORM), fixed_denominator(100.0), NOISES[noise](), 300)


KINDS = [
    *NOISES,
    "independent + clipped denominator",
    "independent + per layer",
    "independent + schedule",
    "independent + residues",
    "blt + residues",
    "honaker, restarted + adaptive clip",
    "blt, restarted + adaptive clip",
]


def key(number: int) -> np.ndarray:
    return chacha20.key_words(number.to_bytes(32, "big"))


def total_of(private, state, users: range):
    """Sum these users' reports."""
    names, public = jnp.arange(users.start, users.stop), private.public(state)

    def report(user: jax.Array):
        seed = jax.random.key(user)
        layers = [
            jax.random.normal(jax.random.fold_in(seed, place), leaf.shape)
            for place, leaf in enumerate(LIKE.values())
        ]
        return private.bound(public, dict(zip(LIKE, layers, strict=True)), jnp.float32(1), seed)

    return jax.tree.map(
        lambda reports: jnp.sum(reports, axis=0, dtype=reports.dtype), jax.lax.map(report, names)
    )


def last_words(private, monkeypatch, users=range(5)) -> list[np.ndarray]:
    """Return the last 32 bits of the noised integers of every row, before they become floats."""
    monkeypatch.setattr(
        mechanisms.int64, "to_float", lambda number, unit: number.low.astype(jnp.int32)
    )
    state, rows, release = private.init(LIKE), [], jax.jit(private.release)
    total = total_of(private, state, users)
    for row in range(ROWS):
        given, after = release(state, total, key(row))
        rows.append(
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(given.estimate)]).astype(
                np.int64
            )
        )
        state = after
    return rows


def digits_are_uniform(rows: list[np.ndarray]) -> bool:
    """Tell whether every last digit is equally likely, whatever the total."""
    found = [
        stats.chisquare(np.bincount(row % modulus, minlength=modulus)).pvalue
        for row in rows
        for modulus in (2, 16, 255)
    ]
    return min(found) > 1e-3 / len(found)


def float_white(spread, key, stream, size):
    """The twin: normals of float32, as they were drawn before, on the grid. A float has 24 bits, so
    the last 31 are zero nearly always.
    """
    name = jax.random.fold_in(jax.random.key(key[-1]), stream)
    draws = [jax.random.normal(one, (size,)) for one in jax.random.split(name, 4)]
    drawn = jnp.float32(spread.deviation * 2.0**-31) * (sum(draws[1:], draws[0]) / 2)
    return int64.shift(int64.from_int32(drawn.astype(jnp.int32)), 31)


@pytest.mark.parametrize("kind", mostly_slow(KINDS, "independent", "blt", "independent + residues"))
def test_the_last_digits_of_every_release_reveal_nothing(kind, monkeypatch):
    rows = last_words(made(kind), monkeypatch)
    assert len(rows) == ROWS
    assert digits_are_uniform(rows)


@pytest.mark.parametrize(
    "kind", ["independent", "independent + clipped denominator", "independent + residues"]
)
def test_the_last_digits_of_float_noise_are_noticed(kind, monkeypatch):
    """The twin. Float noise reaches only multiples of about 2²⁰, and the total's own digits
    show.
    """
    monkeypatch.setattr(sampler, "white", float_white)
    assert not digits_are_uniform(last_words(made(kind), monkeypatch))


def reachable(released: np.ndarray, average: np.ndarray, stddev: np.float32) -> np.ndarray:
    """Which of the released floats float32 noise can make of this average: whether one of the
    neighbouring multiples of `stddev`, added and rounded as a compiler may, comes out.
    """
    guess = ((released.astype(np.float64) - average) / np.float64(stddev)).astype(np.float32)
    candidates, up, down = [guess], guess, guess
    for _ in range(2):
        up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))
        candidates += [up, down]
    hit = np.zeros(released.shape, bool)
    for one in candidates:
        hit |= (average + (one * stddev).astype(np.float32)).astype(np.float32) == released
        hit |= (one.astype(np.float64) * np.float64(stddev) + average).astype(
            np.float32
        ) == released
    return hit


def float_release(average: np.ndarray, stddev: np.float32, number: int) -> np.ndarray:
    """Release as it was done before: the twin."""
    draws = [
        np.asarray(jax.random.normal(one, average.shape))
        for one in jax.random.split(jax.random.key(number), 4)
    ]
    return average + stddev * ((draws[0] + draws[1] + draws[2] + draws[3]) / np.float32(2))


def told_apart(release, averages, stddev, trials: int) -> tuple[int, int]:
    """Count correct guesses of the world from one release, in either world; the threshold is fixed
    on other releases.
    """

    def share(world: int, number: int) -> float:
        return float(reachable(release(world, number), averages[0], stddev).mean())

    first = [(share(0, number), share(1, number)) for number in range(6)]
    threshold = (np.mean([one for one, _ in first]) + np.mean([other for _, other in first])) / 2
    rest = range(100, 100 + trials)
    return sum(share(0, n) > threshold for n in rest), sum(
        share(1, n + trials) <= threshold for n in rest
    )


@pytest.mark.parametrize(
    "kind", mostly_slow(["independent", "blt", "independent + clipped denominator"], "blt")
)
def test_two_worlds_that_differ_by_one_user_are_not_distinguished(kind):
    """The attack of Mironov 2012 on one release at a claimed ε of 0.19."""
    trials, private = 60, made(kind)
    state, release = private.init(LIKE), jax.jit(private.release)
    totals = [total_of(private, state, range(20)), total_of(private, state, range(21))]
    silent = mechanism(
        flat_clip(CLIP_NORM),
        clipped_denominator(20.0) if "clipped" in kind else fixed_denominator(100.0),
        gaussian(20.0)._replace(multiplier=0.0),
    )
    averages = [
        np.asarray(silent.release(silent.init(LIKE), total, key(0))[0].estimate["a"]).ravel()
        for total in totals
    ]
    stddev = np.float32(20.0 * CLIP_NORM * (2 / 20 if "clipped" in kind else 1 / 100))

    def as_it_is(world: int, number: int) -> np.ndarray:
        return np.asarray(
            release(state, totals[world], key(number + 10_000 * world))[0].estimate["a"]
        ).ravel()

    def as_it_was(world: int, number: int) -> np.ndarray:
        return float_release(averages[world], stddev, number + 10_000 * world)

    assert told_apart(as_it_was, averages, stddev, trials) == (trials, trials)
    right = sum(told_apart(as_it_is, averages, stddev, trials))
    claimed = gaussian_epsilon(1 / 20.0, 1e-6)
    # At ε no guess is right more often than e^ε/(1 + e^ε) of the time.
    most = math.exp(claimed) / (1 + math.exp(claimed))
    assert stats.binomtest(right, 2 * trials, most, alternative="greater").pvalue > 1e-3


def test_two_published_models_do_not_reveal_which_words_were_typed():
    """Embedding rows of words that no user typed get only noise: θ₁ = θ₀ + noise. With float noise,
    any other row was typed.
    """
    words, width, typed = 1500, 4, np.arange(1500) % 3 == 0
    generator = np.random.default_rng(0)
    start = {"embedding": jnp.asarray(generator.normal(size=(words, width)), jnp.float32)}
    update = {
        "embedding": jnp.where(
            typed[:, None], jnp.asarray(generator.normal(size=(words, width)), jnp.float32), 0.0
        )
    }
    private = mechanism(flat_clip(CLIP_NORM), fixed_denominator(40.0), gaussian(20.0), 300)
    state = private.init(start)
    total = private.bound(private.public(state), update, jnp.float32(1), jax.random.key(0))
    release, _ = private.release(state, total, key(3))
    stddev = np.float32(20.0 * CLIP_NORM / 40.0)
    clipped = np.asarray(update["embedding"]) * (CLIP_NORM / np.linalg.norm(update["embedding"]))
    twin = Release({"embedding": float_release((clipped / 40.0).astype(np.float32), stddev, 5)})

    def named(release: Release) -> np.ndarray:
        """Words whose rows are not reachable by float noise on what they were before: those that
        the attack says were typed.
        """
        before, estimate = np.asarray(start["embedding"]), np.asarray(release.estimate["embedding"])
        return ~reachable((before + estimate).astype(np.float32), before, stddev).all(axis=1)

    was_right = stats.fisher_exact(
        np.histogram2d(named(twin), typed, bins=2)[0], alternative="greater"
    ).pvalue
    is_right = stats.fisher_exact(
        np.histogram2d(named(release), typed, bins=2)[0], alternative="greater"
    ).pvalue
    assert was_right < 1e-20
    assert is_right > 1e-3


def test_a_noised_sum_over_a_secret_weight_lies_on_a_lattice_that_reveals_it():
    """A clipped denominator that divides after noising leaks, even in integers: the result shows
    which of two Σ w_k it was.
    """
    private = mechanism(flat_clip(CLIP_NORM), clipped_denominator(20.0), gaussian(20.0), 300)
    state = private.init(LIKE)
    units = set()
    for users in (range(30), range(31)):
        total = total_of(private, state, users)
        estimate = np.asarray(
            jax.jit(private.release)(state, total, key(1))[0].estimate["b"], np.float64
        )
        units.add(round(float(estimate.std()), 1))
        assert np.isfinite(estimate).all()
    assert len(units) == 1
    # The twin: integers divided by 31 become integers again when multiplied by 31, but not by 30.
    noised = np.random.default_rng(0).integers(-(2**40), 2**40, 1000)
    divided = noised / 31
    assert np.abs(divided * 31 - np.rint(divided * 31)).max() < 1e-3
    assert np.abs(divided * 30 - np.rint(divided * 30)).max() > 0.1


def test_no_noise_state_contains_floats():
    for kind in KINDS:
        private = made(kind)
        state = private.init(LIKE)
        assert all(
            leaf.dtype in (jnp.int32, jnp.uint32) for leaf in jax.tree.leaves(state.noise)
        ), kind


@pytest.mark.parametrize(
    "kind",
    mostly_slow(["blt", "independent + residues", "honaker, restarted + adaptive clip"], "blt"),
)
def test_the_state_after_a_row_follows_from_its_release_and_key(kind):
    private = made(kind)
    state, total = private.init(LIKE), total_of(private, private.init(LIKE), range(3))
    release, follow = jax.jit(private.release), jax.jit(private.follow)
    for row in range(5):
        given, after = release(state, total, key(row))
        again = follow(state, given, key(row))
        assert all(map(np.array_equal, jax.tree.leaves(after), jax.tree.leaves(again)))
        state = after
