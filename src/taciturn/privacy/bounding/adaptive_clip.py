"""A clip norm that follows a quantile of the users' updates, privately.

The method is that of Xu et al. 2023, Algorithm 1, and Andrew et al. 2021.

Every device also reports one bit: whether its update is shorter than the estimate Cᵗ. The noised
share of such bits moves the estimate up or down; it becomes the clip norm in force, C_θ, only where
the noise of the model restarts.

**Guarantee:** a report's bit counts as −½, 0 or ½, so that update and bit together move a noised
sum no further than only an update does at the noise multiplier z (`update_multiplier`, Theorem 1).
Without the centring the factor 2 in it would be wrong.

**Assumes:** bits and updates are noised by the same strategy, under the same participation
(privacy/noise/mechanism.py).
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.core import Public, Update
from taciturn.privacy.bounding.clipping import LARGEST_CLIP_NORM, LEAST_CLIP_NORM


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """How a clip norm is to follow a quantile."""

    # C⁰; rather too small than too large, because noise grows with it.
    start: float
    # σ_b, of the noise on the count of bits; the paper takes a twentieth of the report goal.
    count_stddev: float
    # γ.
    target_quantile: float = 0.5
    # η_γ.
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        is_clip_norm = LEAST_CLIP_NORM <= self.start <= LARGEST_CLIP_NORM
        if not is_clip_norm:
            raise ValueError(
                f"a clip norm lies between {LEAST_CLIP_NORM:g} and {LARGEST_CLIP_NORM:g};"
                f" {self.start} does not"
            )
        is_quantile = 0 < self.target_quantile < 1
        is_rate = 0 < self.learning_rate < math.inf
        has_noise = self.count_stddev > 0
        if not (is_quantile and is_rate and has_noise):
            raise ValueError(
                "adaptive clipping needs a quantile between 0 and 1, a positive rate and noise on"
                " its count"
            )

    def init(self) -> Public:
        """Return the norms of the first round: C_θ in force, and Cᵗ."""
        return Public(clip_norm=jnp.float32(self.start), estimate=jnp.float32(self.start))

    def follow(self, norms: Public, share: jax.Array) -> Public:
        """Return Cᵗ⁺¹ = Cᵗ · exp(−η_γ (b̃ᵗ − γ)).

        Departs from the paper, which writes C⁰ · exp(−η_γ (Σ b̃ − tγ)) where t + 1 shares are
        summed, one γ short (docs/errata.md).

        Args:
            norms: of this round.
            share: b̃ᵗ, the noised share of this round.
        """
        assert norms.estimate is not None
        excess = share - self.target_quantile
        moved = norms.estimate * jnp.exp(-self.learning_rate * excess)
        return norms._replace(estimate=jnp.clip(moved, LEAST_CLIP_NORM, LARGEST_CLIP_NORM))

    def update_multiplier(self, multiplier: float) -> float:
        """Return z_Δ, with which update and bit together cost what only an update does at z.

        See Theorem 1.

        Args:
            multiplier: z.

        Raises:
            ValueError: if the count costs as much by itself.
        """
        if 2 * self.count_stddev <= multiplier:
            raise ValueError(
                f"a count with noise of standard deviation {self.count_stddev:g} costs more than"
                f" the whole round may at a noise multiplier of {multiplier:g}: raise"
                f" clipped_count_stddev above {multiplier / 2:g}, or take larger cohorts"
            )
        return (multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5


def centred_bit(norms: Public, update: Update, takes_part: jax.Array) -> jax.Array:
    """Return b − ½ in halves.

    It is 1 if the update is within the estimate, −1 if not (or not a number), 0 without a user.
    """
    assert norms.estimate is not None
    is_within = trees.norm_upper_bound(update) <= norms.estimate
    bit = jnp.where(is_within, 1, -1)
    return jnp.where(takes_part, bit, 0).astype(jnp.int32)
