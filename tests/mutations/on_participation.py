"""Who takes part, what is claimed about it, and who holds the claim against what happens."""

from mutation import Edit, Mutation

PARTICIPATION, LOG, CURATOR = "privacy/participation.py", "privacy/participation_log.py", "privacy/curator.py"
QUEUE = "fleets/simulation/queued.py"
CLAIMS, ENTRIES = "tests/privacy/test_participation.py", "tests/privacy/test_participation_log.py"
FOUND = "tests/privacy/test_mutations_found.py"

MUTATIONS = (
    Mutation(
        "Poisson claimed, and shuffled",
        "The proof of Poisson sampling does not hold for cohorts of one size: ε is stated too small.",
        (
            Edit(
                PARTICIPATION,
                "return available[coins.happens(self.probability, len(available))]",
                "return coins.chosen(available, round(self.probability * len(available)))",
            ),
        ),
        (f"{CLAIMS}::test_poisson_selects_each_user_independently_with_probability_q",),
        statistical=True,
    ),
    Mutation(
        "a shuffle charged as Poisson",
        "The proof of Poisson sampling does not hold for cohorts of one size: ε is stated too small.",
        (
            Edit(
                PARTICIPATION,
                "return SampledWithoutReplacementDpEvent(self.users, self.size, gaussian)",
                "return PoissonSampledDpEvent(self.size / self.users, gaussian)",
            ),
        ),
        (f"{CLAIMS}::test_a_shuffle_is_not_claimed_to_be_poisson",),
    ),
    Mutation(
        "fixed-size rounds charged at S, not 2S",
        "A user who is exchanged for another moves the sum by two clip norms; ε is stated five times too small.",
        (Edit(PARTICIPATION, "GaussianDpEvent(noise_multiplier / 2)", "GaussianDpEvent(noise_multiplier)"),),
        ("tests/privacy/test_attacks.py::test_fixed_size_rounds_cost_at_least_what_one_exchanged_user_can_be_seen_by",),
    ),
    Mutation(
        "fixed-size rounds among fewer users than are charged for",
        "Each user is drawn more often than the cost says.",
        (Edit(PARTICIPATION, "if len(available) < self.users:", "if False:"),),
        (f"{CLAIMS}::test_fewer_users_than_the_cost_was_worked_out_for_are_refused",),
    ),
    Mutation(
        "a user twice in a fixed cohort",
        "They count for two clip norms.",
        (
            Edit(
                "privacy/chacha20.py",
                "places[index], places[other] = places[other], places[index]",
                "places[index] = other",
            ),
        ),
        (f"{CLAIMS}::test_a_fixed_cohort_has_its_size_and_no_one_twice",),
    ),
    Mutation(
        "a user twice in a cohort of the log",
        "They count for two clip norms, and for one participation.",
        (Edit(LOG, "if len(np.unique(cohort)) != len(cohort):", "if False:"),),
        (f"{ENTRIES}::test_a_user_cannot_be_twice_in_one_cohort",),
    ),
    Mutation(
        "a user trained twice in a round",
        "They count for two clip norms.",
        (
            Edit(
                "fleets/simulation/in_process.py",
                'cohort = cohort[np.argsort([-len(self._texts[user]) for user in cohort], kind="stable")]',
                "cohort = np.concatenate([cohort[:1], cohort])",
            ),
        ),
        (
            "tests/contracts/test_fleets.py::test_every_fleet_gives_the_total_of_a_plain_loop[cohort1-40.0-SimulatedFleet]",
        ),
    ),
    Mutation(
        "separation not enforced",
        "Users come back sooner than is charged for.",
        (Edit(LOG, "(last == 0) | (self.rows + 1 - last >= self._distance)", "last >= 0"),),
        (f"{ENTRIES}::test_nobody_takes_part_too_soon_or_too_often",),
    ),
    Mutation(
        "separation enforced a round too short",
        "Users come back sooner than is charged for.",
        (
            Edit(
                LOG,
                "self._key = path, min_separation + 1, ",
                "self._key = path, min_separation, ",
            ),
        ),
        (f"{ENTRIES}::test_nobody_takes_part_too_soon_or_too_often",),
    ),
    Mutation(
        "participations not counted",
        "Users come more often than is charged for.",
        (Edit(LOG, "return users[rested & (self._times[users] < self._most)]", "return users[rested]"),),
        (f"{ENTRIES}::test_nobody_takes_part_too_soon_or_too_often",),
    ),
    Mutation(
        "cohorts recorded without a check",
        "A fleet that hands in whom it likes breaks the claim, and nobody notices.",
        (
            Edit(
                LOG,
                'problem = self._problem(cohort)\n        if problem:\n            raise ParticipationBreach(f"{problem}',
                'problem = None\n        if problem:\n            raise ParticipationBreach(f"{problem}',
            ),
        ),
        (f"{ENTRIES}::test_a_user_cannot_be_twice_in_one_cohort",),
    ),
    Mutation(
        "a log that is not held against the ledger",
        "With entries lost, users whom the log forgot are asked again.",
        (Edit(CURATOR, 'if charges and charges[-1].get("log") != log.mark(len(charges) - 1):', "if False:"),),
        (f"{ENTRIES}::test_a_log_that_lost_the_entries_of_a_charged_row_stops_the_run[0]",),
    ),
    Mutation(
        "a log that believes what it reads",
        "Entries changed by hand, or of another run, say who rested.",
        (
            Edit(
                LOG,
                "if count < _FAILED or not hmac.compare_digest(checksum, self._checksum(self._chain, entry)):",
                "if count < _FAILED or len(checksum) < _CHECKSUM:",
            ),
        ),
        (f"{ENTRIES}::test_zeros_where_an_entry_should_be_and_logs_of_other_runs_are_no_entries",),
    ),
    Mutation(
        "an entry that is taken back later",
        "Who took part in a round that was released is struck off the record, and comes back at once.",
        (Edit(LOG, "if self._settled == self.rows:", "if not self._cohorts:"),),
        (f"{ENTRIES}::test_only_the_newest_entry_can_fail_and_only_before_another_is_recorded",),
    ),
    Mutation(
        "a claim about participation without a log",
        "Nobody checks the claim.",
        (Edit(CURATOR, "if (participation.limits is None) != (log is None) or", "if False or"),),
        (f"{ENTRIES}::test_a_claim_and_its_log_go_together",),
    ),
    Mutation(
        "sampling claimed where devices drop out",
        "Who is in the sum was not drawn, so that sampling proves nothing.",
        (Edit(CURATOR, "if participation.sampled_by_curator and not fleet.everyone_reports:", "if False:"),),
        (f"{FOUND}::test_sampling_is_not_claimed_where_devices_may_drop_out",),
    ),
    Mutation(
        "a fleet of devices that says everyone reports",
        "Who is in the sum was not drawn, so that sampling proves nothing.",
        (Edit("fleets/simulation/check_in.py", "everyone_reports = False", "everyone_reports = True"),),
        (f"{FOUND}::test_sampling_is_not_claimed_where_devices_may_drop_out",),
    ),
    Mutation(
        "sampling claimed under correlated noise",
        "Rows that share noise are charged as if they did not.",
        (Edit(PARTICIPATION, 'if strategy.name != "independent":', "if False:"),),
        ("tests/privacy/test_sensitivity.py::test_correlated_noise_is_not_paired_with_sampling",),
    ),
    Mutation(
        "turns that share noise charged as separate",
        "A user who takes two turns moves some rows twice.",
        (Edit(PARTICIPATION, "if strategy.bands is None or strategy.bands > self.cycle:", "if False:"),),
        (f"{CLAIMS}::test_noise_that_ties_a_users_turns_together_is_refused",),
    ),
    Mutation(
        "turns that are not taken in turn",
        "Users come back within the cycle that is charged for.",
        (Edit(PARTICIPATION, "available[available % self.cycle == row % self.cycle]", "available"),),
        (f"{CLAIMS}::test_users_take_turns_and_the_curator_draws_who_takes_theirs",),
    ),
    Mutation(
        "turns charged as if drawn among all rounds",
        "When a user's turn is, anyone knows; only whether they take it is drawn.",
        (
            Edit(
                PARTICIPATION,
                "turn if self.probability == 1 else PoissonSampledDpEvent(self.probability, turn)",
                "PoissonSampledDpEvent(self.probability / self.cycle, turn)",
            ),
        ),
        (f"{CLAIMS}::test_a_turn_costs_a_sampled_gaussian_of_one_column_of_the_strategy",),
    ),
    Mutation(
        "cohorts that follow from the recipe",
        "Whoever works out who took part needs no sampling to be undone.",
        (
            Edit(
                CURATOR,
                "Coins(randomness.derive(self._now, purpose, round, attempt))",
                "Coins(randomness.derive(bytes(32), purpose, round, attempt))",
            ),
        ),
        (f"{FOUND}::test_noise_and_cohorts_do_not_follow_from_what_is_public",),
    ),
    Mutation(
        "the same coins for two rows",
        "Two rows have one cohort, which their cost takes for two that were drawn.",
        (
            Edit(
                CURATOR,
                "Coins(randomness.derive(self._now, purpose, round, attempt))",
                "Coins(randomness.derive(self._now, purpose, 0, attempt))",
            ),
        ),
        (f"{ENTRIES}::test_no_two_rows_are_drawn_with_the_same_coins_whatever_crashes_there_were",),
    ),
    Mutation(
        "a cohort that had to succeed",
        "A fleet that fails until it likes the cohort has chosen it, and sampling proves nothing.",
        (Edit(CURATOR, "if self._participation.sampled_by_curator:\n", "if False:\n"),),
        (f"{ENTRIES}::test_a_fleet_that_fails_cannot_choose_a_cohort_that_is_claimed_to_be_drawn",),
    ),
    Mutation(
        "a queue that counts a report in the round of its model",
        "Reports are summed in rounds in which their users are not on record.",
        (
            Edit(
                QUEUE,
                "np.array(list(self._arrived)[: self._size])",
                "np.array([user for user, got in self._arrived.items() if got == len(self._rounds)], np.int64)",
            ),
            Edit(QUEUE, "{user: self._arrived.get(user, now) for user in cohort.tolist()}", "dict(self._arrived)"),
            Edit(QUEUE, "if set(got) != set(cohort.tolist()):", "if not set(got) >= set(cohort.tolist()):"),
            Edit(
                QUEUE,
                "[user for user in cohort.tolist() if got[user] == model]",
                "[user for user in got if got[user] == model]",
            ),
        ),
        ("tests/contracts/test_queue.py::test_a_report_is_about_the_model_that_its_device_got",),
    ),
    Mutation(
        "a queue that hands a model to a device in flight",
        "A device trains on two models at a time, and what it reports is not about the one that is on record.",
        (Edit(QUEUE, "if user not in self._training and user not in self._arrived:", "if user not in self._arrived:"),),
        ("tests/contracts/test_queue.py::test_a_report_is_about_the_model_that_its_device_got",),
    ),
    Mutation(
        "a queue that asks who has just reported",
        "A user waits twice in the queue and comes back in the next round, or the one after.",
        (
            Edit(
                QUEUE, "if user not in self._training and user not in self._arrived:", "if user not in self._training:"
            ),
        ),
        ("tests/contracts/test_queue.py::test_a_device_in_flight_is_not_asked_again_and_who_rests_gets_no_model",),
    ),
    Mutation(
        "a queue whose coins follow from the recipe",
        "Who took part is kept among the secrets, and anyone can work it out.",
        (
            Edit(
                "runs/run.py", 'coins = int.from_bytes(randomness.derive(self.root, "devices", 0), "big")', "coins = 0"
            ),
        ),
        (
            "tests/privacy/test_attacks_queue.py::"
            "test_who_reports_in_a_run_with_secret_randomness_cannot_be_worked_out_from_its_recipe",
        ),
    ),
    Mutation(
        "who took part printed where it is the secret",
        "What the claim of sampling rests on stands beside it in the statement.",
        (
            Edit(
                "runs/metrics.py",
                "if log is None or participation.sampled_by_curator:",
                "if log is None:",
            ),
        ),
        ("tests/test_runs.py::test_who_took_part_stays_a_secret_where_the_claim_rests_on_it",),
    ),
)
