"""Public text: another type than a population, because anything may be done with it.

PUBLIC/
  about.json   vocabulary.txt   documents_tokens.npy   documents_offsets.npy
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from taciturn.data.population import Texts
from taciturn.data.vocabulary import DataError, Vocabulary


@dataclass(frozen=True)
class PublicCorpus:
    """Documents that are nobody's secret, for warm starts."""

    documents: Texts
    vocabulary: Vocabulary
    source: str  # named in every privacy statement of a model that started from it

    @classmethod
    def of(cls, texts: Iterable[str], vocabulary: Vocabulary, source: str) -> "PublicCorpus":
        return cls(Texts.of((vocabulary.encode(text) for text in texts), len(vocabulary)), vocabulary, source)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.documents.save(folder, "documents")
        self.vocabulary.save(folder / "vocabulary.txt")
        (folder / "about.json").write_text(json.dumps({"source": self.source}))

    @classmethod
    def load(cls, folder: Path) -> "PublicCorpus":
        if not (folder / "about.json").exists():
            raise DataError(
                f"{folder} is no public corpus (it has no about.json); make one with: taciturn data public --help"
            )
        source = json.loads((folder / "about.json").read_text())["source"]
        return cls(Texts.load(folder, "documents"), Vocabulary.load(folder / "vocabulary.txt"), source)
