"""Attempts to pass the guarantee by on the way to a keyboard: counts, exports, the page, and people who type."""

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import copied_population, made_up_users, quietly, tiny_recipe
from taciturn.cli import app
from taciturn.core import END
from taciturn.data.population import (
    Population,
    PopulationError,
    build_population,
    hashed_id,
    remembered_opt_outs,
    trained_on,
)
from taciturn.data.sources import Source
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, DataError, Vocabulary
from taciturn.evaluation.intervals import jackknife
from taciturn.export import formats
from taciturn.export.arpa import read_arpa, write_arpa
from taciturn.export.combined import write_combined
from taciturn.export.formats import Distilling
from taciturn.export.javascript import Published, check_javascript, javascript_ngram
from taciturn.export.onnx import onnx_model
from taciturn.export.word_model import COUNTED_ON, load_word_model
from taciturn.keyboard.people import people
from taciturn.keyboard.predictor import Predictor, load_blocklist
from taciturn.keyboard.server import KeyboardServer, page_files
from taciturn.keyboard.typing_simulation import THRESHOLDS, Typing
from taciturn.models.ngram import katz
from taciturn.models.stepping import Recurrent
from taciturn.privacy.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.recipe.text import RecipeError
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import ModelFileError, load_model, save_model
from taciturn.runs import ngram_baselines
from taciturn.runs.finished import export_run
from taciturn.runs.folder import RunError
from taciturn.runs.ngram_baselines import count_population
from taciturn.runs.run import train_run
from taciturn.runs.typing import keyboard_server, try_models

pytestmark = pytest.mark.compiled_quickly

FEW = Distilling(words=16_000, entries=2000)
SHORT = {"rounds": 1, "save_every": 1, "evaluate_every": 1, "seed": None}
CIFG = {"kind": "cifg", "width": 8, "units": 12}
REFUSED = (ExportRefused, RunError, DataError, LedgerError, ModelFileError)


def words(count: int = 40) -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(fixed + tuple(f"word{chr(97 + n)}" for n in range(count - len(fixed))))


