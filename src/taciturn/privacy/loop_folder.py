"""The folder of your own loop: what it needs to resume after a crash.

FOLDER/
  loop.json                 what it was made with; the run's name in its ledger
  private/                  mode 0700, deleted when the loop is closed:
    root                    of all randomness
    opened                  the hash of the row that declared the run
    releases/               records of releases that no saved state has yet
    participation.log       who took part, where the claim is about how often users do
    state                   the state to resume from
  parameters.safetensors    those of the last state, once the loop is closed

**Guarantee:** one process at a time uses a folder. A state is on disk (fsync), whole, before its
round's result is given out. It is read back only as it was written: a keyed checksum covers it, so
noise never continues from damaged numbers, and it names the row of the ledger at which it was
saved, so a ledger or a folder that was put back is refused. A folder whose run was declared is
never declared again. Nothing is written into one that was deleted, and perhaps made anew; no state
takes the place of a later one.
"""

import hmac
import json
import math
import os
import shutil
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import jax
import numpy as np
import safetensors.numpy

from taciturn import randomness, trees
from taciturn.core import Params, PyTree, TrainState
from taciturn.files import FolderExists, lock_file, new_folder, sync_folder, write_atomically
from taciturn.privacy.fingerprint import Origin, Shapes
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.hash_chain import LedgerError
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.own_loop import OwnLoopError

ABOUT = "loop.json"
PARAMETERS = "parameters.safetensors"
CHECKSUM_BYTES = 32
ANOTHER = "name another `folder` for a new run, which is charged beside it"
ANOTHER_FOLDER = f"name another `folder`: a loop has one that is new, empty, or holds a {ABOUT}"


class Settings(NamedTuple):
    """What a loop was made with. A resumed one is made with the same."""

    # Its run's name in the ledger.
    run: str
    # The ledger's id.
    ledger: str
    rounds: int
    # null: without a budget.
    epsilon: float | None
    delta: float
    is_seeded: bool
    # How many users there are.
    users: int
    # The identity of their data.
    population: str
    # What a release costs.
    cost: str


class _SavedState(NamedTuple):
    """The state after a round, as its file has it."""

    round: int
    # The row of the ledger at which it was saved.
    head: str
    origin: Origin
    # The names of the parameters, which are the first arrays.
    parameters: list[str]
    arrays: list[np.ndarray]

    def restore(self, shapes: Shapes) -> TrainState:
        """Return the state in the structure of these shapes."""
        like: PyTree = (shapes.server, shapes.mechanism, shapes.estimate)
        if not self.round:
            like = (shapes.first, shapes.mechanism, None)
        leaves, structure = jax.tree.flatten(like)
        if [leaf.shape for leaf in leaves] != [array.shape for array in self.arrays]:
            raise OwnLoopError(
                "the saved state has arrays of other shapes than the algorithm's: give the"
                " algorithm and the parameters that the loop began with"
            )
        server, mechanism, estimate = jax.tree.unflatten(structure, self.arrays)
        return TrainState(
            round=self.round,
            server=server,
            mechanism=mechanism,
            ledger_head=self.head,
            estimate=estimate,
        )


class _Hold:
    """A process's hold on a folder: all its curators of this folder share one."""

    def __init__(self, path: Path) -> None:
        # What keeps two curators of one process apart.
        self.mutex = Lock()
        busy = OwnLoopError(
            f"another process is using {path}: wait until it ends, or stop it; then call the same"
            " lines again"
        )
        stack = ExitStack()
        file = stack.enter_context(lock_file(path / ABOUT, busy))
        # A folder that is deleted and made anew is another.
        self._file_number = os.fstat(file.fileno()).st_ino
        # A process that is forked inherits the file, and so its lock.
        self._process = os.getpid()
        weakref.finalize(self, stack.close)

    def is_of(self, path: Path) -> bool:
        """Tell whether this process has the folder that is there now."""
        about = path / ABOUT
        is_there = about.exists() and about.stat().st_ino == self._file_number
        return is_there and self._process == os.getpid()


