"""When a device's owner lets it take part: while it charges, on an unmetered network, while it is
idle.

On Linux NetworkManager and systemd-logind answer (through `busctl`). Elsewhere a command of the
owner's does, by its exit status.
"""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from taciturn.fleets.devices.transport import LinkError

POWER = Path("/sys/class/power_supply")
PLUGGED_IN = {"Charging", "Full", "Not charging"}
# for a command to answer
SECONDS = 30


def charging() -> bool:
    """Ask the kernel. A machine without batteries counts as charging; batteries of a mouse or a
    headset do not count.
    """
    try:
        supplies = [one for one in sorted(POWER.iterdir()) if _line(one / "scope") != "Device"]
        batteries = [one for one in supplies if _line(one / "type") == "Battery"]
        online = any(_line(one / "online") == "1" for one in supplies if one not in batteries)
        return (
            online or not batteries or any(_line(one / "status") in PLUGGED_IN for one in batteries)
        )
    # a machine that cannot say may be running on its battery
    except OSError as error:
        raise LinkError(
            f"{error.filename} cannot be asked whether this device charges ({error.strerror}): see"
            " --while-command"
        ) from None


def is_unmetered() -> bool:
    """Ask NetworkManager, which knows or guesses (NMMetered: 2 and 4 are no)."""
    manager = "org.freedesktop.NetworkManager"
    return _property(manager, "/org/freedesktop/NetworkManager", manager, "Metered") in (
        "u 2",
        "u 4",
    )


def idle() -> bool:
    """Ask systemd-logind, which looks at every session."""
    return (
        _property(
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "IdleHint",
        )
        == "b true"
    )


CONDITIONS = {"charging": charging, "unmetered": is_unmetered, "idle": idle}


def why_not_now(words: Sequence[str], command: str | None) -> Callable[[], str | None]:
    """Return a function that may be called repeatedly; refuse at once what cannot be answered
    here.
    """
    if unknown := [word for word in words if word not in CONDITIONS]:
        raise LinkError(
            f"--while takes {', '.join(CONDITIONS)}, not {unknown[0]!r}; for anything else use"
            " --while-command"
        )
    asked = shlex.split(command or "")
    if (
        command is not None and not asked
        # from an unset variable: not a wish to take part at all times
    ):
        raise LinkError("--while-command is empty: give it a command, or leave it out")

    def why_not() -> str | None:
        if missing := [word for word in words if not CONDITIONS[word]()]:
            return f"it is not {missing[0]}"
        return "--while-command says no" if asked and _run(asked).returncode else None

    why_not()
    return why_not


def _line(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _property(*names: str) -> str:
    return _run(["busctl", "--system", "get-property", *names]).stdout.strip()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "")
    except OSError as error:
        raise LinkError(
            f"{command[0]} cannot be asked whether this device may take part ({error.strerror}):"
            " see --while-command"
        ) from None