def train(population: Population, folder: Path, **sections) -> Path:
    train_run(tiny_recipe(population, **{"model": CIFG, "run": SHORT, **sections}), folder, quietly)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People, a private run, a run without noise, and n-grams counted on their text."""
    folder = tmp_path_factory.mktemp("made")
    population = build_population(folder / "people", made_up_users(50), made_up_users(12, seed=1), words(), {})
    train(population, folder / "private", run={**SHORT, "rounds": 6, "evaluate_every": 6, "save_every": 6})
    train(population, folder / "plain", algorithm="fedavg", privacy={"noise_multiplier": None})
    count_population(folder / "people", folder / "counted", "katz", 3, non_private=True)
    return folder


@pytest.fixture
def copied(made, tmp_path) -> Path:
    """All of it, to change at will; the folders still name the population they came from."""
    copied_population(made / "people", tmp_path / "made" / "people")
    shutil.copytree(made, tmp_path / "made", dirs_exist_ok=True, ignore=shutil.ignore_patterns("people"))
    return tmp_path / "made"


def changed_card(folder: Path, **fields) -> None:
    params, card = load_model(folder)
    save_model(folder / "model.safetensors", params, replace(card, **fields))


def exported_with(text: str, folder: Path, out: Path) -> bool:
    """Whether a model leaves, and this text with it."""
    try:
        files = export_run(folder, out).files
    except REFUSED:
        return False
    return any(text.encode() in file.read_bytes() for file in files)


def texts_of(path: Path, *users: str) -> Source:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("user", "text"), *((user, "worda wordb wordc wordd.") for user in users)])
    return Source([path])


@contextmanager
def served(*paths: Path, blocked: tuple[str, ...] = ()) -> Iterator[HTTPConnection]:
    server = keyboard_server(paths, blocked, 0)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/")), timeout=10)
    finally:
        server.close()


def script_on_page(*paths: Path) -> str:
    with served(*paths) as connection:
        connection.request("GET", "/model-1.js")
        return connection.getresponse().read().decode()


def published(vocabulary: Vocabulary, name: str = "one", blocked: tuple[str, ...] = ()) -> Published:
    return Published(name, vocabulary.words, vocabulary.about, None, "made up", "public text", blocked)


def counted(vocabulary: Vocabulary, *sentences: str, order: int = 3):
    ids = [[vocabulary.ids[word] for word in one.split()] for one in sentences]
    return katz([np.array([*one, END] * 4) for one in ids], len(vocabulary), order)


# ——— A model of users' text that looks like another ———


def test_n_grams_counted_on_users_do_not_become_public_text_on_the_page_by_way_of_arpa(made, tmp_path):
    export_run(made / "counted", tmp_path / "out", "arpa", non_private=True)
    script = script_on_page(tmp_path / "out" / "model.arpa")
    assert "no user's text" not in script
    assert '"promises":false' in script


@pytest.mark.parametrize("model", ["counted", "plain"])
def test_a_file_that_forgot_its_run_is_known_to_the_ledger_by_its_parameters_on_the_page_too(copied, model):
    changed_card(copied / model, run=None, ledger_head=None)
    try:
        script = script_on_page(copied / model)
    except REFUSED:
        return
    assert "no user's text" not in script


def test_words_that_the_run_never_had_do_not_leave_under_its_guarantee(copied, tmp_path):
    """Parameters are verified, the list of words beside them is not: any text fits into it."""
    listed = load_model(copied / "private")[1].vocabulary
    changed_card(copied / "private", vocabulary=(*listed[:-1], "somebody-s-secret"))
    assert not exported_with("somebody-s-secret", copied / "private", tmp_path / "out")


def test_the_source_of_the_words_is_not_what_the_file_says_of_itself(copied, tmp_path):
    about = load_model(copied / "private")[1].text
    changed_card(copied / "private", text={**about, "source": "all was public"}, public_sources=("all was public",))
    assert not exported_with("all was public", copied / "private", tmp_path / "out")


def test_the_number_of_people_is_that_of_the_recipe_in_the_ledger(copied):
    recipe = copied / "private" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("users = 50", "users = 5000000"))
    with suppress(*REFUSED):
        assert "5,000,000 people" not in script_on_page(copied / "private")


def test_whom_the_guarantee_protects_is_not_changed_by_building_the_population_again(tmp_path):
    users = made_up_users(50), made_up_users(12, seed=1), words()
    population = build_population(tmp_path / "people", *users, {"simulated": "pieces of a text play the users"})
    train(population, tmp_path / "run")
    build_population(tmp_path / "people", made_up_users(50, seed=2), *users[1:], {})
    try:
        export_run(tmp_path / "run", tmp_path / "out")
    except REFUSED:
        return
    assert "simulated user" in (tmp_path / "out" / "guarantee.txt").read_text()


def test_the_page_promises_nothing_to_persons_where_pieces_of_text_played_the_users(tmp_path):
    users = made_up_users(50), made_up_users(12, seed=1), words()
    population = build_population(tmp_path / "people", *users, {"simulated": "pieces of a text play the users"})
    train(population, tmp_path / "run", privacy={"noise_multiplier": 5.0})
    assert "each person, with everything they wrote" not in script_on_page(tmp_path / "run").replace("\n * ", " ")


def test_a_word_list_made_by_a_simulation_says_so(made, tmp_path):
    population = Population(made / "people")
    train(population, tmp_path / "seeded", run={**SHORT, "rounds": 6, "evaluate_every": 6, "save_every": 6, "seed": 1})
    export_run(tmp_path / "seeded", tmp_path / "out", "combined", distilling=FEW)
    assert "simulation" in (tmp_path / "out" / "main_en.combined").read_text().splitlines()[0].lower()


def test_what_is_sampled_from_a_model_without_privacy_is_not_said_to_cost_none(made, tmp_path):
    export_run(made / "plain", tmp_path / "out", "combined", non_private=True, distilling=FEW)
    assert "costs no privacy" not in (tmp_path / "out" / "main_en.combined").read_text().splitlines()[0]


def test_n_grams_counted_on_users_are_for_the_owners_eyes_as_the_text_is(made):
    assert (made / "counted" / "model.safetensors").stat().st_mode & 0o077 == 0


def test_counted_n_grams_do_not_leave_by_naming_another_population(copied, tmp_path):
    others = build_population(tmp_path / "others", made_up_users(50, seed=3), made_up_users(12, seed=4), words(), {})
    train(others, tmp_path / "counted")  # a private run of the same name
    (copied / "counted" / COUNTED_ON).write_text(json.dumps({"population": str(others.folder)}))
    for attempt in (
        lambda: export_run(copied / "counted", tmp_path / "out"),
        lambda: script_on_page(copied / "counted"),
    ):
        with pytest.raises(ExportRefused, match="does not know these parameters"):
            attempt()


@pytest.mark.parametrize("without", ["counted", "plain"])
def test_parameters_without_privacy_do_not_leave_with_the_card_of_a_private_run(copied, tmp_path, without):
    save_model(
        copied / "private" / "model.safetensors", load_model(copied / without)[0], load_model(copied / "private")[1]
    )
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        export_run(copied / "private", tmp_path / "out")


def test_a_file_in_another_runs_folder_keeps_its_own_guarantee(copied, tmp_path):
    shutil.copy(copied / "plain" / "model.safetensors", copied / "private" / "model.safetensors")
    with pytest.raises(ExportRefused, match="no privacy"):
        export_run(copied / "private", tmp_path / "out")
    assert "NO privacy guarantee" in script_on_page(copied / "private")


def test_a_link_to_a_model_without_privacy_is_no_way_out(made, tmp_path):
    (tmp_path / "private").symlink_to(made / "plain")
    with pytest.raises(ExportRefused, match="no privacy"):
        export_run(tmp_path / "private", tmp_path / "out")


def test_an_export_is_not_exported_again_without_its_ledger(made, tmp_path):
    export_run(made / "plain", tmp_path / "once", non_private=True)
    for attempt in (
        lambda: export_run(tmp_path / "once", tmp_path / "twice"),
        lambda: script_on_page(tmp_path / "once"),
    ):
        with pytest.raises(REFUSED):
            attempt()


def test_parameters_with_one_leaf_more_do_not_leave(copied, tmp_path):
    params, card = load_model(copied / "private")
    save_model(copied / "private" / "model.safetensors", {**params, "note": np.frombuffer(b"secret!!", "u1")}, card)
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        export_run(copied / "private", tmp_path / "out")


def test_a_private_run_does_not_start_from_counted_n_grams(made, tmp_path):
    with pytest.raises(RecipeError, match="another model"):
        train(Population(made / "people"), tmp_path / "next", model={**CIFG, "warm_start": str(made / "counted")})


def test_a_private_run_that_starts_from_a_file_that_forgot_its_run_is_still_not_private(copied, tmp_path):
    changed_card(copied / "plain", run=None, ledger_head=None)
    (copied / "plain" / "recipe.toml").unlink()
    run = train(Population(copied / "people"), tmp_path / "next", model={**CIFG, "warm_start": str(copied / "plain")})
    assert "NO privacy guarantee" in (run / "guarantee.txt").read_text()


def test_n_grams_are_not_counted_under_the_name_of_a_run(copied, tmp_path):
    before = (copied / "people" / FILE_NAME).read_bytes()
    with pytest.raises(LedgerError, match="already has a run"):
        count_population(copied / "people", tmp_path / "private", "katz", 2, non_private=True)
    assert (copied / "people" / FILE_NAME).read_bytes() == before
    assert not (tmp_path / "private").exists()


def test_n_grams_whose_counting_was_cut_off_leave_nothing_that_can_be_used(copied, tmp_path, monkeypatch):
    """After it was charged and counted, before anything is written."""
    monkeypatch.setattr(ngram_baselines, "write_atomically", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        count_population(copied / "people", tmp_path / "cut-off", "katz", 2, non_private=True)
    assert Ledger(copied / "people" / FILE_NAME).guarantee("cut-off").epsilon == np.inf
    for attempt in (
        lambda: export_run(tmp_path / "cut-off", tmp_path / "out"),
        lambda: script_on_page(tmp_path / "cut-off"),
    ):
        with pytest.raises(REFUSED):
            attempt()


def test_n_grams_are_not_counted_where_the_ledger_is_lost(copied, tmp_path):
    (copied / "people" / FILE_NAME).unlink()
    with pytest.raises(LedgerError, match="gone"):
        count_population(copied / "people", tmp_path / "new", "katz", 2, non_private=True)


# ——— People who type ———


def test_people_who_were_trained_on_are_known_in_any_spelling(made, tmp_path):
    spellings = ("USER 0 1", "ｕｓｅｒ 0 2", " user\u200b 0 \u00a0 3 ", "user 0 4\u00ad")
    found = people(texts_of(tmp_path / "chats.csv", *spellings, "a stranger"), trained_on(made / "people"), 100)
    assert (len(found.messages), found.trained_on) == (1, 4)


@pytest.mark.parametrize("salt", [None, bytes(32)])
def test_nobody_is_taken_for_a_stranger_because_the_salt_is_lost(copied, salt):
    path = copied / "people" / "private" / "salt"
    path.unlink() if salt is None else path.write_bytes(salt)
    with pytest.raises(PopulationError, match="salt"):
        trained_on(copied / "people")


def test_nobody_is_taken_for_a_stranger_because_the_list_of_users_is_cut_off(copied):
    population = Population(copied / "people")
    path = population.folder / population.manifest["text"] / "users.txt"
    path.write_text("\n".join(path.read_text().split()[:10]))
    with pytest.raises(PopulationError):
        trained_on(copied / "people")


def test_people_who_were_trained_on_do_not_type_after_the_population_is_built_again(tmp_path):
    rest = made_up_users(12, seed=1), words(), {}
    run = train(build_population(tmp_path / "people", made_up_users(50), *rest), tmp_path / "run")
    build_population(tmp_path / "people", made_up_users(50, seed=2), *rest)
    with pytest.raises(REFUSED):
        try_models([run], texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"), False, 10, 50)


def test_people_whom_the_first_of_two_runs_was_trained_on_do_not_type_with_the_second(made, tmp_path):
    people = made_up_users(50, seed=3), made_up_users(12, seed=4)
    others = build_population(tmp_path / "others", *people, words(), {}, same_people_as=made / "people")
    run = train(others, tmp_path / "second", model={**CIFG, "warm_start": str(made / "private")})
    assert Ledger(made / "people" / FILE_NAME).guarantee("second").continued
    with pytest.raises(REFUSED):
        try_models([run], texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"), False, 10, 50)


def test_people_who_opted_out_do_not_type(tmp_path):
    rest = made_up_users(12, seed=1), words(), {}
    run = train(build_population(tmp_path / "people", made_up_users(50), *rest), tmp_path / "run")
    salt = (tmp_path / "people" / "private" / "salt").read_bytes()
    remembered_opt_outs(tmp_path / "people", salt, ["gone away"])
    source = texts_of(tmp_path / "chats.csv", "Gone Away", "a stranger")
    assert try_models([run], source, False, 10, 50).people == 1


def test_people_are_left_out_by_the_population_whose_ledger_knows_the_model(copied, tmp_path):
    """A recipe names its population by a path, which may lead elsewhere by now."""
    others = build_population(tmp_path / "others", made_up_users(50, seed=3), made_up_users(12, seed=4), words(), {})
    (copied / "counted" / COUNTED_ON).write_text(json.dumps({"population": str(others.folder)}))
    with pytest.raises(REFUSED):
        try_models([copied / "counted"], texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"), False, 10, 50)


def test_of_an_arpa_file_it_is_not_said_that_nobody_who_types_was_trained_on(made, tmp_path):
    export_run(made / "counted", tmp_path / "out", "arpa", non_private=True)
    texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2")
    asked = ["typing", str(tmp_path / "out" / "model.arpa"), "--text", str(tmp_path / "chats.csv")]
    said = " ".join(CliRunner().invoke(app, asked).output.split())
    assert "0 whom a model was trained on were left out" not in said


def test_nothing_that_people_typed_is_in_what_is_printed(made, tmp_path):
    with open(tmp_path / "chats.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("user", "text"), ("a stranger", "worda xylophonic wordb"), ("user 0 1", "quixotry")]
        )
    for more in ([], ["--json"], ["--history"]):
        asked = ["typing", str(made / "private"), "--text", str(tmp_path / "chats.csv"), *more]
        said = CliRunner().invoke(app, asked).output
        assert "keystroke" in said
        assert not any(text in said for text in ("xylophonic", "quixotry", "stranger", "user 0 1"))


# ——— The page ———


def test_another_website_cannot_load_the_model_as_a_script_of_its_own(made):
    """Scripts are not held by the same-origin policy: a page of anyone's, open in the same browser, reads `taciturn.models`."""
    asked_by_another = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    with served(made / "counted") as connection:
        connection.request("GET", "/model-1.js", headers=asked_by_another)
        answer = connection.getresponse()
        answer.read()
    assert answer.status == 403 or answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost.", "", "[::ffff:127.0.0.1]", "0"],
)
def test_a_name_that_was_pointed_at_this_machine_gets_nothing(host):
    server = KeyboardServer(page_files(["/* a model */"]))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        connection = HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/")), timeout=10)
        connection.putrequest("GET", "/", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == 403
    finally:
        server.close()


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "//etc/passwd", "/model-1.js/../../x", "/./index.html"]
)
def test_no_path_leads_out_of_the_page(made, path):
    with served(made / "private") as connection:
        connection.request("GET", path)
        assert connection.getresponse().status == 404


