"""What is on record before anything leaves: releases, charges, budgets, ledgers, exports."""

from mutation import Edit, Mutation

CURATOR, ACCOUNT, LEDGER = "privacy/curator.py", "privacy/account.py", "privacy/ledger.py"
CHAIN = "privacy/chain.py"
ACCOUNTING, EXPORT = "privacy/accounting.py", "release/gate.py"
LOSSES, FIGURES = "privacy/loss_distributions.py", "privacy/figures.py"
ATTACKS, ENTRIES, BOOKS = (
    "tests/privacy/test_attacks.py",
    "tests/privacy/test_participation_log.py",
    "tests/privacy/test_ledger.py",
)
FOUND = "tests/privacy/test_mutations_found.py"
LOST_ROWS = (
    f"{ENTRIES}::test_rounds_that_would_come_out_otherwise_are_given_out_from_their_records_and_noise_goes_on[1]"
)
CHARGE = 'self.account.charge(round, record, self._log.mark(round) if self._log else "")  # M.accum_priv_spending(z)\n'

MUTATIONS = (
    Mutation(
        "released although its charge failed",
        "There is a release that nobody was ever charged for.",
        (
            Edit(
                CURATOR,
                f"            {CHARGE}",
                f"            try:\n                {CHARGE}            except BaseException:\n                pass\n",
            ),
        ),
        (f"{FOUND}::test_the_charge_is_on_disk_before_anything_is_released",),
    ),
    Mutation(
        "a charge that is not synced",
        "A power cut takes the charge and leaves the release.",
        (Edit(CHAIN, "        os.fsync(file.fileno())\n", ""),),
        (f"{FOUND}::test_a_record_a_charge_and_an_entry_of_the_log_are_synced_before_they_count",),
    ),
    Mutation(
        "a log that is not synced",
        "A power cut takes the entry and leaves the release: who took part may come back at once.",
        (Edit("privacy/participation_log.py", "                os.fsync(file.fileno())\n", ""),),
        (f"{FOUND}::test_a_record_a_charge_and_an_entry_of_the_log_are_synced_before_they_count",),
    ),
    Mutation(
        "a charged round that is computed again",
        "Where its sum comes out otherwise, the difference of the two releases has no noise in it.",
        (
            Edit(
                CURATOR,
                'release, drawn = self._records.read(round, self.account.charges[round]["record"], params)\n'
                "            after = self._follow(state, release, self._noise_key(drawn, round))",
                "cohort = self._log.cohort(round) if self._log else self._drawn(round, 'cohort', 0)\n"
                '            key = self._noise_key(f"{self.account.nonce.hex()}-0", round)\n'
                "            release, after = self._release(state, self._total(params, state, cohort, round, 0), key)",
            ),
        ),
        (f"{ATTACKS}::test_a_second_call_with_other_params_gets_what_was_charged_and_nothing_else", LOST_ROWS),
    ),
    Mutation(
        "a record that is not synced",
        "A power cut takes the release and leaves its charge: the run cannot go on, or what was paid for is computed again.",
        (Edit("files.py", "        os.fsync(file.fileno())\n", ""),),
        (f"{FOUND}::test_a_record_a_charge_and_an_entry_of_the_log_are_synced_before_they_count",),
    ),
    Mutation(
        "noise that is forgotten where a release is on record",
        "After a crash noise branches: two rows take back the same noise, which is charged once.",
        (
            Edit(
                "privacy/mechanism.py",
                "_, noise_state = noise.next(state.noise, draw(key, trees.size(release.estimate)))\n"
                "        return State(state.round + 1, noise_state)",
                "return State(state.round + 1, state.noise)",
            ),
        ),
        (LOST_ROWS,),
        statistical=True,
    ),
    Mutation(
        "noise that is forgotten where a release is on record (adaptive)",
        "After a crash noise branches: two rows take back the same noise, which is charged once.",
        (
            Edit(
                "privacy/mechanism.py",
                "return following(state, release.share, noise_state)",
                "return following(state, release.share, state.noise)",
            ),
        ),
        (
            "tests/privacy/test_adaptive_clip.py::test_the_state_after_a_release_on_record_is_the_one_that_the_release_left",
        ),
    ),
    Mutation(
        "correlated noise from any state",
        "A round that starts from another state than the last one left does not take back what its cost assumes.",
        (Edit(CURATOR, "        self._check_state(state, round)\n", ""),),
        (f"{ENTRIES}::test_rounds_cannot_start_from_another_state_than_the_last_one_left",),
    ),
    Mutation(
        "an account for a cheaper mechanism",
        "The ledger charges for more noise than there is.",
        (Edit(CURATOR, "if account.release != mechanism.event(participation):", "if False:"),),
        (f"{ATTACKS}::test_an_account_for_a_cheaper_mechanism_than_the_one_that_runs_is_refused",),
    ),
    Mutation(
        "a release that is never charged",
        "It costs people their privacy, and the ledger says that it cost nothing.",
        (Edit(CURATOR, f"            {CHARGE}", ""),),
        (f"{ATTACKS}::test_a_round_charged_and_lost_is_released_again_byte_for_byte",),
    ),
    Mutation(
        "charges out of turn",
        "A charge no longer says which row of noise it is for: a release is given out for another's record, or twice.",
        (Edit(ACCOUNT, "if round != len(self.charges):", "if False:"),),
        (f"{FOUND}::test_no_round_is_charged_twice_or_out_of_turn_and_two_cost_twice",),
    ),
    Mutation(
        "all rounds cost what one does",
        "ε is stated for the first round.",
        (Edit(ACCOUNTING, "else SelfComposedDpEvent(release, count)", "else SelfComposedDpEvent(release, 1)"),),
        (f"{ATTACKS}::test_the_budget_holds_when_every_round_is_cut_off_and_redone",),
    ),
    Mutation(
        "correlated rounds charged as they come",
        "When a run stops may depend on what was seen, and is then not covered by the cost of the rounds so far.",
        (
            Edit(
                "privacy/participation.py",
                "return sorted({rounds, min(",
                "return sorted({*range(1, rounds + 1), min(",
            ),
        ),
        (f"{FOUND}::test_all_rounds_of_correlated_noise_are_charged_with_the_first",),
    ),
    Mutation(
        "δ ignored in the budget",
        "The budget is held at a δ at which nothing is promised.",
        (
            Edit(
                ACCOUNTING,
                "epsilon(event, self.delta, accountant, grid, distance) <= self.epsilon",
                "epsilon(event, 0.5, accountant, grid, distance) <= self.epsilon",
            ),
        ),
        (f"{BOOKS}::test_a_budget_becomes_a_number_of_releases_before_the_first_and_stops_there",),
    ),
    Mutation(
        "ρ ignored in the budget",
        "A run that promised a ρ goes on past it.",
        (Edit(ACCOUNTING, "if self.rho is not None and rho(event) > self.rho:", "if False:"),),
        (f"{BOOKS}::test_a_budget_of_rho_counts_rho",),
    ),
    Mutation(
        "a δ of one in the number of users",
        "A mechanism that publishes somebody's text as it is would meet it.",
        (Edit("privacy/participation.py", "max(1 / users**2, LEAST_DELTA)", "1 / users"),),
        (
            "tests/privacy/test_figures.py::test_by_default_the_promise_holds_for_everybody_but_one_time_in_the_number_of_users",
        ),
    ),
    Mutation(
        "an ε converted too well",
        "Every ε of the moments accountant is stated too small.",
        (Edit(ACCOUNTING, "math.log(1 / delta) / (order - 1)", "math.log(1 / delta) / order"),),
        ("tests/papers/test_mcmahan2018.py::test_table_1_is_reproduced_by_the_moments_accountant[setting0]",),
    ),
    Mutation(
        "an ε that is rounded down",
        "Loss distributions on a grid give an upper bound or a lower one; the lower one is no promise.",
        (
            Edit(
                LOSSES,
                "(multiplier, sampling_prob=probability, value",
                "(multiplier, sampling_prob=probability, pessimistic_estimate=False, value",
            ),
        ),
        (
            "tests/papers/test_mcmahan2018.py::test_table_2_and_the_text_are_reproduced_and_the_default_accountant_is_tighter",
        ),
    ),
    Mutation(
        "one release more than the budget allows",
        "ε passes what was promised.",
        (Edit(ACCOUNT, "if len(self.charges) >= min(", "if len(self.charges) > min("),),
        (f"{ATTACKS}::test_the_budget_holds_when_every_round_is_cut_off_and_redone",),
    ),
    Mutation(
        "a budget that forgets what a run started from",
        "A run that goes on from another promises the ε of its own rounds for both.",
        (Edit(ACCOUNT, "lambda releases: composed(self.terms.lineage, self.cost(releases))", "self.cost"),),
        (f"{BOOKS}::test_a_model_that_comes_from_an_earlier_run_carries_its_cost",),
    ),
    Mutation(
        "a ledger that forgets what a run started from",
        "A model that comes from one without privacy is called private.",
        (Edit(LEDGER, "return [*self.lineage(run), *self._own_cost", "return [*self._own_cost"),),
        (f"{ATTACKS}::test_what_a_non_private_start_cost_is_never_forgotten",),
    ),
    Mutation(
        "a warm start believed for what it says",
        "A model that learned from these people, without its card, is taken for one of public text that cost them nothing.",
        (
            Edit(
                "runs/warm_start.py",
                "        if row is None:\n",
                "        if row is None or start.card.run is None:\n",
            ),
        ),
        (f"{ATTACKS}::test_a_warm_start_is_asked_of_the_ledger_by_its_parameters_not_by_what_it_says",),
    ),
    Mutation(
        "a run without privacy that counts under its own adjacency alone",
        "What all runs together cost is stated as if what was published without noise had never been.",
        (Edit(LEDGER, " or isinstance(spent[1], NonPrivateDpEvent)", ""),),
        (
            "tests/privacy/test_attacks_again.py::test_all_runs_together_have_no_privacy_under_any_adjacency_once_one_run_had_none",
        ),
    ),
    Mutation(
        "a simulation that does not say so",
        "Anyone who knows the seed takes the noise off a model that is called private.",
        (
            Edit(
                "runs/run.py",
                'randomness="seeded simulation" if simulated else "operating system"',
                'randomness="operating system"',
            ),
        ),
        ("tests/privacy/test_attacks_again.py::test_a_run_that_starts_from_a_simulation_is_declared_as_one",),
    ),
    Mutation(
        "a ledger that believes what it reads",
        "A row changed by hand makes what was released cheaper.",
        (Edit(CHAIN, 'row.get("hash") == _hash(row) and ', ""),),
        (f"{BOOKS}::test_a_changed_row_is_noticed_and_refuses_every_charge[1]",),
    ),
    Mutation(
        "a ledger whose rows are not chained",
        "A row made anew, with a smaller cost, fits in.",
        (Edit(CHAIN, ' and row.get("previous") == self.head', ""),),
        (f"{BOOKS}::test_a_row_made_again_with_a_fitting_hash_breaks_the_next_one",),
    ),
    Mutation(
        "a ledger cut off at the end",
        "The last charges are gone, and the run goes on as if they had not been.",
        (Edit(ACCOUNT, 'if head is not None and all(row["hash"] != head for row in rows):', "if False:"),),
        (f"{BOOKS}::test_rows_cut_off_at_the_end_are_noticed_by_whoever_holds_a_later_head",),
    ),
    Mutation(
        "a run resumed with a ledger cut off at the end",
        "The last charges are gone, and the run goes on as if they had not been.",
        (Edit("runs/loop.py", 'run.account.reopen(about["ledger_head"])', "run.account.reopen(None)"),),
        (f"{FOUND}::test_a_run_is_not_resumed_with_a_ledger_that_was_cut_off",),
    ),
    Mutation(
        "a ledger without a lock",
        "Two runs that charge at one moment break its chain, or lose a charge.",
        (Edit(CHAIN, "return locked(self.path, mode=0o666)", 'return open(self.path, "a+b")'),),
        (f"{FOUND}::test_a_ledger_is_locked_while_it_is_written",),
    ),
    Mutation(
        "two processes at one run",
        "Both release, and one of them charges.",
        (Edit(ACCOUNT, "!= len(self._opened_rows):", "< 0:"),),
        (f"{BOOKS}::test_two_processes_on_one_run_are_noticed",),
    ),
    Mutation(
        "a process that lost its run and writes on",
        "It overwrites the release that another process was charged for, and the run cannot go on.",
        (
            Edit(
                CURATOR,
                "            self.account.check_alone()  # else the record of another process would be overwritten, which may be charged\n",
                "",
            ),
        ),
        (f"{ATTACKS}::test_of_two_processes_at_one_run_the_one_that_did_not_go_on_with_it_releases_nothing",),
    ),
    Mutation(
        "a run gone on with under less noise",
        "What is released from then on costs more than was declared.",
        (
            Edit(
                ACCOUNT,
                '            ("cost of a release", {name: opened.get(name) for name in self._costs()}, self._costs()),\n',
                "",
            ),
        ),
        (f"{BOOKS}::test_a_run_is_not_gone_on_with_under_other_noise",),
    ),
    Mutation(
        "an export verified without its parameters",
        "Any model leaves with the guarantee of another.",
        (Edit(EXPORT, '"params": params_digest(params), ', ""),),
        (f"{FOUND}::test_other_parameters_do_not_leave_with_a_runs_guarantee",),
    ),
    Mutation(
        "an export verified without its card",
        "A private model leaves with words or sources that were added to it.",
        (Edit(EXPORT, 'if row.get("card", card_digest(card)) != card_digest(card):', "if False:"),),
        (f"{BOOKS}::test_what_is_said_of_a_model_is_on_record_with_it_and_nothing_else_may_be_said",),
    ),
    Mutation(
        "an export verified without its place in the ledger",
        "A model leaves with the guarantee of an earlier, cheaper one.",
        (Edit(EXPORT, ', "hash": card.ledger_head}', "}"),),
        (f"{ATTACKS}::test_a_model_moved_to_an_earlier_row_is_not_exported",),
    ),
    Mutation(
        "a personal model that leaves",
        "What one person wrote goes wherever the model does.",
        (Edit(EXPORT, "if card.personal:", "if False:"),),
        ("tests/test_personal.py::test_it_is_refused_for_its_card_even_with_the_parameters_of_the_run",),
    ),
    Mutation(
        "a model without privacy leaves unasked",
        "What people wrote is published as it is.",
        (Edit(EXPORT, "if not guarantee.is_private and not non_private:", "if False:"),),
        (f"{FOUND}::test_a_model_without_privacy_does_not_leave_unasked",),
    ),
    Mutation(
        "secrets that stay",
        "Whoever finds the run folder takes the noise off the model.",
        (
            Edit(
                "runs/loop.py",
                "    delete_secrets(run.folder)  # with them goes all that could take the noise off\n",
                "",
            ),
        ),
        (f"{ATTACKS}::test_a_finished_run_leaves_no_secrets",),
    ),
)
