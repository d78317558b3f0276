"""Cells: a round is divided into groups of at most 200 devices.

Each has its own secure sum, everyone with everyone.

Work and messages grow with the square of a cell and in proportion to a round, and a cell that fails
does not affect others. The price is that the server sees the sum of each cell: what protects a
report has to hold in every cell.

Which devices share a cell follows from a hash of all adverts, which can be chosen only by trial. So
the number of corrupt devices in a cell is hypergeometric, and `colluders` bounds it for all cells
of a round at once, except with probability 2⁻⁸⁰ each time that a server tries another list. The
threshold t of a cell of n devices, c of them corrupt, is the number of shares for a secret, of
reports for a sum and of signatures under a list of survivors:

1. **one sum of a cell is opened, and no more than one secret of a device**: 2t > n + c
   (docs/secure_aggregation.md);
2. **nothing is missing**: t devices remain to the end. t is as large as drop-outs allow, since it
   is the size of the smallest sum.

All arithmetic is in integers, so that server and devices agree.

**Assumes:** who is corrupt does not depend on the order of the hashes.
"""

import functools
import hashlib
import math
from collections.abc import Iterable

# Devices in a cell.
MOST = 200
# Bits: a list with a cell of more corrupt devices than stated takes 2⁸⁰ tries, which cost a server
# nothing.
UNLIKELY = 80
# Bits: so improbable is it that a cell loses more devices than it can, and fails.
SELDOM = 10


def cells(cohort_name: bytes, adverts: Iterable[bytes]) -> list[list[bytes]]:
    """Deal digests of adverts to as few cells as possible.

    They are dealt in the order of their hashes under a hash of all, the cohort's name.
    """
    order = sorted(adverts, key=lambda advert: hashlib.sha256(cohort_name + advert).digest())
    count = max(1, -(-len(order) // MOST))
    return [sorted(order[first::count]) for first in range(count)]


def cell_name(cohort_name: bytes, cell: Iterable[bytes]) -> bytes:
    """Return the name that binds everything said in a cell to it.

    It binds that to all terms and adverts of the round too.
    """
    return hashlib.sha256(b"taciturn secure sum: cell\0" + cohort_name + b"".join(cell)).digest()


def colluders(cohort: int, cell: int, corrupt: float) -> int:
    """Return the most corrupt devices in a cell of a cohort of which this share is corrupt.

    >>> colluders(100, 100, 0.05), colluders(1000, 100, 0.05), colluders(1000, 200, 0.05)
    (5, 34, 43)
    >>> colluders(10_000, 200, 0.05)
    54
    """
    corrupt_devices = _count_share(cohort, corrupt)
    return _bound_marked(
        cohort=cohort,
        marked=corrupt_devices,
        cell=cell,
        bits=UNLIKELY,
    )


@functools.lru_cache(maxsize=64)
def threshold(cohort: int, cell: int, dropouts: float, corrupt: float) -> int:
    """Return t, for a cell of a cohort of which these shares may drop out and be corrupt.

    Raises:
        ValueError: no threshold suffices.

    >>> threshold(20, 20, 0.3, 0.1), threshold(1000, 200, 0.3, 0.05)
    (14, 122)
    """
    if not (0 <= dropouts < 1 and 0 <= corrupt < 1):
        raise ValueError(f"shares of devices lie between 0 and 1, not {dropouts} and {corrupt}")
    bad = colluders(cohort, cell, corrupt)
    lost_in_proportion = _count_share(cell, dropouts)
    # The smallest with 2t > n + c (1. above).
    secret = (cell + bad) // 2 + 1
    if cell < 2 or secret > cell - lost_in_proportion:
        raise ValueError(
            f"{cell} devices of which {lost_in_proportion} drop out and {bad} are corrupt make no"
            " secure sum: allow for fewer (fleet.max_dropout, fleet.max_colluding), or take more"
            " devices"
        )
    gone = _count_share(cohort, dropouts)
    lost = _bound_marked(
        cohort=cohort,
        marked=gone,
        cell=cell,
        bits=SELDOM,
    )
    return max(secret, cell - lost)


def _count_share(devices: int, share: float) -> int:
    return math.floor(share * devices + 1e-9)


def _bound_marked(*, cohort: int, marked: int, cell: int, bits: int) -> int:
    """Return the most marked devices in a cell.

    That any cell of the round has more has a probability of at most 2^-bits.
    """
    cell_count = -(-cohort // cell)
    draws = math.comb(cohort, cell)
    draws_with_more = 0
    for count in range(min(marked, cell), -1, -1):
        # The draws with this number of them (hypergeometric).
        draws_with_more += math.comb(marked, count) * math.comb(cohort - marked, cell - count)
        if cell_count * draws_with_more << bits > draws:
            return count
    return 0
