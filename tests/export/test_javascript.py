"""The model in the browser is the model in Python: the same scores, the same suggestions, the same
guarantee.
"""

import json
import math
import shutil
import subprocess

import jax
import numpy as np
import pytest

from pages import in_bytes
from taciturn.core import BEGIN, UNKNOWN
from taciturn.data.vocabulary import MORE_PUNCTUATION, PUNCTUATION, SPECIAL, Vocabulary, normalize
from taciturn.export import javascript
from taciturn.export.javascript import (
    Published,
    check_javascript,
    javascript_model,
    javascript_ngram,
)
from taciturn.keyboard.predictor import Predictor
from taciturn.models.cells import cifg, cifg_cell, gru, gru_cell, lstm, lstm_cell
from taciturn.models.ngram import Level, NGram
from taciturn.models.stepping import step, step_weights, zero_state
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.release.gate import ExportRefused
from taciturn.release.privacy_statement import plain_words

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")

WORDS = {
    "en": (
        "the then there i i'm i'd don't do dog dogs house we well we'll hello world meet tomorrow"
        " at five café naïve 👍 ok"
    ),
    "de": "die der straße strasse grüße über schön ich du nicht müssen",
    "el": "σας λόγος και ο η καλημέρα σήμερα",
    "tr": "ılık iyi istanbul günaydın ışık bir çok",
    "ro": "și țară ești în bună ziua",
    "es": "¿ qué tal mañana niño está hola",
    "ca": "col·lecció bon dia això",
    "ar": "مرحبا كيف حالك اليوم",
    "he": "שלום מה שלומך",
    "hi": "नमस्ते आप कैसे हैं हिन्दी",
    "zh": "今天 天气 很 好 我们 我 们 北京",
    "ja": "今日 は 天気 が いい です",
    "ko": "오늘 날씨 가 좋다",
    "ru": "привет как дела сегодня",
}
TEXTS = {
    "en": [
        "",
        "Hello there. I'm well... DON'T do it! we'll MEET",
        "don’t “quote” – well… ‘so’ (the dog)",
        "caf\u00e9 cafe\u0301 NAÏVE ﬁne ŉ Straße",
        "ok 👍🏽 👍 👩‍👩‍👧 🇩🇪 the 12 dogs 2024 do",
        "สวัสดีครับ مرحبا 今天天气 do",
        "e" + "\u0301" * 40 + " the",
        "   ",
        "..... the ?! d",
        "w" * 120 + " the",
        "𝒽ello 𐐷𐐷𐐷 do\u00a0the\u2003dog",
        "i i'd I'",
    ],
    "de": ["Die STRASSE Straße ẞ grü Grüße. Üb", "über SCHÖN schö"],
    "el": ["ΛΌΓΟΣ σας ΣΑΣ Σ καλη"],
    "tr": ["Işık ISLAK ılı İstanbul iyi IŞ", "I İ i ı"],
    "ro": ["Şi ţară ŢA eşti"],
    "es": ["¿Qué tal? ¡hola! ma"],
    "ca": ["col·lecció bon col·l"],
    "ar": ["مَرْحَبًا، كيف؟ حا"],
    "he": ["שָׁלוֹם מה ש"],
    "hi": ["नमस्ते। आप हि"],
    "zh": ["今天天气很好。我们北京！"],
    "ja": ["今日は天気がいいです。"],
    "ko": ["오늘 날씨가 좋다."],
    "ru": ["Привет, как ДЕЛА? сег"],
}


def guarantee(**changes) -> Guarantee:
    known = {
        "run": "made up",
        "releases": 10,
        "epsilon": 8.0,
        "delta": 1e-10,
        "rho": 1.0,
        "accountant": "pld",
    }
    known |= {"adjacency": "zero out one user", "randomness": "operating system", "head": "ab" * 32}
    return Guarantee(**(known | changes))


def about(vocabulary: Vocabulary, **changes) -> Published:
    made = Published(
        name="made up",
        words=vocabulary.words,
        text=vocabulary.about,
        guarantee=guarantee(),
        statement="A statement.",
        learned_from="the posts of 40 people",
    )
    return made._replace(**changes)


def vocabulary_of(language: str) -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION + MORE_PUNCTUATION.get(language, ())
    words = dict.fromkeys(normalize(word, language) for word in WORDS[language].split())
    return Vocabulary(
        words=(*fixed, *(word for word in words if word not in fixed)), language=language
    )


