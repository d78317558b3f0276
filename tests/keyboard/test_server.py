"""The server of the page: it says of a model what the ledger says, and answers nobody but its own
page.
"""

from contextlib import suppress
from http.client import HTTPConnection
from threading import Thread

import pytest

from harness import lettered_words, made_up_users, trained
from pages import REFUSED, changed_card, script_on_page, served
from taciturn.data.population import write_population
from taciturn.keyboard.server import KeyboardServer, page_files


@pytest.mark.parametrize("model", ["counted", "plain"])
def test_a_file_that_forgot_its_run_is_known_by_its_parameters_on_the_page_too(copied_runs, model):
    changed_card(copied_runs / model, run=None, ledger_head=None)
    try:
        script = script_on_page(copied_runs / model)
    except REFUSED:
        return
    assert "no user's text" not in script


def test_the_number_of_people_is_that_of_the_recipe_in_the_ledger(copied_runs):
    recipe = copied_runs / "private" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("users = 50", "users = 5000000"))
    with suppress(*REFUSED):
        assert "5,000,000 people" not in script_on_page(copied_runs / "private")


def test_the_page_promises_nothing_to_persons_where_pieces_of_text_played_the_users(tmp_path):
    users = made_up_users(50), made_up_users(12, seed=1), lettered_words()
    population = write_population(
        tmp_path / "people", *users, {"simulated": "pieces of a text play the users"}
    )
    trained(population, tmp_path / "run", privacy={"noise_multiplier": 5.0})
    assert "each person, with everything they wrote" not in script_on_page(
        tmp_path / "run"
    ).replace("\n * ", " ")


def test_another_website_cannot_load_the_model_as_a_script_of_its_own(finished_runs):
    """Scripts are not held by the same-origin policy: a page of anyone's, open in the same browser,
    reads `taciturn.models`.
    """
    asked_by_another = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "no-cors",
        "Sec-Fetch-Dest": "script",
    }
    with served(finished_runs / "counted") as connection:
        connection.request("GET", "/model-1.js", headers=asked_by_another)
        answer = connection.getresponse()
        answer.read()
    assert answer.status == 403 or answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "localhost.",
        "",
        "[::ffff:127.0.0.1]",
        "0",
    ],
)
def test_a_name_that_was_pointed_at_this_machine_gets_nothing(host):
    server = KeyboardServer(page_files(["/* a model */"]))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        connection = HTTPConnection(
            "127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/")), timeout=10
        )
        connection.putrequest("GET", "/", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == 403
    finally:
        server.close()


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "//etc/passwd", "/model-1.js/../../x", "/./index.html"],
)
def test_no_path_leads_out_of_the_page(finished_runs, path):
    with served(finished_runs / "private") as connection:
        connection.request("GET", path)
        assert connection.getresponse().status == 404
