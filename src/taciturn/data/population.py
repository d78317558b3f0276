"""Users' text on disk. It is read by fleets alone; public text is another type (data/public.py).

    POPULATION/
      manifest.json     what is here; its counts are private and say so
      ledger.jsonl      what was ever released about these users; outlives every rebuild
      text-<n>/         vocabulary, and shards of tokens: the users to train on (with their hashed ids) and the held-out users
      private/          salt with which user ids are hashed, hashed ids of those who opted out

A build writes a new text folder and then replaces the manifest in one step, so a population is whole or not there. Building again
into the same folder keeps the ledger: the users are the same people, whatever became of their text.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from taciturn.data.texts import SHARD_TOKENS, Texts, TextWriter
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.files import sync_folder, write_atomically

FORMAT = 2
COUNTS = "private_counts"
NOTE = "measured on users' text; do not publish"


class PopulationError(DataError):
    """The folder is not a population that can be used."""


class Population:
    """The users whom a run protects. `texts` is for fleets only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.id: str = self.manifest["id"]
        text = folder / self.manifest["text"]
        self.vocabulary = Vocabulary.load(text / "vocabulary.txt", self.manifest["vocabulary"])
        self.texts = Texts.load(text, "train", self.manifest[COUNTS]["train"])

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each user has; private, like every count."""
        numbers = range(len(self.texts.shards))
        return np.concatenate([np.diff(self.texts.shard(number).offsets) for number in numbers])

    def pin_ledger(self, id: str) -> None:
        """Remember which ledger these users have, so that one that was lost is not taken for one that never was."""
        self.manifest["ledger"] = id
        _save_manifest(self.folder, self.manifest)


class HeldOutUsers:
    """Users kept out of training to measure with. They have no guarantee, and every statement says so."""

    def __init__(self, folder: Path) -> None:
        manifest = _manifest(folder)
        self.texts = Texts.load(folder / manifest["text"], "held_out", manifest[COUNTS]["held_out"])

    def __len__(self) -> int:
        return len(self.texts)


class PopulationWriter:
    """Takes users one by one, in the order of `position_key`; `writing_population` makes one."""

    def __init__(self, folder: Path, text: Path, vocabulary: Vocabulary, shard_tokens: int) -> None:
        self.folder, self.text, self.vocabulary = folder, text, vocabulary
        self.salt = _salt(folder / "private" / "salt")
        self._writers = {
            split: TextWriter(text, split, len(vocabulary), shard_tokens) for split in ("train", "held_out")
        }
        self._names = (text / "users.txt").open("x")
        # Keyed, so that nobody can try out guesses at the text.
        self._digests = {split: hmac.new(self.salt, split.encode(), hashlib.sha256) for split in self._writers}

    def add(self, split: str, hashed_id: str, tokens: list[int] | np.ndarray) -> None:
        self._writers[split].add(tokens)
        self._digests[split].update(len(tokens).to_bytes(8, "little") + np.asarray(tokens, np.uint32).tobytes())
        if split == "train":
            self._names.write(f"{hashed_id}\n")

    def finish(self, about: dict[str, Any], counts: dict[str, Any]) -> Population:
        """Replace the manifest: from here on these are the users' texts."""
        with self._names:
            self._names.flush()
            os.fsync(self._names.fileno())
        self.vocabulary.save(self.text / "vocabulary.txt")
        written = {split: writer.close() for split, writer in self._writers.items()}
        if not written["train"]["shards"]:
            left_out = "; ".join(f"{reason}: {count:,}" for reason, count in counts.get("left_out", {}).items())
            raise PopulationError(f"no user is left to train on ({left_out or 'there is no text at all'})")
        sync_folder(self.text)
        try:
            before = json.loads((self.folder / "manifest.json").read_text())
        except (FileNotFoundError, ValueError):  # new, or damaged
            before = None
        digest = hmac.new(self.salt, "\n".join(self.vocabulary.words).encode(), hashlib.sha256)
        for split in self._digests.values():
            digest.update(split.digest())
        sums = {
            f"{split}_{unit}": sum(shard[index] for shard in one["shards"])
            for split, one in written.items()
            for index, unit in enumerate(("users", "tokens"))
        }
        manifest = {
            "format": FORMAT,
            "id": digest.hexdigest()[:16],
            "text": self.text.name,
            "ledger": before["ledger"] if before else None,  # its id, once there is one
            "about": about,
            "vocabulary": {"size": len(self.vocabulary), **self.vocabulary.about},
            COUNTS: {"note": NOTE, **sums, **counts, **written},
        }
        _save_manifest(self.folder, manifest)
        return Population(self.folder)


