"""Public text: another type than a population, because it needs no protection.

PUBLIC/
  about.json   vocabulary.txt   documents-00000.tokens   documents-00000.offsets
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
from taciturn.progress import StageProgress

FORMAT = 2


@dataclass(frozen=True)
class PublicCorpus:
    """Documents that are not private, for warm starts, word lists and tests."""

    documents: Texts
    vocabulary: Vocabulary
    # named in every privacy statement of a model that started from it
    source: str

    @classmethod
    def of(cls, texts: Iterable[str], vocabulary: Vocabulary, source: str) -> "PublicCorpus":
        """Make a corpus in memory. A document ends with <eos>, as a user's message does."""
        encoded = ([*vocabulary.encode(text), END] for text in texts)
        return cls(Texts.of(encoded, len(vocabulary)), vocabulary, source)

    @property
    def digest(self) -> str:
        """Identify the vocabulary and the documents, in their order."""
        found = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for document in self.documents:
            found.update(len(document).to_bytes(8, "little") + document.astype("<i4").tobytes())
        return found.hexdigest()[:16]

    def check_words(self, vocabulary: Vocabulary, setting: str) -> None:
        if self.vocabulary.words != vocabulary.words:
            raise ValueError(
                f"{setting} has other words than the population; make it with --vocabulary"
                " POPULATION"
            )

    def save(self, folder: Path) -> None:
        _write_documents(folder, self.documents, self.vocabulary, self.source)

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
        return cls(Texts.load(folder, "documents", about["documents"]), vocabulary, about["source"])


def ingest_public(
    source: Source,
    folder: Path,
    vocabulary: Vocabulary | int,
    name: str,
    language: str,
    progress: StageProgress,
) -> None:
    """Read public text: a row, or a paragraph of a text file, is a document. A number of words
    means the most frequent ones here.
    """

    def texts(what: str) -> Iterator[str]:
        for batch in source.batches(partial(progress, what)):
            yield from batch.column("text").to_pylist()

    if isinstance(vocabulary, int):
        vocabulary = counted_vocabulary(
            texts("counting words"), vocabulary, f"words of {name}", language
        )
    encoded = ([*words, END] for words in map(vocabulary.encode, texts("tokenising")) if words)
    _write_documents(folder, encoded, vocabulary, name)


def _write_documents(
    folder: Path, documents: Iterable, vocabulary: Vocabulary, source: str
) -> None:
    with new_folder(folder, "name a new --out") as made:
        writer = TextWriter(made, "documents", words=len(vocabulary))
        for document in documents:
            writer.add(document)
        written = writer.close()
        if not written["shards"]:
            raise DataError(
                f"there is no text in {source}, or none in UTF-8; name other files, or save them as"
                " UTF-8 (iconv -t utf-8)"
            )
        vocabulary.save(made / "vocabulary.txt")
        about = {
            "format": FORMAT,
            "source": source,
            "vocabulary": vocabulary.about,
            "documents": written,
        }
        write_atomically(made / "about.json", json.dumps(about).encode())
