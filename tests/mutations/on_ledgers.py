"""Ledgers that are lost, cut off, copied or anchored, budgets of a population, and whom figures are of."""

from mutation import Edit, Mutation

ACCOUNT, LEDGER, CHAIN = "privacy/account.py", "privacy/ledger.py", "privacy/chain.py"
ADOPTING, ANCHOR, BUDGET = "privacy/adopting.py", "privacy/anchor.py", "privacy/population_budget.py"
POPULATION, MEASURING = "data/population.py", "runs/finished.py"
FORGOTTEN, LIMITS, ANCHORED, SAME = (
    "tests/privacy/test_forgotten_ledgers.py",
    "tests/privacy/test_population_budget.py",
    "tests/privacy/test_anchor.py",
    "tests/data/test_same_people.py",
)
LOST = f"{FORGOTTEN}::test_a_ledger_that_lost_something_is_refused_with_what_to_do"
COPIED = f"{FORGOTTEN}::test_a_copied_population_is_refused_until_it_is_said_which_goes_on"

MUTATIONS = (
    Mutation(
        "public parameters taken for those of the run that tried them",
        "After a seeded run from a public model every other from it is called a simulation, and draws without fresh bytes.",
        (Edit("runs/warm_start.py", "        if lineage:\n", "        if True:\n"),),
        ("tests/test_runs.py::test_public_parameters_stay_public_whoever_tried_them_before",),
    ),
    Mutation(
        "a warm start measured on people whom it protects",
        "Their text is read exactly, as round 0 of a run in another folder, and nobody is charged.",
        (
            Edit(
                "runs/warm_start.py",
                "        if not now.samefile(before):\n            check_strangers(now, before)\n",
                "",
            ),
        ),
        (f"{SAME}::test_no_run_starts_from_a_model_that_protects_those_it_would_measure",),
    ),
    Mutation(
        "a head that is kept one row late",
        "The last charge can be cut off, and nobody misses it.",
        (Edit(CHAIN, "        self._save_head(file)  # before the caller may release anything\n", ""),),
        (f"{FORGOTTEN}::test_the_head_is_on_disk_when_a_charge_returns",),
    ),
    Mutation(
        "a ledger that is not held against its head",
        "Rows cut off at a line's end are not missed: what was spent on these people can be spent again.",
        (Edit(CHAIN, "            self._check_rows(known)\n", ""),),
        (f"{LOST}[rows cut off]",),
    ),
    Mutation(
        "a lost ledger made anew",
        "Spending starts at zero.",
        (Edit(CHAIN, "if not self.path.exists() and (known or self._known_head()):", "if False:"),),
        (f"{LOST}[ledger deleted]",),
    ),
    Mutation(
        "a ledger cut off to its first row",
        "With its head deleted too, spending starts at zero.",
        (Edit(CHAIN, "if known or self._pinned or len(self.rows) > 1:", "if known or len(self.rows) > 1:"),),
        (f"{LOST}[all rows but the first cut off, head deleted]",),
    ),
    Mutation(
        "an older ledger and head put back together",
        "What was spent since is spent again.",
        (Edit(CHAIN, "(at_rest and found.st_ctime_ns", "(False and found.st_ctime_ns"),),
        (f"{LOST}[older ledger and head put back]",),
    ),
    Mutation(
        "a copy that passes for the original",
        "Two folders of the same people spend apart, and nobody adds it up.",
        (Edit(CHAIN, "found.st_ino != known.file or ", ""),),
        (COPIED,),
    ),
    Mutation(
        "an original that goes on beside its copy",
        "Two folders of the same people spend apart, and nobody adds it up.",
        (Edit(ADOPTING, "                self._write(file, row)\n", "                pass\n"),),
        (COPIED,),
    ),
    Mutation(
        "a copy adopted that is behind",
        "What the original spent since is forgotten.",
        (Edit(ADOPTING, "if rows != newer.rows[: len(rows)]:", "if False:"),),
        (COPIED,),
    ),
    Mutation(
        "fresh bytes that are the same every time",
        "A root and a ledger that were copied draw the same cohorts and noise twice.",
        (Edit(ACCOUNT, "secrets.token_hex(32) if", '"00" * 32 if'),),
        (f"{FORGOTTEN}::test_two_copies_of_a_run_do_not_go_on_with_the_same_bytes",),
    ),
    Mutation(
        "a run resumed without fresh bytes",
        "Two copies of a run that was cut off draw the same cohorts and noise.",
        (Edit(ACCOUNT, '"run": terms.name, "fresh": self._fresh()})', '"run": terms.name})'),),
        (f"{FORGOTTEN}::test_every_opening_and_every_resumption_is_fresh",),
    ),
    Mutation(
        "a run that starts past the budget of its people",
        "All runs together cost more than these people were promised.",
        (
            Edit(
                ACCOUNT,
                "            self.ledger.check_room([self.cost(reserved)] if reserved else [], terms.distance)\n",
                "",
            ),
        ),
        (f"{LIMITS}::test_a_run_that_could_pass_the_budget_does_not_start_and_one_that_cannot_does",),
    ),
    Mutation(
        "a budget that counts what was spent and not what may be",
        "Runs that are open together pass it together.",
        (Edit(LEDGER, "        return max(reserved, self._charges(run))\n", "        return self._charges(run)\n"),),
        (f"{LIMITS}::test_what_runs_reserve_counts_and_not_what_they_have_spent",),
    ),
    Mutation(
        "a run that charges more than it reserved",
        "The budget of its people is passed by what was never counted.",
        (Edit(ACCOUNT, ">= min(self.allowed, reserved):", ">= self.allowed:"),),
        (f"{LIMITS}::test_a_run_never_charges_past_what_it_reserved",),
    ),
    Mutation(
        "a closed run that goes on",
        "It spends what it gave back, and others have taken.",
        (Edit(ACCOUNT, "if self.ledger.is_closed(self.terms.name):", "if False:"),),
        (f"{LIMITS}::test_a_closed_run_gives_back_what_it_did_not_spend_and_never_goes_on",),
    ),
    Mutation(
        "a budget that is raised",
        "These people were promised less.",
        (Edit(LEDGER, "budget.epsilon > known.epsilon or ", ""),),
        (f"{LIMITS}::test_a_budget_is_only_ever_lowered_and_never_below_what_is_reserved",),
    ),
    Mutation(
        "a filter that takes all of δ at every order",
        "Runs chosen by what earlier ones released pass the δ that was promised.",
        (Edit(BUDGET, "self.delta / len(ORDERS)", "self.delta"),),
        (f"{LIMITS}::test_a_budget_holds_for_any_choice_of_runs_by_more_than_its_orders_shares",),
    ),
    Mutation(
        "samplers' distances that a budget forgets",
        "The δ of many runs is more than was promised.",
        (Edit(BUDGET, "if (1 + math.exp(self.epsilon)) * distance > FOR_DISTANCES * self.delta:", "if False:"),),
        (f"{LIMITS}::test_the_samplers_distances_count_and_may_not_eat_up_delta",),
    ),
    Mutation(
        "a sampler's distance that costs nothing",
        "ε is stated for an ideal that no machine draws.",
        (Edit("privacy/conversions.py", "    if distance == 0:\n", "    if distance >= 0:\n"),),
        (f"{LIMITS}::test_a_distance_costs_one_and_e_to_the_epsilon_times_itself_of_delta",),
    ),
    Mutation(
        "noise of floats that counts as noise",
        "Its last bits gave away what it hides, and ε says that they did not.",
        (Edit(LEDGER, "holds = self._has_integers(run) or self._is_acknowledged(run)", "holds = True"),),
        (f"{LIMITS}::test_a_run_with_noise_of_floats_costs_infinity_until_it_is_acknowledged",),
    ),
    Mutation(
        "an anchor that is not asked",
        "An older copy of the folder goes on as if nothing had been spent since.",
        (Edit(LEDGER, "            self.anchor.agree(previous, new)\n", "            pass\n"),),
        (f"{ANCHORED}::test_what_is_put_back_with_its_head_is_noticed_by_the_anchor",),
    ),
    Mutation(
        "an anchor told after the release",
        "A crash between the two leaves a release that the anchor does not know of.",
        (Edit(CHAIN, "            self._witness(before, self.head)\n", ""),),
        (f"{ANCHORED}::test_the_anchor_knows_a_charge_before_it_returns",),
    ),
    Mutation(
        "an anchor that agrees with any head",
        "Two copies of a folder spend apart.",
        (Edit(ANCHOR, "if remembered not in (previous, new):", "if False:"),),
        (f"{ANCHORED}::test_of_two_copies_that_pass_for_the_original_one_is_stopped",),
    ),
    Mutation(
        "a ledger of its own for another folder of the same people",
        "What both folders cost them is not added up.",
        (Edit(POPULATION, "    write_atomically(private / LEDGER, json.dumps(asdict(shared)).encode(), 0o600)\n", ""),),
        (f"{SAME}::test_runs_in_either_folder_are_counted_in_one_ledger",),
    ),
    Mutation(
        "opt-outs that another folder of the same people forgets",
        "Who opted out is trained on next month.",
        (
            Edit(
                POPULATION,
                "remembered_opt_outs(other, salt) | remembered_opt_outs(folder, salt)",
                "remembered_opt_outs(folder, salt)",
            ),
        ),
        (f"{SAME}::test_who_opted_out_or_is_held_out_is_so_in_both",),
    ),
    Mutation(
        "people whom a model protects, measured with it",
        "Their text is measured exactly, and nothing is charged.",
        (Edit(POPULATION, '    if known & _hashed_ids(measured, "held_out"):\n', "    if False:\n"),),
        (f"{SAME}::test_people_whom_a_model_protects_are_not_measured_with_it",),
    ),
    Mutation(
        "figures of a few held-out users",
        "An average over three people tells what one of them wrote to the other two.",
        (Edit(POPULATION, "for text in self.texts) < LEAST_HELD_OUT:", "for text in self.texts) < 1:"),),
        (f"{SAME}::test_too_few_held_out_users_are_not_measured",),
    ),
)
