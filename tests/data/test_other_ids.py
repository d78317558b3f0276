"""People protected under a ledger are not held out later, and people who opted out do not come
back: not by another column of ids, nor by other folders, nor by other ids in the same column.
"""

import csv
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

import taciturn as tt
from harness import quietly, tiny_recipe, trained
from taciturn.cli import app
from taciturn.data import ingest as ingesting
from taciturn.data.columns import Columns
from taciturn.data.population import COUNTS, Population, hashed_id
from taciturn.data.population import _share_ledger as share_ledger
from taciturn.data.same_people import known_to, same_split_as
from taciturn.data.sources import Source
from taciturn.data.users import first_user_id, position, user_id
from taciturn.data.vocabulary import DataError, public_vocabulary
from taciturn.people import build_population, open_ledger
from taciturn.runs.finished import FinishedRun
from taciturn.runs.loop import train_run
from taciturn.runs.ngram_baselines import count_population
from taciturn.runs.simulate_typing import simulate_typing
from taciturn.runs.warm_start import load_warm_start

WORDS = public_vocabulary(300)
TEXT = "and the one that you have is not what they said to me about this"
USERS = 120
HELD_OUT = 0.2


def write_table(path, users=range(USERS), **columns):
    """One row a user; `columns` are made of the user's number."""
    columns = columns or {"account": "account {}", "device": "device {}"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*columns, "message", "text"])
        for user in users:
            ids = [pattern.format(user) for pattern in columns.values()]
            rows.writerow([*ids, f"{TEXT} again", TEXT])
    return path


def build(source, folder, user="account", **how):
    how = {"columns": Columns(user=user), "held_out": HELD_OUT, **how}
    return build_population(source, folder, vocabulary=WORDS, least_tokens=5, **how)


def held_out_in(folder):
    population = Population(folder)
    text = folder / population.manifest["text"]
    return set((text / "held_out_users.txt").read_text().split())


def trained_in(folder):
    population = Population(folder)
    return set((folder / population.manifest["text"] / "users.txt").read_text().split())


def recipe_of(population, **sections):
    users = {"users": 80, "cohort": 8}
    return tiny_recipe(population, participation=users, run={"rounds": 1}, **sections)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def people(tmp_path):
    """People of whom two opted out; their ledger is open, as after a run."""
    write_table(tmp_path / "chats.csv")
    population = build("chats.csv", tmp_path / "people", exclude=["account 7", "account 8"])
    open_ledger(population)
    return tmp_path / "people"


# --- Another column -------------------------------------------------------------------------------


def test_another_column_of_ids_is_refused_under_a_ledger(people, tmp_path):
    before = (people / "manifest.json").read_bytes()
    for attempt in (
        lambda: build("chats.csv", people, user="device", replace=True),
        lambda: build("chats.csv", tmp_path / "next", user="device", same_people_as=people),
    ):
        with pytest.raises(DataError, match=r"by the column account, and .* by the column device"):
            attempt()
    assert (people / "manifest.json").read_bytes() == before
    assert not (tmp_path / "next").exists()


def test_without_the_checks_protected_people_would_be_held_out(people, monkeypatch):
    """The twin that must fail: 0 of 2 opt-outs hold, and people trained on are held out."""
    monkeypatch.setattr(ingesting, "earlier_builds", lambda *_: [])
    rebuilt = build("chats.csv", people, user="device", replace=True)
    counts = rebuilt.manifest[COUNTS]
    assert counts["train_users"] + counts["held_out_users"] == USERS
    accounts = {user for user in range(USERS) if is_held_out(f"account {user}")}
    devices = {user for user in range(USERS) if is_held_out(f"device {user}")}
    assert len(devices - accounts) > 5


def is_held_out(id):
    return position(user_id(id)) < HELD_OUT * 2**64


def test_the_same_column_and_the_same_ids_are_accepted_again(people, tmp_path):
    before = held_out_in(people)
    build("chats.csv", people, replace=True)
    assert held_out_in(people) == before
    build(write_table(tmp_path / "june.csv", range(60, 180)), people, replace=True)
    build("chats.csv", tmp_path / "next", same_people_as=people)
    assert held_out_in(tmp_path / "next") == before


