"""Noise: how much, where, drawn with which keys, and for which clip norm."""

from mutation import Edit, Mutation

NOISE, MECHANISM, CORRELATED = "privacy/noise.py", "privacy/mechanism.py", "privacy/correlated_noise.py"
ADAPTIVE, CURATOR, PARTICIPATION = "privacy/adaptive_clip.py", "privacy/curator.py", "privacy/participation.py"
STDDEV = "return noise.multiplier * sensitivity * bound.sensitivity(round) if"
DECODE = "clipping.decode(bound, bound.public(state.round), total)"
GAUSSIAN_OF_A_RUN = "GaussianDpEvent(noise_multiplier / math.sqrt(square)) for square in rising"
COLUMN = "noise.strategy.sensitivity_squared(noise.strategy.rows, 0, 1) ** 0.5"
COVARIANCE = "tests/privacy/test_correlated_noise.py::test_noise_has_the_covariance_over_rounds_that_is_charged_for"
FOUND = "tests/privacy/test_mutations_found.py"

MUTATIONS = (
    Mutation(
        "half the noise",
        "At z = 1 the true ε is more than twice the one that is stated.",
        (Edit(NOISE, "/ math.sqrt(DRAWS))", "/ DRAWS)"),),
        (
            "tests/privacy/test_noise.py::test_the_noise_has_the_stated_deviation_and_not_two_thirds_or_three_halves_of_it",
        ),
        statistical=True,
    ),
    Mutation(
        "noise of one float32 normal",
        "It stops at 5.4 standard deviations, on a grid that gives away the value beneath.",
        (Edit(NOISE, "DRAWS = 4", "DRAWS = 1"),),
        ("tests/privacy/test_noise.py::test_tails_reach_beyond_what_one_float32_normal_can",),
    ),
    Mutation(
        "noise too small for a float",
        "It is lost, and ε is stated as if it were there.",
        (Edit(MECHANISM, "if least < LEAST_STDDEV:", "if False:"),),
        ("tests/privacy/test_attacks.py::test_noise_too_small_for_a_float_is_refused_rather_than_left_out",),
    ),
    Mutation(
        "half the noise under an adaptive clip norm",
        "At z = 1 the true ε is more than twice the one that is stated.",
        (Edit(MECHANISM, "tree.scale(drawn, multiplier * ", "tree.scale(drawn, 0.5 * multiplier * "),),
        (
            "tests/privacy/test_adaptive_clip.py::test_each_round_is_noised_for_the_clip_norm_its_reports_were_made_under",
        ),
    ),
    Mutation(
        "no noise on the count of clipped updates",
        "How many updates were short is released exactly, round after round.",
        (Edit(MECHANISM, "clip.count_stddev * drawn_count", "0.0 * drawn_count"),),
        (
            "tests/privacy/test_adaptive_clip.py::test_updates_and_counts_are_noised_independently_and_each_as_strongly_as_charged",
        ),
        statistical=True,
    ),
    Mutation(
        "a count for free",
        "Updates get the noise of z although a count is released beside them, so that both together cost more than is charged.",
        (Edit(ADAPTIVE, "return (multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5", "return multiplier"),),
        ("tests/privacy/test_adaptive_clip.py::test_theorem_1_with_the_papers_figures",),
    ),
    Mutation(
        "bits that are not centred",
        "A bit of 0 or 1 moves the count twice as far as one of −½ or ½, which is what is charged.",
        (Edit(ADAPTIVE, "jnp.where(within, 1, -1)", "jnp.where(within, 2, 0)"),),
        (
            "tests/privacy/test_adaptive_clip.py::test_bits_say_whether_an_update_is_within_the_estimate_and_nobody_says_nothing",
        ),
    ),
    Mutation(
        "bits that count twice",
        "Noise is made for bits of −½ and ½, and bits of −1 and 1 are added up.",
        (Edit(MECHANISM, "(halves / 2 + clip.count_stddev", "(halves + clip.count_stddev"),),
        (f"{FOUND}::test_one_user_moves_an_adaptive_round_by_the_clip_norm_in_force_and_by_half_a_count",),
    ),
    Mutation(
        "noise on all layers but the last",
        "One layer of the model leaves as it is, with whatever it says of anyone.",
        (
            Edit(
                NOISE,
                "[one(position, leaf) for position, leaf in enumerate(leaves)]",
                "[*(one(position, leaf) for position, leaf in enumerate(leaves[:-1])), jnp.zeros_like(leaves[-1])]",
            ),
        ),
        (f"{FOUND}::test_every_value_of_every_layer_is_noised",),
    ),
    Mutation(
        "noise on matrices only",
        "Biases are few and easily forgotten: the bias of a word says how often it was typed.",
        (
            Edit(
                NOISE,
                "return stddev * (sum(draws[1:], draws[0]) / math.sqrt(DRAWS))",
                "return stddev * (sum(draws[1:], draws[0]) / math.sqrt(DRAWS)) * (jnp.ndim(leaf) > 1)",
            ),
        ),
        (f"{FOUND}::test_every_value_of_every_layer_is_noised",),
    ),
    Mutation(
        "one noise key for two layers",
        "Noise that two layers share is taken off by subtracting one from the other.",
        (Edit(NOISE, "leaf_keys[index, position]", "leaf_keys[index, 0]"),),
        ("tests/privacy/test_noise.py::test_no_two_leaves_and_no_two_rounds_share_noise",),
    ),
    Mutation(
        "one noise key for two rounds",
        "The difference of two models has no noise in it.",
        (Edit(CURATOR, 'f"noise {seal}", round, attempt)', '"noise", 0, attempt)'),),
        (f"{FOUND}::test_no_two_rounds_of_a_run_share_noise",),
    ),
    Mutation(
        "one noise key for two levels of a tree",
        "Nodes that should have noise of their own cancel each other's.",
        (Edit(CORRELATED, "jax.random.fold_in(key, level)", "jax.random.fold_in(key, 0 * level)"),),
        (f"{COVARIANCE}[honaker]",),
        statistical=True,
    ),
    Mutation(
        "noise keys that follow from the ledger",
        "Whoever may read the ledger works out the noise, and takes it off.",
        (
            Edit(
                CURATOR,
                'keys.derive(self._root, f"noise {seal}", round, attempt)',
                'keys.derive(bytes(32), f"noise {seal}", round, attempt)',
            ),
        ),
        (f"{FOUND}::test_noise_and_cohorts_do_not_follow_from_what_is_public",),
    ),
    Mutation(
        "a root of 32 bits",
        "Four thousand million guesses find it, and with it all noise.",
        (Edit("keys.py", "return os.urandom(ROOT_BYTES)", "return os.urandom(4) * 8"),),
        (f"{FOUND}::test_a_root_has_no_part_that_repeats",),
    ),
    Mutation(
        "one root under two recipes",
        "A copied run folder with another noise multiplier has the same noise but for its size: two models, and the noise is off.",
        (
            Edit(
                CURATOR,
                'self._root = keys.derive(root, f"run {account.terms.recipe} {json.dumps(event_to_json(account.release))}", 0)',
                "self._root = root",
            ),
        ),
        (f"{FOUND}::test_one_root_under_two_recipes_or_noise_multipliers_has_other_noise",),
    ),
    Mutation(
        "noise for the next round's clip norm",
        "Where the clip norm falls, the last round before has too little noise for its reports.",
        (
            Edit(
                MECHANISM,
                "noise.next(state.noise, average, stddev(state.round), keys)",
                "noise.next(state.noise, average, stddev(state.round + 1), keys)",
            ),
        ),
        ("tests/privacy/test_noise.py::test_a_falling_clip_norm_takes_the_noise_down_with_it_and_costs_the_same",),
        statistical=True,
    ),
    Mutation(
        "reports counted at the clip norm of the round before",
        "Where the clip norm falls, a report is taken for as much longer as it fell, and noise is not.",
        (Edit(MECHANISM, DECODE, DECODE.replace("state.round", "jnp.maximum(state.round - 1, 0)")),),
        (f"{FOUND}::test_where_the_clip_norm_falls_a_report_counts_for_the_new_one",),
    ),
    Mutation(
        "reports counted at the clip norm that is still to come (adaptive)",
        "Where the estimate has risen, a report is taken for as much longer as it rose, and noise is not.",
        (Edit(MECHANISM, "clipping.decode(whole, norms.clip_norm, ", "clipping.decode(whole, norms.estimate, "),),
        (f"{FOUND}::test_one_user_moves_an_adaptive_round_by_the_clip_norm_in_force_and_by_half_a_count",),
    ),
    Mutation(
        "noise for the clip norm that is still to come (adaptive)",
        "Where the estimate has fallen, reports made under the older, larger clip norm have too little noise.",
        (Edit(MECHANISM, "multiplier * sensitivity * norms.clip_norm)", "multiplier * sensitivity * norms.estimate)"),),
        (
            "tests/privacy/test_adaptive_clip.py::test_each_round_is_noised_for_the_clip_norm_its_reports_were_made_under",
        ),
    ),
    Mutation(
        "noise for the clip norm that a run began with (adaptive)",
        "Where the clip norm has risen, reports have too little noise.",
        (Edit(MECHANISM, "multiplier * sensitivity * norms.clip_norm)", "multiplier * sensitivity * clip.start)"),),
        (
            "tests/privacy/test_adaptive_clip.py::test_each_round_is_noised_for_the_clip_norm_its_reports_were_made_under",
        ),
    ),
    Mutation(
        "a clip norm that adapts between restarts",
        "Rows that share noise are made under different clip norms, which their cost does not cover.",
        (Edit(MECHANISM, "jnp.where(is_restart, norms.estimate, norms.clip_norm)", "norms.estimate"),),
        ("tests/privacy/test_adaptive_clip.py::test_the_clip_norm_changes_at_restarts_only_and_becomes_the_estimate",),
    ),
    Mutation(
        "a clip norm that falls under correlated noise",
        "Rows that share noise are made under different clip norms, which their cost does not cover.",
        (Edit(MECHANISM, "if correlated and least != ", "if False and least != "),),
        (
            "tests/privacy/test_participation_log.py::"
            "test_correlated_noise_is_refused_with_sampling_and_with_a_clip_norm_that_changes",
        ),
    ),
    Mutation(
        "a restart that takes the old tree's noise off",
        "The sum of all rounds before is left without noise.",
        (
            Edit(
                CORRELATED,
                "inner = jax.tree.map(lambda fresh, old: jnp.where(is_new, fresh, old), init(like), inner)",
                "before, inner = inner, jax.tree.map(lambda new, old: jnp.where(is_new, new, old), init(like), inner)",
            ),
            Edit(
                CORRELATED,
                "return residual, (row + 1, inner)",
                "left = jax.tree.map(lambda kept: jnp.where(is_new, jnp.sum(kept, axis=0), 0.0), before[-1])\n"
                "        return trees.subtract(residual, left), (row + 1, inner)",
            ),
        ),
        (f"{COVARIANCE}[tree, restarted]",),
        statistical=True,
    ),
    Mutation(
        "a tree that is completed by nothing",
        "In the last row before a restart the noise of its tree is taken off, and no root's put in its place.",
        (
            Edit(
                CORRELATED,
                "lambda root, kept: root - jnp.sum(kept, axis=0)",
                "lambda root, kept: 0 * root - jnp.sum(kept, axis=0)",
            ),
        ),
        (f"{COVARIANCE}[tree, restarted]",),
        statistical=True,
    ),
    Mutation(
        "noise that goes on over a restart",
        "Rows after a restart cancel noise of rows before it, which their cost takes for independent.",
        (Edit(CORRELATED, "is_new = jnp.any(row == starts)", "is_new = jnp.any(row == starts) & False"),),
        (f"{COVARIANCE}[blt, restarted]",),
        statistical=True,
    ),
    Mutation(
        "σ and ρ both scaled by the sensitivity",
        "Noise grows with the strategy's sensitivity and the cost falls by it, twice over: ρ is stated too small by its square.",
        (
            Edit(MECHANISM, STDDEV, STDDEV.replace("return ", f"return {COLUMN} * ")),
            Edit(PARTICIPATION, GAUSSIAN_OF_A_RUN, GAUSSIAN_OF_A_RUN.replace("/ math.sqrt", "* math.sqrt")),
        ),
        ("tests/privacy/test_sensitivity.py::test_one_convention_sigma_from_z_and_the_cost_from_the_sensitivity",),
    ),
    Mutation(
        "σ divided by the sensitivity that ρ is multiplied by",
        "The same the other way around: ρ is stated for more noise than there is.",
        (Edit(MECHANISM, STDDEV, STDDEV.replace("return ", f"return 1 / ({COLUMN}) * ")),),
        (f"{FOUND}::test_correlated_noise_is_made_of_white_noise_of_z_clip_norms",),
    ),
    Mutation(
        "ρ without the sensitivity",
        "All that a user can do in many rounds is charged as if it were one.",
        (Edit(PARTICIPATION, GAUSSIAN_OF_A_RUN, "GaussianDpEvent(noise_multiplier) for square in rising"),),
        ("tests/privacy/test_sensitivity.py::test_one_convention_sigma_from_z_and_the_cost_from_the_sensitivity",),
    ),
    Mutation(
        "separation off by one",
        "Users come back a round sooner than is charged for.",
        (
            Edit(
                "privacy/sensitivity.py",
                "_earliest(column[:length], rest, min_separation + 1,",
                "_earliest(column[:length], rest, min_separation + 2,",
            ),
        ),
        ("tests/privacy/test_sensitivity.py::test_separation_counts_the_rounds_between",),
    ),
    Mutation(
        "each segment charged for itself",
        "Users who come back after a restart are charged for once.",
        (Edit("privacy/sensitivity.py", "value + moved[count])", "max(value, moved[count]))"),),
        (
            "tests/privacy/test_sensitivity.py::test_with_restarts_the_worst_pattern_over_all_segments_is_charged[lengths0]",
        ),
    ),
    Mutation(
        "a tree charged by participations, not by their squares",
        "A node that a user is in twice is moved twice as far, and costs four times as much.",
        (Edit("privacy/sensitivity.py", "value + (count**2 if square else 0)", "value + (count if square else 0)"),),
        ("tests/papers/test_xu2023.py::test_zcdp_of_every_model_as_printed",),
    ),
    Mutation(
        "no noise charged as noise",
        "A run without privacy states an ε.",
        (Edit(MECHANISM, "noise.strategy) if is_private else NonPrivateDpEvent()", "noise.strategy)"),),
        ("tests/privacy/test_noise.py::test_no_noise_is_charged_as_no_privacy",),
    ),
)