_HOLDS: weakref.WeakValueDictionary[Path, _Hold] = weakref.WeakValueDictionary()


def _hold(path: Path) -> _Hold:
    """Return the hold on a folder of this process, or take it."""
    hold = _HOLDS.get(path)
    if hold is None or not hold.is_of(path):
        hold = _Hold(path)
        _HOLDS[path] = hold
    return hold


class LoopFolder:
    """A folder, held by this process."""

    def __init__(self, path: Path) -> None:
        """Take hold of a folder that has a loop.

        Raises:
            OwnLoopError: if another process has it, the loop is closed, or a file is damaged.
        """
        self.path = path
        self.private = path / "private"
        self._held = _hold(path)
        self.settings = _read_settings(path / ABOUT)
        self.root = b""
        # The state that is saved, but for its arrays.
        self.saved: _SavedState | None = None
        # What this process began with.
        self._origin: Origin | None = None
        if not self.is_closed:
            self._open_secrets()

    def _open_secrets(self) -> None:
        path = self.private / "root"
        if not path.exists():
            raise _explain_damage(path)
        self.root = path.read_bytes()
        if len(self.root) != randomness.ROOT_BYTES:
            raise _explain_damage(path)
        self.saved = self._read_state()
        if self.saved:
            self.saved = self.saved._replace(arrays=[])

    @property
    def mutex(self) -> Lock:
        """Return what keeps two curators of this process apart."""
        return self._held.mutex

    def check_held(self) -> None:
        """Refuse to write into a folder that was deleted, or is another process's.

        In its place may be the folder of a new loop, whose state would be lost.
        """
        if not self._held.is_of(self.path):
            raise OwnLoopError(
                f"the loop in {self.path} was deleted or moved while it ran, or this process was"
                " forked from the one that runs it: call the same lines again, which resume what is"
                " there now or start a new run"
            )

    @property
    def is_closed(self) -> bool:
        """Tell whether the loop has ended: it has its parameters, and no root."""
        has_root = (self.private / "root").exists()
        return (self.path / PARAMETERS).exists() and not has_root

    def refuse_if_closed(self, ledger: Ledger) -> None:
        """Refuse to resume a loop that has ended."""
        if not self.is_closed:
            return
        # A crash may have come while it was closed.
        if self.private.exists():
            shutil.rmtree(self.private)
        run = self.settings.run
        if ledger.run_rows(run) and not ledger.is_closed(run):
            ledger.close(run)
        raise OwnLoopError(
            f"the loop in {self.path} is closed: its last parameters are in {PARAMETERS}, and its"
            f" secrets are deleted. To train further, {ANOTHER}"
        )

    def check_settings(self, settings: Settings, root: bytes | None) -> None:
        """Refuse to resume with other arguments than the loop was made with.

        Args:
            settings: what is given now.
            root: what follows from the seed, if one is given.
        """
        made = self.settings
        if made.is_seeded != settings.is_seeded or (root is not None and root != self.root):
            raise self._differs("another `seed` than", "the same, or none if it had none")
        # Before δ, which may follow from their number.
        if made.population != settings.population:
            raise self._differs(
                f"{settings.users:,} `users` who are not the {made.users:,} of",
                "the same, with the same data and in the same order",
            )
        for name in ("rounds", "epsilon", "delta"):
            before = getattr(made, name)
            now = getattr(settings, name)
            if before != now:
                raise self._differs(f"`{name}` = {now}, not {before} as", f"`{name}` = {before}")
        if made.cost != settings.cost:
            raise self._differs("an `algorithm` whose rounds cost otherwise than in", "the same")

    def _differs(self, what: str, remedy: str) -> OwnLoopError:
        return OwnLoopError(
            f"the curator is given {what} the loop in {self.path}. To resume it, give {remedy};"
            f" or {ANOTHER}"
        )

    def declare(self, account: Account) -> None:
        """Open the account of the loop's run, or reopen it where the run was declared before.

        Raises:
            LedgerError: if the ledger lacks rows that the folder knows of.
        """
        for incomplete in self.private.rglob(".*.partial"):
            incomplete.unlink()
        marker = self.private / "opened"
        opened = marker.read_text() if marker.exists() else None
        rows = account.ledger.run_rows(self.settings.run)
        if opened is not None and (not rows or rows[0]["hash"] != opened):
            raise LedgerError(
                f"{account.ledger.path} lacks the rows of the loop in {self.path}: an older copy"
                " was put back. Restore its newest copy"
            )
        # With one seed, two loops on the same users cannot be told apart by them.
        is_charged = any(row["kind"] == "charge" for row in rows)
        is_another = bool(rows) and rows[0]["population"] != self.settings.population
        if not rows:
            self._open_account(account)
        elif is_another or (opened is None and is_charged):
            raise OwnLoopError(
                f"the loop in {self.path} was interrupted before its run was declared, and another"
                f" has taken its name, {self.settings.run!r}. Nothing was charged for it: delete"
                " the folder, and call the same lines again"
            )
        else:
            head = self.saved.head if self.saved else None
            account.reopen(head)
        if opened is None:
            # Before anything is charged, so that nothing charged is ever declared again.
            write_atomically(marker, account.rows[0]["hash"].encode(), 0o600)

    def _open_account(self, account: Account) -> None:
        """Declare the run; a refused one leaves nothing to resume."""
        try:
            account.open()
        except LedgerError:
            (self.path / ABOUT).unlink()
            shutil.rmtree(self.private)
            # Whatever else is there stays.
            with suppress(OSError):
                self.path.rmdir()
            raise

    def begin(self, origin: Origin, round: int) -> None:
        """Refuse another algorithm, or other parameters, than those that the loop began with.

        Args:
            origin: what this process begins with.
            round: of the state that it begins with; only the first has the loop's start.
        """
        self._origin = origin
        if self.saved is None:
            return
        if round not in (0, self.saved.round):
            raise OwnLoopError(
                f"the state that is given is of round {round}, and the loop in {self.path} has"
                f" round {self.saved.round}: give the parameters that it began with, and it resumes"
                " from its own state"
            )
        began = self.saved.origin
        # Another version traces one program otherwise, and another device rounds otherwise.
        is_comparable = began.environment == origin.environment
        self._origin = origin._replace(start=began.start)
        if not is_comparable:
            return
        if round == 0 and began.start != origin.start:
            raise OwnLoopError(
                f"`start_from` has other parameters than those that the loop in {self.path} began"
                " with. To resume it, give the same each time, drawn from a fixed key if they are"
                f" random; or {ANOTHER}"
            )
        for name in ("user_update", "mechanism", "server_update"):
            if getattr(began, name) != getattr(origin, name):
                raise OwnLoopError(
                    f"the {name} of `algorithm` is not the one that the loop in {self.path} began"
                    f" with. To resume it, take back what was changed; or {ANOTHER}"
                )

    def save(self, state: TrainState) -> None:
        """Save a state. It is on disk when this returns.

        Raises:
            OwnLoopError: a later one is saved already.
        """
        assert self._origin is not None
        self.check_held()
        # The records that an older one needs are gone.
        if self.saved and state.round < self.saved.round:
            raise OwnLoopError(
                f"the loop in {self.path} has round {self.saved.round} already, and this is round"
                f" {state.round}, of another `rounds` of the same curator: stop one of the two"
            )
        kept = (state.server, state.mechanism, state.estimate)
        leaves = jax.tree.leaves(jax.device_get(kept))
        saved = _SavedState(
            round=state.round,
            head=state.ledger_head,
            origin=self._origin,
            parameters=_name_parameters(state.server.params),
            arrays=[np.asarray(leaf, order="C") for leaf in leaves],
        )
        content = [_write_header(saved), *map(_as_bytes, saved.arrays)]
        write_atomically(
            self.private / "state",
            [*content, self._checksum(content)],
            mode=0o600,
        )
        self.saved = saved._replace(arrays=[])

    def load(self, shapes: Shapes) -> TrainState | None:
        """Return the state that is saved, if one is, in the structure of these shapes."""
        saved = self._read_state()
        return saved.restore(shapes) if saved else None

    def close(self) -> None:
        """Keep the last parameters, and delete all secrets.

        A second call, after one that was interrupted, deletes what is left.
        """
        self.check_held()
        if not self.is_closed:
            self._keep_parameters()
            # First, so that a crash leaves a closed loop, never one that could resume without a
            # record.
            (self.private / "root").unlink()
            sync_folder(self.private)
        self.saved = None
        if self.private.exists():
            shutil.rmtree(self.private)

    def _keep_parameters(self) -> None:
        saved = self._read_state()
        arrays = {}
        if saved:
            names = [name or "parameters" for name in saved.parameters]
            arrays = dict(zip(names, saved.arrays, strict=False))
        # Nothing here knows whether they may be published.
        write_atomically(self.path / PARAMETERS, safetensors.numpy.save(arrays), 0o600)

    def _read_state(self) -> _SavedState | None:
        path = self.private / "state"
        if not path.exists():
            return None
        content = path.read_bytes()
        signed = memoryview(content)[:-CHECKSUM_BYTES]
        if not hmac.compare_digest(self._checksum([signed]), content[-CHECKSUM_BYTES:]):
            raise _explain_damage(path)
        header_end = content.index(b"\n") + 1
        return _parse_state(content[:header_end], signed[header_end:])

    def _checksum(self, parts: list[bytes | memoryview]) -> bytes:
        key = randomness.derive(self.root, "state", 0)
        checksum = hmac.new(key, digestmod="sha256")
        for part in parts:
            checksum.update(part)
        return checksum.digest()


