"""The page in a real browser: what a person sees, hears and does there, and that nothing of it
leaves.
"""

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from harness import mostly_slow
from taciturn.core import END
from taciturn.data.vocabulary import DataError, Vocabulary, counted_vocabulary
from taciturn.export.javascript import Published, javascript_ngram
from taciturn.keyboard.server import KeyboardServer, page_files
from taciturn.models.ngram import NGram, kneser_ney
from taciturn.privacy.ledger.guarantee import Guarantee

SENTENCES = (
    "We could meet tomorrow at the usual place. Thank you very much for the lovely dinner. I would"
    " like to see you again very soon. The weather is lovely this morning. Are you coming to the"
    " party tonight? We are going to the beach this afternoon."
)
PLAIN = "We could walk slowly over there. Thank you all."


def vocabulary_and_model(text: str = SENTENCES, times: int = 6) -> tuple[Vocabulary, NGram]:
    vocabulary = counted_vocabulary([SENTENCES, PLAIN], 200, "made up")
    ids = [
        word for part in re.findall("[^.?]+[.?]", text) for word in [*vocabulary.encode(part), END]
    ]
    return vocabulary, kneser_ney([np.array(ids * times)], len(vocabulary), 3)


@cache
def script(name: str = "Private", text: str = SENTENCES, epsilon: float = 8.0) -> str:
    vocabulary, model = vocabulary_and_model(text)
    guarantee = Guarantee(
        run="made up",
        releases=10,
        epsilon=epsilon,
        delta=1e-10,
        rho=1.0,
        accountant="pld",
        adjacency="zero out one user",
        randomness="operating system",
        head="ab" * 32,
    )
    return javascript_ngram(
        model,
        Published(
            name=name,
            words=vocabulary.words,
            text=vocabulary.about,
            guarantee=guarantee,
            statement=f"The statement of {name}.",
            learned_from="the notes of 40 people",
        ),
    )


def served(*scripts: str) -> Iterator[str]:
    server = KeyboardServer(page_files(scripts))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.url
    server.close()


@pytest.fixture(scope="module")
def one_model() -> Iterator[str]:
    yield from served(script())


@pytest.fixture(scope="module")
def two_models() -> Iterator[str]:
    yield from served(script(), script("Plain", PLAIN, math.inf))


@pytest.fixture(scope="module")
def window(browser):
    """One for all tests, each of which loads its page anew: a window of one's own is another
    process, and most of the time.
    """
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture
def page(window):
    window.set_viewport_size({"width": 1000, "height": 800})
    errors: list[str] = []

    def note(error) -> None:
        errors.append(str(error))

    window.on("pageerror", note)
    yield window
    window.goto("about:blank")
    window.remove_listener("pageerror", note)
    assert errors == []


@pytest.fixture(scope="module")
def phone(browser):
    context = browser.new_context(
        viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True
    )
    yield context.new_page()
    context.close()


def written(page) -> str:
    return page.input_value("#message")


def strip(page, number: int = 0) -> list[str]:
    return page.locator(".strip").nth(number).locator("button").all_inner_texts()


def counters(page) -> tuple[str, str, str]:
    return page.inner_text("#made"), page.inner_text("#characters"), page.inner_text("#saved")


def typing(page, url: str, text: str) -> None:
    page.goto(url)
    page.focus("#message")
    page.keyboard.type(text)


def test_a_picked_word_replaces_the_half_typed_one_and_a_full_stop_its_space(page, one_model):
    typing(page, one_model, "We could me")
    assert strip(page)[0] == "meet"
    assert len(strip(page)) == 3
    page.click(".strip button >> nth=0")
    assert written(page) == "We could meet "
    assert counters(page) == ("12", "14", "2 (14%)")
    page.keyboard.type(".")
    assert written(page) == "We could meet."
    assert counters(page) == ("13", "14", "1 (7%)")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    assert written(page) == "We could me"


