"""Users' text on disk. Only fleets read it; public text is another type (data/public.py).

    POPULATION/
      manifest.json     what is here, and which ledger these users have; its counts are private and
                        say so
      ledger.jsonl      what was ever released about these users; outlives every rebuild
      ledger.head       the ledger's newest row
      text-<n>/         vocabulary, shards of tokens and hashed ids: of the users to train on, and
                        of the held-out users
      private/          salt with which user ids are hashed, and the rule by which spellings are
                        one id; hashed ids of those who opted out; which ledger these users have,
                        and the key that signs its runs

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from re import fullmatch
from typing import Any, NamedTuple

import numpy as np

from taciturn.data.token_shards import SHARD_TOKENS, Texts, TextWriter
from taciturn.data.users import ID_RULE, position
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.files import lock_file, not_a, sync_folder, write_atomically

FORMAT = 2
# Files of hashed ids, by split.
NAMES = {"train": "users.txt", "held_out": "held_out_users.txt"}
# How many users it takes to measure with them.
LEAST_HELD_OUT = 10
COUNTS = "private_counts"
# What stays, whatever happened to a manifest.
STAYS = ("private", "ledger.jsonl", "ledger.head")
# Files in private/.
LEDGER = "ledger.json"
SALT = "salt"
RULE = "id-rule"
OPTED_OUT = "opted-out.txt"
# Held so that a build that ends and a ledger that is pinned do not overwrite each other.
MANIFEST_LOCK = "manifest-lock"


class NamedLedger(NamedTuple):
    """Which ledger these users have: its id, and the folder it is in, seen from theirs."""

    id: str
    folder: str = "."


class Population:
    """The users whom a run protects. `texts` is for fleets only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = load_manifest(folder)
        self.id: str = self.manifest["id"]
        text = folder / self.manifest["text"]
        self.vocabulary = _load_vocabulary(text, self.manifest["vocabulary"])
        self.texts = Texts.load(text, "train", self.manifest[COUNTS]["train"])

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """Return how many tokens each user has; private, like every count."""
        return np.concatenate([np.diff(shard.offsets) for shard in self.texts.shards])

    @property
    def ledger(self) -> NamedLedger | None:
        """Return the ledger these users have, once there is one.

        A folder without `private/` is refused: it does not know who opted out.
        """
        open_salt(self.folder)
        return read_named_ledger(self.folder)

    def pin_ledger(self, ledger: NamedLedger) -> None:
        """Record a ledger, in the manifest and in a file that outlives it.

        So a lost ledger is not mistaken for one that never existed.
        """
        private = self.folder / "private"
        content = ledger._asdict()
        write_atomically(private / LEDGER, json.dumps(content).encode(), 0o600)
        with lock_file(private / MANIFEST_LOCK):
            _save_manifest(self.folder, {**load_manifest(self.folder), "ledger": content})


def _load_vocabulary(text: Path, about: dict[str, Any]) -> Vocabulary:
    path = text / "vocabulary.txt"
    vocabulary = Vocabulary.load(path, about)
    if len(vocabulary) != about["size"]:
        raise DataError(f"{path} is incomplete; build the population again, its ledger stays")
    return vocabulary


def read_ids(folder: Path, split: str) -> set[str]:
    """Return the hashed ids of the users of a split; refuse an incomplete list."""
    manifest = load_manifest(folder)
    path = folder / manifest["text"] / NAMES[split]
    if not has_all_ids(folder, split):
        raise DataError(f"{path} is incomplete; build the population again, its ledger stays")
    return list_ids(folder, split)


def has_all_ids(folder: Path, split: str) -> bool:
    """Tell whether the hashed ids of all users of a split are on disk."""
    return len(list_ids(folder, split)) == read_manifest(folder)[COUNTS][f"{split}_users"]


def list_ids(folder: Path, split: str) -> set[str]:
    """Return the hashed ids of the users of a split, as many as there are on disk."""
    path = folder / read_manifest(folder)["text"] / NAMES[split]
    return set(path.read_text().split()) if path.exists() else set()


