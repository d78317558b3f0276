"""Who broke the protocol of a secure sum, as far as a server can tell from shares that are missing or wrong.

A share that does not fit is the fault of one of two: of the device that cut it, or of the one that held it. Whoever has such shares with
more devices than may work together against it is at fault. And where the secrets of a few cannot be put together and all others' can, those
few are: whoever spoils secrets of others could spoil any.

A device that is blamed loses its part in the rest of a run, and nothing else. One that is not, though it should be, can cost everybody the
run: of two mistakes the first is the smaller.
"""

from collections import Counter
from collections.abc import Collection

FEW = 1 / 3  # of those whose secrets were needed


def at_fault(unfit: Collection[tuple[int, int]], enough: int) -> list[int]:
    """`unfit` are holder and owner of each share that does not fit: who has such shares with `enough` others, whoever has most first."""
    left, found = set(unfit), []
    while left:
        (worst, count), *_ = Counter(device for pair in left for device in pair).most_common(1)
        if count < enough:
            break
        found.append(worst)
        left = {pair for pair in left if worst not in pair}
    return found


def few_of(spoilt: Collection[int], all: Collection[int]) -> list[int]:
    """The owners of secrets that cannot be put together, if they are few."""
    return sorted(spoilt) if len(spoilt) <= FEW * len(all) else []
