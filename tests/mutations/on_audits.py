"""What an audit sees of a mechanism, and what it says that it could have seen."""

from mutation import Edit, Mutation

USERS, FILTER, TEST = "audit/audit_users.py", "audit/matched_filter.py", "audit/one_run.py"

MUTATIONS = (
    Mutation(
        "audit users who come whatever the coin says",
        "Those who were in are compared with others who were in, and every mechanism is found sound.",
        (Edit(USERS, "return everyone[turn & self.included]", "return everyone[turn]"),),
        ("tests/test_audit.py::test_half_of_them_are_in_and_each_comes_in_its_own_rounds",),
    ),
    Mutation(
        "audit users of a single turn",
        "What a person's whole part in a run costs is never tested, only one row of it.",
        (Edit(USERS, "found = _patterns(rounds, apart, turns)", "found = _patterns(rounds, apart, 1)"),),
        ("tests/test_audit.py::test_users_have_all_turns_that_the_claim_allows_and_no_more",),
    ),
    Mutation(
        "directions of one round that add up in a few parameters",
        "Audit users hide each other, and move the people's model.",
        (Edit(USERS, "LENGTH * vectors.own[user] * (1 - 2 * odd)", "LENGTH * (1 - 2 * odd)"),),
        ("tests/test_audit.py::test_directions_are_orthogonal_and_all_products_with_them_are_one_transform",),
    ),
    Mutation(
        "correlated noise read as if it were independent",
        "An audit of DP-FTRL sees a part of what the rows give away together, and misses noise that is too small.",
        (Edit(FILTER, "np.linalg.cholesky(noise @ noise.T)", "np.eye(len(noise))"),),
        ("tests/evaluation/test_matched_filter.py::test_scores_lie_as_far_apart_as_is_said[tree]",),
        statistical=True,
    ),
    Mutation(
        "an audit that forgets people when it says what it could see",
        "One that could see nothing is taken for one that saw nothing wrong.",
        (Edit(TEST, "left = (signal / times) ** 2 - people", "left = (signal / times) ** 2"),),
        ("tests/evaluation/test_one_run.py::test_where_people_drown_it_nothing_is_caught_and_it_says_so",),
        statistical=True,
    ),
)