class HeldOutUsers:
    """Users kept out of training to measure with.

    They have no guarantee, and every statement says so.
    """

    def __init__(self, folder: Path) -> None:
        manifest = load_manifest(folder)
        self.folder = folder
        self.texts = Texts.load(folder / manifest["text"], "held_out", manifest[COUNTS]["held_out"])

    def __len__(self) -> int:
        return len(self.texts)

    def check_enough(self) -> None:
        """Refuse to publish averages over a few users: they reveal what each of them wrote."""
        if sum(len(text) > 0 for text in self.texts) < LEAST_HELD_OUT:
            raise DataError(
                f"{self.folder} has fewer than {LEAST_HELD_OUT} held-out users, and figures of so"
                " few reveal each; build it from more users, or with a larger `held_out`"
            )


class _SplitWriter:
    """Write the users of a split: their tokens, their hashed ids, and a digest of the tokens."""

    def __init__(
        self, folder: Path, split: str, *, words: int, shard_tokens: int, salt: bytes
    ) -> None:
        self._texts = TextWriter(folder, split, words=words, shard_tokens=shard_tokens)
        self._names = (folder / NAMES[split]).open("x")
        # Keyed, so that guesses at the text cannot be tested.
        self._digest = hmac.new(salt, split.encode(), hashlib.sha256)

    def add(self, hashed_id: str, tokens: list[int] | np.ndarray) -> None:
        self._texts.add(tokens)
        length = len(tokens).to_bytes(8, "little")
        self._digest.update(length + np.asarray(tokens, np.uint32).tobytes())
        self._names.write(f"{hashed_id}\n")

    def digest(self) -> bytes:
        return self._digest.digest()

    def close(self) -> dict[str, Any]:
        """Return what `Texts.load` needs."""
        with self._names:
            self._names.flush()
            os.fsync(self._names.fileno())
        return self._texts.close()


class PopulationWriter:
    """Write users one by one, in the order of their positions; `writing_population` makes one."""

    def __init__(
        self, *, folder: Path, text: Path, vocabulary: Vocabulary, shard_tokens: int
    ) -> None:
        self.folder = folder
        self.text = text
        self.vocabulary = vocabulary
        self.salt = open_salt(folder)
        self._had_ledger = read_named_ledger(folder) is not None
        self._splits: dict[str, _SplitWriter] = {}
        for split in NAMES:
            self._splits[split] = _SplitWriter(
                text,
                split,
                words=len(vocabulary),
                shard_tokens=shard_tokens,
                salt=self.salt,
            )

    def add(self, split: str, hashed_id: str, tokens: list[int] | np.ndarray) -> None:
        self._splits[split].add(hashed_id, tokens)

    def finish(self, about: dict[str, Any], counts: dict[str, Any]) -> Population:
        """Replace the manifest: from now on these are the users' texts."""
        self.vocabulary.save(self.text / "vocabulary.txt")
        written = {split: writer.close() for split, writer in self._splits.items()}
        # A population whose text stays on devices has none here.
        if not written["train"]["shards"] and not about.get("on_devices"):
            raise _nobody_left(counts.get("left_out", {}))
        sync_folder(self.text)
        manifest = {
            "format": FORMAT,
            "id": self._identify(),
            "text": self.text.name,
            "about": about,
            # A lost salt is noticed by it.
            "salt": hashed_id(self.salt, ""),
            "id_rule": id_rule(self.folder),
            "vocabulary": {"size": len(self.vocabulary), **self.vocabulary.about},
            COUNTS: {
                "note": "measured on users' text; do not publish",
                **_sum_shards(written),
                **counts,
                **written,
            },
        }
        with lock_file(self.folder / "private" / MANIFEST_LOCK):
            ledger = read_named_ledger(self.folder)
            # What a build checks, it checks of people who have a ledger.
            if ledger is not None and not self._had_ledger:
                raise DataError(
                    f"{self.folder} got its ledger while this build was made, by a run that"
                    " started, and the people of that run are promised their side: build again"
                )
            if ledger is not None:
                manifest["ledger"] = ledger._asdict()
            _save_manifest(self.folder, manifest)
        return Population(self.folder)

    def _identify(self) -> str:
        """Return a digest of the words and of all users' tokens."""
        words = "\n".join(self.vocabulary.words).encode()
        splits = [writer.digest() for writer in self._splits.values()]
        digest = hmac.new(self.salt, b"".join([words, *splits]), hashlib.sha256)
        return digest.hexdigest()[:16]