def ngram(vocabulary: int, order: int = 3, each: int = 6) -> NGram:
    """Random, with no two scores alike, so that there is one right order."""
    generator = np.random.default_rng(vocabulary)

    def logs(count: int) -> np.ndarray:
        return np.log(generator.dirichlet(np.full(count, 0.3)) + 1e-6).astype(np.float32)

    unigrams = logs(vocabulary)
    unigrams[[0, BEGIN]] = -np.inf
    levels = [Level(np.arange(vocabulary, dtype=np.uint64), unigrams, np.zeros(0, np.float32))]
    for _ in range(1, order):
        contexts = np.arange(0, len(levels[-1].keys), 2)
        words = [
            np.sort(generator.choice(np.arange(3, vocabulary), each, replace=False))
            for _ in contexts
        ]
        keys = np.concatenate(
            [context * vocabulary + words for context, words in zip(contexts, words, strict=True)]
        )
        levels[-1] = levels[-1]._replace(backoff=logs(len(levels[-1].keys)) / 8)
        levels.append(Level(keys.astype(np.uint64), logs(len(keys)) / 3, np.zeros(0, np.float32)))
    return NGram(tuple(levels), vocabulary)


def in_node(script: str, body: str, given) -> list:
    """What `body` returns, with the published model as `made` and `given` from here."""
    program = (
        'const { script, given } = JSON.parse(require("fs").readFileSync(0, "utf8"));'
        'require("vm").runInThisContext(script); const [made] = Object.values(taciturn.models);'
        f"console.log(JSON.stringify((() => {{ {body} }})()));"
    )
    asked = json.dumps({"script": script, "given": given})
    done = subprocess.run(
        ["node", "-e", program], input=asked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PREDICTING = (
    "const one = made.predictor(); return given.map((text) => { const { words, continuation,"
    " replaces } = one.predict(text); return [words, continuation, replaces &&"
    " [...text.slice(-replaces)].length]; });"
)


def predicted(predictor: Predictor, texts: list[str]) -> list:
    return [
        [list(found.words), found.continuation, found.replaces]
        for found in map(predictor.suggest, texts)
    ]


@needs_node
@pytest.mark.parametrize(
    ("cell", "model"),
    [
        ("lstm", lstm(37, 8, 11)),
        ("cifg", cifg(37, 8, 13)),
        ("cifg", cifg(37, 8, 13, tied=True)),
        ("gru", gru(37, 8, 10)),
    ],
    ids=["lstm", "cifg", "tied cifg", "gru"],
)
def test_a_recurrent_model_scores_in_javascript_as_in_python(cell, model):
    params = jax.tree.map(lambda leaf: np.asarray(leaf) * 3 + 0.1, model.init(jax.random.key(1)))
    weights = step_weights(model, params)
    vocabulary = Vocabulary(words=(*SPECIAL, *(f"word{n}" for n in range(33))))
    words, restarts = [5, 6, 36, 1, 7, 3, 9, 9], (3, 7)
    script = javascript_model(weights, cell, restarts, about(vocabulary))
    plain, of = in_bytes(weights), {"lstm": lstm_cell, "cifg": cifg_cell, "gru": gru_cell}[cell]
    start = step(of, plain, zero_state(plain), np.int32(BEGIN))
    expected, state = [start[1]], start
    for word in words:
        state = start if word in restarts else step(of, plain, state[0], np.int32(word))
        expected.append(state[1])
    (found,) = check_javascript(script, [words], vocabulary.words)
    assert np.abs(found - np.array(expected)).max() < 1e-4
    assert (
        np.abs(np.diff(found, axis=0)).max() > 0.1
    )  # words matter, or the comparison would say nothing


@needs_node
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_an_ngram_model_scores_in_javascript_as_in_python(order):
    model = ngram(60, order)
    words = np.random.default_rng(0).integers(1, 60, 80).tolist()
    vocabulary = Vocabulary(words=(*SPECIAL, *map(str, range(56))))
    (found,) = check_javascript(
        javascript_ngram(model, about(vocabulary)), [words], vocabulary.words
    )
    state, expected = model.start(), [model.scores(model.start())]
    for word in words:
        state = model.read(state, word)
        expected.append(model.scores(state))
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6)