@pytest.mark.parametrize(
    "text",
    ["*/ throw 1 /*", "**//", "\n*/throw 1", "`${1}`", "'\"\\", "\u2028throw 1", "\r\nthrow 1//", "x" * 99 + "*/"],
)
def test_no_name_of_a_model_or_a_word_breaks_out_of_its_script(text):
    vocabulary = words()
    spelled = replace(vocabulary, words=(*vocabulary.words[:-1], text.replace("\n", "").replace("\r", "")))
    about = published(spelled, text, blocked=(text,))._replace(statement=text, learned_from=text)
    script = javascript_ngram(counted(spelled, "worda wordb ."), about)
    scores = check_javascript(script, [END])
    assert scores is None or scores.shape == (2, len(spelled))


def test_no_word_ends_the_script_element_that_holds_it():
    vocabulary = words()
    spelled = replace(vocabulary, words=(*vocabulary.words[:-1], "</script><script>alert(1)"))
    about = published(spelled, "</script>")._replace(statement="<!--<script>")
    assert "</script" not in javascript_ngram(counted(spelled, "worda wordb ."), about).lower()


def test_a_statement_cannot_begin_the_data_of_an_arpa_file(tmp_path):
    model = counted(words(), "worda wordb .")
    said = ["a\n\\data\\\nngram 1=0\n\n\\end\\", "b\r\\data\\", "c\u2028\\data\\", "d\x0b\\data\\"]
    write_arpa(tmp_path / "model.arpa", model, words().words, said)
    assert read_arpa(tmp_path / "model.arpa")[0].order == 3
    content = (tmp_path / "model.arpa").read_text()
    assert content.splitlines().count("\\data\\") == 1


