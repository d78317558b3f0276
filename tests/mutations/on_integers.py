"""Whole numbers to the last bit: how noise is drawn, what is on record before it leaves, and users who cannot touch each other."""

from mutation import Edit, Mutation

SAMPLER, CHACHA, MECHANISM = "privacy/sampler.py", "privacy/chacha20.py", "privacy/mechanism.py"
CURATOR, RECORDS, SIMULATED = "privacy/curator.py", "privacy/records.py", "fleets/simulation/in_process.py"
WHITE, LAST_BITS = "tests/privacy/test_sampler.py", "tests/privacy/test_last_bits.py"
ON_RECORD, ADDITIVE = "tests/privacy/test_records.py", "tests/fleets/test_additivity.py"

MUTATIONS = (
    Mutation(
        "noise on a coarser grid than the reports'",
        "The last digits of a release are the total's own.",
        (
            Edit(
                SAMPLER,
                "(names, lower, upper))[0]",
                "(names, lower, upper))[0] and wide.shifted(wide.shifted_down(jax.lax.scan(add, wide.zeros((size,)), "
                "(names, lower, upper))[0], 24), 24)",
            ),
        ),
        (f"{LAST_BITS}::test_the_last_digits_of_every_release_tell_nothing[independent]",),
    ),
    Mutation(
        "cumulative probabilities compared over 63 bits",
        "Noise is a million times further from its ideal than is counted in δ.",
        (Edit(SAMPLER, "jax.lax.cond(undecided, lambda: search(WORDS), lambda: found)", "found"),),
        (f"{WHITE}::test_look_ups_compare_all_127_bits",),
    ),
    Mutation(
        "multiples too far apart",
        "Noise has gaps, and what falls into one was not there before it.",
        (Edit(SAMPLER, "SMOOTHING = Fraction(1, 4) - Fraction(1, BASE**2)", "SMOOTHING = Fraction(16)"),),
        (f"{WHITE}::test_noise_is_never_narrower_than_asked_and_every_addition_is_smooth",),
    ),
    Mutation(
        "one key stream for all draws of a coordinate",
        "A sum of equal draws is wider in places and has holes in others.",
        (Edit(SAMPLER, "counters, (name, jnp.asarray", "counters, (jnp.uint32(0), jnp.asarray"),),
        (f"{WHITE}::test_moments_and_tails_are_those_of_the_normal",),
    ),
    Mutation(
        "one key stream for all nodes of a tree",
        "Nodes share their noise, and their differences have none.",
        (Edit(SAMPLER, "jnp.asarray(stream, jnp.uint32), jnp.uint32(0))", "jnp.uint32(0), jnp.uint32(0))"),),
        (f"{WHITE}::test_no_two_coordinates_draws_or_streams_share_bits",),
    ),
    Mutation(
        "a cipher of eight rounds",
        "It is not the one that the guarantee rests on.",
        (Edit(CHACHA, "DOUBLE_ROUNDS = 10", "DOUBLE_ROUNDS = 4"),),
        (f"{WHITE}::test_blocks_are_those_of_the_rfc",),
    ),
    Mutation(
        "rounded feedback for free",
        "What is fed back is off by more than the noise is made wider for.",
        (Edit(MECHANISM, "if off > MARGIN * reach * 2.0**bits:", "if False:"),),
        (f"{WHITE}::test_noise_that_does_not_fit_is_refused",),
    ),
    Mutation(
        "a distance that is not counted",
        "δ is stated as if noise were the ideal.",
        (
            Edit(
                "runs/run.py",
                "distance=self.algorithm.mechanism.distance(",
                "distance=0.0 * self.algorithm.mechanism.distance(",
            ),
        ),
        (f"{ON_RECORD}::test_a_runs_rows_and_guarantee_say_how_far_its_noise_is_from_the_ideal",),
    ),
    Mutation(
        "charged before it is on record",
        "A crash in between leaves a charge for a release that has to be computed again, with a sum that may be another.",
        (
            Edit(
                CURATOR,
                "            record = self._records.write(round, release, drawn)\n"
                '            self.account.charge(round, record, self._log.mark(round) if self._log else "")',
                '            self.account.charge(round, "", self._log.mark(round) if self._log else "")\n'
                "            record = self._records.write(round, release, drawn)",
            ),
        ),
        (f"{ON_RECORD}::test_what_is_on_disk_when_a_charge_is_made_is_what_leaves",),
    ),
    Mutation(
        "a second try with the same noise",
        "A release that was written and not charged, and the one that took its place, differ by two sums without noise.",
        (Edit(CURATOR, "{self._tries[round]}", "0"),),
        (f"{ON_RECORD}::test_a_release_that_was_not_charged_is_never_given_out",),
    ),
    Mutation(
        "cohorts that a copied folder draws again",
        "Two runs are charged as if their cohorts were drawn independently, and they are the same.",
        (Edit(CURATOR, 'f"since {self.account.nonce.hex()}"', '"since"'),),
        (f"{ON_RECORD}::test_a_copied_root_draws_other_cohorts_and_other_noise",),
    ),
    Mutation(
        "noise that a copied folder draws again",
        "The same noise is in two releases with different totals, and their difference has none.",
        (Edit(CURATOR, 'drawn = f"{self.account.nonce.hex()}-', 'drawn = f"-'),),
        (f"{ON_RECORD}::test_a_copied_root_draws_other_cohorts_and_other_noise",),
    ),
    Mutation(
        "a record that nobody checks",
        "Whoever can write the file decides what a charged row was.",
        (Edit(RECORDS, "if not hmac.compare_digest(self._checksum([content]), checksum):", "if False:"),),
        (f"{ON_RECORD}::test_a_record_that_is_not_the_one_that_was_charged_stops_the_run",),
    ),
    Mutation(
        "a record's checksum that anyone can work out",
        "It stands in the ledger, and confirms a guess at a release that was never published.",
        (Edit(RECORDS, "hmac.new(self._key,", "hmac.new(bytes(32),"),),
        (f"{ON_RECORD}::test_what_the_ledger_says_of_a_release_confirms_no_guess_at_it",),
    ),
    Mutation(
        "rows of gradients added one after another",
        "On a GPU the order depends on who else is trained there: one user moves the sum by several clip norms.",
        (
            Edit(
                "models/sgd.py",
                "add_rows(embedding, inputs.reshape(-1), -rate * d_rows)",
                "embedding.at[inputs.reshape(-1)].add(-rate * d_rows)",
            ),
        ),
        (f"{ADDITIVE}::test_no_device_program_adds_rows_one_after_another",),
    ),
    Mutation(
        "no test of additivity",
        "A device on which users touch each other is trained on all the same.",
        (Edit(SIMULATED, "            self._check_additive(message, key)\n", ""),),
        (f"{ADDITIVE}::test_a_device_on_which_seat_or_company_matter_is_refused_before_anybody_is_trained",),
    ),
)