def test_a_picked_word_is_followed_by_one_space_whatever_is_typed(page, one_model):
    typing(page, one_model, "We co")
    page.keyboard.press("Alt+1")
    page.keyboard.type(" me")
    assert written(page) == "We could me"
    page.keyboard.press("Alt+3")  # an empty place
    assert written(page) == "We could me"


def test_the_continuation_stands_behind_the_caret_and_is_taken_with_an_arrow_or_a_click(
    page, one_model
):
    typing(page, one_model, "Thank you ve")
    ghost = page.inner_text("#ghost")
    assert ghost.startswith("ry much")
    page.keyboard.press("ArrowRight")
    assert written(page) == f"Thank you ve{ghost} "  # with a space, as after a word that is picked
    made, _, saved = counters(page)
    assert (made, saved.split()[0]) == ("13", str(len(ghost)))
    page.keyboard.type(".")
    assert written(page) == f"Thank you ve{ghost}."  # which makes way for a sign
    page.click("#clear")
    page.keyboard.type("Thank you ve")
    box = page.query_selector("#ghost").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert written(page) == f"Thank you ve{ghost} "


def test_the_continuation_wraps_where_the_text_does(page, one_model):
    page.set_viewport_size({"width": 320, "height": 600})
    typing(page, one_model, "The weather is lovely this morning. Thank you ve")
    assert page.inner_text("#ghost")
    same = (
        "document.getElementById('mirror').clientHeight ==="
        " document.getElementById('message').clientHeight"
    )
    assert page.evaluate(same)
    assert page.evaluate(
        "document.getElementById('message').scrollHeight <="
        " document.getElementById('message').clientHeight"
    )


def test_escape_hides_the_continuation_until_the_next_key(page, one_model):
    typing(page, one_model, "Thank you v")
    assert page.inner_text("#ghost")
    page.keyboard.press("Escape")
    assert page.inner_text("#ghost") == ""
    page.keyboard.press("ArrowRight")
    assert written(page) == "Thank you v"
    page.keyboard.type("e")
    assert page.inner_text("#ghost")


def test_inside_a_word_nothing_is_suggested(page, one_model):
    typing(page, one_model, "Thank you")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert strip(page) == ["", "", ""]
    assert page.inner_text("#ghost") == ""


def test_sending_clears_and_counts_on_and_clearing_begins_anew(page, one_model):
    typing(page, one_model, "Thank ")
    page.click("#send")
    assert written(page) == ""
    assert "went nowhere" in page.inner_text("#status")
    page.keyboard.type("you")
    assert counters(page)[:2] == ("9", "9")
    page.click("#clear")
    assert counters(page) == ("0", "0", "0 (0%)")


def test_the_guarantee_is_there_and_its_details(page, two_models):
    page.goto(two_models)
    private, plain = page.query_selector_all(".promise")
    assert "ε = 8.00" in private.inner_text().replace("\xa0", " ")
    assert "warning" not in private.get_attribute("class")
    assert "NO privacy guarantee" in plain.inner_text()
    assert "warning" in plain.get_attribute("class")
    private.query_selector("summary").click()
    assert "The statement of Private." in private.inner_text()


def test_two_models_are_shown_side_by_side_and_each_says_what_it_would_have_saved(page, two_models):
    typing(page, two_models, "We could ")
    assert strip(page, 0) != strip(page, 1)
    assert strip(page, 1)[0] == "walk"
    page.keyboard.type("meet tomorrow ")
    first, second = page.locator(".sum").all_inner_texts()
    assert int(re.search(r"\d+", first)[0]) > int(re.search(r"\d+", second)[0])
    page.keyboard.press("Alt+4")
    assert written(page).startswith("We could meet tomorrow ")
    assert len(written(page)) > len("We could meet tomorrow ")
    page.click(".model >> nth=1 >> .strip button >> nth=1")
    assert page.evaluate("document.activeElement.id") == "message"
    page.click("#clear")
    page.keyboard.type("Thank you ve")
    page.click(".continuation >> nth=0")
    assert written(page).startswith("Thank you very much")