def test_without_a_ledger_any_column_will_do(tmp_path):
    write_table(tmp_path / "chats.csv")
    build("chats.csv", tmp_path / "people")
    again = build("chats.csv", tmp_path / "people", user="device", replace=True)
    assert again.manifest["about"]["roles"]["user"] == ["device"]
    assert again.manifest["about"]["same_split_as"] == []


def test_another_column_of_the_text_is_noted(people):
    columns = Columns(user="account", text="message")
    again = build("chats.csv", people, columns=columns, replace=True)
    note = "the text is read from the column message, not the column text"
    assert again.manifest[COUNTS]["noted"] == {note: 1}


def test_one_column_is_never_both_the_user_and_the_text(tmp_path):
    """Also where only one of them is named, in every kind of file."""
    rows = {"account": ["ann", "bob"], "text": [TEXT, TEXT]}
    parquet.write_table(pa.table(rows), tmp_path / "a.parquet")
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_stream(file, pa.table(rows).schema) as out:
        out.write_table(pa.table(rows))
    lines = [json.dumps({"account": "ann", "text": TEXT}), ""]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    write_table(tmp_path / "a.csv")
    for name in ("a.parquet", "a.arrow", "a.jsonl", "a.csv"):
        for columns in (Columns(user="text"), Columns(user="text", text="text")):
            with pytest.raises(DataError, match="cannot be both the user and the text"):
                build(name, tmp_path / "people", columns=columns)
            source = Source(paths=[tmp_path / name], columns=columns)
            with pytest.raises(DataError, match="cannot be both the user and the text"):
                list(source.batches())


# --- Other ids ------------------------------------------------------------------------------------


def test_other_ids_in_the_same_column_are_refused_under_a_ledger(people, tmp_path):
    write_table(tmp_path / "pseudonyms.csv", account="pseudonym {}")
    for attempt in (
        lambda: build("pseudonyms.csv", people, replace=True),
        lambda: build("pseudonyms.csv", tmp_path / "next", same_people_as=people),
    ):
        with pytest.raises(DataError, match="fewer than a tenth of the people"):
            attempt()
    assert not (tmp_path / "next").exists()
    both = [tmp_path / "chats.csv", write_table(tmp_path / "new.csv", range(900, 990))]
    build(both, people, replace=True)


def test_people_who_were_trained_on_are_not_held_out_later(people):
    """The manifest does not say how many were held out, as of populations from Python."""
    manifest = json.loads((people / "manifest.json").read_text())
    del manifest["about"]["held_out_share"]
    (people / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="would hold out people whom"):
        build("chats.csv", people, replace=True, held_out=0.5)
    build("chats.csv", people, replace=True)