def test_a_language_cannot_write_words_into_a_list(tmp_path):
    model = counted(words(), "worda wordb .")
    injected = "en,description=epsilon 0.1,date=1,version=99\n word=injected,f=255"
    try:
        write_combined(tmp_path / "x", model, words().words, injected, "made up", 18, 0)
    except (ValueError, *REFUSED):
        return
    assert "word=injected" not in (tmp_path / "x").read_text()


# ——— What is blocked ———


def test_a_blocked_word_is_in_no_arpa_file(made, tmp_path):
    export_run(made / "private", tmp_path / "out", "arpa", blocklist=["Worda"], distilling=FEW)
    grams = (tmp_path / "out" / "model.arpa").read_text().split("\\data\\")[1]
    assert "worda" not in grams.split()


def test_a_blocklist_that_a_format_cannot_hold_is_not_passed_over_in_silence(made, tmp_path):
    with pytest.raises(REFUSED):
        export_run(made / "private", tmp_path / "out", "model", blocklist=["worda"])


def test_the_first_word_of_a_blocklist_is_blocked_whatever_editor_wrote_it(tmp_path):
    (tmp_path / "blocked.txt").write_text("worda\nwordb\n", encoding="utf-8-sig")
    predictor = Predictor(counted(words(), "worda wordb wordc ."), words(), load_blocklist(tmp_path / "blocked.txt"))
    assert "worda" not in predictor._alphabet._spellings


