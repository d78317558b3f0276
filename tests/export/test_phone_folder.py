"""The folder for a phone has what each keyboard reads, what to do with it, and the promise."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from taciturn.data.vocabulary import public_vocabulary
from taciturn.export.aosp_dictionary import Dictionary, Entry, Follower
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.longer_list import list_rarer_words
from taciturn.export.phone_folder import NEXT_WORDS, PAGE, write_next_words, write_page
from taciturn.release.gate import ExportRefused
from taciturn.runs.finished import FinishedRun

FEW = {"words": 16_000, "entries": 2000, "public_words": 300}


@pytest.fixture(scope="module")
def folder(finished_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("phone") / "out"
    FinishedRun(finished_runs / "private").export(folder, "phone", **FEW)
    return folder


def test_the_page_names_the_files_that_are_there_and_holds_the_whole_statement(folder):
    page = (folder / PAGE).read_text("utf-8")
    named = set(re.findall(r"<code>([^<]+)</code>", page))
    assert named == {"main_en.dict", NEXT_WORDS, "guarantee.txt", "guarantee.json"}
    assert all((folder / name).exists() for name in named)
    (stated,) = re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)
    assert unescape(stated) == (folder / "guarantee.txt").read_text("utf-8")
    # Nothing is loaded from anywhere, and every placeholder was filled.
    assert "://" not in page
    assert "$" not in page


def test_a_name_cannot_write_into_the_page():
    page = write_page(
        name="<script>", dictionary="<b>", description="<img src=x>", statement="</pre><script>"
    )
    assert "<script" not in page
    assert "<img" not in page


def test_the_dictionary_says_in_its_header_what_it_is_worth(folder):
    header = read_dictionary(folder / "main_en.dict").header
    guarantee = (folder / "guarantee.json").read_text()
    head = re.search(r'"head": "(\w+)"', guarantee)[1]
    assert head in header["description"]
    assert "epsilon" in header["description"]
    assert "wordfreq" in header["description"]


def restored(text):
    """What AnySoftKeyboard restores: the next words of each word, by language."""
    root = ElementTree.fromstring(text)
    assert (root.tag, root.get("version")) == ("AnySoftKeyboardPrefs", "1")
    (provider,) = root.findall("pref")
    assert value(provider, "providerId") == "NextWordPrefsProvider"
    (languages,) = provider.findall("pref")
    words = {}
    for language in languages.findall("pref"):
        for word in language.findall("pref"):
            after = [value(each, "nextWord") for each in word.findall("pref")]
            words[value(language, "locale"), value(word, "word")] = after
    return words


def value(item, key):
    (found,) = (each.get(key) for each in item.findall("value") if each.get(key) is not None)
    return found


def test_next_words_are_those_of_the_most_frequent_words_the_likeliest_first():
    followers = tuple(Follower(f"word{number}", number % 16) for number in range(14))
    words = {f"word{number}": Entry(frequency=100 - number % 90) for number in range(14)}
    many = {
        f"many{number}": Entry(frequency=number % 250, followers=(Follower("word1", 3),))
        for number in range(1000)
    }
    odd = Entry(frequency=255, followers=followers)
    dictionary = Dictionary(header={}, words={**words, **many, 'a"<&b': odd})
    found = restored(write_next_words(dictionary, "en"))
    assert len(found) == 900
    assert found["en", 'a"<&b'][:2] == ["word13", "word12"]
    assert len(found["en", 'a"<&b']) == 12


def test_the_file_for_anysoftkeyboard_holds_the_followers_of_the_dictionary(folder):
    dictionary = read_dictionary(folder / "main_en.dict")
    for (language, word), after in restored((folder / NEXT_WORDS).read_text("utf-8")).items():
        assert language == "en"
        assert set(after) <= {follower.word for follower in dictionary.words[word].followers}


def test_blocked_words_are_in_none_of_the_files(finished_runs, tmp_path):
    blocked = ["wordb", "the"]
    out = tmp_path / "out"
    FinishedRun(finished_runs / "private").export(out, "phone", blocklist=blocked, **FEW)
    dictionary = read_dictionary(out / "main_en.dict")
    assert not set(blocked) & set(dictionary.words)
    assert "of" in dictionary.words
    assert '"wordb"' not in (out / NEXT_WORDS).read_text("utf-8")


def test_a_model_without_a_guarantee_gets_to_no_phone_unless_it_is_asked_for(
    finished_runs, tmp_path
):
    run = FinishedRun(finished_runs / "plain")
    with pytest.raises(ExportRefused, match="non_private"):
        run.export(tmp_path / "out", "phone", **FEW)
    assert not (tmp_path / "out").exists()
    run.export(tmp_path / "out", "phone", non_private=True, **FEW)
    assert "NO" in (tmp_path / "out" / PAGE).read_text("utf-8")


def test_rarer_words_have_the_share_that_the_model_gives_to_all_others():
    known = public_vocabulary(1000).words
    rarer = list_rarer_words("en", without=known, share=0.07, size=3000)
    assert not {word.word for word in rarer} & set(known)
    assert sum(1.15 ** (word.f - 255) for word in rarer) == pytest.approx(0.07, rel=0.05)
    assert list_rarer_words("en", without=known, share=0.07, size=0) == []
    assert list_rarer_words("xx", without=(), share=0.07, size=3000) == []