def _sum_shards(written: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of users and tokens of each split."""
    sums = {}
    for split, texts in written.items():
        sums[f"{split}_users"] = sum(users for users, _ in texts["shards"])
        sums[f"{split}_tokens"] = sum(tokens for _, tokens in texts["shards"])
    return sums


def _nobody_left(left_out: dict[str, int]) -> DataError:
    reasons = "; ".join(f"{reason}: {count:,}" for reason, count in left_out.items())
    hint = ""
    if "that are not UTF-8" in reasons:
        hint = "; save the text as UTF-8 (iconv -f latin1 -t utf-8)"
    elif "tokens:" in reasons:
        hint = ", or lower `least_tokens`"
    return DataError(
        f"no user is left to train on ({reasons or 'there is no text at all'}): name other"
        f" text{hint}"
    )


@contextmanager
def writing_population(
    folder: Path,
    vocabulary: Vocabulary,
    *,
    shard_tokens: int = SHARD_TOKENS,
    same_people_as: Path | None = None,
) -> Iterator[PopulationWriter]:
    """Yield a writer; a build that does not reach `finish` leaves nothing behind."""
    is_new = not folder.exists()
    if not is_new and not (folder / "manifest.json").exists():
        _check_holds_nothing_else(folder)
    private = folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    busy = DataError(f"another build is writing to {folder}; wait for it, or name another `folder`")
    with lock_file(private / "lock", busy):
        # Whatever is written from here on is private to its owner.
        umask = os.umask(0o077)
        try:
            _remove_leftovers(folder)
            if same_people_as:
                _share_ledger(folder, same_people_as)
            yield PopulationWriter(
                folder=folder,
                text=_make_text_folder(folder),
                vocabulary=vocabulary,
                shard_tokens=shard_tokens,
            )
        finally:
            os.umask(umask)
            if is_new and not (folder / "manifest.json").exists():
                shutil.rmtree(folder)
            else:
                _remove_leftovers(folder)


def _check_holds_nothing_else(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in STAYS and not _is_text(path):
            raise DataError(
                f"{folder} already holds other things ({path.name}); choose a new `folder`"
            )


def _make_text_folder(folder: Path) -> Path:
    """Make the folder of the next build's text."""
    texts = [path.name for path in folder.iterdir() if fullmatch(r"text-\d+", path.name)]
    newest = max((int(name.removeprefix("text-")) for name in texts), default=0)
    text = folder / f"text-{newest + 1}"
    text.mkdir(mode=0o700)
    return text


def check_protections(
    folder: Path,
    *,
    with_runs: Path,
    scrub: bool,
    sensitive: Iterable[str],
    held_out_share: float,
) -> None:
    """Refuse to protect a population less than before, or to hold out people whom a run trained on.

    Args:
        folder: that is built again.
        with_runs: the folder whose ledger counts the runs.
        scrub: whether addresses and numbers are removed.
        sensitive: columns that mark rows to leave out.
        held_out_share: of the users.
    """
    about = read_manifest(folder).get("about", {})
    if about.get("scrubbed") and not scrub:
        raise DataError(
            f"{folder} was built with `scrub=True`: say it again (other people get a folder of"
            " their own)"
        )
    dropped = set(about.get("sensitive_columns", ())).difference(sensitive)
    if dropped:
        raise DataError(
            f"{folder} was built with `columns.sensitive={min(dropped)}`: say it again (other"
            " people get a folder of their own)"
        )
    about_runs = read_manifest(with_runs).get("about", {})
    before = about_runs.get("held_out_share", held_out_share)
    if read_named_ledger(with_runs) is not None and before != held_out_share:
        raise DataError(
            f"{with_runs} has runs that held out a share of {before:g}: with"
            f" `held_out={held_out_share:g}` users they were trained on would pass for held out"
        )


def _remove_leftovers(folder: Path) -> None:
    """Remove text that no manifest names: of an interrupted build, or from before the last one."""
    current = read_manifest(folder).get("text")
    if current is None and (folder / "manifest.json").exists():
        # The manifest is damaged, or of another version, so its meaning is unknown.
        return
    for path in folder.iterdir():
        if _is_text(path) and path.name != current:
            shutil.rmtree(path)


def _is_text(path: Path) -> bool:
    """Tell whether a build made this folder."""
    has_name = fullmatch(r"text-\d+", path.name) is not None
    return has_name and path.is_dir() and (path / "users.txt").exists()


def write_population(
    folder: Path,
    train: dict[str, list[int]],
    held_out: dict[str, list[int]],
    vocabulary: Vocabulary,
    about: dict[str, Any],
    **how: Any,
) -> Population:
    """Write a population of users who are in memory.

    Args:
        folder: of the population.
        train: the word ids of users to train on, by user id.
        held_out: the same of users to measure with.
        vocabulary: of the words.
        about: what the manifest says of the users.
        how: as `writing_population` takes it.
    """
    with writing_population(folder, vocabulary, **how) as writer:
        for split, users in (("train", train), ("held_out", held_out)):
            for user in sorted(users, key=lambda user: (position(user), user)):
                writer.add(split, hashed_id(writer.salt, user), users[user])
        return writer.finish(about, counts={})


def hashed_id(salt: bytes, user: str) -> str:
    """Return what stands for a user on disk."""
    return hmac.new(salt, user.encode(), hashlib.sha256).hexdigest()[:24]


def remember_opt_outs(folder: Path, salt: bytes, users: Iterable[str] = ()) -> frozenset[str]:
    """Return the hashed ids of all who ever opted out of a population.

    Args:
        folder: of the population.
        salt: that ids are hashed with.
        users: ids of others who opt out now; they are recorded.
    """
    path = folder / "private" / OPTED_OUT
    about = read_manifest(folder).get("about", {})
    known = _read_opt_outs(path, least=about.get("opt_outs", 0))
    opted_out = known.union(hashed_id(salt, user) for user in users)
    if opted_out != known:
        _save_opt_outs(path, opted_out)
    return frozenset(opted_out)


def _read_opt_outs(path: Path, least: int) -> set[str]:
    """Return the hashed ids in a file; refuse one with fewer than a build has left out."""
    ids = set(path.read_text().split()) if path.exists() else set[str]()
    if len(ids) < least:
        raise DataError(
            f"{path} lacks some of those who opted out; restore it from a copy. Without one, treat"
            " these people's text as used up: a new folder would forget what was spent on them"
        )
    return ids


def _save_opt_outs(path: Path, ids: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{id}\n" for id in sorted(ids)).encode(), 0o600)


def _save_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode(), 0o600)


def open_salt(folder: Path) -> bytes:
    """Return the salt, made once.

    With another, it would be unknown who opted out and who was trained on.
    """
    path = folder / "private" / SALT
    expected = read_manifest(folder).get("salt")
    has_opt_outs = path.with_name(OPTED_OUT).exists()
    if not path.exists() and expected is None and not has_opt_outs:
        write_atomically(path.with_name(RULE), str(ID_RULE).encode(), 0o600)
        write_atomically(path, secrets.token_bytes(32), 0o600)
    salt = path.read_bytes() if path.exists() else b""
    is_expected = expected in (None, hashed_id(salt, ""))
    if len(salt) != 32 or not is_expected:
        raise DataError(
            f"{path} is lost or damaged, and with it who opted out; restore it from a copy. Without"
            " one, treat these people's text as used up: a new folder would forget what was spent"
            " on them"
        )
    return salt


def id_rule(folder: Path) -> int:
    """Return the rule by which this folder's people have one id for all their spellings."""
    stated = read_manifest(folder).get("id_rule")
    if stated is not None:
        return stated
    path = folder / "private" / RULE
    # The folders of earlier versions do not say.
    rule = path.read_text() if path.exists() else "1"
    if not rule.isdecimal():
        raise DataError(f"{path} is damaged; restore it from a copy")
    return int(rule)


def read_named_ledger(folder: Path) -> NamedLedger | None:
    """Return the ledger that a folder's manifest or its private folder names.

    Either proves that there was one.
    """
    path = folder / "private" / LEDGER
    named = [read_manifest(folder).get("ledger")]
    try:
        if path.exists():
            named.append(json.loads(path.read_text()))
        ledgers = {NamedLedger(**ledger) for ledger in named if ledger is not None}
    except (ValueError, TypeError):
        raise DataError(f"{path} is damaged; restore it from a copy") from None
    if len(ledgers) > 1:
        raise DataError(
            f"{folder / 'manifest.json'} and {path} name two ledgers: restore both from one copy"
        )
    return ledgers.pop() if ledgers else None


def has_ledger_of_people(folder: Path) -> bool:
    """Tell whether a folder has a ledger, and its text is not of simulated users."""
    is_simulated = "simulated" in read_manifest(folder).get("about", {})
    return read_named_ledger(folder) is not None and not is_simulated


def _share_ledger(folder: Path, other: Path) -> None:
    """Give a folder the ledger, salt and opt-outs of another, whose users are the same people."""
    theirs = read_named_ledger(other)
    own = read_named_ledger(folder)
    if theirs is None:
        raise DataError(f"{other} has no ledger yet: open it first")
    shared = NamedLedger(theirs.id, _find_way(folder, other / theirs.folder))
    if own not in (None, shared):
        raise DataError(
            f"{folder} already has a ledger, and two cannot be merged; build another folder with"
            " this `same_people_as`, and keep this one for what its ledger says"
        )
    salt = _share_salt(folder, other)
    opted_out = remember_opt_outs(other, salt) | remember_opt_outs(folder, salt)
    private = folder / "private"
    _save_opt_outs(private / OPTED_OUT, opted_out)
    write_atomically(private / LEDGER, json.dumps(shared._asdict()).encode(), 0o600)


def _find_way(folder: Path, to: Path) -> str:
    """Return a path as seen from a folder."""
    return os.path.relpath(to.resolve(), folder.resolve())


def _share_salt(folder: Path, other: Path) -> bytes:
    """Give a folder the salt of another, and return it."""
    salt = open_salt(other)
    path = folder / "private" / SALT
    if path.exists() and open_salt(folder) != salt:
        raise DataError(
            f"{folder} knows its people by other hashes than {other}; build another folder with"
            " this `same_people_as`, and keep this one for what its ledger says"
        )
    write_atomically(path.with_name(RULE), str(id_rule(other)).encode(), 0o600)
    write_atomically(path, salt, 0o600)
    return salt


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the current manifest, or {} where none can be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def load_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest; refuse a folder that is not a population of this version."""
    if not (folder / "manifest.json").exists():
        what = "name the folder of a population"
        if not folder.exists():
            what = (
                "if these people had a population, bring its folder back, as its ledger knows what"
                " was spent on them"
            )
        raise DataError(
            f"{not_a('a population', folder)}; {what}. For people who never had one:"
            " `tt.build_population(TEXT, FOLDER)`"
        )
    manifest = read_manifest(folder)
    if manifest.get("format") != FORMAT or COUNTS not in manifest:
        raise DataError(
            f"{folder} was written by another version of taciturn, or is damaged; build it again,"
            " its ledger stays"
        )
    return manifest
