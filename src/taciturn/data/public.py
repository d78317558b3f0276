"""Public text: another type than a population, because it needs no protection.

PUBLIC/
  about.json   vocabulary.txt   documents-00000.tokens   documents-00000.offsets

A list of public words is a folder too, without text:

WORDS/
  words.json   vocabulary.txt
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from taciturn.core import END
from taciturn.data.sources import Source
from taciturn.data.token_shards import Texts, TextWriter
from taciturn.data.vocabulary import DataError, Vocabulary, counted_vocabulary
from taciturn.files import new_folder, not_a, write_atomically
from taciturn.progress import Progress, StageProgress

FORMAT = 2
WORDS = "words.json"
WORDS_FORMAT = 1


@dataclass(frozen=True)
class PublicCorpus:
    """Documents that are not private, for warm starts, word lists and tests."""

    documents: Texts
    vocabulary: Vocabulary
    # Named in every privacy statement of a model that started from it.
    source: str

    @classmethod
    def of(cls, texts: Iterable[str], vocabulary: Vocabulary, source: str) -> "PublicCorpus":
        """Make a corpus in memory. A document ends with <eos>, as a user's message does."""
        encoded = ([*vocabulary.encode(text), END] for text in texts)
        return cls(Texts.of(encoded, len(vocabulary)), vocabulary, source)

    @property
    def digest(self) -> str:
        """Identify the vocabulary and the documents, in their order."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for document in self.documents:
            length = len(document).to_bytes(8, "little")
            digest.update(length + document.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

    def check_words(self, vocabulary: Vocabulary, setting: str) -> None:
        """Refuse a corpus of other words, which the setting names."""
        if self.vocabulary.words != vocabulary.words:
            raise ValueError(
                f"{setting} has other words than the population; make it with"
                " `vocabulary=POPULATION`"
            )

    def save(self, folder: Path) -> None:
        _write_documents(
            folder,
            documents=self.documents,
            vocabulary=self.vocabulary,
            source=self.source,
        )

    @classmethod
    def load(cls, folder: Path) -> "PublicCorpus":
        if not (folder / "about.json").exists():
            raise DataError(
                f"{not_a('a public corpus', folder)}; make a public corpus with: taciturn data"
                " public TEXT --out FOLDER"
            )
        try:
            about = json.loads((folder / "about.json").read_text())
        except ValueError:
            about = {}
        if about.get("format") != FORMAT:
            raise DataError(
                f"{folder} is damaged, or was written by another version of taciturn; make it again"
            )
        vocabulary = Vocabulary.load(folder / "vocabulary.txt", about["vocabulary"])
        documents = Texts.load(folder, "documents", about["documents"])
        return cls(documents, vocabulary, about["source"])


def save_words(vocabulary: Vocabulary, folder: Path) -> None:
    """Write public words into a new folder, from which other text takes its words."""
    with new_folder(folder, "name a new `folder`") as new:
        vocabulary.save(new / "vocabulary.txt")
        about = {"format": WORDS_FORMAT, "vocabulary": vocabulary.about}
        write_atomically(new / WORDS, json.dumps(about).encode())


def load_words(folder: Path) -> Vocabulary:
    """Return the words of a folder that `save_words` wrote."""
    try:
        about = json.loads((folder / WORDS).read_text())
    except ValueError:
        about = {}
    if about.get("format") != WORDS_FORMAT:
        raise DataError(
            f"{folder} is damaged, or was written by another version of taciturn; make it again"
        )
    return Vocabulary.load(folder / "vocabulary.txt", about["vocabulary"])


def ingest_public(
    source: Source,
    folder: Path,
    *,
    vocabulary: Vocabulary | int,
    name: str,
    language: str,
    progress: StageProgress,
) -> None:
    """Read public text: a row, or a paragraph of a text file, is a document.

    Args:
        source: of the text.
        folder: a new one.
        vocabulary: its words; a number of them means the most frequent ones here.
        name: of the text, in privacy statements.
        language: of the words, where they are counted here.
        progress: gets the stage, and bytes.
    """
    if isinstance(vocabulary, int):
        vocabulary = counted_vocabulary(
            _read_texts(source, partial(progress, "counting words")),
            size=vocabulary,
            source=f"words of {name}",
            language=language,
        )
    texts = _read_texts(source, partial(progress, "tokenising"))
    _write_documents(
        folder,
        documents=_encode_documents(vocabulary, texts),
        vocabulary=vocabulary,
        source=name,
    )


def _encode_documents(vocabulary: Vocabulary, texts: Iterable[str]) -> Iterator[list[int]]:
    for text in texts:
        words = vocabulary.encode(text)
        if words:
            yield [*words, END]


def _read_texts(source: Source, progress: Progress) -> Iterator[str]:
    for batch in source.batches(progress):
        yield from batch.column("text").to_pylist()


def _write_documents(
    folder: Path, *, documents: Iterable, vocabulary: Vocabulary, source: str
) -> None:
    """Write a corpus; refuse one without text."""
    with new_folder(folder, "name a new `folder`") as new:
        writer = TextWriter(new, "documents", words=len(vocabulary))
        for document in documents:
            writer.add(document)
        written = writer.close()
        if not written["shards"]:
            raise DataError(
                f"there is no text in {source}, or none in UTF-8; name other files, or save them as"
                " UTF-8 (iconv -t utf-8)"
            )
        vocabulary.save(new / "vocabulary.txt")
        about = {
            "format": FORMAT,
            "source": source,
            "vocabulary": vocabulary.about,
            "documents": written,
        }
        write_atomically(new / "about.json", json.dumps(about).encode())
