"""Users' text on disk. Only fleets read it; public text is another type (data/public.py).

    POPULATION/
      manifest.json     what is here, and which ledger these users have; its counts are private and
      say so ledger.jsonl      what was ever released about these users; outlives every rebuild
      ledger.head       the ledger's newest row text-<n>/         vocabulary, shards of tokens and
      hashed ids: of the users to train on, and of the held-out users private/          salt with
      which user ids are hashed, hashed ids of those who opted out, which ledger these users have

A build writes a new text folder and then replaces the manifest in one step, so a population is
complete or absent. Building again into the same folder keeps the ledger. Another folder of the same
people names their ledger, and hashes their ids with the same salt.
"""

import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from re import fullmatch
from typing import Any, NamedTuple

import numpy as np

from taciturn.data.token_shards import SHARD_TOKENS, Texts, TextWriter
from taciturn.data.users import position
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.files import lock_file, not_a, sync_folder, write_atomically

FORMAT = 2
# files of hashed ids
NAMES = {"train": "users.txt", "held_out": "held_out_users.txt"}
# to measure with
LEAST_HELD_OUT = 10
COUNTS = "private_counts"
# whatever happened to a manifest
STAYS = ("private", "ledger.jsonl", "ledger.head")
# in private/
LEDGER, OPTED_OUT = "ledger.json", "opted-out.txt"
# so that a build that ends and a ledger that is pinned do not overwrite each other
MANIFEST_LOCK = "manifest-lock"


class NamedLedger(NamedTuple):
    """Which ledger these users have: its id, and the folder it is in, seen from theirs."""

    id: str
    folder: str = "."