def test_where_fewer_than_ten_words_are_allowed_the_graph_offers_none_that_is_not(made):
    runtime = pytest.importorskip("onnxruntime")
    model = load_word_model(made / "private").model
    assert isinstance(model, Recurrent)
    allowed = range(len(words()) - 5, len(words()))
    never = [word for word in range(len(words())) if word not in allowed]
    session = runtime.InferenceSession(onnx_model(model.cell, model.weights, never, {}).SerializeToString())
    state = {one.name: np.zeros((1, one.shape[1]), np.float32) for one in session.get_inputs() if one.name != "word"}
    best = session.run(["top_words"], {"word": np.array([2]), **state})[0]
    assert set(best.ravel().tolist()) <= set(allowed)


def test_a_blocked_word_is_not_put_together_from_its_parts_where_words_are_written_together():
    listed = Vocabulary((*SPECIAL, "今天", "坏", "人", "坏人"), language="zh")
    model = counted(listed, *["今天 坏 人"] * 20, order=4)
    assert Predictor(model, listed, threshold=0.1).predict("").continuation == "今天坏人"
    assert "坏人" not in Predictor(model, listed, ["坏人"], threshold=0.1).predict("").continuation


def test_what_is_blocked_does_not_make_what_is_left_more_likely_than_it_is():
    listed = Vocabulary((*SPECIAL, ".", "go", "homeward", "hopefully"))
    model = counted(listed, *["go homeward ."] * 30, "go hopefully .", order=2)
    predictor = Predictor(model, listed, ["homeward"])
    state = model.read(model.start(), listed.ids["go"])
    scores = model.scores(state)
    alone = np.exp(scores[[listed.ids["hopefully"], listed.ids["homeward"]]])
    composed = predictor.compose(scores, "ho", state, 0.01)
    assert composed.probabilities[0] <= alone[0] / alone.sum()


