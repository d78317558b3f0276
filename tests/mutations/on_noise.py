"""Noise: how much, where, drawn with which keys, and for which clip norm."""

from mutation import Edit, Mutation

SAMPLER, MECHANISM, CORRELATED = "privacy/sampler.py", "privacy/mechanism.py", "privacy/correlated_noise.py"
ADAPTIVE, CURATOR, PARTICIPATION = "privacy/adaptive_clip.py", "privacy/curator.py", "privacy/participation.py"
DEVIATION = "return _grid(noise, noise.multiplier * reach,"
NOISED = "noised = wide.add(wide.shifted(estimator.steps(sums, total.weight), grid(size).bits), drawn)"
GAUSSIAN_OF_A_RUN = "GaussianDpEvent(noise_multiplier / math.sqrt(square)) for square in rising"
COLUMN = "noise.strategy.sensitivity_squared(noise.strategy.rows, 0, 1) ** 0.5"
COVARIANCE = "tests/privacy/test_correlated_noise.py::test_noise_has_the_covariance_over_rounds_that_is_charged_for"
FOUND = "tests/privacy/test_mutations_found.py"

MUTATIONS = (
    Mutation(
        "half the noise",
        "At z = 1 the true ε is more than twice the one that is stated.",
        (Edit(MECHANISM, "sampler.spread(wanted * 2.0**bits)", "sampler.spread(0.5 * wanted * 2.0**bits)"),),
        ("tests/privacy/test_noise.py::test_the_noise_is_not_off_by_a_millionth",),
    ),
    Mutation(
        "a sampler of half the noise",
        "At z = 1 the true ε is more than twice the one that is stated.",
        (Edit(SAMPLER, "wide.of(discrete(table, bits))", "wide.of(discrete(table, bits) // 2)"),),
        (
            "tests/privacy/test_noise.py::test_the_noise_has_the_stated_deviation_and_not_two_thirds_or_three_halves_of_it",
        ),
        statistical=True,
    ),
    Mutation(
        "noise without tails",
        "It stops at 5 standard deviations: whatever lies beyond gives away what is beneath.",
        (
            Edit(
                SAMPLER,
                "return jnp.where(first & 1 == 1, -found, found)",
                "found = jnp.minimum(found, 5 * BASE)\n    return jnp.where(first & 1 == 1, -found, found)",
            ),
        ),
        ("tests/privacy/test_noise.py::test_tails_reach_beyond_what_one_float32_normal_can",),
    ),
    Mutation(
        "half the noise under an adaptive clip norm",
        "At z = 1 the true ε is more than twice the one that is stated.",
        (Edit(MECHANISM, "return _grid(noise, multiplier * ", "return _grid(noise, 0.5 * multiplier * "),),
        (
            "tests/privacy/test_adaptive_clip.py::test_each_round_is_noised_for_the_clip_norm_its_reports_were_made_under",
        ),
    ),
    Mutation(
        "no noise on the count of clipped updates",
        "How many updates were short is released exactly, round after round.",
        (
            Edit(
                MECHANISM,
                "wide.add(wide.shifted(wide.of(halves), counting.bits), for_count)",
                "wide.shifted(wide.of(halves), counting.bits)",
            ),
        ),
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
        (Edit(MECHANISM, "wide.of(halves)", "wide.of(2 * halves)"),),
        (f"{FOUND}::test_one_user_moves_an_adaptive_round_by_the_clip_norm_in_force_and_by_half_a_count",),
    ),
    Mutation(
        "noise on all layers but the last",
        "One layer of the model leaves as it is, with whatever it says of anyone.",
        (
            Edit(
                MECHANISM,
                NOISED,
                "last = jax.tree.leaves(total.update)[-1].size\n"
                f"        drawn = jax.tree.map(lambda words: words.at[-last:].set(0), drawn)\n        {NOISED}",
            ),
        ),
        (f"{FOUND}::test_every_value_of_every_layer_is_noised",),
    ),
    Mutation(
        "noise on matrices only",
        "Biases are few and easily forgotten: the bias of a word says how often it was typed.",
        (
            Edit(
                MECHANISM,
                NOISED,
                "highs = jax.tree.leaves(total.update)[::2]\n"
                "        matrices = jnp.concatenate([jnp.full(leaf.size, leaf.ndim > 1) for leaf in highs])\n"
                f"        drawn = wide.where(matrices, drawn, wide.zeros((size,)))\n        {NOISED}",
            ),
        ),
        (f"{FOUND}::test_every_value_of_every_layer_is_noised",),
    ),
    Mutation(
        "one block of random bits for many values",
        "Noise that two values share is taken off by subtracting one from the other.",
        (
            Edit(
                SAMPLER,
                "jnp.arange(-(-size // WORDS), dtype=jnp.uint32)",
                "jnp.arange(-(-size // WORDS), dtype=jnp.uint32) % 50",
            ),
        ),
        ("tests/privacy/test_noise.py::test_no_two_leaves_and_no_two_rounds_share_noise",),
    ),
    Mutation(
        "one stream for updates and their count",
        "The count tells the noise of the first value.",
        (Edit(MECHANISM, "key, 2 * stream + 1, 1)", "key, 2 * stream, 1)"),),
        (
            "tests/privacy/test_adaptive_clip.py::test_updates_and_counts_are_noised_independently_and_each_as_strongly_as_charged",
        ),
        statistical=True,
    ),
    Mutation(
        "one noise key for two rounds",
        "The difference of two models has no noise in it.",
        (Edit(CURATOR, 'f"noise {drawn}", round)', 'f"noise {drawn}", 0)'),),
        (f"{FOUND}::test_no_two_rounds_of_a_run_share_noise",),
    ),
    Mutation(
        "one noise key for two levels of a tree",
        "Nodes that should have noise of their own cancel each other's.",
        (Edit(CORRELATED, "guess(draw(level + 1), ", "guess(draw(0 * level), "),),
        (f"{COVARIANCE}[honaker]",),
        statistical=True,
    ),
    Mutation(
        "noise keys that follow from the ledger",
        "Whoever may read the ledger works out the noise, and takes it off.",
        (
            Edit(
                CURATOR,
                'randomness.derive(self._root, f"noise {drawn}", round)',
                'randomness.derive(bytes(32), f"noise {drawn}", round)',
            ),
        ),
        (f"{FOUND}::test_noise_and_cohorts_do_not_follow_from_what_is_public",),
    ),
    Mutation(
        "a root of 32 bits",
        "Four thousand million guesses find it, and with it all noise.",
        (Edit("randomness.py", "return os.urandom(ROOT_BYTES)", "return os.urandom(4) * 8"),),
        (f"{FOUND}::test_a_root_has_no_part_that_repeats",),
    ),
    Mutation(
        "one root under two recipes",
        "A copied run folder with another noise multiplier has the same noise but for its size: two models, and the noise is off.",
        (
            Edit(
                CURATOR,
                'f"run {account.terms.recipe} {json.dumps(event_to_json(account.release))}", 0',
                '"run", 0',
            ),
        ),
        (f"{FOUND}::test_one_root_under_two_recipes_or_noise_multipliers_has_other_noise",),
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
        (Edit(MECHANISM, "if correlated and len(set(bound.clip_norms)) > 1:", "if False:"),),
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
                "        is_new = jnp.any(row == starts)\n",
                "        is_new, before = jnp.any(row == starts), inner[-1]\n",
            ),
            Edit(
                CORRELATED,
                "return residual, (row + 1, inner)",
                "for level in range(before.low.shape[0]):\n"
                "            residual = wide.where(is_new, wide.subtract(residual, _level(before, level)), residual)\n"
                "        return residual, (row + 1, inner)",
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
                "            for height in range(levels):\n",
                "            root = wide.zeros(root.high.shape)\n            for height in range(levels):\n",
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
            Edit(MECHANISM, DEVIATION, DEVIATION.replace("noise.multiplier", f"{COLUMN} * noise.multiplier")),
            Edit(PARTICIPATION, GAUSSIAN_OF_A_RUN, GAUSSIAN_OF_A_RUN.replace("/ math.sqrt", "* math.sqrt")),
        ),
        ("tests/privacy/test_sensitivity.py::test_one_convention_sigma_from_z_and_the_cost_from_the_sensitivity",),
    ),
    Mutation(
        "σ divided by the sensitivity that ρ is multiplied by",
        "The same the other way around: ρ is stated for more noise than there is.",
        (Edit(MECHANISM, DEVIATION, DEVIATION.replace("noise.multiplier", f"noise.multiplier / {COLUMN}")),),
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
