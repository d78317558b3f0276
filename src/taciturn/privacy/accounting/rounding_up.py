"""Write ε, δ, ρ and μ as people read them: rounded up, never to the nearest.

For people who do not read figures it writes what ε and δ mean: how many times as likely, and one in
how many.

A promise may be stated too weak, not too strong.

**Guarantee:** the number that is printed is at least the one that was computed. Limits are compared
before anything is rounded.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

# An ε above this promises nothing.
MEANINGLESS = 1000.0
# An ε above this promises little.
WEAK = 10.0
# From this number of times on there are no decimals.
LEAST_WITHOUT_DECIMALS = 10
# From this ε on two decimals are written; below it, two significant digits.
LEAST_WITH_DECIMALS = 0.1


def epsilon_text(epsilon: float) -> str:
    """Write an ε.

    >>> epsilon_text(0.0149), epsilon_text(2.001), epsilon_text(1001.0)
    ('0.015', '2.01', '> 1000')
    """
    if MEANINGLESS < epsilon < math.inf:
        return "> 1000"
    has_decimals = epsilon == 0 or LEAST_WITH_DECIMALS <= epsilon < math.inf
    if has_decimals:
        return f"{_round_up(epsilon, -2):.2f}"
    return _significant_text(epsilon, digits=2)


def delta_text(delta: float) -> str:
    """Write a δ.

    >>> delta_text(1e-5), delta_text(1.234e-5)
    ('1e-05', '1.3e-05')
    """
    return _significant_text(delta, digits=2)


def pair_text(epsilon: float, delta: float) -> str:
    """Write an ε with its δ."""
    return f"ε = {epsilon_text(epsilon)} at δ = {delta_text(delta)}"


def rho_text(rho: float) -> str:
    """Write a ρ."""
    return _significant_text(rho, digits=3)


def mu_text(rho: float) -> str:
    """Write μ of Gaussian differential privacy, from ρ = μ²/2."""
    if not rho:
        return _significant_text(0.0, digits=3)
    # The square root was rounded to the nearest, so the next float is surely not below it.
    mu = math.nextafter(math.sqrt(2 * rho), math.inf)
    return _significant_text(mu, digits=3)


def times_text(epsilon: float) -> str:
    """Write e^ε: how many times as likely something may become.

    >>> times_text(0.0), times_text(0.7), times_text(8.0)
    ('1.0', '2.1', '3,000')
    """
    # The exponential was rounded to the nearest.
    times = math.nextafter(math.exp(epsilon), math.inf) if epsilon else 1.0
    exponent = Decimal(repr(times)).adjusted() - 1
    rounded = _round_up(times, exponent)
    return f"{rounded:.1f}" if rounded < LEAST_WITHOUT_DECIMALS else f"{rounded:,.0f}"


def odds_text(delta: float) -> str:
    """Write a δ as the number of which it is one, rounded down, which makes δ larger.

    >>> odds_text(1 / 9_300**2), odds_text(0.0004)
    ('86,000,000', '2,500')
    """
    odds = 1 / Decimal(repr(delta))
    unit = Decimal(1).scaleb(max(0, odds.adjusted() - 1))
    return f"{odds.quantize(unit, rounding=ROUND_FLOOR):,.0f}"


def _significant_text(value: float, digits: int) -> str:
    """Write a number in this many significant digits, rounded up."""
    if value == 0:
        return "0"
    if not 0 < value < math.inf:
        return "∞"
    exponent = Decimal(repr(value)).adjusted() - digits + 1
    return f"{float(_round_up(value, exponent)):.{digits}g}"


def _round_up(value: float, exponent: int) -> Decimal:
    """Round up to a multiple of a power of ten.

    A number that was written in as many digits stays as written.
    """
    unit = Decimal(1).scaleb(exponent)
    return Decimal(repr(value)).quantize(unit, rounding=ROUND_CEILING)
