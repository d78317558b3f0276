"""Words of every script, from public lists alone."""

import pytest

from taciturn.core import BEGIN, END, UNKNOWN
from taciturn.data.vocabulary import (
    PUNCTUATION,
    SCRUBBED,
    SPECIAL,
    DataError,
    Vocabulary,
    counted_vocabulary,
    public_vocabulary,
    tokenize,
)


def test_special_tokens_have_their_places():
    assert SPECIAL[0] == "<pad>"
    assert (SPECIAL[UNKNOWN], SPECIAL[BEGIN], SPECIAL[END]) == ("<unk>", "<bos>", "<eos>")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don’t stop, it's 5pm...", ["don't", "stop", ",", "it's", "5", "pm", "..."]),
        ("«Oui», dit-il", ['"', "oui", '"', ",", "dit", "-", "il"]),
        ("e\u0301te\u0301", ["été"]),  # composed, however it was typed
        ("so\u00adft\u200b", ["soft"]),
        ("👍🏽 😂❤\ufe0f", ["👍🏽", "😂", "❤"]),
        ("a\x00b\x07c", ["a", "b", "c"]),
        (f"x{SCRUBBED}y", ["x", SCRUBBED, "y"]),
        ("", []),
    ],
)
def test_text_is_split_into_what_people_type(text, tokens):
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("es", "¿Cómo estás? ¡Mañana iré al médico con mi niño!", 13),
        ("de", "Die Straße über den Fluss ist „schön“, Frau Müller.", 13),
        ("ru", "Привет, как дела? Сегодня очень холодно.", 9),
        ("hi", "नमस्ते, आप कैसे हैं? मैं ठीक हूँ।", 10),
        ("zh", "我今天去学校学习中文。", 7),
        ("ja", "今日は学校に行きました。", 8),
        ("ko", "저는 오늘 학교에 갑니다.", 7),
        ("tr", "IŞIK çok güzel", 3),
        ("fa", "می‌خواهم به خانه بروم", 4),
        ("ar", "السَّلامُ عليكم، كيف حالك؟", 6),
        ("ca", "la pel·lícula és bona", 4),
    ],
)
def test_everyday_sentences_of_many_languages_are_known(language, text, words):
    vocabulary = public_vocabulary(10_000, language)
    ids = vocabulary.encode(text)
    assert len(vocabulary) == 10_000
    assert len(ids) == words
    assert UNKNOWN not in ids


def test_all_languages_of_the_list_make_a_vocabulary_of_words_that_can_be_met():
    import wordfreq

    languages = wordfreq.available_languages()
    assert len(languages) >= 40
    for language in languages:
        vocabulary = public_vocabulary(1_000, language)
        words = vocabulary.words[vocabulary.first_word :]
        assert len(words) == 1_000 - vocabulary.first_word
        assert all(vocabulary.split(word) == [word] for word in words[:300])


def test_the_twin_with_ascii_words_would_not_know_hindi():
    import re

    assert re.findall(r"[^\W\d_]+", "हैं") != ["हैं"]  # why `re` is not used
    assert tokenize("हैं") == ["हैं"]


def test_characters_are_a_vocabulary_too():
    vocabulary = public_vocabulary(200, "en", "character")
    assert vocabulary.split("Hi  Bob") == ["h", "i", " ", "b", "o", "b"]
    assert UNKNOWN not in vocabulary.encode("Hi Bob, it is 5!")
    assert vocabulary.encode("ж") == [UNKNOWN]
    russian = public_vocabulary(200, "ru", "character")
    assert UNKNOWN not in russian.encode("Жёлтый ёж")


def test_words_can_be_counted_on_public_text():
    vocabulary = counted_vocabulary(
        ["b a b c", "b a, a b"], len(SPECIAL) + len(PUNCTUATION) + 2, "a book"
    )
    assert vocabulary.words[-2:] == ("b", "a")
    assert vocabulary.source == "a book"


def test_a_vocabulary_comes_back_as_it_was_saved(tmp_path):
    for vocabulary in (public_vocabulary(500, "de"), public_vocabulary(200, "hi", "character")):
        vocabulary.save(tmp_path / "vocabulary.txt")
        assert Vocabulary.load(tmp_path / "vocabulary.txt", vocabulary.about) == vocabulary


def test_what_cannot_be_a_vocabulary_is_refused():
    with pytest.raises(DataError, match="no room"):
        public_vocabulary(10)
    with pytest.raises(DataError, match="no list for the language 'xx'"):
        public_vocabulary(500, "xx")
    with pytest.raises(DataError, match="starts with"):
        Vocabulary(words=("a", "b"))
    with pytest.raises(DataError, match="twice"):
        Vocabulary(words=(*SPECIAL, "a", "a"))