@pytest.mark.parametrize("spelling", ["CAFÉ", "cafe\u0301", " Café ", "caf\u00ade\u0301", "CAFE\u0301\u200b"])
def test_a_word_is_blocked_in_every_spelling_of_it(spelling):
    listed = Vocabulary((*SPECIAL, ".", "the", "café", "cafeteria"))
    model = counted(listed, *["the café ."] * 9, "the cafeteria .", order=3)
    predictor = Predictor(model, listed, [spelling], threshold=0.01)
    for text in ("", "the ", "the c", "the caf", "The CAF"):
        suggestions = predictor.predict(text)
        assert "café" not in (*map(str.lower, suggestions.words),)
        assert "fé" not in suggestions.continuation.lower()


# ——— What is checked is what is written ———


def test_a_word_list_that_does_not_say_what_the_model_says_is_not_written(made, tmp_path, monkeypatch):
    """The n-grams are checked, and not the file that is made of them."""
    written = formats.write_combined

    def wrong(path, model, listed, *more, **others):
        written(path, model, (*listed[:16], *reversed(listed[16:])), *more, **others)

    monkeypatch.setattr(formats, "write_combined", wrong)
    with pytest.raises(ExportRefused, match="nothing was written"):
        export_run(made / "private", tmp_path / "out", "combined", distilling=FEW)


def test_a_script_whose_words_are_not_those_of_its_model_does_not_pass_the_check():
    """Its scores are looked at, its list of words is not."""
    vocabulary = words()
    model, right = counted(vocabulary, "worda wordb ."), published(vocabulary)
    if check_javascript(javascript_ngram(model, right), [END]) is None:
        pytest.skip("Node.js is not installed")
    with pytest.raises((ValueError, *REFUSED)):
        check_javascript(javascript_ngram(model, right._replace(words=(*right.words[:-1], "a\nb"))), [END])


# ——— Figures ———


def test_the_jackknife_of_a_mean_is_students_interval():
    values = np.random.default_rng(0).normal(size=20)
    interval = jackknife(lambda kept: values[kept].mean(), 20)
    assert interval.margin == pytest.approx(2.093024 * values.std(ddof=1) / np.sqrt(20), rel=1e-6)


@pytest.mark.parametrize(
    ("triggered", "composed", "rate"),
    [
        (np.zeros(14), np.zeros(14), 0.0),  # never shown
        (np.full(14, 10.0), np.full(14, 10.0), 0.1),  # always taken
        (np.full(14, 10.0), np.full(14, 6.0), 0.1),  # exactly as often as wanted, everywhere
        (np.full(14, 10.0), np.full(14, 5.0), 0.0),  # never often enough
        (np.array([20.0, 10.0] + [0.0] * 12), np.array([8.0, 8.0] + [0.0] * 12), 0.15),  # half-way between 0.4 and 0.8
    ],
)
def test_the_trigger_rate_at_its_edges(triggered, composed, rate):
    assert len(THRESHOLDS) == 14
    ones = {field.name: np.array([100.0]) for field in fields(Typing)}
    typing = Typing(**{**ones, "triggered": triggered[:, None], "composed": composed[:, None]})
    assert typing["trigger_rate"].value == pytest.approx(rate)


def test_a_hashed_id_is_no_other_users(made):
    salt = (made / "people" / "private" / "salt").read_bytes()
    is_known = trained_on(made / "people")
    assert is_known("user 0 1")
    assert not is_known(hashed_id(salt, "user 0 1"))
    assert not is_known("")
