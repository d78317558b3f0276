"""A `.combined` file reads as dicttool reads it: split at commas, then at equal signs, with words
before their followers.
"""

import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest

from taciturn.core import END, UNKNOWN
from taciturn.export.combined import ListedWord, write_combined
from taciturn.models.ngram import katz, kneser_ney

WORDS = [
    "<pad>",
    "<unk>",
    "<bos>",
    "<eos>",
    ".",
    "...",
    "the",
    "it's",
    "san",
    "francisco",
    "über",
    "🙂",
    "with,comma",
]
WORDS += ["two words", "x" * 48, "cat", "नमस्ते", "never"]
THE, ITS, SAN, FRANCISCO, CAT = (
    WORDS.index(word) for word in ("the", "it's", "san", "francisco", "cat")
)


def text(seed: int = 0, messages: int = 400) -> np.ndarray:
    generator = np.random.default_rng(seed)
    said = []
    for _ in range(messages):
        for _ in range(generator.integers(1, 8)):
            word = int(
                generator.choice(
                    [UNKNOWN, 4, 5, THE, THE, THE, ITS, SAN, SAN, 10, 11, 12, 13, 14, CAT]
                )
            )
            said += [SAN, FRANCISCO] if word == SAN else [word]
        said.append(END)
    return np.array(said)


def read_combined(path) -> tuple[dict[str, str], dict[str, int], dict[str, dict[str, int]]]:
    """Header, words and their followers, as strict as dicttool or stricter."""
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert re.fullmatch(
        r"dictionary=[^:]+(:[^=]+=[^:]+)*", header
    )  # by which dicttool knows the format
    pairs = [part.split("=") for part in header.split(",")]
    assert all(len(pair) == 2 and pair[1] for pair in pairs)
    words, followers = {}, {}
    for line in lines:
        found = re.fullmatch(r" (word| bigram)=([^,\s]+),f=(\d+)", line)
        assert found, line
        if found[1] == "word":
            current = found[2]
            assert current not in words
            words[current], followers[current] = int(found[3]), {}
        else:
            followers[current][found[2]] = int(found[3])
    return dict(pairs), words, followers


def written(tmp_path, model, **changes):
    arguments = {
        "language": "en",
        "description": "made up",
        "version": 54,
        "date": 1414726260,
        **changes,
    }
    write_combined(tmp_path / "main_en.combined", model, WORDS, **arguments)
    return read_combined(tmp_path / "main_en.combined")


@pytest.mark.parametrize("estimator", [katz, kneser_ney])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_words_are_listed_and_punctuation_is_not(estimator, order, tmp_path):
    header, words, followers = written(tmp_path, estimator([text()], len(WORDS), order))
    assert header == {
        "dictionary": "main:en",
        "locale": "en",
        "description": "made up",
        "date": "1414726260",
        "version": "54",
    }
    assert set(words) == {"the", "it's", "san", "francisco", "über", "cat", "नमस्ते", "never"}
    assert list(words.values()) == sorted(words.values(), reverse=True)
    assert all(1 <= f <= 255 for f in words.values())
    assert all(set(after) <= set(words) for after in followers.values())
    assert any(followers.values()) == (order > 1)


@pytest.mark.parametrize(
    ("estimator", "steps"), [(katz, 3), (kneser_ney, 1)]
)  # Katz expects francisco after any word
def test_f_is_the_logarithm_of_how_often_a_word_comes(estimator, steps, tmp_path):
    """Also with Kneser and Ney's counts, by which francisco alone is rare: it was seen after one
    word only.
    """
    _, words, _ = written(tmp_path, estimator([text()], len(WORDS), 2))
    counts = Counter(text().tolist())
    for place in (THE, ITS, SAN, FRANCISCO, CAT):
        expected = 255 + math.log(counts[place] / counts.total()) / math.log(1.15)
        assert words[WORDS[place]] == pytest.approx(expected, abs=steps)


