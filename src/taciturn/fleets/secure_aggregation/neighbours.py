"""Which devices mask each other's reports (Bell et al. 2020, §3): k neighbours on a ring in random order, and t of k shares for a secret.

Everyone with everyone (Bonawitz et al. 2017) is n²/2 masks a round. With k neighbours it is nk/2, and enough if

1. **no secret is lost to the others**: even if neighbours of a device are told different lists of the dead, no more than one of its two
   secrets can be put together. Of k neighbours c are corrupt and give both shares, the others give one: 2t > k + c.
2. **no part is cut off**: masks connect the honest devices that report. On a ring they do unless k/2 in a row are corrupt or gone.
3. **nothing is missing**: t neighbours of every device are there to the end.

The order of the ring is random, so how many neighbours of one device are corrupt or gone is hypergeometric, and that k/2 given places are
all is a ratio of binomials. The bounds are those, in whole numbers, times n (a union over devices and places): `degree` finds the fewest
neighbours, from 100 on, for which 1 and 2 together, and 3, fail with a probability of at most 2⁻⁴⁰ each. In a small cohort everyone is
everyone's neighbour, and nothing is left to chance.

Departs from Bell et al. 2020: their condition for a server that follows the protocol is c < t. Ours holds against a server that lies to
some about who is gone, and takes two to five times the neighbours in cohorts of thousands; a mask of 2.4M numbers costs a device 2 ms.

**Assumes:** who is corrupt and who drops out does not depend on the order of the ring, which follows from a hash of all adverts.
"""

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNLIKELY = 40  # bits: things happen with probability 2⁻⁴⁰ that are said not to
FEWEST = 100  # neighbours where there are more: they cost little, and shares of corrupt devices are guesses


class Degree(NamedTuple):
    neighbours: int  # k
    threshold: int  # t


@functools.lru_cache(maxsize=64)
def degree(cohort: int, dropouts: float, corrupt: float) -> Degree:
    """For so many devices, of which these shares may drop out and be corrupt; a ValueError where none will do.

    In whole numbers throughout, so that server and devices come to the same. The largest threshold is taken that drop-outs allow.

    >>> degree(20, 0.3, 0.1)
    Degree(neighbours=19, threshold=13)
    >>> degree(10_000, 0.1, 0.05)
    Degree(neighbours=132, threshold=84)
    """
    if not (0 <= dropouts < 1 and 0 <= corrupt < 1):
        raise ValueError(f"shares of devices lie between 0 and 1, not {dropouts} and {corrupt}")
    lost, bad = (math.floor(share * cohort + 1e-9) for share in (dropouts, corrupt))
    everyone = Degree(cohort - 1, cohort - 1 - lost)
    if cohort < 2 or 2 * everyone.threshold <= everyone.neighbours + bad:
        raise ValueError(
            f"{cohort} devices of which {lost} drop out and {bad} are corrupt make no secure sum: allow for fewer, or take more devices"
        )
    low, high = FEWEST // 2, (cohort - 1) // 2  # halves of k
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _ring_holds(cohort, lost, bad, 2 * middle) else (middle + 1, high)
    if 2 * low < everyone.neighbours and _ring_holds(cohort, lost, bad, 2 * low):
        return Degree(2 * low, _threshold(cohort, lost, 2 * low))
    return everyone


def ring(cohort_name: bytes, adverts: Iterable[bytes]) -> list[bytes]:
    """Digests of adverts in an order that nobody can choose without trying: that of their hashes under a hash of all."""
    return sorted(adverts, key=lambda advert: hashlib.sha256(cohort_name + advert).digest())


def neighbours(order: list[bytes], place: int, count: int) -> set[bytes]:
    """The nearest on the ring, half of them on each side; all the others where that is everybody."""
    if count >= len(order) - 1:
        return set(order) - {order[place]}
    return {order[(place + step) % len(order)] for step in range(-count // 2, count // 2 + 1) if step}


def _ring_holds(cohort: int, lost: int, bad: int, neighbours: int) -> bool:
    threshold = _threshold(cohort, lost, neighbours)
    counts = _hypergeometric(cohort - 1, bad, neighbours)
    both_secrets = sum(ways for count, ways in counts if count >= 2 * threshold - neighbours)
    of_ways = math.comb(cohort - 1, neighbours)
    half = neighbours // 2
    all_gone, of_places = math.perm(min(lost + bad, cohort), half), math.perm(cohort, half)
    failing = cohort * (both_secrets * of_places + all_gone * of_ways)
    return failing << UNLIKELY <= of_ways * of_places


def _threshold(cohort: int, lost: int, neighbours: int) -> int:
    """The most shares of which one can be sure: that fewer neighbours of some device are left is unlikely."""
    fewer, total = 0, math.comb(cohort - 1, neighbours)
    for losses, ways in _hypergeometric(cohort - 1, lost, neighbours):
        fewer += ways
        if cohort * fewer << UNLIKELY > total:
            return neighbours - losses
    return neighbours


def _hypergeometric(others: int, marked: int, drawn: int) -> Iterator[tuple[int, int]]:
    """How many of those drawn are marked, the most first, and in how many of comb(others, drawn) draws that is so."""
    most = min(marked, drawn)
    ways = math.comb(marked, most) * math.comb(others - marked, drawn - most)
    for count in range(most, -1, -1):
        yield count, ways
        ways = ways * count * (others - marked - drawn + count) // ((marked - count + 1) * (drawn - count + 1))