class Population:
    """The users whom a run protects. `texts` is for fleets only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.id: str = self.manifest["id"]
        text = folder / self.manifest["text"]
        self.vocabulary = Vocabulary.load(text / "vocabulary.txt", self.manifest["vocabulary"])
        if len(self.vocabulary) != self.manifest["vocabulary"]["size"]:
            raise DataError(
                f"{text / 'vocabulary.txt'} is incomplete; build the population again, its ledger"
                " stays"
            )
        self.texts = Texts.load(text, "train", self.manifest[COUNTS]["train"])

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """Return how many tokens each user has; private, like every count."""
        return np.concatenate([np.diff(shard.offsets) for shard in self.texts.shards])

    @property
    def ledger(self) -> NamedLedger | None:
        """Return the ledger these users have, once there is one; refuse a folder without
        `private/`: it does not know who opted out.
        """
        _salt(self.folder)
        return named_ledger(self.folder)

    def pin_ledger(self, ledger: NamedLedger) -> None:
        """Record it, in the manifest and in a file that outlives it, so that a lost ledger is not
        mistaken for one that never existed.
        """
        write_atomically(
            self.folder / "private" / LEDGER, json.dumps(ledger._asdict()).encode(), 0o600
        )
        with lock_file(self.folder / "private" / MANIFEST_LOCK):
            _save_manifest(self.folder, {**_manifest(self.folder), "ledger": ledger._asdict()})


def trained_on(folder: Path) -> Callable[[str], bool]:
    """Tell by id whether a user is among those that a population trains on, or among those who
    opted out of everything.
    """
    salt, users = _salt(folder), _trained_or_opted_out(folder)
    return lambda id: hashed_id(salt, id) in users


def _trained_or_opted_out(folder: Path) -> set[str]:
    return _hashed_ids(folder, "train") | remembered_opt_outs(folder, _salt(folder))


def check_strangers(measured: Path, protected: Path) -> None:
    """Refuse to measure held-out users of one folder with a model of another, unless none of them
    was trained on there or opted out.
    """
    if _manifest(measured)["salt"] != _manifest(protected)["salt"]:
        untold = (
            "know people by different hashes, so whether held-out users of the one were trained on"
            " in the other cannot be told"
        )
        raise DataError(
            f"{measured} and {protected} {untold}. Build {measured} again, with --same-people-as"
            f" {protected}"
        )
    known = _trained_or_opted_out(protected)
    if known & _hashed_ids(measured, "held_out"):
        promised = (
            "who were promised protection, which held-out users do not have. Build both with the"
            " same --held-out"
        )
        raise DataError(
            f"held-out users of {measured} include people whom {protected} trains on, or who opted"
            f" out, {promised}"
        )


def _hashed_ids(folder: Path, split: str) -> set[str]:
    manifest = _manifest(folder)
    path = folder / manifest["text"] / NAMES[split]
    users = set(path.read_text().split()) if path.exists() else set[str]()
    if len(users) != manifest[COUNTS][f"{split}_users"]:
        raise DataError(f"{path} is incomplete; build the population again, its ledger stays")
    return users


class HeldOutUsers:
    """Users kept out of training to measure with. They have no guarantee, and every statement says
    so.
    """

    def __init__(self, folder: Path) -> None:
        manifest = _manifest(folder)
        self.folder = folder
        self.texts = Texts.load(folder / manifest["text"], "held_out", manifest[COUNTS]["held_out"])

    def __len__(self) -> int:
        return len(self.texts)

    def check_enough(self) -> None:
        """Refuse to publish averages over a few users: they reveal what each of them wrote."""
        if sum(len(text) > 0 for text in self.texts) < LEAST_HELD_OUT:
            few = f"fewer than {LEAST_HELD_OUT} held-out users, and figures of so few reveal each"
            raise DataError(
                f"{self.folder} has {few}; build it from more users, or with a larger --held-out"
            )


class PopulationWriter:
    """Write users one by one, in the order of their positions; `writing_population` makes one."""

    def __init__(self, folder: Path, text: Path, vocabulary: Vocabulary, shard_tokens: int) -> None:
        self.folder, self.text, self.vocabulary = folder, text, vocabulary
        self.salt = _salt(folder)
        self._writers = {
            split: TextWriter(text, split, len(vocabulary), shard_tokens)
            for split in ("train", "held_out")
        }
        self._names = {split: (text / name).open("x") for split, name in NAMES.items()}
        # Keyed, so that guesses at the text cannot be tested.
        self._digests = {
            split: hmac.new(self.salt, split.encode(), hashlib.sha256) for split in self._writers
        }

    def add(self, split: str, hashed_id: str, tokens: list[int] | np.ndarray) -> None:
        self._writers[split].add(tokens)
        self._digests[split].update(
            len(tokens).to_bytes(8, "little") + np.asarray(tokens, np.uint32).tobytes()
        )
        self._names[split].write(f"{hashed_id}\n")

    def finish(self, about: dict[str, Any], counts: dict[str, Any]) -> Population:
        """Replace the manifest: from now on these are the users' texts."""
        for names in self._names.values():
            with names:
                names.flush()
                os.fsync(names.fileno())
        self.vocabulary.save(self.text / "vocabulary.txt")
        written = {split: writer.close() for split, writer in self._writers.items()}
        if not written["train"]["shards"] and not about.get(
            "on_devices"
            # there the users' text stays on devices
        ):
            left_out = "; ".join(
                f"{reason}: {count:,}" for reason, count in counts.get("left_out", {}).items()
            )
            utf8 = (
                "; save the text as UTF-8 (iconv -f latin1 -t utf-8)"
                if "not UTF-8" in left_out
                else ""
            )
            hint = utf8 or (", or lower --least-tokens" if "tokens:" in left_out else "")
            raise DataError(
                f"no user is left to train on ({left_out or 'there is no text at all'}): name other"
                f" text{hint}"
            )
        sync_folder(self.text)
        parts = [
            "\n".join(self.vocabulary.words).encode(),
            *(split.digest() for split in self._digests.values()),
        ]
        digest = hmac.new(self.salt, b"".join(parts), hashlib.sha256)
        units = [
            (split, index, unit)
            for split in written
            for index, unit in enumerate(("users", "tokens"))
        ]
        sums = {
            f"{split}_{unit}": sum(shard[index] for shard in written[split]["shards"])
            for split, index, unit in units
        }
        manifest = {
            "format": FORMAT,
            "id": digest.hexdigest()[:16],
            "text": self.text.name,
            "about": about,
        }
        # by which a lost salt is noticed
        manifest["salt"] = hashed_id(self.salt, "")
        manifest["vocabulary"] = {"size": len(self.vocabulary), **self.vocabulary.about}
        manifest[COUNTS] = {
            "note": "measured on users' text; do not publish",
            **sums,
            **counts,
            **written,
        }
        with lock_file(self.folder / "private" / MANIFEST_LOCK):
            ledger = named_ledger(self.folder)
            _save_manifest(self.folder, manifest | ({"ledger": ledger._asdict()} if ledger else {}))
        return Population(self.folder)