def test_the_probability_of_a_word_alone_would_not_do(tmp_path):
    """The twin that must fail."""
    model = kneser_ney([text()], len(WORDS), 2)
    _, words, _ = written(tmp_path, model)
    alone = 255 + model.levels[0].probability[FRANCISCO] / math.log(1.15)
    assert words["francisco"] > alone + 3


def test_followers_are_listed_by_their_probability_the_likeliest_first(tmp_path):
    model = katz([text()], len(WORDS))
    _, words, followers = written(tmp_path, model)
    assert next(iter(followers["san"])) == "francisco"
    assert followers["san"]["francisco"] >= 250 > words["francisco"]
    scores = model.scores((THE,))
    listed = [WORDS.index(word) for word in words]
    best = sorted(listed, key=lambda place: -scores[place])[:2]
    assert list(followers["the"])[:2] == [WORDS[place] for place in best]


def test_a_keyboard_that_compares_f_orders_words_as_the_model_does(tmp_path):
    """It lowers nothing that does not follow, so what follows must be raised."""
    model = katz([text()], len(WORDS), 2)
    _, words, followers = written(tmp_path, model)
    scores = model.scores((CAT,))
    listed = [WORDS.index(word) for word in words]
    f_after = {**words, **followers["cat"]}
    for one, other in itertools.combinations(listed, 2):
        difference = (scores[one] - scores[other]) / math.log(1.15)
        # Each of them is rounded to a step.
        if followers["cat"].keys() & {WORDS[one], WORDS[other]} and abs(difference) > 4:
            assert (f_after[WORDS[one]] > f_after[WORDS[other]]) == (difference > 0)


def test_the_probability_after_a_word_would_not_do(tmp_path):
    """The twin that must fail: what follows would come later than what does not."""
    model = katz([text()], len(WORDS), 2)
    _, _, followers = written(tmp_path, model)
    assert model.levels[0].backoff[CAT] < -0.5
    scores = model.scores((CAT,))
    for word, f in followers["cat"].items():
        unraised = 255 + scores[WORDS.index(word)] / math.log(1.15)
        assert f == pytest.approx(255, abs=1) or f > unraised + 3


def test_beyond_three_only_words_that_are_likelier_than_elsewhere_follow(tmp_path):
    _, words, followers = written(tmp_path, katz([text()], len(WORDS), 2))
    assert max(map(len, followers.values())) > 3
    for after in followers.values():
        for word in list(after)[3:]:
            assert after[word] > words[word]


def test_words_of_a_longer_list_come_where_their_f_puts_them(tmp_path):
    more = [ListedWord(word="zoo", f=150, followers=[]), ListedWord("zebra", 1, [])]
    _, words, _ = written(tmp_path, katz([text()], len(WORDS), 2), more=more)
    assert (words["zoo"], words["zebra"]) == (150, 1)
    assert list(words.values()) == sorted(words.values(), reverse=True)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("English, by us: ε=8\nsmall", "English by us - ε 8 small"),
        ("", "-"),
        (" , ", "-"),
        ("#1 (US)", "#1 (US)"),
    ],
)
def test_descriptions_cannot_break_the_header(description, expected, tmp_path):
    header, *_ = written(tmp_path, katz([text()], len(WORDS), 1), description=description)
    assert header["description"] == expected


def test_locales_are_spelled_as_android_spells_them(tmp_path):
    header, *_ = written(tmp_path, katz([text()], len(WORDS), 1), language="pt-BR")
    assert (header["dictionary"], header["locale"]) == ("main:pt_br", "pt_BR")


def test_a_list_of_other_words_is_refused(tmp_path):
    with pytest.raises(ValueError, match="do not belong together"):
        write_combined(
            tmp_path / "x.combined",
            katz([text()], len(WORDS), 1),
            WORDS[:-1],
            language="en",
            description="",
            version=1,
            date=1,
        )
    assert not list(tmp_path.iterdir())