def test_how_many_were_met_again_is_shown(people, tmp_path):
    """A person may see what no program can, and is told from half of the people on."""
    mixed = write_table(tmp_path / "mixed.csv", range(USERS // 3))
    with mixed.open("a") as file:
        file.writelines(f"pseudonym {user},device,message,{TEXT}\n" for user in range(80))
    build("chats.csv", people, replace=True)
    said = CliRunner().invoke(app, ["data", "show", str(people)]).output
    assert "Of the 118 people before, 118 are in this text" in said
    assert "other ids" not in said
    build(mixed, people, replace=True)
    said = CliRunner().invoke(app, ["data", "show", str(people)]).output
    assert "Of the 118 people before, 38 are in this text" in said
    assert "fewer than half of the people before are in this text" in " ".join(said.split())


def test_people_who_opted_out_count_neither_way(people, tmp_path):
    """Their text may be gone, or still there: neither keeps a build from being made."""
    left = [f"account {user}" for user in range(115)]
    build("chats.csv", people, exclude=left, replace=True)
    write_table(tmp_path / "rest.csv", range(115, USERS))
    rest = build("rest.csv", people, replace=True)
    counts = rest.manifest[COUNTS]
    assert counts["train_users"] + counts["held_out_users"] == 5


@pytest.mark.parametrize(
    "patterns", [("{:04}", "{}"), ("{}", "{}.0"), ("{}", "{:05}"), ("{}", "+{}")]
)
def test_a_number_is_the_same_person_however_a_table_writes_it(tmp_path, patterns):
    before, after = patterns
    write_table(tmp_path / "chats.csv", account=before)
    write_table(tmp_path / "again.csv", account=after)
    build("chats.csv", tmp_path / "people", exclude=[before.format(7)])
    open_ledger(Population(tmp_path / "people"))
    held_out, protected = held_out_in(tmp_path / "people"), trained_in(tmp_path / "people")
    again = build("again.csv", tmp_path / "people", replace=True)
    assert held_out_in(tmp_path / "people") == held_out
    assert trained_in(tmp_path / "people") == protected
    assert again.manifest[COUNTS]["left_out"] == {"users who opted out": 1}


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64(), pa.string()])
def test_numbers_in_parquet_are_the_people_of_a_csv(tmp_path, kind):
    """Columns of integers become floating-point numbers where an id is missing."""
    first = 10**9
    write_table(tmp_path / "chats.csv", range(first, first + USERS), account="{}")
    build("chats.csv", tmp_path / "people")
    open_ledger(Population(tmp_path / "people"))
    held_out = held_out_in(tmp_path / "people")
    numbers = [*range(first, first + USERS), None]
    ids = pa.array(numbers).cast(kind)
    parquet.write_table(pa.table({"account": ids, "text": [TEXT] * len(ids)}), "chats.parquet")
    again = build("chats.parquet", tmp_path / "people", replace=True)
    assert held_out_in(tmp_path / "people") == held_out
    assert again.manifest[COUNTS]["left_out"] == {"rows without a user": 1}


# --- Interrupted, at once, and incomplete ---------------------------------------------------------


def test_a_ledger_that_opens_during_a_build_is_heeded(people, tmp_path):
    """A run starts after a build has looked whether there is one."""
    other = tmp_path / "other"
    before = build("chats.csv", other)

    def start_a_run(*_):
        if Population(other).ledger is None:
            open_ledger(Population(other))

    with pytest.raises(DataError, match="got its ledger while this build was made"):
        build("chats.csv", other, user="device", replace=True, progress=start_a_run)
    assert Population(other).id == before.id
    with pytest.raises(DataError, match="by the column account"):
        build("chats.csv", other, user="device", replace=True)
    build("chats.csv", other, replace=True)


def test_an_interrupted_build_of_the_same_people_is_not_one_of_others(people, tmp_path):
    """The folder has their ledger by then, and nothing says whose ids it has."""
    private = tmp_path / "next" / "private"
    private.mkdir(parents=True)
    share_ledger(tmp_path / "next", people)
    with pytest.raises(DataError, match=r"shares the ledger in .* with `same_people_as`"):
        build("chats.csv", tmp_path / "next", user="device")
    with pytest.raises(DataError, match="by the column account"):
        build("chats.csv", tmp_path / "next", user="device", same_people_as=people)
    build("chats.csv", tmp_path / "next", same_people_as=people)
    build("chats.csv", tmp_path / "next", replace=True)


@pytest.mark.parametrize("is_lost", [True, False])
def test_without_whole_lists_of_ids_nobody_can_tell_who_was_trained_on(people, tmp_path, is_lost):
    train_run(recipe_of(Population(people)), tmp_path / "run", quietly)
    for path in people.glob("text-*/*users.txt"):
        path.unlink() if is_lost else path.write_text("")
    write_table(tmp_path / "pseudonyms.csv", account="pseudonym {}")
    build("pseudonyms.csv", people, replace=True)
    with pytest.raises(DataError, match="may have been trained on"):
        FinishedRun(tmp_path / "run").evaluate()


def test_people_are_not_compared_with_an_incomplete_list_of_another_folder(people, tmp_path):
    for path in people.glob("text-*/users.txt"):
        path.write_text("")
    write_table(tmp_path / "pseudonyms.csv", account="pseudonym {}")
    with pytest.raises(DataError, match="is incomplete"):
        build("pseudonyms.csv", tmp_path / "next", same_people_as=people)
    build("chats.csv", people, replace=True)
    build("chats.csv", tmp_path / "next", same_people_as=people)


