"""When a device's owner lets it take part: charging, on an unmetered network, or idle.

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
# For a command to answer.
SECONDS = 30


def is_charging() -> bool:
    """Ask the kernel.

    A machine without batteries counts as charging; batteries of a mouse or a headset do not count.
    """
    batteries = []
    others = []
    try:
        for supply in sorted(POWER.iterdir()):
            if _read_line(supply / "scope") == "Device":
                continue
            if _read_line(supply / "type") == "Battery":
                batteries.append(supply)
            else:
                others.append(supply)
        is_online = any(_read_line(supply / "online") == "1" for supply in others)
        if is_online or not batteries:
            return True
        return any(_read_line(battery / "status") in PLUGGED_IN for battery in batteries)
    # A machine that cannot say may be running on its battery.
    except OSError as error:
        raise LinkError(
            f"{error.filename} cannot be asked whether this device charges ({error.strerror}): see"
            " `while_command`"
        ) from None


def is_unmetered() -> bool:
    """Ask NetworkManager, which knows or guesses (NMMetered: 2 and 4 are no)."""
    metered = _ask_system_bus(
        service="org.freedesktop.NetworkManager",
        path="/org/freedesktop/NetworkManager",
        interface="org.freedesktop.NetworkManager",
        property="Metered",
    )
    return metered in ("u 2", "u 4")


def is_idle() -> bool:
    """Ask systemd-logind, which looks at every session."""
    idle = _ask_system_bus(
        service="org.freedesktop.login1",
        path="/org/freedesktop/login1",
        interface="org.freedesktop.login1.Manager",
        property="IdleHint",
    )
    return idle == "b true"


CONDITIONS = {"charging": is_charging, "unmetered": is_unmetered, "idle": is_idle}


def why_not_now(words: Sequence[str], command: str | None) -> Callable[[], str | None]:
    """Return a function that says why the device does not take part now, or None if it does.

    Args:
        words: names of conditions that have to hold.
        command: one that has to succeed, if there is one.

    Raises:
        LinkError: at once, if this machine cannot answer.
    """
    for word in words:
        if word not in CONDITIONS:
            raise LinkError(
                f"`while` takes {', '.join(CONDITIONS)}, not {word!r}; for anything else use"
                " `while_command`"
            )
    arguments = shlex.split(command or "")
    # From an unset variable: this is not a wish to take part at all times.
    if command is not None and not arguments:
        raise LinkError("`while_command` is empty: give it a command, or do without the option")

    def why_not() -> str | None:
        # All are asked, so that the first call finds out whether this machine can answer.
        unmet = [word for word in words if not CONDITIONS[word]()]
        if unmet:
            return f"it is not {unmet[0]}"
        if arguments and _run(arguments).returncode:
            return "--while-command says no"
        return None

    why_not()
    return why_not


def _read_line(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _ask_system_bus(*, service: str, path: str, interface: str, property: str) -> str:
    command = ["busctl", "--system", "get-property", service, path, interface, property]
    return _run(command).stdout.strip()


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
            " see `while_command`"
        ) from None