@contextmanager
def writing_population(
    folder: Path, vocabulary: Vocabulary, shard_tokens: int = SHARD_TOKENS
) -> Iterator[PopulationWriter]:
    """A writer; whatever does not come to `finish` leaves nothing behind."""
    created = not folder.exists()
    if not created and not (folder / "manifest.json").exists():
        foreign = [
            path.name for path in folder.iterdir() if path.name != "private" and not path.name.startswith("text-")
        ]
        if foreign:
            raise PopulationError(f"{folder} holds other things already ({foreign[0]}); name a new --out")
    private = folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    with (private / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PopulationError(f"another build is writing to {folder}; wait for it, or name another --out") from None
        try:
            _remove_leftovers(folder)
            numbers = [int(path.name.removeprefix("text-")) for path in folder.glob("text-*")]
            text = folder / f"text-{max(numbers, default=0) + 1}"
            text.mkdir(mode=0o700)
            yield PopulationWriter(folder, text, vocabulary, shard_tokens)
        finally:
            if created and not (folder / "manifest.json").exists():
                shutil.rmtree(folder)
            else:
                _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> None:
    """Text that no manifest names: of a build that was cut off, or from before the last one."""
    try:
        current = json.loads((folder / "manifest.json").read_text())["text"]
    except (FileNotFoundError, ValueError, KeyError):
        if (folder / "manifest.json").exists():
            return  # damaged, or of another version: nobody knows what it means
        current = None
    for path in folder.glob("text-*"):
        if path.name != current:
            shutil.rmtree(path)


def build_population(
    folder: Path,
    train: dict[str, list[int]],
    held_out: dict[str, list[int]],
    vocabulary: Vocabulary,
    about: dict[str, Any],
    shard_tokens: int = SHARD_TOKENS,
) -> Population:
    """A population of users who are in memory: user id → word ids."""
    with writing_population(folder, vocabulary, shard_tokens) as writer:
        for split, users in (("train", train), ("held_out", held_out)):
            for user in sorted(users, key=position_key):
                writer.add(split, hashed_id(writer.salt, user), users[user])
        return writer.finish(about, {})


def position_key(user: str) -> tuple[int, str]:
    """Users are stored in the order of a hash of their ids, which says nothing of them and is the same wherever they are stored."""
    return int.from_bytes(hashlib.sha256(user.encode()).digest()[:8], "big"), user


def hashed_id(salt: bytes, user: str) -> str:
    return hmac.new(salt, user.encode(), hashlib.sha256).hexdigest()[:24]


def remembered_opt_outs(folder: Path, salt: bytes, users: Iterable[str]) -> frozenset[str]:
    """The hashed ids of all who ever opted out of this population, the `users` among them from now on."""
    path = folder / "private" / "opted-out.txt"
    known = set(path.read_text().split()) if path.exists() else set()
    known |= {hashed_id(salt, user) for user in users}
    if known:
        write_atomically(path, "".join(f"{one}\n" for one in sorted(known)).encode(), 0o600)
    return frozenset(known)


def _save_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode(), 0o600)


def _salt(path: Path) -> bytes:
    if not path.exists() and path.with_name("opted-out.txt").exists():
        raise PopulationError(
            f"{path} is gone, and with it who opted out; restore it from a copy, or build a new folder"
        )
    if not path.exists():
        write_atomically(path, secrets.token_bytes(32), 0o600)
    return path.read_bytes()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.exists():
        what = "is not a population (it has no manifest.json)" if folder.is_dir() else "is no folder"
        raise PopulationError(f"{folder} {what}; build a population with: taciturn data build --help")
    try:
        manifest = json.loads(path.read_text())
    except ValueError:
        raise PopulationError(f"{path} is damaged; build the population again, its ledger stays") from None
    if manifest.get("format") != FORMAT:
        raise PopulationError(
            f"{folder} was written by another version of taciturn (format {manifest.get('format')}); build it again"
        )
    return manifest