def test_what_an_attentive_person_saves_is_counted_as_picking_counts_it(page, two_models):
    """The first strip is followed key by key, and the page's own counter has to come to the
    same.
    """
    text = "We could meet tomorrow at the usual "
    page.goto(two_models)
    page.focus("#message")
    for word in text.split():
        for letter in word:
            if word in strip(page):
                page.keyboard.press(f"Alt+{strip(page).index(word) + 1}")
                break
            page.keyboard.type(letter)
        else:
            page.keyboard.type(" ")
    assert written(page) == text
    would_have = re.search(r"\d+", page.locator(".sum").first.inner_text())[0]
    assert page.inner_text("#saved").split()[0] == would_have
    assert int(would_have) > 10


def test_a_password_yields_nothing_and_keeps_nothing_and_a_message_does_both(page, one_model):
    states = "keyboard.panels[0].predictor.states.size"
    typing(page, one_model, "We could ")
    assert any(strip(page))  # the twin
    assert page.evaluate(states) > 0
    page.focus("#password")
    page.keyboard.type("We could ")
    assert strip(page) == ["", "", ""]
    assert page.inner_text("#ghost") == ""
    assert page.evaluate(states) == 0
    assert counters(page)[0] == "9"  # of the message alone
    page.keyboard.press("Alt+1")
    assert (page.input_value("#password"), written(page)) == ("We could ", "We could ")
    page.focus("#message")
    assert any(strip(page))


def test_private_fields_are_recognised_and_open_ones_are_not(page, one_model):
    page.goto(one_model)
    recognised = """(attributes) => isPrivate(Object.entries(attributes).reduce(
        (field, [name, value]) => (field.setAttribute(name, value), field),
        document.createElement("input")))"""
    private = [
        {"type": "password"},
        {"autocomplete": "new-password"},
        {"autocomplete": "one-time-code"},
        {"autocomplete": "cc-number"},
        {"inputmode": "numeric"},
        {"data-private": ""},
    ]
    assert all(page.evaluate(recognised, attributes) for attributes in private)
    public = [
        {},
        {"type": "text", "autocomplete": "off"},
        {"inputmode": "none"},
        {"autocomplete": "name"},
    ]  # the twin
    assert not any(page.evaluate(recognised, attributes) for attributes in public)


def test_everything_is_reached_with_the_keyboard_alone(page, one_model):
    page.goto(one_model)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Tab")
    page.keyboard.type("We could ")
    offered, reached = [word for word in strip(page) if word], []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    assert reached[:3] == offered
    assert reached[3:7] == [
        "toggle",
        "clear",
        "send",
        "password",
    ]  # and then out of the page: nothing holds the focus
    page.focus("#message")
    page.focus(".strip button >> nth=0")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert written(page) == "We could meet "
    assert page.evaluate("document.activeElement.id") == "message"


def test_a_screen_reader_finds_names_and_hears_suggestions_after_a_pause(page, one_model):
    typing(page, one_model, "Thank you ve")
    assert page.inner_text("#announcement") == ""
    tree = page.locator("body").aria_snapshot()
    for part in (
        'heading "Taciturn keyboard"',
        'textbox "Your message"',
        'group "Suggestions"',
        'button "very"',
        'button "Send"',
        'button "On-screen keys"',
        'textbox "A password: nothing is suggested here, and nothing kept"',
        'region "What the model promises"',
    ):
        assert part in tree
    page.locator("#announcement", has_text="Suggestions").wait_for(state="attached", timeout=3000)
    assert page.inner_text("#announcement").startswith("Suggestions: very")
    assert "Continuation: ry much" in page.inner_text("#announcement")
    assert page.get_attribute("#announcement", "aria-live") == "polite"


