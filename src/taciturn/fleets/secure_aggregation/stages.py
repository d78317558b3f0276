"""The stages of a secure round, as devices, the server and its display all name them.

Imports nothing, so that a command may name a stage without waiting for cryptography.
"""

from enum import Enum
from typing import Self


class Stage(Enum):
    """A stage of a secure round, in the order in which they come; protocol.py says what each does.

    A value is the word for what a device does in the stage, as refusals print it.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    SIGN = "sign"
    UNMASK = "unmask"
    # After the last one: the round takes and says nothing more.
    DONE = "done"

    @property
    def question(self) -> str:
        """Return the kind of the question that asks for it, on the wire and in logs.

        A device that is asked to report trains first, and then masks what it has.
        """
        return "report" if self is Stage.MASK else self.value

    @property
    def next(self) -> Self:
        """Return the stage that follows this one."""
        order = list(type(self))
        return order[order.index(self) + 1]

    def is_after(self, other: Self) -> bool:
        """Tell whether this stage comes later than another."""
        order = list(type(self))
        return order.index(self) > order.index(other)