@needs_node
@pytest.mark.parametrize("language", WORDS)
def test_text_is_split_in_javascript_as_in_python(language):
    vocabulary = vocabulary_of(language)
    script = javascript_ngram(ngram(len(vocabulary)), about(vocabulary))
    texts = [text for some in TEXTS.values() for text in some] + [
        "don`t",
        "don`t é",
        "A\nB\tC\x1cD\ufeffE",
    ]
    found = in_node(script, "return given.map((text) => made.vocabulary.split(text));", texts)
    assert found == [vocabulary.split(text) for text in texts]


@needs_node
@pytest.mark.parametrize("language", WORDS)
def test_every_keystroke_brings_the_same_in_javascript_as_in_python(language):
    vocabulary = vocabulary_of(language)
    model = ngram(len(vocabulary))
    typed = [text[:end] for text in TEXTS[language] for end in range(len(text) + 1)]
    found = in_node(javascript_ngram(model, about(vocabulary)), PREDICTING, typed)
    assert found == predicted(Predictor(model, vocabulary), typed)
    assert language in ("zh", "ja", "ko") or any(replaces for _, _, replaces in found)
    assert any(words for words, _, _ in found)


@needs_node
def test_continuations_are_the_same_in_javascript_as_in_python():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary), each=2)
    texts = [
        " ".join(pair) for pair in zip(vocabulary.words[16:], vocabulary.words[17:], strict=False)
    ]
    typed = [text[:end] for text in texts for end in range(len(text) + 1)]
    found = in_node(
        javascript_ngram(model, about(vocabulary)),
        PREDICTING.replace("predictor()", "predictor(0.1)"),
        typed,
    )
    assert found == predicted(Predictor(model, vocabulary, threshold=0.1), typed)
    assert sum(bool(continuation) for _, continuation, _ in found) > 20


@needs_node
def test_a_line_of_ten_thousand_words_is_read_as_in_python():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary))
    words = np.random.default_rng(0).choice(vocabulary.words[16:], 10_000)
    line = " ".join(words)
    texts = [
        line[:5000],
        line,
        line + " the d",
        line + " the d" + "\U0001d4bd" * 600,
        "x" * 2000,
        " " * 3000,
        line[:-3],
    ]
    found = in_node(javascript_ngram(model, about(vocabulary)), PREDICTING, texts)
    assert found == predicted(Predictor(model, vocabulary), texts)


@needs_node
def test_a_new_line_brings_the_same_in_javascript_as_in_python():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary))
    text = "hello\nthe dog\n\ndo\r\nwe\n"
    typed = [text[:end] for end in range(len(text) + 1)]
    assert in_node(javascript_ngram(model, about(vocabulary)), PREDICTING, typed) == predicted(
        Predictor(model, vocabulary), typed
    )


@needs_node
def test_readings_are_rescored_in_javascript_as_in_python():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary))
    readings = [["dog", -2.0], ["dogs", -2.5], ["dqg", -1.0], ["I'm", -3.0]]
    found = in_node(
        javascript_ngram(model, about(vocabulary)),
        "return given.map(([text, readings]) => made.predictor().rescore(text, readings, 0.7));",
        [["the ", readings], ["hello there ", readings]],
    )
    for text, ranked in zip(["the ", "hello there "], found, strict=True):
        expected = Predictor(model, vocabulary).rescore(
            text, [(word, taps) for word, taps in readings], 0.7
        )
        assert [word for word, _ in ranked] == [word for word, _ in expected]
        np.testing.assert_allclose(
            [score for _, score in ranked], [score for _, score in expected], rtol=1e-5
        )


@needs_node
def test_a_blocked_word_is_never_suggested_and_an_open_one_is():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary))
    texts = ["", "D", "do", "the ", "the d", "hello w", "hello "]
    suggested = {}
    for blocked in ([], ["Dog", "dogs"]):
        found = in_node(
            javascript_ngram(model, about(vocabulary, blocked=blocked)), PREDICTING, texts
        )
        assert found == predicted(Predictor(model, vocabulary, blocklist=blocked), texts)
        suggested[len(blocked)] = {word.lower() for words, _, _ in found for word in words}
    assert {"dog", "dogs"} <= suggested[0]  # the twin
    assert not {"dog", "dogs"} & suggested[2]