def test_a_phone_has_keys_that_write_and_no_sideways_scrolling(phone, one_model):
    phone.goto(one_model)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 375
    assert phone.get_attribute("#message", "inputmode") == "none"
    for key in ("t", "h", "a"):
        phone.tap(f'[data-key="{key}"]')
    assert written(phone) == "Tha"  # a sentence begins with a capital
    phone.tap(".strip button >> nth=0")
    phone.tap('[data-key="."]')
    assert written(phone) == "Thank."
    phone.tap('[data-key="⌫"]')
    phone.tap('[data-key=" "]')
    phone.tap('[data-key="⇄"]')
    phone.tap('[data-key="7"]')
    assert written(phone) == "Thank 7"
    assert counters(phone) == ("8", "7", "1 (11%)")
    keys = phone.query_selector("#keys").bounding_box()
    assert keys["y"] + keys["height"] <= 667  # in sight together with the message
    phone.tap("#toggle")
    assert phone.get_attribute("#message", "inputmode") is None
    assert not phone.is_visible("#keys")


def test_the_page_opens_with_the_cursor_in_the_message(page, one_model):
    page.goto(one_model)
    assert page.evaluate("document.activeElement.id") == "message"
    page.keyboard.type("Thank ")
    assert written(page) == "Thank "


def test_two_models_leave_a_phone_room_to_type_with_their_figures_beside_their_names(
    browser, two_models
):
    context = browser.new_context(
        viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True
    )
    phone = context.new_page()
    phone.goto(two_models)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    for key in ("w", "e", " "):
        phone.tap(f'[data-key="{key}"]')
    phone.tap(".model >> nth=1 >> .strip button >> nth=0")
    assert written(phone) == "We could "
    boxes = {
        one: phone.query_selector(one).bounding_box()
        for one in ("#message", "#models", "#keys", "#guarantees")
    }
    assert (
        boxes["#keys"]["y"] + boxes["#keys"]["height"] <= 640
    )  # in sight together with the message and both strips
    assert boxes["#guarantees"]["y"] > boxes["#keys"]["y"]
    assert [one.replace("\xa0", " ") for one in phone.locator(".badge").all_inner_texts()] == [
        "ε = 8.00, δ = 1e-10",
        "⚠ ε = ∞",
    ]
    context.close()


def test_two_models_stand_in_columns_where_there_is_room(page, two_models):
    page.set_viewport_size({"width": 1280, "height": 800})
    typing(page, two_models, "We could ")
    first, second = (one.bounding_box() for one in page.query_selector_all(".strip"))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"] + 1


def test_keys_on_the_screen_write_into_a_password_and_leave_no_trace(phone, one_model):
    phone.goto(one_model)
    phone.tap("#password")
    phone.tap('[data-key="w"]')
    assert phone.input_value("#password") == "w"
    assert counters(phone)[0] == "0"
    assert strip(phone) == ["", "", ""]


@pytest.mark.parametrize("width", mostly_slow([320, 375, 640, 1280], 320, 1280))
def test_no_width_scrolls_sideways(page, two_models, width):
    page.set_viewport_size({"width": width, "height": 700})
    typing(page, two_models, "We could meet tomorrow at the usual place and a" + "w" * 90)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, one_model, scheme):
    page.emulate_media(color_scheme=scheme)
    typing(page, one_model, "Thank you ve")
    colour = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name)"
    pairs = [
        ("ink", "ground"),
        ("ink", "paper"),
        ("ink", "key"),
        ("quiet", "paper"),
        ("quiet", "ground"),
        ("quiet", "key"),
    ]
    pairs += [("accent", "paper"), ("on-accent", "accent"), ("warning", "warning-ground")]
    for text, ground in pairs:
        assert contrast(*(page.evaluate(colour, f"--{name}") for name in (text, ground))) >= 4.5, (
            text,
            ground,
        )
    page.emulate_media(color_scheme="light")


