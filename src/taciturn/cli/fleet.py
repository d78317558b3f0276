"""`taciturn fleet`: training over a network of devices that keep their text."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taciturn.cli.command_classes import group
from taciturn.cli.log_lines import logged_lines
from taciturn.cli.output import console, print_finished
from taciturn.cli.progress_display import fleet_view
from taciturn.cli.train import Settings
from taciturn.files import not_a
from taciturn.fleets.devices.transport import LinkError

if TYPE_CHECKING:
    from taciturn.cli.progress_display import FleetView
    from taciturn.fleets.enrolment import EnrolledFile
    from taciturn.fleets.wire.redis_store import RedisStore
    from taciturn.fleets.wire.server import WireServer

fleet_app = group(
    "fleet",
    "Train on real devices, or try a fleet on this machine.",
    "taciturn fleet up 5 recipe.toml",
)
# In which a device ends once it gets SIGTERM.
END_SECONDS = 20
TACITURN = (sys.executable, "-c", "from taciturn.cli import main; main()")
# Hours that a device rests in a fleet on this machine.
NO_REST = 1e-6
# What is longer is a request, not the path of a file; of a longer one only the beginning is shown.
LONGEST_PATH = 256
LONGEST_SHOWN = 80
Store = typer.Option(
    envvar="TACITURN_STORE",
    help="the Redis of server and front ends: redis://host:port, or rediss:// elsewhere",
)
Metrics = typer.Option(
    help="show counts for Prometheus at /metrics on this port of this machine, or on host:port"
)
JsonLog = typer.Option("--json-log", help="log lines as JSON, on standard error")
Fleet = typer.Argument(
    help=(
        "the server's folder; if the server is elsewhere, any folder for enrolled.txt, to be copied"
        " there"
    )
)
Authority = typer.Option(
    help="folder of the fleet's authority (default: FLEET-authority, beside it)"
)
Days = typer.Option(min=1, help="how long certificates are valid")
# Settings that turn a recipe into one for devices.
OVER_DEVICES = (
    "fleet.kind=devices",
    "privacy.encoding=modular",
)


@fleet_app.command()
def new(
    fleet: Annotated[Path, typer.Argument(help="new folder for the server's side")],
    recipe: Annotated[
        Path, typer.Argument(help='a recipe with algorithm = "dp-ftrl" and min-separation')
    ],
    set: Settings = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="name or address by which devices know the server, besides localhost"),
    ] = None,
) -> dict[str, Any]:
    """Make a fleet. It has an authority, a certificate for the server, and the recipe with its
    noise worked out.

    The recipe's population lends its words and held-out users; the text to train on is on devices.
    Move FLEET-authority, beside FLEET, to where the server cannot read it: with its keys anyone can
    pretend to be the server, or invent devices.

    Example: taciturn fleet new keyboard-fleet recipe.toml --name fleet.example.org
    """
    from taciturn.fleets.assemble import count_needed
    from taciturn.fleets.enrolment import authority_folder_beside
    from taciturn.fleets.fleet_folders import new_fleet
    from taciturn.recipe.text import load_recipe

    settings = [*(set or ()), *OVER_DEVICES]
    loaded = load_recipe(recipe, settings)
    new_fleet(fleet, loaded, tuple(name or ()))
    authority = authority_folder_beside(fleet)
    console.print(
        f"{fleet} is ready. Keep {authority} away from the server: with its keys anyone can"
        " invent devices."
    )
    needed = count_needed(loaded)
    console.print(
        f"Enrol {needed} devices or more: taciturn fleet enrol {fleet} REQUEST …; then: taciturn"
        f" fleet serve {fleet}"
    )
    return {"fleet": str(fleet), "authority": str(authority), "devices_needed": needed}


@fleet_app.command()
def enrol(
    fleet: Annotated[Path, Fleet],
    requests: Annotated[
        list[str],
        typer.Argument(help="what `taciturn fleet device FOLDER --new` printed, or files with it"),
    ],
    authority: Annotated[Path | None, Authority] = None,
    days: Annotated[int, Days] = 365,
) -> dict[str, Any]:
    """Enrol devices: the authority signs certificates for their keys.

    Writes FLEET/enrolled.txt. If the server is elsewhere, copy that file there; a running server or
    front end reads it again. Besides its key, a device needs a copy of the fleet's folder
    for-devices/ as DEVICE/fleet; it gets its certificate from the server.

    Example: taciturn fleet enrol keyboard-fleet phone-1/request.txt phone-2/request.txt
    """
    from taciturn.fleets import enrolment

    lines = [_read_request(request) for request in requests]
    folder = authority or enrolment.authority_folder_beside(fleet)
    numbers = enrolment.enrol(folder, fleet, lines, days)
    pairs = list(zip(requests, numbers, strict=True))
    for request, number in pairs:
        console.print(f"device {number}: {_shorten(request)}")
    enrolled = len(enrolment.read_enrolled(fleet).certificates)
    are_enrolled = "1 device is enrolled" if enrolled == 1 else f"{enrolled} devices are enrolled"
    console.print(f"{are_enrolled} in {fleet}")
    return {"devices": dict(pairs)}


def _shorten(request: str) -> str:
    return request if len(request) < LONGEST_SHOWN else f"{request[:60]}…"


def _read_request(request: str) -> str:
    """Return a request, or what is in the file with it."""
    if len(request) < LONGEST_PATH and Path(request).is_file():
        return Path(request).read_text(errors="replace")
    return request


@fleet_app.command()
def dismiss(
    fleet: Annotated[Path, Fleet],
    devices: Annotated[
        list[int],
        typer.Argument(help="their numbers, as `taciturn fleet enrol` printed them", min=0),
    ],
    authority: Annotated[Path | None, Authority] = None,
) -> dict[str, int]:
    """Dismiss devices for good. The authority signs a new list of dismissed devices, whose keys are
    never accepted again.

    A server with that list refuses them, and so does every device that has seen it. If the server
    is elsewhere, copy enrolled.txt there.

    Example: taciturn fleet dismiss keyboard-fleet 17
    """
    from taciturn.fleets import enrolment

    folder = authority or enrolment.authority_folder_beside(fleet)
    number = enrolment.dismiss(folder, fleet, devices)
    dismissed = len(enrolment.read_enrolled(fleet).dismissed.devices)
    console.print(f"{dismissed} devices are dismissed (list {number})")
    return {"list": number}


@fleet_app.command()
def renew(
    fleet: Annotated[Path, Fleet],
    authority: Annotated[Path | None, Authority] = None,
    days: Annotated[int, Days] = 365,
) -> dict[str, int]:
    """Renew the certificates that expire within three months. Devices keep their keys, and get the
    certificates from the server.

    Example: taciturn fleet renew keyboard-fleet
    """
    from taciturn.fleets import enrolment

    folder = authority or enrolment.authority_folder_beside(fleet)
    count = enrolment.renew(folder, fleet, days)
    to_do = ""
    if count:
        path = fleet / enrolment.ENROLLED
        to_do = f"; where the server is elsewhere, copy {path} there"
    console.print(f"{count} certificates renewed{to_do}")
    return {"renewed": count}


@fleet_app.command()
def serve(
    fleet: Annotated[
        Path, typer.Argument(help="the server's folder, made by `taciturn fleet new`")
    ],
    run: Annotated[Path | None, typer.Option(help="folder of the run (default: FLEET/run)")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume the run if it was interrupted")
    ] = False,
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0 for every network of this machine")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="without TLS; on this machine only")
    ] = False,
    store: Annotated[str | None, Store] = None,
    metrics: Annotated[str | None, Metrics] = None,
    json_log: Annotated[bool, JsonLog] = False,
) -> dict[str, Any]:
    """Train on devices. Each trains on its own text, and only a securely aggregated sum reaches the
    server.

    The server waits for devices (`taciturn fleet device`), asks more of them than it needs,
    continues without those that drop out, and repeats a round with too few reports. If it is
    interrupted, continue with --resume (which also starts a first run): every released round is
    charged, exactly once. With --store it does not listen itself: devices come through front ends
    (`taciturn fleet front-end`).

    Example: taciturn fleet serve keyboard-fleet --host 0.0.0.0 --port 8443
    """
    from taciturn.fleets.enrolment import EnrolledFile
    from taciturn.fleets.wire.metrics import metrics_page
    from taciturn.fleets.wire.server import shared_server, wire_server

    enrolled = EnrolledFile(fleet)
    with logged_lines(json_log), metrics_page(metrics):
        if store:
            opening = shared_server(fleet / "wire", _open_redis(store, enrolled))
        else:
            opening = wire_server(fleet / "wire", host, port, enrolled.number_of, insecure)
        with opening as server:
            return _serve(server, enrolled, fleet, run or fleet / "run", resume)


@fleet_app.command("front-end", endless=True)
def front_end(
    fleet: Annotated[
        Path,
        typer.Argument(help="the server's folder, or one with copies of wire/ and enrolled.txt"),
    ],
    store: Annotated[str, Store],
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0 for every network of this machine")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="without TLS; on this machine only")
    ] = False,
    metrics: Annotated[str | None, Metrics] = None,
    json_log: Annotated[bool, JsonLog] = False,
) -> None:
    """Serve devices as one of several front ends. It has the server's certificate; the server is
    elsewhere, at the same --store.

    A front end keeps no state: stop it or start another at any time, and devices reconnect by the
    name they know. After `taciturn fleet enrol`, `dismiss` or `renew` copy enrolled.txt again; it
    is read while running.

    Example: taciturn fleet front-end keyboard-fleet --store rediss://redis.example.org:6379 --host
    0.0.0.0 --port 8443
    """
    from taciturn.fleets.enrolment import EnrolledFile
    from taciturn.fleets.wire.device import exit_on_sigterm
    from taciturn.fleets.wire.metrics import metrics_page
    from taciturn.fleets.wire.server import front_end

    enrolled = EnrolledFile(fleet)
    opening = front_end(
        fleet / "wire",
        host,
        port,
        _open_redis(store, enrolled),
        enrolled.number_of,
        insecure,
    )
    with logged_lines(json_log), exit_on_sigterm(), metrics_page(metrics), opening as opened:
        devices = len(enrolled.read().certificates)
        console.print(f"{devices} devices are enrolled; this front end listens on {opened.address}")
        opened.wait()


@fleet_app.command(endless=True)
def device(
    folder: Annotated[
        Path,
        typer.Argument(
            help="the device's own folder, with a copy of the fleet's for-devices/ as fleet/"
        ),
    ],
    new: Annotated[
        bool,
        typer.Option(
            "--new",
            help="make a key that stays here, and print a request for `taciturn fleet enrol`",
        ),
    ] = False,
    server: Annotated[str | None, typer.Option(help="host:port of `taciturn fleet serve`")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="its user's messages: .txt, one on each line, or a table; kept in the folder"
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="without TLS; on this machine only")
    ] = False,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help="never take part again, and delete the text")
    ] = False,
    while_: Annotated[
        str,
        typer.Option(
            "--while",
            help="take part only while charging,unmetered,idle (or some of them)",
            show_default=False,
        ),
    ] = "",
    while_command: Annotated[
        str | None, typer.Option(help="take part only while this command exits with status 0")
    ] = None,
    least_tokens: Annotated[
        int, typer.Option(min=1, help="take part only with at least this much text")
    ] = 1,
    delete_used: Annotated[
        bool, typer.Option("--delete-used", help="delete text once it was used for a report")
    ] = False,
) -> None:
    """Run a device. It keeps a person's text, and trains on it when the server asks, at most as
    often as the recipe allows.

    FOLDER/participation.json records when it took part, and survives restarts of both sides. Stop
    it with Ctrl-C; start it again any time.

    Example: taciturn fleet device phone-1 --server fleet.example.org:8443 --data messages.txt
    --while charging,unmetered
    """
    from taciturn.fleets import fleet_folders
    from taciturn.fleets.devices.eligibility import why_not_now
    from taciturn.fleets.wire.device import run_device
    from taciturn.fleets.wire.tls import AUTHORITY_CERTIFICATE
    from taciturn.keyboard.personal_model import messages_of

    if new:
        _make_device(folder)
        return
    if opt_out:
        _opt_out(folder)
        return
    if data is not None:
        messages, _ = messages_of(data, fleet_folders.vocabulary_of(folder))
        fleet_folders.save_text(folder, [word for message in messages for word in message])
    if server is None:
        raise LinkError("name the server: --server host:port")
    eligible = why_not_now([word for word in while_.split(",") if word], while_command)
    handler = fleet_folders.open_device(folder, eligible, least_tokens, delete_used)
    certificate = None if insecure else folder / "fleet" / AUTHORITY_CERTIFICATE
    with logged_lines():
        run_device(server, folder, handler, certificate, insecure)


def _make_device(folder: Path) -> None:
    """Make the folder of a device, and print its request."""
    from taciturn.fleets.wire.tls import DEVICE_REQUEST, device_request

    # One line, as it is: for a pipe.
    print(device_request(folder))
    console.print(
        f"The same line is in {folder / DEVICE_REQUEST}. It is not secret: give it to the"
        " fleet's authority."
    )


def _opt_out(folder: Path) -> None:
    """Let a device never take part again; refuse a folder that is not one of a device."""
    from taciturn.fleets import fleet_folders
    from taciturn.fleets.wire.tls import DEVICE_REQUEST

    names = (DEVICE_REQUEST, "fleet", fleet_folders.TOKENS)
    if not any((folder / name).exists() for name in names):
        raise LinkError(
            f"{not_a('the folder of a device', folder)}: name the one that `taciturn fleet"
            " device FOLDER --new` has made"
        )
    fleet_folders.opt_out(folder)
    console.print(f"{folder} has opted out; its text is deleted.")


@fleet_app.command()
def up(
    count: Annotated[
        int, typer.Argument(min=3, help="devices; each takes about half a gigabyte of memory")
    ],
    recipe: Annotated[
        Path, typer.Argument(help='a recipe with algorithm = "dp-ftrl" and min-separation')
    ],
    out: Annotated[Path, typer.Option(help="new folder for everything")] = Path("fleet"),
    set: Settings = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 0,
) -> dict[str, Any]:
    """Try a fleet on this machine. It has a server and N devices, with the first N users of the
    recipe's population, over TLS.

    What it releases is charged to that population's ledger. Unless the recipe sets
    fleet.timer_hours, devices rest between rounds only, not for a day. Each device is a process,
    which compiles the model first: the first round takes a while.

    Example: taciturn fleet up 5 recipe.toml --out try --set participation.cohort=3 --set
    participation.min_separation=0
    """
    from taciturn.fleets import fleet_folders
    from taciturn.fleets.enrolment import EnrolledFile
    from taciturn.fleets.wire.server import wire_server
    from taciturn.recipe.text import load_recipe

    # Also its name in the ledger of the population.
    run = out / f"{out.resolve().name}-run"
    settings = [*(set or ()), *OVER_DEVICES]
    loaded = load_recipe(recipe, settings)
    if "timer_hours" not in loaded.fleet.model_fields_set:
        loaded = loaded.with_settings("fleet", timer_hours=NO_REST)
    devices = fleet_folders.try_out(out, loaded, count, run.name)
    fleet = out / "server"
    enrolled = EnrolledFile(fleet)
    opening = wire_server(fleet / "wire", "127.0.0.1", port, enrolled.number_of)
    with logged_lines(), opening as server, _run_devices(devices, server.address):
        return _serve(server, enrolled, fleet, run, resume=False)


def _open_redis(url: str, enrolled: "EnrolledFile") -> "RedisStore":
    try:
        from taciturn.fleets.wire.redis_store import RedisStore
    except ModuleNotFoundError:
        raise LinkError(
            "--store needs a package that is not installed: pip install 'taciturn[fleet-redis]'"
        ) from None
    return RedisStore(url, enrolled.read().dismissed.fleet.hex())


def _serve(
    server: "WireServer", enrolled: "EnrolledFile", fleet: Path, run: Path, resume: bool
) -> dict[str, Any]:
    """Train on the devices of this server; begin a run that is to be resumed and does not exist."""
    from taciturn.fleets.assemble import check_enough
    from taciturn.fleets.devices.fleet import ConnectedDevices
    from taciturn.fleets.fleet_folders import fleet_authority, fleet_recipe
    from taciturn.runs.loop import resume_run, train_run

    certificates, dismissed = enrolled.read()
    recipe = fleet_recipe(fleet)
    if not run.exists():
        # Before the model is made and its start measured.
        check_enough(recipe, len(certificates) - len(dismissed.devices))
    with fleet_view(server.address, len(certificates)) as view:
        connected = ConnectedDevices(
            link=server.link,
            enrolled=enrolled.read,
            authority=fleet_authority(fleet / "for-devices"),
            watch=view.watch,
        )
        progress = partial(_show_rounds, view)
        if resume and run.exists():
            finished = resume_run(run, progress, connected)
        else:
            finished = train_run(recipe, run, progress, connected)
    return print_finished(finished)


def _show_rounds(view: "FleetView", done: int, all: int, row: dict[str, Any]) -> None:
    """Show the rounds that are finished, here and on the page for Prometheus."""
    from taciturn.fleets.wire.metrics import COUNTS

    COUNTS.show("taciturn_rounds_finished", lambda: done)
    COUNTS.show("taciturn_rounds_failed", lambda: row["failed_rounds"])
    view.progress(done, all, row)


@contextmanager
def _run_devices(folders: list[Path], address: str) -> Iterator[None]:
    """Start each device as a process; all of them end with this one."""
    running = []
    try:
        for folder in folders:
            with open(folder / "log.txt", "w") as lines:
                command = [*TACITURN, "fleet", "device", str(folder), "--server", address]
                running.append(subprocess.Popen(command, stdout=lines, stderr=lines))
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            # This does nothing to one that has ended.
            process.kill()
