"""What is said of a run: ε from above, δ, groups, and how figures are printed."""

from mutation import Edit, Mutation

CONVERSIONS, LOSSES, GROUPS = "privacy/conversions.py", "privacy/loss_distributions.py", "privacy/groups.py"
SAID, SHOWN, TOGETHER = (
    "tests/privacy/test_accounting.py",
    "tests/privacy/test_figures.py",
    "tests/privacy/test_groups.py",
)

MUTATIONS = (
    Mutation(
        "noise taken for normal that is not",
        "What the last bits of the noise may give away is not counted.",
        (Edit(CONVERSIONS, "if distance == 0:", "if True:"),),
        (f"{SAID}::test_what_noise_that_is_not_normal_gives_away_is_taken_off_delta[1e-09-0.5]",),
    ),
    Mutation(
        "the noise's distance counted once, not e^ε times",
        "At a large ε most of what the noise may give away is not counted.",
        (Edit(CONVERSIONS, "(delta - (1 + math.exp(epsilon)) * distance)", "(delta - 2 * distance)"),),
        (f"{SAID}::test_what_noise_that_is_not_normal_gives_away_is_taken_off_delta[1e-09-0.5]",),
    ),
    Mutation(
        "an ε that is too small by a step",
        "What is stated is not quite enough for what was given away.",
        (Edit(CONVERSIONS, "if needed <= step:", "if needed <= step * 1.0001:"),),
        (f"{SAID}::test_what_noise_that_is_not_normal_gives_away_is_taken_off_delta[1e-09-0.5]",),
    ),
    Mutation(
        "losses composed without a tilt",
        "Rounding errors are as large as δ, and ε comes out too small.",
        (
            Edit(
                LOSSES,
                "    error = math.inf\n    while tilt > LEAST_TILT:",
                "    tilt, error = 1e-5, math.inf\n    while tilt > LEAST_TILT:",
            ),
            Edit(LOSSES, "if rounding(at) <= _more_rounding(halvings) / 2 * delta:", "if True:"),
        ),
        (f"{SAID}::test_composed_losses_are_right_far_out_in_the_tail[1e-15-50000]",),
    ),
    Mutation(
        "the larger of two bounds",
        "A promise that holds is not made, and noise is added that nobody needs.",
        (Edit("privacy/accounting.py", "return min(bounds)", "return bounds[-1]"),),
        (f"{SAID}::test_of_two_bounds_the_smaller_is_stated",),
    ),
    Mutation(
        "noise without a promise that is not called so",
        "A model is passed on as private at a δ at which nothing is promised.",
        (Edit("release/privacy_statement.py", "if guarantee.epsilon == math.inf:", "if False:"),),
        (f"{SAID}::test_noise_that_promises_nothing_at_its_delta_is_still_noise_and_the_statement_says_both",),
    ),
    Mutation(
        "figures rounded to the nearest",
        "0.0149 is printed as 0.01.",
        (Edit("privacy/figures.py", "rounding=ROUND_CEILING", 'rounding="ROUND_HALF_EVEN"'),),
        (f"{SHOWN}::test_figures_are_rounded_up",),
    ),
    Mutation(
        "a plan for one person",
        "δ = 1 and ε = 0 are promised to somebody who is alone.",
        (Edit("planning.py", "if self.population < LEAST_POPULATION:", "if False:"),),
        (f"{SHOWN}::test_a_population_for_which_no_delta_makes_sense_is_refused",),
    ),
    Mutation(
        "two devices counted as one",
        "A person with two devices is promised more than is kept.",
        (Edit(GROUPS, "_mixture(release, releases, users)", "_mixture(release, releases, 1)"),),
        (f"{TOGETHER}::test_a_group_under_sampling_is_the_mixture_that_brute_force_finds[2-1]",),
    ),
    Mutation(
        "turns that overlap taken for a mixture",
        "Two users who move the same correlated noise are promised what holds for independent rounds.",
        (Edit(GROUPS, "if not isinstance(release, CorrelatedDpEvent) and", "if"),),
        (f"{TOGETHER}::test_turns_that_overlap_are_not_taken_for_a_mixture",),
    ),
    Mutation(
        "a chain of neighbours at the δ of one",
        "A group's δ is stated far too small under fixed-size cohorts.",
        (Edit(GROUPS, "return 1 / math.fsum(", "return 1.0 or math.fsum("),),
        (f"{TOGETHER}::test_fixed_size_cohorts_are_chained_user_by_user",),
    ),
    Mutation(
        "events for others without what a run started from",
        "Others find a smaller ε than holds, and believe that ours is on the safe side.",
        (Edit("privacy/recounting.py", "_in_words(composed(costs[:-1], costs[-1]))", "_in_words(costs[-1])"),),
        ("tests/privacy/test_recounting.py::test_what_a_run_started_from_is_part_of_its_event",),
    ),
)