@needs_node
def test_a_private_field_gets_nothing_and_leaves_nothing_and_an_open_one_does_both():
    vocabulary = vocabulary_of("en")
    script = javascript_ngram(ngram(len(vocabulary)), about(vocabulary))
    kept = (
        "const one = made.predictor(); const { words } = one.predict('the d', given); return"
        " [words, one.states.size, one.rests.size];"
    )
    assert in_node(script, kept, True) == [[], 0, 0]
    words, states, _ = in_node(script, kept, False)  # the twin
    assert words
    assert states == 1
    forgotten = (
        "const one = made.predictor(0); one.predict('the d'); one.forget(); return"
        " [one.states.size, one.rests.size];"
    )
    assert in_node(script, forgotten, None) == [0, 0]


@needs_node
def test_keyman_gets_a_model_that_answers_before_the_keystroke_is_made():
    vocabulary = vocabulary_of("en")
    model = ngram(len(vocabulary))
    script = (
        "globalThis.LMLayerWorker = { loadModel: (model) => (globalThis.keyman = model) };"
        + javascript_ngram(model, about(vocabulary))
    )
    body = """
        const typed = keyman.predict({ insert: "o", deleteLeft: 0 }, { left: "the 👍 d" });
        const begun = keyman.predict({ insert: " ", deleteLeft: 1 }, { left: "thee" });
        const capabilities = keyman.configure({ maxLeftContextCodePoints: 64 });
        const broken = keyman.wordbreaker("don't 👍 so, 12").map(({ text }) => text);
        return [typed, begun, capabilities, broken];
    """
    typed, begun, capabilities, broken = in_node(script, body, None)
    predictor = Predictor(model, vocabulary)
    assert [one["sample"]["displayAs"] for one in typed] == list(
        predictor.suggest("the 👍 do").words
    )
    assert all(
        one["sample"]["transform"]["deleteLeft"] == 1 for one in typed
    )  # «d»; the «o» is not there yet
    assert [one["sample"]["transform"]["insert"] for one in begun] == [
        f" {word}" for word in predictor.suggest("the ").words
    ]
    assert begun[0]["sample"]["transform"]["deleteLeft"] == 1  # the second «e»
    assert all(0 < one["p"] < 1 for one in typed + begun)
    assert capabilities == {"leftContextCodePoints": 64, "rightContextCodePoints": 0}
    assert broken == ["don't", "👍", "so", ",", "12"]


@needs_node
def test_a_script_carries_its_guarantee_wherever_it_goes():
    vocabulary = vocabulary_of("en")
    script = javascript_ngram(
        ngram(len(vocabulary)), about(vocabulary, name="a */ name", statement="All of it.")
    )
    header = script[: script.index("(function")]
    assert "ε = 8.00" in header
    assert guarantee().head in header
    plain, statement, head = in_node(
        script, "return [made.plain, made.statement, made.head];", None
    )
    assert plain == plain_words(guarantee(), "the posts of 40 people")
    assert (statement, head) == ("All of it.", guarantee().head)


def test_plain_words_promise_no_more_than_the_guarantee():
    strong, moderate, weak, none = (
        " ".join(plain_words(guarantee(epsilon=e), "x")) for e in (0.5, 8.0, 40.0, 5000.0)
    )
    assert "a strong promise" in strong
    assert "a moderate promise" in moderate
    assert "a weak promise" in weak
    assert "promises nothing" in none
    assert plain_words(guarantee(epsilon=math.inf), "x")[0].endswith(
        "NO privacy guarantee (ε = ∞)."
    )
    assert plain_words(guarantee(randomness="seeded simulation"), "x")[0].startswith("A simulation")
    assert "no user's text" in plain_words(None, "public speeches")[0]


def test_a_model_of_characters_is_refused():
    vocabulary = vocabulary_of("en")
    letters = about(vocabulary, text={"language": "en", "unit": "character"})
    with pytest.raises(ExportRefused, match="trained on characters"):
        javascript_ngram(ngram(len(vocabulary)), letters)


@needs_node
def test_a_script_that_fails_says_why():
    with pytest.raises(ExportRefused, match="does not run in Node: SyntaxError"):
        check_javascript("this is no script", [[UNKNOWN]], [])


def test_without_node_a_script_cannot_be_checked_and_is_not_written(monkeypatch):
    monkeypatch.setattr(javascript.shutil, "which", lambda name: None)
    with pytest.raises(ExportRefused, match=r"needs Node\.js: install it"):
        check_javascript("", [[UNKNOWN]], [])
