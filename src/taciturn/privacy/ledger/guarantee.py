"""What holds for what a run released, and who says so."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn.names import AccountantName
from taciturn.privacy.accounting.group_privacy import group_epsilon

# What noise is made of.
INTEGERS = "integers"
# Where noise comes from that nobody can remove.
SECRET = "operating system"
# Where noise comes from that anyone can remove who knows the seed.
SEEDED = "seeded simulation"
# How the unit of a run begins whose users are pieces of public text, and so nobody.
SIMULATED_USER = "one simulated user"
# Who says what a guarantee says: the users' ledger; the run's maker, who signed it and whom nobody
# has vouched for; or a maker whose key or ledger the reader trusts.
Standing = Literal["ledger", "stated", "trusted"]


def is_noise_known(randomness: str, unit: str) -> bool:
    """Tell whether anyone can remove the noise that hides people. Simulated users are nobody."""
    return randomness != SECRET and not unit.startswith(SIMULATED_USER)


@dataclass(frozen=True, kw_only=True)
class EarlyEnd:
    """That a run made fewer releases than it declared, perhaps because of what they showed."""

    # The number that it declared.
    declared: int
    # ε of those it made. It would hold at δ if their number had been fixed beforehand.
    epsilon_of_made: float
    # ε of those it made, at the share of δ that each possible end has.
    epsilon_ex_post: float


@dataclass(frozen=True, kw_only=True)
class SignedElsewhere:
    """That a run's rows were read away from their ledger, and what is signed of them."""

    # The number of the model's row in that ledger.
    row: int
    # Of the signature.
    date: str
    # Whether the reader named the ledger's key, or a head of it.
    is_trusted: bool


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What holds for everything a run released up to the ledger's row `head`."""

    run: str
    releases: int
    epsilon: float
    delta: float
    rho: float
    accountant: AccountantName
    adjacency: str
    # "operating system", or "seeded simulation", whose noise anyone can remove.
    randomness: str
    head: str
    # Whether ε counts earlier runs too, from which this one started.
    continued: bool = False
    # What is claimed about noise and participation, in words.
    claim: str = ""
    # Whether the claim rests on who took part being drawn, and secret.
    sampled: bool = True
    # Whom it protects.
    unit: str = "one user"
    # What one release costs.
    release: DpEvent = field(default_factory=NonPrivateDpEvent)
    # What the runs cost that it started from.
    earlier: tuple[DpEvent, ...] = ()
    # The distance of its noise from the normal noise that the costs are about.
    distance: float = 0.0
    # How often it was interrupted and resumed; None in ledgers that did not record it.
    resumptions: int | None = None
    # Where ε and ρ are those of all releases that were declared, and fewer were made.
    ended_early: EarlyEnd | None = None
    # The fingerprint of the key that signed the run's rows; None where none did.
    ledger_key: str | None = None
    # None where the rows were read in the ledger itself.
    elsewhere: SignedElsewhere | None = None

    @property
    def standing(self) -> Standing:
        """Tell who says this: the ledger, only its maker, or a maker whom the reader trusts."""
        if self.elsewhere is None:
            return "ledger"
        return "trusted" if self.elsewhere.is_trusted else "stated"

    @property
    def is_private(self) -> bool:
        """Tell whether there was noise. At a δ that is too small ε may be ∞ all the same."""
        return self.rho < float("inf")

    def for_group(self, users: int) -> float:
        """Return ε of this number of users together, at the same δ."""
        if self.releases:
            return group_epsilon(
                release=self.release,
                releases=self.ended_early.declared if self.ended_early else self.releases,
                delta=self.delta,
                users=users,
                earlier=self.earlier,
                accountant=self.accountant,
                distance=self.distance,
            )
        if not self.earlier:
            return 0.0
        return group_epsilon(
            release=self.earlier[-1],
            releases=1,
            delta=self.delta,
            users=users,
            earlier=self.earlier[:-1],
            accountant="rdp",
            distance=self.distance,
        )

    @property
    def is_simulated(self) -> bool:
        """Tell whether anyone can remove the noise."""
        return self.randomness != SECRET

    @property
    def is_noise_known(self) -> bool:
        """Tell whether anyone can remove the noise, and people are beneath it."""
        return is_noise_known(self.randomness, self.unit)

    @property
    def protects_nobody(self) -> bool:
        """Tell whether the users are pieces of public text."""
        return self.unit.startswith(SIMULATED_USER)

    @property
    def counted_spending(self) -> "Spending":
        """Return what the ledger counts for the run: ∞ where people's noise can be removed."""
        # What released nothing, and started from what nobody's text is in, cost nothing.
        if self.is_noise_known and self.rho > 0:
            return Spending(epsilon=math.inf, rho=math.inf)
        return Spending(epsilon=self.epsilon, rho=self.rho)


class Spending(NamedTuple):
    """What several runs cost together."""

    epsilon: float
    rho: float
