"""Every word a model is trained on comes from the text once, in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taciturn.core import BEGIN
from taciturn.data.layout import Layout, Sentences, Unrolls

TOKENS = st.lists(st.integers(3, 12), max_size=80).map(lambda tokens: np.array(tokens, np.uint16))


@given(TOKENS, st.integers(1, 12))
def test_unrolls_hold_the_text_in_one_go(tokens, length):
    pieces = Unrolls(length).pieces(tokens)
    targets = pieces[:, 1:].ravel()
    assert targets[targets != 0].tolist() == tokens.tolist()
    assert pieces[1:, 0].tolist() == pieces[:-1, -1].tolist()


@given(TOKENS, st.integers(1, 12))
def test_sentences_hold_each_sentence_from_its_beginning(tokens, length):
    pieces = Sentences(length, ends=(3, 4)).pieces(tokens)
    sentences = []
    for token, before in zip(tokens.tolist(), [3, *tokens.tolist()], strict=False):
        if not sentences or (before in (3, 4) and token not in (3, 4)):
            sentences.append([])
        sentences[-1].append(token)
    assert [row[row != 0].tolist() for row in pieces] == [
        [BEGIN, *one[:length]] for one in sentences
    ]


@given(
    TOKENS, st.integers(1, 4), st.integers(1, 5), st.sampled_from([Unrolls(4), Sentences(4, (3,))])
)
def test_batches_hold_the_first_pieces_each_once(tokens, batch_size, steps, cut):
    layout = Layout(cut=cut, batch_size=batch_size, steps=steps)
    batches = layout.user_data(tokens).batches
    assert batches.shape == (steps, batch_size, 5)
    assert batches.dtype == np.int32
    rows = [tuple(row) for row in batches.reshape(-1, 5) if row.any()]
    pieces = cut.pieces(tokens)[: steps * batch_size]
    assert sorted(rows) == sorted(map(tuple, pieces))
    used = -(-len(pieces) // batch_size)
    assert all(
        np.array_equal(batches[place % used, place // used], piece)
        for place, piece in enumerate(pieces)
    )


@pytest.mark.parametrize("cut", [Unrolls(5), Sentences(5, (3,))])
def test_a_user_without_text_is_all_padding(cut):
    assert not np.asarray(
        Layout(cut=cut, batch_size=2, steps=3).user_data(np.zeros(0, np.uint16)).batches
    ).any()