@contextmanager
def writing_population(
    folder: Path,
    vocabulary: Vocabulary,
    shard_tokens: int = SHARD_TOKENS,
    same_people_as: Path | None = None,
) -> Iterator[PopulationWriter]:
    """Yield a writer; a build that does not reach `finish` leaves nothing behind."""
    created = not folder.exists()
    if not created and not (folder / "manifest.json").exists():
        foreign = [
            path.name for path in folder.iterdir() if path.name not in STAYS and not _is_text(path)
        ]
        if foreign:
            raise DataError(
                f"{folder} already holds other things ({foreign[0]}); choose a new --out"
            )
    private = folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    busy = DataError(f"another build is writing to {folder}; wait for it, or name another --out")
    with lock_file(private / "lock", busy):
        # whatever is written from here on is private to its owner
        umask = os.umask(0o077)
        try:
            _remove_leftovers(folder)
            numbers = [
                int(path.name.removeprefix("text-")) for path in folder.iterdir() if _is_text(path)
            ]
            if same_people_as:
                _share_ledger(folder, same_people_as)
            text = folder / f"text-{max(numbers, default=0) + 1}"
            text.mkdir(mode=0o700)
            yield PopulationWriter(folder, text, vocabulary, shard_tokens)
        finally:
            os.umask(umask)
            if created and not (folder / "manifest.json").exists():
                shutil.rmtree(folder)
            else:
                _remove_leftovers(folder)


def check_protections(
    folder: Path, with_runs: Path, scrub: bool, sensitive: Iterable[str], held_out_share: float
) -> None:
    """Refuse to protect a population that is built again less than before, and to hold out people
    whom a run has trained on.
    """
    about = manifest_before(folder).get("about", {})
    if about.get("scrubbed") and not scrub:
        raise DataError(f"{folder} was built with --scrub: say it again, or build a new folder")
    if dropped := set(about.get("sensitive_columns", ())).difference(sensitive):
        raise DataError(
            f"{folder} was built with --sensitive-column {min(dropped)}: say it again, or build a"
            " new folder"
        )
    before = manifest_before(with_runs).get("about", {}).get("held_out_share", held_out_share)
    if named_ledger(with_runs) is not None and before != held_out_share:
        wrong = (
            f"with --held-out {held_out_share:g} users they were trained on would pass for held out"
        )
        raise DataError(f"{with_runs} has runs that held out a share of {before:g}: {wrong}")


def _remove_leftovers(folder: Path) -> None:
    """Remove text that no manifest names: of an interrupted build, or from before the last one."""
    current = manifest_before(folder).get("text")
    if current is None and (folder / "manifest.json").exists():
        # damaged, or of another version, so its meaning is unknown
        return
    for path in folder.iterdir():
        if _is_text(path) and path.name != current:
            shutil.rmtree(path)


def _is_text(path: Path) -> bool:
    """Return whether a build made this folder."""
    return (
        bool(fullmatch(r"text-\d+", path.name)) and path.is_dir() and (path / "users.txt").exists()
    )


def write_population(
    folder: Path,
    train: dict[str, list[int]],
    held_out: dict[str, list[int]],
    vocabulary: Vocabulary,
    about: dict[str, Any],
    **how: Any,
) -> Population:
    """Write a population of users who are in memory: user id → word ids; `how` as
    `writing_population` takes it.
    """
    with writing_population(folder, vocabulary, **how) as writer:
        for split, users in (("train", train), ("held_out", held_out)):
            for user in sorted(users, key=lambda user: (position(user), user)):
                writer.add(split, hashed_id(writer.salt, user), users[user])
        return writer.finish(about, {})


