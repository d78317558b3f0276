"""Cells: a round is divided into groups of at most 200 devices, each with its own secure sum,
everyone with everyone.

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

# devices in a cell
MOST = 200
# bits: a list with a cell of more corrupt devices than stated takes 2⁸⁰ tries, which cost a server
# nothing
UNLIKELY = 80
# bits: the probability that it loses more devices than it can, and fails
SELDOM = 10


def cells(cohort_name: bytes, adverts: Iterable[bytes]) -> list[list[bytes]]:
    """Deal digests of adverts to as few cells as possible, in the order of their hashes under a
    hash of all.
    """
    order = sorted(adverts, key=lambda advert: hashlib.sha256(cohort_name + advert).digest())
    count = max(1, -(-len(order) // MOST))
    return [sorted(order[first::count]) for first in range(count)]


def cell_name(cohort_name: bytes, cell: Iterable[bytes]) -> bytes:
    """Return the name that binds everything said in a cell to it, and to all terms and adverts of
    the round.
    """
    return hashlib.sha256(b"taciturn secure sum: cell\0" + cohort_name + b"".join(cell)).digest()


def colluders(cohort: int, cell: int, corrupt: float) -> int:
    """Return the most corrupt devices in a cell of a cohort of which this share is corrupt.

    >>> colluders(100, 100, 0.05), colluders(1000, 100, 0.05), colluders(1000, 200, 0.05), colluders(10_000, 200, 0.05)
    (5, 34, 43, 54)
    """
    return _at_most(cohort, _share_of(cohort, corrupt), cell, UNLIKELY)


@functools.lru_cache(maxsize=64)
def threshold(cohort: int, cell: int, dropouts: float, corrupt: float) -> int:
    """Return t, for a cell of a cohort of which these shares may drop out and be corrupt;
    ValueError where none suffices.

    >>> threshold(20, 20, 0.3, 0.1), threshold(1000, 200, 0.3, 0.05)
    (14, 122)
    """
    if not (0 <= dropouts < 1 and 0 <= corrupt < 1):
        raise ValueError(f"shares of devices lie between 0 and 1, not {dropouts} and {corrupt}")
    bad, gone = colluders(cohort, cell, corrupt), _share_of(cohort, dropouts)
    secret = (cell + bad) // 2 + 1
    if cell < 2 or secret > cell - _share_of(cell, dropouts):
        lost = (
            f"{cell} devices of which {_share_of(cell, dropouts)} drop out and {bad} are corrupt"
            " make no secure sum"
        )
        raise ValueError(
            f"{lost}: allow for fewer (fleet.max_dropout, fleet.max_colluding), or take more"
            " devices"
        )
    return max(secret, cell - _at_most(cohort, gone, cell, SELDOM))


def _share_of(devices: int, share: float) -> int:
    return math.floor(share * devices + 1e-9)


def _at_most(cohort: int, marked: int, cell: int, bits: int) -> int:
    """Return the most marked devices in a cell: that any cell of the round has more has a
    probability of at most 2^-bits.
    """
    more, draws = 0, math.comb(cohort, cell)
    for count in range(min(marked, cell), -1, -1):
        # draws with this many of them (hypergeometric)
        more += math.comb(marked, count) * math.comb(cohort - marked, cell - count)
        if -(-cohort // cell) * more << bits > draws:
            return count
    return 0
