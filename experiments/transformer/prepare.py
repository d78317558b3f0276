"""Public text and people's, as shapes.py reads them.

python experiments/transformer/prepare.py PUBLIC PEOPLE OUT

Of the public corpus, 2 % of the documents are held out, by a hash of their words; of the people,
those whom the population holds out. Both have the same words. OUT gets three files:

    train.npy             ids of all documents to learn from, one after another
    public_held_out.npz   ids of the others, and where each document starts
    people_held_out.npz   the same of people
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

from taciturn.core import BEGIN
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts

HELD_OUT_SHARE = 0.02


def is_held_out(document: np.ndarray) -> bool:
    """Tell whether a document is measured with: the same text always is, or never.

    >>> is_held_out(np.array([16, 17, 18], np.uint16))
    False
    """
    digest = hashlib.sha256(document.astype("<u2").tobytes()).digest()
    return int.from_bytes(digest[:4]) < HELD_OUT_SHARE * 2**32


def split_documents(documents: Texts) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return what is learned from, as one stream in which <bos> begins a document, and the rest."""
    stream: list[np.ndarray] = []
    held_out: list[np.ndarray] = []
    begin = np.array([BEGIN], np.uint16)
    for document in documents:
        if is_held_out(document):
            held_out.append(document)
        else:
            stream += [begin, document]
    return np.concatenate(stream), held_out


def save_texts(path: Path, texts: list[np.ndarray]) -> None:
    """Write texts end to end, and where each starts and the last one ends."""
    lengths = [len(text) for text in texts]
    np.savez_compressed(
        path,
        tokens=np.concatenate(texts),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
    )


def main(public: Path, people: Path, out: Path) -> None:
    corpus = PublicCorpus.load(public)
    population = Population(people)
    corpus.check_words(population.vocabulary, "PUBLIC")
    out.mkdir(parents=True, exist_ok=True)
    stream, held_out = split_documents(corpus.documents)
    np.save(out / "train.npy", stream)
    save_texts(out / "public_held_out.npz", held_out)
    save_texts(out / "people_held_out.npz", list(HeldOutUsers(people).texts))
    print(f"{len(stream):,} tokens to learn from; {sum(map(len, held_out)):,} held out")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