def test_speeches_do_not_replace_people_who_could_not_come_back(people):
    asked = ["data", "build", "sotu", "--out", str(people), "--replace"]
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code != 0
    build("chats.csv", people, replace=True)


# --- Folders of text files ------------------------------------------------------------------------


def write_messages(folder, user):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{user}.txt").write_text(f"{TEXT}\n{TEXT} too\n")


def test_text_files_from_one_level_higher_are_refused_under_a_ledger(tmp_path):
    for team in ("red", "blue"):
        for user in range(40):
            write_messages(tmp_path / "all" / team, f"{team} {user}")
    teams = [tmp_path / "all" / "red", tmp_path / "all" / "blue"]
    open_ledger(build(teams, tmp_path / "people", columns=Columns()))
    names = r"by the name of the file, .* by the name of the folder"
    with pytest.raises(DataError, match=names):
        build(tmp_path / "all", tmp_path / "people", columns=Columns(), replace=True)
    people = tmp_path / "people"
    with pytest.raises(DataError, match=names):
        build(tmp_path / "all", tmp_path / "next", columns=Columns(), same_people_as=people)
    build(teams, tmp_path / "people", columns=Columns(), replace=True)


def test_folders_of_text_files_from_one_level_higher_are_refused_under_a_ledger(tmp_path):
    for team in ("red", "blue"):
        for user in range(20):
            write_messages(tmp_path / "all" / team / f"{team} {user}", "messages")
    teams = [tmp_path / "all" / "red", tmp_path / "all" / "blue"]
    open_ledger(build(teams, tmp_path / "people", columns=Columns()))
    with pytest.raises(DataError, match="fewer than a tenth of the people"):
        build(tmp_path / "all", tmp_path / "people", columns=Columns(), replace=True)
    files = [path for team in teams for path in sorted(team.iterdir())]
    with pytest.raises(DataError, match=r"by the name of the folder, .* by the name of the file"):
        build(files, tmp_path / "people", columns=Columns(), replace=True)


# --- What is measured afterwards ------------------------------------------------------------------


def test_a_run_from_before_is_measured_only_if_the_split_stayed(people, tmp_path, monkeypatch):
    train_run(recipe_of(Population(people)), tmp_path / "run", quietly)
    build(write_table(tmp_path / "june.csv", range(60, 180)), people, replace=True)
    evaluation = FinishedRun(tmp_path / "run").evaluate()
    assert evaluation.rebuilt
    # As an earlier version would build it.
    monkeypatch.setattr(ingesting, "same_split_as", lambda _: [])
    monkeypatch.setattr(ingesting, "earlier_builds", lambda *_: [])
    build("chats.csv", people, user="device", replace=True)
    started = {"model": {"warm_start": str(tmp_path / "run")}}
    for attempt in (
        lambda: FinishedRun(tmp_path / "run").evaluate(),
        lambda: FinishedRun(tmp_path / "run").evaluate(people),
        lambda: FinishedRun(tmp_path / "run").report(),
        lambda: train_run(recipe_of(Population(people), **started), tmp_path / "next", quietly),
    ):
        with pytest.raises(tt.TaciturnError, match="may have been trained on"):
            attempt()
    monkeypatch.setattr("taciturn.runs.finished.check_same_split", lambda *_: None)  # the twin
    assert FinishedRun(tmp_path / "run").evaluate().rebuilt


def build_by_device(folder, monkeypatch):
    """Build as a version that did not compare columns."""
    monkeypatch.setattr(ingesting, "same_split_as", lambda _: [])
    monkeypatch.setattr(ingesting, "earlier_builds", lambda *_: [])
    build("chats.csv", folder, user="device", replace=True)
    monkeypatch.undo()


def started_from(folder, people):
    recipe = recipe_of(Population(people), model={"warm_start": str(folder)})
    population = Population(people)
    start = load_warm_start(recipe, population.vocabulary, open_ledger(population))
    assert start is not None
    return start


