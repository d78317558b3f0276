"""What runs with canaries left: how often each kind is met, its ranks, and how many a beam search
finds.
"""

import math
from itertools import groupby
from typing import Any

from taciturn.audit.results import rank_text


def memorised(results: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, list[int], str]]:
    """By (n_u, n_e): how often such a canary is met, the ranks over all seeds, and how many are
    found.
    """
    canaries = sorted(tuple(one) for result in results for one in result["canaries"])
    made = {}
    for kind, some in groupby(canaries, lambda one: one[:2]):
        found = list(some)
        made[kind] = (
            max(one[2] for one in found),
            sorted(one[3] for one in found),
            f"{sum(one[4] for one in found)} of {len(found)}",
        )
    return made


def middle(ranks: list[int]) -> int:
    return ranks[len(ranks) // 2]


def median(ranks: list[int]) -> str:
    """Show the median of sorted ranks, with a 95 % interval by order statistics.

    >>> median(list(range(1, 16)))
    '8 (4 to 12)'
    """
    count, least, below = len(ranks), 0, 0.5 ** len(ranks)
    while below <= 0.025:
        least += 1
        below += math.comb(count, least) * 0.5**count
    low = max(least - 1, 0)
    return (
        f"{rank_text(middle(ranks))} ({rank_text(ranks[low])} to"
        f" {rank_text(ranks[count - 1 - low])})"
    )