def contrast(one: str, other: str) -> float:
    """By WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def watched(page) -> list[str]:
    """Every address that is asked for, and every attempt that the policy stopped."""
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.on("websocket", lambda socket: seen.append(socket.url))
    page.on(
        "console",
        lambda message: (
            seen.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    return seen


def test_nothing_leaves_the_page_while_a_person_types(page, two_models):
    seen = watched(page)
    typing(page, two_models, "Thank you very much. ")
    own = {
        two_models + name
        for name in ("", "style.css", "keys.js", "page.js", "model-1.js", "model-2.js")
    }
    assert {address for address in seen if not address.startswith("data:")} == own
    loaded = len(seen)
    page.keyboard.press("Alt+1")
    page.focus("#password")
    page.keyboard.type("secret")
    page.click("#send")
    page.wait_for_timeout(300)
    assert len(seen) == loaded
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == [
        "",
        0,
        0,
    ]
    assert (
        page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0
    )


@pytest.mark.parametrize(
    "attempt",
    [
        "fetch('{there}?t=secret').catch(() => 0)",
        "void (new Image().src = '{there}?t=secret')",
        "navigator.sendBeacon('{there}', 'secret')",
        (
            "document.body.append(Object.assign(document.createElement('script'), {{ src:"
            " '{there}?t=secret' }}))"
        ),
        (
            "(() => {{ const form = document.createElement('form'); form.action = '{there}';"
            " document.body.append(form); form.submit(); }})()"
        ),
    ],
    ids=["fetch", "image", "beacon", "script", "form"],
)
def test_a_page_that_tried_to_send_would_be_stopped_and_seen(page, one_model, attempt):
    """The twin that must fail: a second server listens, and hears nothing."""
    heard = []
    with listening(heard) as there:
        seen = watched(page)
        typing(page, one_model, "Thank you ")
        loaded = len(seen)
        page.evaluate(attempt.format(there=there))
        page.wait_for_timeout(300)
        assert any("Content Security Policy" in one or there in one for one in seen[loaded:])
    assert heard == []


@contextmanager
def listening(heard: list[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_the_listener_does_hear_a_page_without_a_policy(page):
    """So that its silence above means something."""
    heard: list[str] = []
    with listening(heard) as there:
        page.goto(f"{there}open")
        page.evaluate(f"fetch('{there}?t=secret').catch(() => 0)")
        page.wait_for_timeout(200)
    assert "/?t=secret" in heard


def asked(url: str, method: str = "GET", path: str = "/", host: str | None = None):
    connection = HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=5)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_server_gives_known_files_to_local_readers_only(one_model):
    answer, body = asked(one_model)
    assert answer.status == 200
    assert b"<!doctype html>" in body
    assert "connect-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert asked(one_model, "HEAD")[1] == b""
    assert asked(one_model, path="/../../../etc/passwd")[0].status == 404
    assert asked(one_model, path="/predictor.js")[0].status == 404
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.", "[bad"):
        assert asked(one_model, host=host)[0].status == 403, host
    for host in ("localhost:1", "127.0.0.1", "[::1]:8000"):
        assert asked(one_model, host=host)[0].status == 200, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = asked(one_model, method)[0]
        assert answer.status == 501, method
        assert "Content-Security-Policy" in answer.headers


def test_a_port_in_use_is_reported():
    server = KeyboardServer(page_files([script()]))
    taken = int(server.url.rstrip("/").rpartition(":")[2])
    with pytest.raises(DataError, match=f"port {taken} is in use"):
        KeyboardServer({}, taken)
    with pytest.raises(DataError, match="from 0 to 65535"):
        KeyboardServer({}, 70_000)
    server.close()


def test_a_page_shows_one_model_or_two():
    for count in (0, 3):
        with pytest.raises(DataError, match="one model, or two"):
            page_files(["script"] * count)


def test_two_models_of_one_name_are_refused_in_words(browser):
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    for url in served(script(), script()):
        page.goto(url)
        assert "could not be loaded" in page.inner_text("#status")
    assert any("two models are called Private" in error for error in errors)
    context.close()
