"""ε, δ, ρ and μ as people read them: rounded up, never to the nearest. A promise may be stated too
weak, not too strong.

**Guarantee:** the number that is printed is at least the one that was computed. Limits are compared
before anything is rounded.
"""

import math
from decimal import ROUND_CEILING, Decimal

# ε above which nothing is promised, and little
MEANINGLESS, WEAK = 1000.0, 10.0


def epsilon_text(epsilon: float) -> str:
    """
    >>> epsilon_text(0.0149), epsilon_text(2.001), epsilon_text(1001.0)
    ('0.015', '2.01', '> 1000')
    """
    if MEANINGLESS < epsilon < math.inf:
        return "> 1000"
    return (
        f"{_raised(epsilon, -2):.2f}"
        if 0.1 <= epsilon < math.inf or epsilon == 0
        else _significant(epsilon, 2)
    )


def delta_text(delta: float) -> str:
    """
    >>> delta_text(1e-5), delta_text(1.234e-5)
    ('1e-05', '1.3e-05')
    """
    return _significant(delta, 2)


def pair_text(epsilon: float, delta: float) -> str:
    return f"ε = {epsilon_text(epsilon)} at δ = {delta_text(delta)}"


def rho_text(rho: float) -> str:
    return _significant(rho, 3)


def mu_text(rho: float) -> str:
    """Write μ of Gaussian differential privacy, from ρ = μ²/2."""
    return _significant(math.nextafter(math.sqrt(2 * rho), math.inf) if rho else 0.0, 3)


def _significant(value: float, digits: int) -> str:
    if not 0 < value < math.inf:
        return "∞" if value else "0"
    exponent = Decimal(repr(value)).adjusted() - digits + 1
    return f"{float(_raised(value, exponent)):.{digits}g}"


def _raised(value: float, exponent: int) -> Decimal:
    """Round up to a multiple of a power of ten. A number that was written in as many digits stays
    as written.
    """
    return Decimal(repr(value)).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_CEILING)
