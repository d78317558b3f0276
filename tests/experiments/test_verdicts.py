"""What results say of a claim: both ways, and never by one seed."""

import pytest

from lib import canary_tables, page, results, run_lists, typed_claims
from lib.results import Measured
from lib.verdicts import (
    Difference,
    Spread,
    Verdict,
    compare,
    judge_counted,
    judge_more,
    judge_same,
    judge_together,
    pool,
)

CLOSE = 0.003
KNOWN = Spread(deviation=0.0006, degrees=20)


def measured(value: float, seeds: int) -> Measured:
    return Measured(value=value, users=0.0018, least=value, most=value, seeds=seeds)


def judge_one_sided(difference: Difference, within: float) -> Verdict:
    """The twin: what pages did until a gain was noticed that no noise can bring."""
    return Verdict.HOLDS if difference.value > -within else Verdict.FAILS


def verdicts_of(change: float, seeds: int = 3) -> tuple[Verdict, Verdict]:
    difference = compare(measured(0.17 + change, seeds), measured(0.17, seeds), KNOWN)
    return judge_same(difference, CLOSE), judge_one_sided(difference, CLOSE)


def test_a_gain_refutes_no_difference_as_a_loss_does():
    assert verdicts_of(-0.0046) == (Verdict.FAILS, Verdict.FAILS)
    assert verdicts_of(+0.0046) == (Verdict.FAILS, Verdict.HOLDS)
    assert verdicts_of(+0.0005) == (Verdict.HOLDS, Verdict.HOLDS)


def test_an_interval_with_both_answers_cannot_be_told():
    assert verdicts_of(-0.0030)[0] is Verdict.UNTOLD
    assert verdicts_of(+0.0030)[0] is Verdict.UNTOLD
    barely = Difference(value=0.0001, margin=0.001, seeds=3)
    assert judge_more(barely) is Verdict.UNTOLD
    assert judge_more(barely.negate()) is Verdict.UNTOLD
    assert judge_more(barely, than=-0.003) is Verdict.HOLDS
    assert judge_more(barely, than=+0.003) is Verdict.FAILS


@pytest.mark.parametrize("change", [-0.02, -0.003, 0.0, 0.0001, 0.003, 0.02])
def test_one_seed_on_either_side_never_holds(change):
    for seeds, seeds_of_other in ((1, 1), (1, 3), (3, 1)):
        difference = compare(measured(0.17 + change, seeds), measured(0.17, seeds_of_other), KNOWN)
        found = {
            judge_same(difference, CLOSE),
            judge_more(difference),
            judge_more(difference.negate()),
            judge_counted(True, difference.seeds),
        }
        assert Verdict.HOLDS not in found
        assert judge_together([*found, Verdict.HOLDS]) is not Verdict.HOLDS
    # The twins: with a second seed each of these claims holds somewhere.
    several = compare(measured(0.17 + change, 2), measured(0.17, 2), KNOWN)
    judged = {judge_same(several, CLOSE), judge_more(several), judge_more(several.negate())}
    assert Verdict.HOLDS in judged or abs(change) == CLOSE


def test_where_no_run_has_a_second_seed_nothing_can_be_told():
    unknown = pool([[0.17], [0.18]])
    difference = compare(measured(0.5, 1), measured(0.1, 1), unknown)
    assert judge_more(difference) is Verdict.UNTOLD
    assert judge_same(difference, CLOSE) is Verdict.UNTOLD


def test_a_part_that_is_missing_keeps_a_row_from_holding():
    assert judge_together([Verdict.HOLDS, Verdict.HOLDS]) is Verdict.HOLDS
    assert judge_together([Verdict.HOLDS, Verdict.ONE_SEED]) is Verdict.ONE_SEED
    for other in (Verdict.FAILS, Verdict.UNTOLD, Verdict.NOT_RUN, Verdict.CANNOT, Verdict.PART):
        assert judge_together([Verdict.HOLDS, other]) is Verdict.PART
        assert judge_together([Verdict.ONE_SEED, other]) is Verdict.PART
    assert judge_together([Verdict.UNTOLD, Verdict.FAILS]) is Verdict.FAILS
    assert judge_together([Verdict.NOT_RUN]) is Verdict.NOT_RUN


def committed_items() -> list[page.Item]:
    items = []
    for paper in (*page.PAPERS, page.OWN):
        items += page.load_figures(paper).items()
    return items


def test_no_row_of_the_pages_holds_by_one_seed():
    held = [item.name for item in committed_items() if item.verdict is Verdict.HOLDS]
    assert len(held) >= 5
    for item in committed_items():
        if item.seeds == 1:
            assert item.verdict is not Verdict.HOLDS, item.name


