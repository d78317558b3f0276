"""Word lists that others publish as text are read as AOSP's compiler reads them, or refused with
their line.
"""

import gzip

import pytest

from taciturn.data.vocabulary import DataError
from taciturn.export import combined_source
from taciturn.export.aosp_dictionary import Dictionary, Entry
from taciturn.export.aosp_dictionary_words import read_dictionary_words
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.export.combined_source import read_combined_source

HEADER = "dictionary=main:en,locale=en_US,description=made up,date=1414726260,version=54\n"
LINES = f"""# a comment
 word=the,f=222,flags=,originalFreq=222
  bigram=new,f=1
  shortcut=teh,f=whitelist
 word=no, f=200
 word=damned,f=116,flags=,originalFreq=116,possibly_offensive=true
 word=i,f=0,not_a_word=true
 word=दिल,f=15:1414726260:2:3
 word={"x" * 48},f=9
 word=no,f=100

"""


def test_words_frequencies_and_marks_are_read_packed_or_not(tmp_path):
    (tmp_path / "a.combined").write_text(HEADER + LINES)
    (tmp_path / "b.combined.gz").write_bytes(gzip.compress((HEADER + LINES).encode()))
    dictionary = read_combined_source(tmp_path / "a.combined")
    assert read_combined_source(tmp_path / "b.combined.gz") == dictionary
    assert dictionary.header["locale"] == "en_US"
    assert dictionary.words == {
        "the": Entry(frequency=222),
        "no": Entry(frequency=200),
        "damned": Entry(frequency=116, is_offensive=True),
        "i": Entry(frequency=0, is_not_a_word=True),
        "दिल": Entry(frequency=15),
    }
    vocabulary = read_dictionary_words(tmp_path / "b.combined.gz", 100)
    assert vocabulary.words[16:] == ("the", "no", "दिल")
    assert (vocabulary.language, vocabulary.source) == ("en", "b.combined.gz")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.combined", b"", "begins with dictionary="),
        ("x.combined", b"user,text\n", "begins with dictionary="),
        ("x.combined", HEADER.encode() + b" word=a,f=256\n", "line 2: a word and its frequency"),
        ("x.combined", HEADER.encode() + b" word=a,f=1\nthe 222\n", "line 3: a word and"),
        ("x.combined", HEADER.encode() + b" word=\xff,f=1\n", "line 2 is not UTF-8"),
        ("x.combined.gz", HEADER.encode(), "damaged or incomplete"),
        ("x.combined.gz", gzip.compress(HEADER.encode(), mtime=0)[:40], "damaged or incomplete"),
    ],
)
def test_what_is_not_a_source_is_refused_with_its_line(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        read_combined_source(tmp_path / name)


def test_a_dictionary_that_suggests_nothing_is_refused(tmp_path):
    """Some are published so: «word=no, f=254» has a space that AOSP's compiler stumbles over."""
    words = {"no": Entry(frequency=0), "de": Entry(frequency=0)}
    write_dictionary(tmp_path / "main_ca.dict", Dictionary(header={"locale": "ca"}, words=words))
    with pytest.raises(DataError, match=r"suggests none of its 2 words.*\.combined"):
        read_dictionary_words(tmp_path / "main_ca.dict", 100)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(combined_source, "LARGEST_SOURCE", 2**20)
    (tmp_path / "x.combined.gz").write_bytes(gzip.compress(HEADER.encode() + b" " * 2**22))
    with pytest.raises(DataError, match="no keyboard's list has"):
        read_combined_source(tmp_path / "x.combined.gz")