def hashed_id(salt: bytes, user: str) -> str:
    return hmac.new(salt, user.encode(), hashlib.sha256).hexdigest()[:24]


def remembered_opt_outs(folder: Path, salt: bytes, users: Iterable[str] = ()) -> frozenset[str]:
    """Return the hashed ids of all who ever opted out of this population, and record `users` among
    them.
    """
    path = folder / "private" / OPTED_OUT
    known = set(path.read_text().split()) if path.exists() else set()
    if len(known) < manifest_before(folder).get("about", {}).get("opt_outs", 0):
        raise DataError(
            f"{path} lacks some of those who opted out; restore it from a copy, or build a new"
            " folder"
        )
    new = {hashed_id(salt, user) for user in users} - known
    if new:
        write_atomically(path, "".join(f"{one}\n" for one in sorted(known | new)).encode(), 0o600)
    return frozenset(known | new)


def _save_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode(), 0o600)


def _salt(folder: Path) -> bytes:
    """Return the salt, made once: with another, it would be unknown who opted out and who was
    trained on.
    """
    path, expected = folder / "private" / "salt", manifest_before(folder).get("salt")
    if not path.exists() and expected is None and not path.with_name(OPTED_OUT).exists():
        write_atomically(path, secrets.token_bytes(32), 0o600)
    salt = path.read_bytes() if path.exists() else b""
    if len(salt) != 32 or expected not in (None, hashed_id(salt, "")):
        raise DataError(
            f"{path} is lost or damaged, and with it who opted out; restore it from a copy, or"
            " build a new folder"
        )
    return salt


def named_ledger(folder: Path) -> NamedLedger | None:
    """Return the ledger that a folder's manifest or its private folder names: either proves that
    there was one.
    """
    path = folder / "private" / LEDGER
    try:
        named = [
            manifest_before(folder).get("ledger"),
            json.loads(path.read_text()) if path.exists() else None,
        ]
        found = {NamedLedger(**one) for one in named if one is not None}
    except (ValueError, TypeError):
        raise DataError(f"{path} is damaged; restore it from a copy") from None
    if len(found) > 1:
        raise DataError(
            f"{folder / 'manifest.json'} and {path} name two ledgers: restore both from one copy"
        )
    return found.pop() if found else None


def _share_ledger(folder: Path, other: Path) -> None:
    """Give a folder the ledger, salt and opt-outs of another, whose users are the same people."""
    theirs, own = named_ledger(other), named_ledger(folder)
    if theirs is None:
        raise DataError(f"{other} has no ledger yet: open it first")
    at = os.path.relpath((other / theirs.folder).resolve(), folder.resolve())
    shared = NamedLedger(theirs.id, at)
    if own not in (None, shared):
        raise DataError(
            f"{folder} already has a ledger, and two cannot be merged; build another folder"
        )
    salt, private = _salt(other), folder / "private"
    if (private / "salt").exists() and _salt(folder) != salt:
        raise DataError(
            f"{folder} knows its people by other hashes than {other}; build another folder"
        )
    write_atomically(private / "salt", salt, 0o600)
    opted_out = remembered_opt_outs(other, salt) | remembered_opt_outs(folder, salt)
    write_atomically(
        private / OPTED_OUT, "".join(f"{one}\n" for one in sorted(opted_out)).encode(), 0o600
    )
    write_atomically(private / LEDGER, json.dumps(shared._asdict()).encode(), 0o600)


def manifest_before(folder: Path) -> dict[str, Any]:
    """Return the current manifest, or {} where none can be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _manifest(folder: Path) -> dict[str, Any]:
    if not (folder / "manifest.json").exists():
        raise DataError(
            f"{not_a('a population', folder)}; build a population with: taciturn data build TEXT"
            " --out FOLDER"
        )
    manifest = manifest_before(folder)
    if manifest.get("format") != FORMAT or COUNTS not in manifest:
        raise DataError(
            f"{folder} was written by another version of taciturn, or is damaged; build it again,"
            " its ledger stays"
        )
    return manifest