def find_loop(path: Path) -> LoopFolder | None:
    """Return the loop in a folder, or None where there is nothing yet.

    Raises:
        OwnLoopError: if the loop cannot be resumed.
        FolderExists: if there is something else.
    """
    path = path.resolve()
    if (path / ABOUT).exists():
        return LoopFolder(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FolderExists(f"{path} is not the folder of a loop: {ANOTHER_FOLDER}")
    return None


def make_loop(path: Path, settings: Settings, root: bytes) -> LoopFolder:
    """Make the folder of a new loop: complete, or not at all."""
    path = path.resolve()
    with new_folder(path, ANOTHER_FOLDER) as new:
        private = new / "private"
        private.mkdir(mode=0o700)
        write_atomically(private / "root", root, 0o600)
        write_atomically(new / ABOUT, json.dumps(settings._asdict(), indent=1).encode() + b"\n")
    return LoopFolder(path)


def _read_settings(path: Path) -> Settings:
    try:
        return Settings(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise _explain_damage(path) from None


def _name_parameters(params: Params) -> list[str]:
    """Return a name for each: that of its layer, unless two would have one name."""
    names = trees.layer_names(params)
    if len(set(names)) == len(names):
        return names
    # {"a/b": …} and {"a": {"b": …}} differ.
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [jax.tree_util.keystr(path) for path, _ in leaves]


def _write_header(state: _SavedState) -> bytes:
    about = {
        "round": state.round,
        "head": state.head,
        "origin": state.origin._asdict(),
        "parameters": state.parameters,
        "arrays": [(str(array.dtype), array.shape) for array in state.arrays],
    }
    return json.dumps(about).encode() + b"\n"


def _as_bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _parse_state(header: bytes, numbers: memoryview) -> _SavedState:
    about = json.loads(header)
    arrays = []
    for kind, shape in about["arrays"]:
        # JAX has types that NumPy does not name.
        dtype = jax.numpy.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        array = np.frombuffer(numbers[:size], np.uint8).view(dtype)
        arrays.append(array.reshape(shape))
        numbers = numbers[size:]
    return _SavedState(
        round=about["round"],
        head=about["head"],
        origin=Origin(**about["origin"]),
        parameters=about["parameters"],
        arrays=arrays,
    )


def _explain_damage(path: Path) -> OwnLoopError:
    return OwnLoopError(
        f"{path} is damaged, so this loop cannot be resumed: restore the folder from its newest"
        f" copy, or {ANOTHER}. What was released stays charged"
    )