@pytest.fixture
def figure_7(tmp_path, monkeypatch):
    """Judge a row of «no difference» by results with a change that is known."""
    monkeypatch.setattr(run_lists, "HERE", tmp_path)
    listed = (page.HERE / "mcmahan2018" / "runs.toml").read_bytes()
    (tmp_path / "mcmahan2018").mkdir()
    (tmp_path / "mcmahan2018" / "runs.toml").write_bytes(listed)
    judge = page.load_figures("mcmahan2018").figure_7
    runs = [run for run in run_lists.read_list("mcmahan2018") if run.group == "cohorts"]

    def judged(change: float, seeds: int = 3) -> Verdict:
        for run in runs:
            accuracy = 0.17 + change * run.name.endswith("1250") + 0.0001 * run.seed
            row = {"round": 200, "accuracy_top1": accuracy, "accuracy_top1_margin": 0.002}
            run.result.unlink(missing_ok=True)
            if run.seed <= seeds:
                results.save(run, {"rows": [row | {"round": 0}, row], "seed": run.seed})
        return judge().verdict

    return judged


def test_a_row_of_no_difference_fails_on_a_gain(figure_7):
    assert figure_7(change=0.0) is Verdict.HOLDS
    assert figure_7(change=-0.01) is Verdict.FAILS
    assert figure_7(change=+0.01) is Verdict.FAILS
    assert figure_7(change=0.0, seeds=1) is Verdict.UNTOLD


def typed(**models: tuple[float, float]) -> results.Result:
    """What keyboard/table.py would have measured of people's Top1."""
    shown = {name: {"accuracy_top1": list(pair)} for name, pair in models.items()}
    return {"people": 10, "words": 400, "models": shown, "from": "ours", "changes": {}}


def test_n_grams_of_another_table_count_where_the_same_people_typed():
    ours = typed(ours=(0.2, 0.002))
    baseline = "Kneser–Ney, public text, with history"

    def judged(elsewhere: results.Result | None) -> list[Verdict]:
        parts = typed_claims.judge_public_ngrams(ours, elsewhere, ["ours"], ["accuracy_top1"])
        return [part.verdict for part in parts]

    assert judged(typed(**{baseline: (0.19, 0.002)})) == [Verdict.ONE_SEED]
    assert judged(typed(**{baseline: (0.21, 0.002)})) == [Verdict.FAILS]
    assert judged(typed(**{baseline: (0.201, 0.002)})) == [Verdict.UNTOLD]
    assert judged(typed(**{baseline: (0.19, 0.002)}) | {"words": 401}) == [Verdict.NOT_RUN]
    assert judged(typed(**{"Kneser–Ney, with history": (0.19, 0.002)})) == [Verdict.NOT_RUN]
    assert judged(None) == [Verdict.NOT_RUN]


def canaries(times: list[int], ranks: list[int]) -> canary_tables.CanaryRow:
    found = [[1, 14, met, rank, False] for met, rank in zip(times, ranks, strict=True)]
    return canary_tables.group_by_kind([{"canaries": found}])[1, 14]


def test_a_canary_is_met_as_often_as_on_average():
    """The twin: pages showed the most that any canary is met as what is expected."""
    row = canaries([0, 230, 460], ranks=[900, 5_000, 90_000])
    assert (row.met, row.never_met) == (230, 1)
    assert row.met != max(0, 230, 460)


def careless(least: int) -> Verdict:
    """The twin: what is not memorised, whether or not anything could have been."""
    return judge_counted(least >= 100, seeds=2)


@pytest.mark.parametrize(
    ("private", "without_privacy", "verdict", "verdict_of_careless"),
    [
        (3_000, 1, Verdict.HOLDS, Verdict.HOLDS),
        (3_000, 30_000, Verdict.UNTOLD, Verdict.HOLDS),
        (1, 1, Verdict.FAILS, Verdict.FAILS),
        (1, 30_000, Verdict.FAILS, Verdict.FAILS),
    ],
)
def test_that_nothing_is_memorised_says_something_where_something_could_be(
    private, without_privacy, verdict, verdict_of_careless
):
    judge = page.load_figures("ramaswamy2020")._nothing_memorised
    one = canaries([230, 230], ranks=[private, 90_000])
    other = canaries([230, 230], ranks=[without_privacy, 90_000])
    assert judge("nothing", one, other, seeds=2).verdict is verdict
    assert careless(min(one.ranks)) is verdict_of_careless


def test_generated_text_is_not_as_good_as_real_text_where_none_is():
    """Both are within 3 % of each other, and so is a model that was not trained at all."""
    (row,) = [
        item
        for item in page.load_figures("popov2018").items()
        if item.name == "§2.5, transfer learning"
    ]
    assert {part.verdict for part in row.parts} == {Verdict.UNTOLD}
    assert all("the start itself" in part.measured for part in row.parts)
