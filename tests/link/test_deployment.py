"""What lies in deploy/ is what runs: its commands, its nginx, its Redis, on this machine in place
of containers.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from commands import Command
from fleet_load import new_load
from typer.testing import CliRunner
from wire import until

from redis_server import needs_redis
from taciturn.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
LOAD = [sys.executable, str(DEPLOY.parent / "benchmarks" / "fleet_load.py")]
DEVICES, ROUNDS = 24, 3
needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None,
    reason="there is no nginx here: apt-get install libnginx-mod-stream",
)


def commands(unit):
    return [
        line.partition("bin/taciturn ")[2].replace("%i", "8443").split()
        for line in unit
        if line.startswith("ExecStart=")
    ]


@pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_calls_a_command_that_there_is_with_options_that_it_has(unit):
    for arguments in commands(unit.read_text().splitlines()):
        answer = CliRunner(env={"TACITURN_STORE": "redis://127.0.0.1:1"}).invoke(app, arguments)
        assert answer.exit_code != 2, (
            answer.output
        )  # of a command that is not there, or not so; these lack a fleet
        assert str(Path(arguments[2]).relative_to("/var/lib")) in str(answer.exception)
    twin = CliRunner().invoke(
        app, ["fleet", "front-end", "/var/lib/taciturn/fleet", "--door", "8443"]
    )
    assert twin.exit_code == 2


def test_front_ends_are_given_what_they_need_and_nothing_of_the_curators():
    """In a folder: a file that is mounted by itself stays the old one when it is replaced, and
    whoever was dismissed comes in.
    """
    units = [
        dict(line.partition("=")[::2] for line in unit.read_text().splitlines())
        for unit in sorted(DEPLOY.glob("*.service"))
    ]
    assert (
        len({unit["User"] for unit in units})
        == len({unit["StateDirectory"] for unit in units})
        == len(units)
        == 2
    )
    theirs = [
        volume for name in ("front-end-1", "front-end-2") for volume in SERVICES[name]["volumes"]
    ]
    assert {volume.rpartition(":/")[2] for volume in theirs} == {"fleet:ro", "run/store"}
    assert not any("${FLEET" in volume for volume in theirs)
    assert any("${FLEET" in volume for volume in SERVICES["curator"]["volumes"])  # the twin


def test_an_image_has_the_program_and_nothing_else_that_lies_beside_it():
    """A fleet's authority may, and people's text: layers keep them."""
    copied = [
        word
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY")
        for word in line.split()[1:-1]
    ]
    assert copied == ["pyproject.toml", "README.md", "LICENSE", "src"]


def test_nothing_that_runs_leaves_its_memory_on_disk():
    for unit in DEPLOY.glob("*.service"):
        assert {"LimitCORE=0", "MemorySwapMax=0"} <= set(unit.read_text().splitlines())
    assert all(
        one["ulimits"] == {"core": 0} for one in SERVICES.values() if one["image"] == "taciturn"
    )
    assert '--save "" --appendonly no' in SERVICES["redis"]["command"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_units_are_such(tmp_path):
    for unit in DEPLOY.glob("*.service"):
        here = unit.read_text().replace("/opt/taciturn/bin/taciturn", "/bin/true")
        (tmp_path / unit.name.replace("@", "@8443")).write_text(here)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *tmp_path.iterdir()],
        capture_output=True,
        text=True,
    )
    assert not [line for line in verified.stderr.splitlines() if "taciturn" in line], (
        verified.stderr
    )


@needs_redis
@needs_nginx
@pytest.mark.slow
def test_the_services_of_the_compose_file_carry_a_training_and_the_end_of_a_front_end(
    tmp_path, monkeypatch
):
    ports = {name: free_port() for name in ("front-end-1", "front-end-2", "nginx", "metrics")}
    new_load(tmp_path / "load", DEVICES, ROUNDS, 200.0, ("127.0.0.1",))
    with tempfile.TemporaryDirectory() as store:  # a socket's path is short
        here = {
            "/fleet": str(tmp_path / "load" / "server"),
            "/run/store": store,
            "0.0.0.0": "127.0.0.1",
            "9464": str(ports["metrics"]),
        }
        monkeypatch.setenv(
            "TACITURN_STORE",
            SERVICES["curator"]["environment"]["TACITURN_STORE"].replace("/run/store", store),
        )
        redis = subprocess.Popen(
            [
                word.replace("/run/store", store).strip('"')
                for word in SERVICES["redis"]["command"].split()
            ]
        )
        ends = [
            service(tmp_path, name, here | {"8443": str(ports[name])})
            for name in ("front-end-1", "front-end-2")
        ]
        curator, nginx = service(tmp_path, "curator", here), proxy(tmp_path, ports)
        try:
            until(lambda: (Path(store) / "redis.sock").exists(), "a Redis")
            for one in (*ends, curator):
                one.start()
            until(
                lambda: all("listens on" in one.log() for one in (*ends, curator)), "open doors", 60
            )
            load = [
                DEVICES,
                "--out",
                tmp_path / "load",
                "--rounds",
                ROUNDS,
                "--server",
                f"127.0.0.1:{ports['nginx']}",
            ]
            devices = Command(tmp_path, "load", *load, "--seconds", 200, program=LOAD)
            devices.start()
            until(lambda: charges(tmp_path) == 1, "a round", 150)
            ends[0].kill()
            assert curator.wait() == 0, curator.log()
            assert charges(tmp_path) == ROUNDS
            assert devices.wait() == 0, devices.log()
        finally:
            for one in (*ends, curator):
                one.kill()
            for process in (redis, nginx):
                process.terminate()
                process.wait(20)


def service(folder, name, here):
    words = [
        here.get(word, ":".join(here.get(part, part) for part in word.split(":")))
        for word in SERVICES[name]["command"].split()
    ]
    return Command(folder, name, *words)


def proxy(folder, ports):
    """nginx with the file as it is, but for names and ports, which containers would have."""
    text = (
        (DEPLOY / "nginx.conf")
        .read_text()
        .replace("listen 8443", f"listen 127.0.0.1:{ports['nginx']}")
    )
    for name in ("front-end-1", "front-end-2"):
        text = text.replace(f"{name}:8443", f"127.0.0.1:{ports[name]}")
    module = Path("/usr/lib/nginx/modules/ngx_stream_module.so")  # Debian's is a module of its own
    head = [
        f"pid {folder}/nginx.pid;",
        "daemon off;",
        *([f"load_module {module};"] if module.exists() else []),
    ]
    (folder / "nginx.conf").write_text("\n".join([*head, text]))
    return subprocess.Popen(
        [
            "nginx",
            "-p",
            str(folder),
            "-c",
            str(folder / "nginx.conf"),
            "-e",
            str(folder / "nginx.log"),
        ]
    )


def charges(folder):
    ledgers = (folder / "load" / "server").rglob("ledger.jsonl")
    return max((ledger.read_text().count('"charge"') for ledger in ledgers), default=0)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
