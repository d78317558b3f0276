"""No word, name or statement of a model becomes code in its script."""

import shutil
from dataclasses import replace

import pytest

from harness import lettered_words
from pages import REFUSED, counted, published
from taciturn.core import END
from taciturn.export.javascript import check_javascript, javascript_ngram

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


@needs_node
@pytest.mark.parametrize(
    "text",
    [
        "*/ throw 1 /*",
        "**//",
        "\n*/throw 1",
        "`${1}`",
        "'\"\\",
        "\u2028throw 1",
        "\r\nthrow 1//",
        "x" * 99 + "*/",
    ],
)
def test_no_name_of_a_model_or_a_word_breaks_out_of_its_script(text):
    vocabulary = lettered_words()
    spelled = replace(
        vocabulary, words=(*vocabulary.words[:-1], text.replace("\n", "").replace("\r", ""))
    )
    about = published(spelled, text, blocked=(text,))._replace(statement=text, learned_from=text)
    script = javascript_ngram(counted(spelled, "worda wordb ."), about)
    (scores,) = check_javascript(script, [[END]], spelled.words)
    assert scores.shape == (2, len(spelled))


def test_no_word_ends_the_script_element_that_holds_it():
    vocabulary = lettered_words()
    spelled = replace(vocabulary, words=(*vocabulary.words[:-1], "</script><script>alert(1)"))
    about = published(spelled, "</script>")._replace(statement="<!--<script>")
    assert "</script" not in javascript_ngram(counted(spelled, "worda wordb ."), about).lower()


@needs_node
def test_a_script_whose_words_are_not_those_of_its_model_does_not_pass_the_check():
    """Its scores are looked at, its list of words is not."""
    vocabulary = lettered_words()
    model, right = counted(vocabulary, "worda wordb ."), published(vocabulary)
    assert check_javascript(javascript_ngram(model, right), [[END]], right.words)
    with pytest.raises((ValueError, *REFUSED), match="does not run in Node"):
        check_javascript(
            javascript_ngram(model, right._replace(words=(*right.words[:-1], "a\nb"))),
            [[END]],
            right.words,
        )
    with pytest.raises(REFUSED, match="other words than the model"):
        check_javascript(
            javascript_ngram(model, right._replace(words=(*right.words[:-1], "another"))),
            [[END]],
            right.words,
        )
