"""Copies of the folders beside this file, to be opened as if they had never been moved."""

import json
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

MADE = Path(__file__).parent / "made_by_694c84f"
ABOUT = "made_with.json"


def copy_folders(to: Path, made: Path = MADE) -> None:
    """Copy all that was made, with the modes that git does not keep, and with ledgers in place."""
    shutil.copytree(made, to)
    modes = json.loads((made / ABOUT).read_text())["modes"]
    for name, mode in modes.items():
        (to / name).chmod(int(mode, base=8))
    for ledger in find_ledgers(to):
        put_in_place(ledger)


def find_ledgers(folder: Path) -> list[Path]:
    """Find the ledgers of people; a run's own copy of its rows has no head beside it."""
    return [ledger for ledger in folder.rglob("*.jsonl") if ledger.with_suffix(".head").exists()]


def put_in_place(ledger: Path) -> None:
    """Name this file in its head, which knows a copy by its number, its time and its path."""
    found = ledger.stat()
    write_standing(
        ledger,
        file=found.st_ino,
        changed=found.st_ctime_ns,
        place=str(ledger.resolve()),
    )


def write_standing(ledger: Path, **standing: int | str) -> None:
    head = ledger.with_suffix(".head")
    head.write_text(json.dumps(json.loads(head.read_text()) | standing))


def describe_arithmetic() -> dict[str, str]:
    """Describe what decides the last bit of what a model learns."""
    cpu = Path("/proc/cpuinfo")
    flags = set(cpu.read_text().split()) if cpu.exists() else set[str]()
    return {
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "machine": platform.machine(),
        "instructions": " ".join(sorted(flags & {"avx2", "avx512f", "fma"})),
    }
