"""What one user can do to a sum: clips, norms, weights, whole numbers, denominators."""

from mutation import Edit, Mutation

CLIPPING, TREE, ESTIMATORS = "privacy/clipping.py", "trees.py", "privacy/estimators.py"
RESIDUES, ENCODING = "tests/privacy/test_secagg_encoding.py", "privacy/secagg_encoding.py"
FOUND = "tests/privacy/test_mutations_found.py"
NO_CLIP_AT_THE_END = Edit(CLIPPING, "trees.scale(bound.project(public, update), ", "trees.scale(update, ")

MUTATIONS = (
    Mutation(
        "no clip",
        "One user moves the model as far as they like, and noise made for the clip norm hides nothing of them.",
        (
            Edit(
                CLIPPING,
                "factor = jnp.minimum(1.0, norm / jnp.maximum(trees.norm_upper_bound(update), 1e-30))",
                "factor = jnp.float32(1.0)",
            ),
        ),
        ("tests/privacy/test_attacks.py::test_a_weight_out_of_range_gives_nobody_more_than_the_clip_norm",),
    ),
    Mutation(
        "every local step clipped, their sum not",
        "Whoever wrote more takes more steps, and counts for as many clip norms.",
        (
            Edit(
                "algorithms/local_training.py",
                "trees.add(start, project(message.public, trees.subtract(params, start)))",
                "trees.add(before, project(message.public, trees.subtract(params, before)))",
            ),
            NO_CLIP_AT_THE_END,
        ),
        ("tests/privacy/test_attacks.py::test_a_weight_out_of_range_gives_nobody_more_than_the_clip_norm",),
    ),
    Mutation(
        "every layer clipped to the whole clip norm",
        "An update of m layers counts for √m clip norms.",
        (
            Edit(
                CLIPPING,
                "return Bound(schedule.at, _clip, pack,",
                "each = lambda norm, update: jax.tree.map(lambda layer: _clip(norm, layer), update)\n"
                "    return Bound(schedule.at, each, pack,",
            ),
        ),
        ("tests/privacy/test_attacks.py::test_no_finite_update_passes_the_clip_norm[flat-alone]",),
    ),
    Mutation(
        "shares of layers that add up to more than the clip norm",
        "An update that is clipped layer by layer counts for √m clip norms.",
        (Edit(CLIPPING, "equal = 1.0 / math.sqrt(len(names))", "equal = 1.0"),),
        ("tests/privacy/test_clipping.py::test_layers_are_clipped_to_equal_shares_or_to_the_given_norms",),
    ),
    Mutation(
        "weight before clip",
        "Under the clipped denominator one user of weight 1 among many light ones moves the model by 50 clip norms.",
        (
            Edit(
                CLIPPING,
                "trees.scale(bound.project(public, update), whole_weight / STEPS)",
                "bound.project(public, trees.scale(update, whole_weight / STEPS))",
            ),
        ),
        (
            "tests/privacy/test_attacks_again.py::test_no_report_stands_for_more_than_its_weight_times_the_clip_norm[flat_clip-1.0]",
        ),
    ),
    Mutation(
        "weights without a limit",
        "Whoever wrote ten times as much as expected counts for ten clip norms.",
        (Edit(CLIPPING, "jnp.clip(weight, 0.0, 1.0)", "weight"),),
        ("tests/privacy/test_attacks.py::test_a_weight_out_of_range_gives_nobody_more_than_the_clip_norm",),
    ),
    Mutation(
        "NaN passes the clip",
        "One device whose training broke down makes everybody's model NaN; in whole numbers, what NaN becomes is up to the hardware.",
        (Edit(CLIPPING, "<= LARGEST_UPDATE", "> LARGEST_UPDATE\n    usable = ~usable"),),
        ("tests/privacy/test_clipping.py::test_a_poisoned_update_leaves_as_zero_in_every_layer",),
    ),
    Mutation(
        "a norm that is rounded down",
        "A clip that divides by too small a norm lets a little more through than noise is made for.",
        (Edit(TREE, "slack = 1.0 + (terms + 8) * UNIT_ROUNDOFF", "slack = 1.0"),),
        (f"{FOUND}::test_the_norm_is_right_at_every_scale",),
    ),
    Mutation(
        "a norm that overflows or underflows",
        "The squares of small values are zero in float32 and those of large ones infinite: what a clip makes of such a norm is luck.",
        (
            Edit(
                TREE,
                "(jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23) - 127, -126, 126)",
                "(jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23) - 127, 0, 0)",
            ),
        ),
        (f"{FOUND}::test_the_norm_is_right_at_every_scale",),
    ),
    Mutation(
        "a norm summed one after another",
        "Small squares are lost beside a large one: a million of them pass the clip unseen.",
        (
            Edit(
                TREE,
                "squares.append(jnp.sum(jnp.sum(jnp.square(rows * _power_of_two(-exponent)), axis=1)))",
                "squares.append(jax.lax.scan(lambda s, x: (s + x * x, None), 0 * largest, leaf * _power_of_two(-exponent))[0])",
            ),
        ),
        ("tests/privacy/test_attacks.py::test_a_million_small_values_behind_a_large_one_do_not_escape_the_norm",),
    ),
    Mutation(
        "reports summed as floats",
        "How everybody else's reports are rounded follows from one user, who moves a sum of thousands by almost two clip norms.",
        (
            Edit(
                CLIPPING,
                "return Bound(schedule.at, _clip, pack, unpack, step, REACH,",
                "as_it_is = lambda norm, update, key=None: update\n"
                "    return Bound(schedule.at, _clip, as_it_is, as_it_is, step, math.inf,",
            ),
        ),
        (
            "tests/privacy/test_attacks.py::test_rounding_in_a_large_sum_does_not_let_one_user_move_it_by_more_than_the_clip_norm",
        ),
    ),
    Mutation(
        "padding taken for the first user",
        "Whoever is first in the list is trained whenever a cohort is odd, drawn or not.",
        (
            Edit(
                "fleets/simulation/in_process.py",
                "self._texts[user] if user >= 0 else np.zeros(0, np.int32)",
                "self._texts[max(user, 0)]",
            ),
        ),
        (
            "tests/contracts/test_fleets.py::test_every_fleet_gives_the_total_of_a_plain_loop[cohort1-40.0-SimulatedFleet]",
        ),
    ),
    Mutation(
        "sums that overflow",
        "The sum of a large cohort wraps around, and one user more turns it from the largest into the smallest number.",
        (Edit(CLIPPING, "DIGIT = 15  # bits", "DIGIT = 17  # bits"),),
        ("tests/privacy/test_attacks_again.py::test_the_most_reports_there_may_be_do_not_overflow",),
    ),
    Mutation(
        "more reports than a total has room for",
        "Sums overflow, or round by more than noise was made to cover.",
        (Edit("privacy/curator.py", "if len(cohort) > self._mechanism.most_reports:", "if False:"),),
        (f"{FOUND}::test_a_cohort_larger_than_a_total_has_room_for_is_not_summed",),
    ),
    Mutation(
        "totals rounded before they are noised",
        "How everybody's sum is rounded follows from one user, who moves it by more than noise is made for.",
        (
            Edit(
                CLIPPING,
                "return wide.add(wide.shifted(wide.of(sums.high), DIGIT), wide.of(sums.low))",
                "return wide.shifted(wide.of(sums.high + (sums.low >> DIGIT)), DIGIT)",
            ),
        ),
        (
            "tests/privacy/test_attacks_again.py::test_one_more_user_moves_what_is_noised_by_the_report_and_by_nothing_else",
        ),
    ),
    Mutation(
        "uploads made smaller after the clip",
        "Rounding to few bits carries a clipped update out of its ball.",
        (
            Edit("algorithms/uploads.py", "if upload.bits < 32:\n            keys", "if False:\n            keys"),
            Edit(
                CLIPPING,
                "    return Report(bound.pack(public, weighted, key), told",
                "    from taciturn.algorithms.uploads import rounded\n\n"
                "    weighted = jax.tree.map(lambda layer: rounded(layer, 8, key), weighted)\n"
                "    return Report(bound.pack(public, weighted, key), told",
            ),
        ),
        (
            "tests/privacy/test_attacks_again.py::test_no_report_stands_for_more_than_its_weight_times_the_clip_norm[flat_clip-1.0]",
        ),
    ),
    Mutation(
        "updates that diverged are clipped like any other",
        "Their numbers follow from how much padding there was, and so from who trained beside them.",
        (Edit(CLIPPING, "LARGEST_UPDATE = 1e6", "LARGEST_UPDATE = 3e38"),),
        ("tests/privacy/test_clipping.py::test_an_update_so_large_that_padding_might_overflow_leaves_as_zero",),
    ),
    Mutation(
        "a batch of padding is a step",
        "How far a user's model goes follows from how much others wrote: reports are not their own any more.",
        (Edit("algorithms/local_training.py", "if pull or project is not None:", "if False:"),),
        ("tests/contracts/test_algorithms.py::test_a_batch_of_padding_is_no_step_and_one_of_text_is[settings2]",),
    ),
    Mutation(
        "dividing by the cohort that came",
        "In a small cohort one user counts for more than noise is made for, and how many came is given away.",
        (
            Edit(
                ESTIMATORS,
                "steps=lambda sums, weight: sums,",
                "steps=lambda sums, weight: wide.divided(wide.shifted(sums, DIGIT), jnp.maximum(1, weight)),",
            ),
        ),
        ("tests/privacy/test_estimators.py::test_the_fixed_denominator_does_not_look_at_who_came",),
    ),
    Mutation(
        "a clipped denominator without its floor",
        "Alone in a cohort, one light user is the whole average.",
        (Edit(ESTIMATORS, "jnp.maximum(jnp.int32(least), weight)", "jnp.maximum(1, weight)"),),
        (
            "tests/privacy/test_estimators.py::test_one_user_of_norm_at_most_1_moves_what_is_noised_by_at_most_its_sensitivity",
        ),
    ),
    Mutation(
        "a clipped denominator noised for S, not 2S",
        "A user moves numerator and denominator; half of that goes unprotected.",
        (Edit(ESTIMATORS, "2.0 * STEPS / least", "1.0 * STEPS / least"),),
        ("tests/privacy/test_estimators.py::test_lemma_1_bounds_are_the_papers",),
    ),
    Mutation(
        "noise on an average that one user can move anywhere",
        "No noise is enough for the plain mean, or for updates without a clip; ε would be stated all the same.",
        (
            Edit(
                "privacy/mechanism.py",
                "if is_private and not math.isfinite(bound.reach",
                "if False and not math.isfinite(bound.reach",
            ),
        ),
        ("tests/privacy/test_noise.py::test_noise_without_a_bounded_sensitivity_is_refused",),
    ),
    Mutation(
        "residues rounded without a second try",
        "Of reports that are as long as may be, an eighth come out longer than noise is made for.",
        (
            Edit(
                ENCODING,
                "return tries + 1, whole, within(whole, encoded.limit)",
                "return tries + 1, whole, jnp.asarray(True)",
            ),
        ),
        (f"{RESIDUES}::test_rounding_is_repeated_until_it_fits",),
    ),
    Mutation(
        "residues noised for the clip norm",
        "Rounding makes reports longer than that, the more so the fewer bits they have.",
        (
            Edit(
                ENCODING,
                "reach = math.sqrt(encoded.limit) * ",
                "reach = encoded.radius * ",
            ),
        ),
        (f"{RESIDUES}::test_noise_is_made_for_the_inflated_norm_and_for_nothing_else",),
    ),
    Mutation(
        "a modulus of one bit too few",
        "The sum of a full round wraps around, and one user more turns it from the largest into the smallest number.",
        (Edit(ENCODING, "(2 * largest * most_reports).bit_length()", "(largest * most_reports).bit_length()"),),
        (f"{RESIDUES}::test_the_most_reports_there_may_be_do_not_wrap_and_in_half_the_modulus_they_would",),
    ),
    Mutation(
        "norms of residues in floats",
        "Reports that are a little too long pass, because a sum of a million squares is rounded.",
        (
            Edit(
                ENCODING,
                "return (upper < most) | ((upper == most) & (lower <= least))",
                "return jnp.sum(squares.astype(jnp.float32)) <= limit",
            ),
        ),
        (f"{RESIDUES}::test_the_longest_reports_there_may_be_are_compared_exactly_and_in_floats_they_are_not",),
    ),
    Mutation(
        "totals rotated back in floats",
        "How everybody's sum is rounded on the way follows from one user, who moves it by more than noise is made for.",
        (
            Edit(
                ENCODING,
                "high, low = hadamard(jnp.stack([whole >> DIGIT, whole & (2**DIGIT - 1)]))\n",
                "turned = hadamard(whole.astype(jnp.float32)) / 2.0**DIGIT\n"
                "    high = jnp.floor(turned).astype(jnp.int32)\n"
                "    low = ((turned - high) * 2.0**DIGIT).astype(jnp.int32)\n",
            ),
        ),
        (f"{RESIDUES}::test_a_total_is_turned_back_without_rounding_on_the_way",),
    ),
    Mutation(
        "weights beside residues",
        "An average over weights that are not there divides by next to nothing.",
        (Edit("privacy/mechanism.py", "if bound.modulus is not None and estimator.reads_weight:", "if False:"),),
        (f"{RESIDUES}::test_estimators_that_ask_for_weights_are_refused",),
    ),
    Mutation(
        "more residues than there is room for",
        "Sums wrap around, and one user moves them by any amount.",
        (Edit("privacy/mechanism.py", "if not 0 < most_reports <= bound.most_reports:", "if False:"),),
        (f"{RESIDUES}::test_more_reports_than_there_is_room_for_are_refused",),
    ),
)
