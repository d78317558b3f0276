"""What happens to users' texts while a population is built, counted.

The counts are of users' text, so they are private, like every count of a population.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many users and texts were left out or changed, by reason, and other counts."""

    left_out: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    # What was removed from texts, by kind.
    scrubbed: Counter[str] = field(default_factory=Counter)
    # Words outside the list, by split.
    unknown: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        self.left_out.update(other.left_out)
        self.changed.update(other.changed)
        self.scrubbed.update(other.scrubbed)
        self.unknown.update(other.unknown)
