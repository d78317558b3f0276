"""Users' text on disk, memory-mapped. It is read by fleets alone; public text is another type (data/public.py).

    POPULATION/
      manifest.json     what is here; its counts are private and say so
      ledger.jsonl      what was ever released about these users; outlives every rebuild
      text-<id>/        vocabulary, tokens, offsets and hashed ids of the training users, and the held-out users' text
      private/salt      with which user ids are hashed

A build writes a new text folder and then replaces the manifest in one step, so a population is whole or not there. Building again
into the same folder keeps the ledger: the users are the same people, whatever became of their text.
"""

import hashlib
import hmac
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.files import write_atomically

FORMAT = 1


class PopulationError(DataError):
    """The folder is not a population that can be used."""


@dataclass(frozen=True)
class Texts:
    """Token sequences end to end in one array, one per user."""

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> np.ndarray:
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[position] for position in range(len(self)))

    def save(self, folder: Path, name: str) -> None:
        np.save(folder / f"{name}_tokens.npy", self.tokens)
        np.save(folder / f"{name}_offsets.npy", self.offsets)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Texts":
        return cls(
            np.load(folder / f"{name}_tokens.npy", mmap_mode="r"),
            np.load(folder / f"{name}_offsets.npy", mmap_mode="r"),
        )

    @classmethod
    def of(cls, sequences: Iterable[list[int] | np.ndarray], words: int) -> "Texts":
        arrays = [np.asarray(sequence, np.uint16 if words <= 2**16 else np.uint32) for sequence in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)])
        return cls(np.concatenate([*arrays, np.zeros(0, arrays[0].dtype if arrays else np.uint16)]), offsets)


class Population:
    """The users whom a run protects. `texts` is for fleets only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.id: str = self.manifest["id"]
        self.vocabulary = Vocabulary.load(folder / f"text-{self.id}" / "vocabulary.txt")
        self.texts = Texts.load(folder / f"text-{self.id}", "train")

    def __len__(self) -> int:
        return len(self.texts)

    def pin_ledger(self, id: str) -> None:
        """Remember which ledger these users have, so that one that was lost is not taken for one that never was."""
        self.manifest["ledger"] = id
        _save_manifest(self.folder, self.manifest)


class HeldOutUsers:
    """Users kept out of training to measure with. They have no guarantee, and every statement says so."""

    def __init__(self, folder: Path) -> None:
        self.texts = Texts.load(folder / f"text-{_manifest(folder)['id']}", "held_out")

    def __len__(self) -> int:
        return len(self.texts)


def build_population(
    folder: Path,
    train: dict[str, list[int]],
    held_out: dict[str, list[int]],
    vocabulary: Vocabulary,
    about: dict[str, Any],
) -> Population:
    """Write a population: user id → word ids. Users are stored in the order of their hashed ids, which says nothing of them."""
    if not train:
        raise PopulationError(
            "no user is left to train on: the text is empty, or every user is below the minimum length"
        )
    private = folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    salt = _salt(private / "salt")
    hashed = sorted((hmac.new(salt, user.encode(), hashlib.sha256).hexdigest()[:24], user) for user in train)
    texts = Texts.of((train[user] for _, user in hashed), len(vocabulary))
    held = Texts.of((held_out[user] for user in sorted(held_out)), len(vocabulary))
    # Keyed, so that nobody can try out guesses at the text.
    content = texts.tokens.tobytes() + texts.offsets.tobytes() + "\n".join(vocabulary.words).encode()
    identity = hmac.new(salt, content, hashlib.sha256).hexdigest()[:16]

    try:
        before = json.loads((folder / "manifest.json").read_text())
    except (FileNotFoundError, ValueError):  # new, or damaged
        before = None
    building = folder / f"building-{secrets.token_hex(4)}"
    building.mkdir(mode=0o700)
    texts.save(building, "train")
    held.save(building, "held_out")
    vocabulary.save(building / "vocabulary.txt")
    (building / "users.txt").write_text("\n".join(user for user, _ in hashed) + "\n")
    final = folder / f"text-{identity}"
    shutil.rmtree(final, ignore_errors=True)
    building.rename(final)
    counts = {
        "users": len(texts),
        "tokens": len(texts.tokens),
        "held_out_users": len(held),
        "held_out_tokens": len(held.tokens),
    }
    manifest = {
        "format": FORMAT,
        "id": identity,
        "ledger": before["ledger"] if before else None,  # its id, once there is one
        "about": about,
        "vocabulary": {"size": len(vocabulary), "source": vocabulary.source},
        "private counts (measured on users' text; do not publish)": counts,
    }
    _save_manifest(folder, manifest)
    if before is not None and before["id"] != identity:
        shutil.rmtree(folder / f"text-{before['id']}", ignore_errors=True)
    return Population(folder)


def _save_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode(), 0o600)


def _salt(path: Path) -> bytes:
    if not path.exists():
        write_atomically(path, secrets.token_bytes(32), 0o600)
    return path.read_bytes()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.exists():
        raise PopulationError(
            f"{folder} is not a population (it has no manifest.json); build one with: taciturn data build --help"
        )
    try:
        manifest = json.loads(path.read_text())
    except ValueError:
        raise PopulationError(f"{path} is damaged; build the population again, its ledger stays") from None
    if manifest.get("format") != FORMAT:
        raise PopulationError(
            f"{folder} was written by another version of taciturn (format {manifest.get('format')}); build it again"
        )
    return manifest