def test_no_run_starts_from_a_copied_model_of_people_with_other_ids(people, tmp_path, monkeypatch):
    """A model that left its run's folder does not say whom it was trained on; the ledger does."""
    train_run(recipe_of(Population(people)), tmp_path / "run", quietly)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "run" / "model.safetensors", tmp_path / "copy")
    assert started_from(tmp_path / "copy", people).lineage
    build(tmp_path / "chats.csv", people, replace=True)
    assert started_from(tmp_path / "copy", people).lineage
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path)
        build_by_device(people, patched)
    with pytest.raises(tt.TaciturnError, match="name that run's folder"):
        started_from(tmp_path / "copy", people)


def test_no_run_starts_from_another_folder_whose_people_have_other_ids(
    people, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    build("chats.csv", other, same_people_as=people)
    train_run(recipe_of(Population(other)), tmp_path / "run", quietly)
    assert started_from(tmp_path / "run", people).lineage
    for folder in (people, other):
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            build_by_device(folder, patched)
    with pytest.raises(DataError, match="may have been trained on"):
        started_from(tmp_path / "run", people)


def test_n_grams_of_people_with_other_ids_are_not_measured(people, tmp_path, monkeypatch):
    other = tmp_path / "other"
    build("chats.csv", other, same_people_as=people)
    count_population(other, tmp_path / "counted", "katz", 2, non_private=True)
    for folder in (people, other):
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            build_by_device(folder, patched)
    run = train_run(recipe_of(Population(people)), tmp_path / "run", quietly)
    with pytest.raises(DataError, match="may have been trained on"):
        run.report(beside=[tmp_path / "counted"])


def test_the_split_is_remembered_over_many_builds(people, tmp_path):
    first = Population(people).id
    for month in range(3):
        users = range(10 * month, USERS + 10 * month)
        build(write_table(tmp_path / "next.csv", users), people, replace=True)
    assert first in same_split_as(people)


def test_held_out_users_of_a_folder_with_other_columns_are_not_measured(people, tmp_path):
    """The folder was built before columns were compared."""
    train_run(recipe_of(Population(people)), tmp_path / "run", quietly)
    build("chats.csv", tmp_path / "next", same_people_as=people)
    about = json.loads((tmp_path / "next" / "manifest.json").read_text())
    FinishedRun(tmp_path / "run").evaluate(tmp_path / "next")
    about["about"]["columns"] = ["device", "text"]
    del about["about"]["roles"]
    (tmp_path / "next" / "manifest.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match=r"by the column account, and .* by the column device"):
        FinishedRun(tmp_path / "run").evaluate(tmp_path / "next")


def test_whoever_types_is_said_to_be_unknown_where_nobody_is_known(people, tmp_path):
    trained(Population(people), tmp_path / "run", participation={"users": 80, "cohort": 8})
    asked = ["keyboard", "evaluate", str(tmp_path / "run"), "--text", "chats.csv", "--words", "9"]
    known = Source(paths=[tmp_path / "chats.csv"], columns=Columns(user="account"))
    assert simulate_typing([tmp_path / "run"], known, False, 9, 9).unknown_to == []
    said = CliRunner().invoke(app, [*asked, "--user-column", "account"]).output
    assert "Nobody in this text is known" not in said
    said = " ".join(CliRunner().invoke(app, [*asked, "--user-column", "device"]).output.split())
    assert "Nobody in this text is known to" in said
    counted = CliRunner().invoke(app, [*asked, "--user-column", "device", "--json"]).stdout
    assert json.loads(counted)["unknown_to"] == [str(people)]


# --- Folders of earlier versions ------------------------------------------------------------------


def make_old(folder, **about):
    """Let a folder look as an earlier version wrote it."""
    (folder / "private" / "id-rule").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["id_rule"]
    for name in ("roles", "same_split_as"):
        del manifest["about"][name]
    manifest["about"] |= about
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_an_old_folder_is_built_again_with_its_column_only(people, tmp_path):
    make_old(people, columns=["account", "text"])
    with pytest.raises(DataError, match=r"by the column account, and .* by the column device"):
        build("chats.csv", people, user="device", replace=True)
    build("chats.csv", people, replace=True)
    about = Population(people).manifest["about"]
    assert about["roles"] == {"user": ["account"], "text": ["text"], "time": []}


def test_an_old_folder_of_several_tables_is_built_again(tmp_path):
    write_table(tmp_path / "a.csv", range(60), user_id="account {}")
    write_table(tmp_path / "b.csv", range(60, USERS), author="account {}")
    both = [tmp_path / "a.csv", tmp_path / "b.csv"]
    open_ledger(build(both, tmp_path / "people", columns=Columns()))
    held_out = held_out_in(tmp_path / "people")
    make_old(tmp_path / "people", columns=["user_id", "text", "author"])
    build(both, tmp_path / "people", columns=Columns(), replace=True)
    assert held_out_in(tmp_path / "people") == held_out


def test_an_old_folder_of_files_and_folders_is_built_again(tmp_path):
    for user in range(40):
        write_messages(tmp_path / "all", f"user {user}")
        write_messages(tmp_path / "all" / f"other {user}", "messages")
    open_ledger(build(tmp_path / "all", tmp_path / "people", columns=Columns()))
    held_out = held_out_in(tmp_path / "people")
    make_old(tmp_path / "people")
    build(tmp_path / "all", tmp_path / "people", columns=Columns(), replace=True)
    assert held_out_in(tmp_path / "people") == held_out


def test_two_people_of_an_old_folder_do_not_have_one_id(tmp_path):
    """A character that the first rule took out, and the second does not."""
    write_table(tmp_path / "chats.csv", account="account {}")
    open_ledger(build("chats.csv", tmp_path / "people"))
    make_old(tmp_path / "people", columns=["account", "text"])
    unknown = write_table(tmp_path / "unknown.csv", range(30), account="account {}\u0378")
    both = [tmp_path / "chats.csv", unknown]
    build(both, tmp_path / "people", replace=True)
    counts = Population(tmp_path / "people").manifest[COUNTS]
    assert counts["train_users"] + counts["held_out_users"] == USERS + 30
    ids = held_out_in(tmp_path / "people") | trained_in(tmp_path / "people")
    assert len(ids) == USERS + 30


ODD = ("00{}", "account {}\ufe0f", "ııı {}", "account {}")


@pytest.mark.parametrize("pattern", ODD)
def test_an_old_folder_keeps_its_ids_and_who_is_held_out(tmp_path, monkeypatch, pattern):
    write_table(tmp_path / "chats.csv", account=pattern)
    monkeypatch.setattr("taciturn.data.population.ID_RULE", 1)
    out = [pattern.format(7)]
    build("chats.csv", tmp_path / "people", exclude=out)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    open_ledger(Population(tmp_path / "people"))
    held_out, protected = held_out_in(tmp_path / "people"), trained_in(tmp_path / "people")
    assert len(held_out) > 5
    make_old(tmp_path / "people", columns=["account", "text"], opt_outs=1)
    private = tmp_path / "people" / "private"
    opted_out = hashed_id((private / "salt").read_bytes(), first_user_id(out[0]))
    (private / "opted-out.txt").write_text(f"{opted_out}\n")
    assert all(map(known_to(tmp_path / "people"), map(pattern.format, range(USERS))))
    again = build("chats.csv", tmp_path / "people", replace=True)
    assert held_out_in(tmp_path / "people") == held_out
    assert trained_in(tmp_path / "people") == protected
    assert again.manifest[COUNTS]["left_out"] == {"users who opted out": 1}
    assert again.manifest["id_rule"] == 1
    shared = build("chats.csv", tmp_path / "next", same_people_as=tmp_path / "people")
    assert shared.manifest["id_rule"] == 1
    assert held_out_in(tmp_path / "next") == held_out


def test_one_who_was_two_users_is_held_out_only_if_both_were(tmp_path, monkeypatch):
    monkeypatch.setattr("taciturn.data.population.ID_RULE", 1)
    write_table(tmp_path / "chats.csv", account="account {}\ufe0f")
    build("chats.csv", tmp_path / "people")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    open_ledger(Population(tmp_path / "people"))
    write_table(tmp_path / "plain.csv", account="account {}")
    both = [tmp_path / "chats.csv", tmp_path / "plain.csv"]
    build(both, tmp_path / "people", replace=True)
    expected = sum(
        position(f"account {user}\ufe0f") < HELD_OUT * 2**64 and is_held_out(f"account {user}")
        for user in range(USERS)
    )
    assert len(held_out_in(tmp_path / "people")) == expected
