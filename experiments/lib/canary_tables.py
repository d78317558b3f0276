"""What runs with canaries left: how often each kind is met, its ranks, and how many a beam search
finds.
"""

import math
from itertools import groupby
from typing import Any, NamedTuple

from taciturn.audit.results import rank_text

# (n_u, n_e): the number of users who have a canary, and how often each of them says it.
Kind = tuple[int, int]


class CanaryRow(NamedTuple):
    """What all seeds of a run left of one kind of canary."""

    # How often such a canary is met, on average, and how many of them never are.
    met: float
    never_met: int
    # Sorted, over all seeds.
    ranks: list[int]
    # How many of them a beam search finds, in words.
    found: str


def group_by_kind(results: list[dict[str, Any]]) -> dict[Kind, CanaryRow]:
    """Return what the results say of each kind of canary."""
    canaries = []
    for result in results:
        canaries += [tuple(canary) for canary in result["canaries"]]
    by_kind = {}
    for kind, canaries_of_kind in groupby(sorted(canaries), lambda canary: canary[:2]):
        by_kind[kind] = _summarise(list(canaries_of_kind))
    return by_kind


def _summarise(canaries: list[tuple]) -> CanaryRow:
    seen = []
    ranks = []
    found = []
    for _, _, times, rank, is_found in canaries:
        seen.append(times)
        ranks.append(rank)
        found.append(is_found)
    return CanaryRow(
        met=sum(seen) / len(seen),
        never_met=seen.count(0),
        ranks=sorted(ranks),
        found=f"{sum(found)} of {len(found)}",
    )


def least_met(results: list[dict[str, Any]]) -> int:
    """Return how often those canaries are met that are met least, and are met at all."""
    canaries = [canary for result in results for canary in result["canaries"]]
    return min((times for _, _, times, _, _ in canaries if times), default=0)


def least_rank_of_one_user(by_kind: dict[Kind, CanaryRow]) -> int:
    """Return the rank of the likeliest canary that only one user has."""
    least = []
    for (users, _), row in by_kind.items():
        if users == 1:
            least.append(min(row.ranks))
    return min(least)


def middle(ranks: list[int]) -> int:
    return ranks[len(ranks) // 2]


def median(ranks: list[int]) -> str:
    """Show the median of sorted ranks, with a 95 % interval by order statistics.

    >>> median(list(range(1, 16)))
    '8 (4 to 12)'
    """
    count = len(ranks)
    place = 0
    # The probability that fewer than `place` + 1 of the ranks lie below the true median.
    below = 0.5**count
    while below <= 0.025:
        place += 1
        below += math.comb(count, place) * 0.5**count
    lowest = max(place - 1, 0)
    low = rank_text(ranks[lowest])
    high = rank_text(ranks[count - 1 - lowest])
    return f"{rank_text(middle(ranks))} ({low} to {high})"
