#!/usr/bin/env python
"""Make one of every folder that Taciturn writes, as commit 694c84f wrote it.

The folders in `made_by_694c84f`, beside this file, are what it made; test_old_folders.py opens them
with today's code. To make them again, in a few minutes:

    git worktree add ../at-694c84f 694c84f
    PYTHONPATH=../at-694c84f/src python tests/old_folders/make.py NEW_FOLDER

Salts, ids of ledgers, keys, and the noise of runs without a seed are drawn anew each time, and much
of what test_old_folders.py expects changes with them; what to write there is printed.

All text is made up here. This file is for one version of the package, and stays as it is when names
in the package change.
"""

import csv
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from copies import ABOUT, copy_folders, describe_arithmetic, find_ledgers, write_standing

MADE_BY = "694c84f"
TACITURN = [sys.executable, "-c", "from taciturn.cli import main; main()"]
# Clocks are put back to 2025 where devices take part: a device refuses what its own clock says is
# in the future, and the test may run where clocks are behind.
EARLIER = """
import datetime

from taciturn.cli import main
from taciturn.fleets.devices import fields, participation_record
from taciturn.fleets.secure_aggregation import identities
from taciturn.fleets.wire import device, front_end

late = datetime.datetime.now(datetime.UTC) - datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)

class Earlier(datetime.datetime):
    @classmethod
    def now(cls, zone):
        return super().now(zone) - datetime.timedelta(days=late.days)

for module in (fields, participation_record, identities, device, front_end):
    module.datetime = Earlier
"""
# The power goes off when the round is charged, and before its result is saved.
CHARGED = """
import os
from taciturn.privacy.account import Account

charge = Account.charge

def charge_and_die(*row):
    charge(*row)
    os._exit(1)

Account.charge = charge_and_die
"""
EARLIER_TACITURN = [sys.executable, "-c", f"{EARLIER}main()"]
DYING_TACITURN = [sys.executable, "-c", f"{EARLIER}{CHARGED}main()"]
# As tests compile, so that what they compare with comes from the same machine code.
AS_IN_TESTS = """
import sys
sys.path.append({tests!r})
import compiling
compiling.compiler.get_compile_options = compiling.quickly
from taciturn.cli import main
main()
"""
USERS = 72
# One more device is enrolled, and dismissed before it ever came.
DEVICES = 3
DISMISSED = 3
CERTIFICATE_DAYS = 36_500
KEPT_TEXT = "--vocabulary", "public", "--least-tokens", 10, "--held-out", 0.25
MODEL = "kind=cifg", "width=4", "units=6"
EPOCHS, BATCH_SIZE, UNROLL, LEARNING_RATE = 2, 16, 10, 0.03
PRETRAINING = (
    *(word for setting in MODEL for word in ("--set", setting)),
    *("--epochs", EPOCHS, "--batch-size", BATCH_SIZE),
    *("--unroll", UNROLL, "--learning-rate", LEARNING_RATE),
)
LEDGERS = "people", "next-month", "others", "fleet/population", "from-python.jsonl"
FINISHED = "runs/private", "runs/sentences", "runs/plain", "fleet/run"
AUDITED = "runs/private", "runs/sentences"
# What ends with each thing that was interrupted, by the command that resumes it.
ENDINGS = {
    "runs/interrupted": ("train", "--resume", "--run", "runs/interrupted"),
    "runs/queue": ("train", "--resume", "--run", "runs/queue"),
    "fleet/interrupted": (
        *("fleet", "serve", "fleet", "--resume", "--run", "fleet/interrupted"),
        *("--insecure", "--port", 0),
    ),
    "pretraining": ("pretrain", "public", "--out", "pretraining", *PRETRAINING, "--resume"),
}
ENDS = "model.safetensors", "ledger.jsonl"
# Runs in small: a model of a thousand numbers, rounds of a few people. All start from the
# pretrained model, whose file has the same bits everywhere; a fresh model's differ by machine.
RECIPE = """\
[data]
population = "{population}"
tokens_per_user = 40

[model]
kind = "cifg"
width = 4
units = 6
warm_start = "pretrained"

[local]
learning_rate = {learning_rate}
batch_size = 4
unroll = 5

[server]
optimizer = "momentum"
learning_rate = 1.0
momentum = 0.5
"""
WITH_NOISE = """
[participation]
users = 50
cohort = 10

[privacy]
clip_norm = 0.3
noise_multiplier = 2.0

[run]
rounds = 4
evaluate_every = 2
save_every = 2
"""
WITHOUT_PRIVACY = """
[participation]
users = 50
cohort = 10

[run]
rounds = 2
evaluate_every = 1
save_every = 1
seed = 3
"""
# Devices that come and go, a clip norm that adapts, and correlated noise that restarts: nearly all
# that a run can have among its secrets.
INTERRUPTED = """
[participation]
kind = "min-separation"
users = 50
cohort = 8
min_separation = 2

[privacy]
clip_norm = 0.5
clipping = "adaptive"
clipped_count_stddev = 2.0
noise = "blt"
noise_multiplier = 3.0
restart_rounds = [3]
strategy = { decay = [0.9, 0.8], scale = [0.2, 0.3] }

[fleet]
kind = "check-in"
dropout_rate = 0.25
over_selection = 1.4
timer_hours = 5.0

[run]
rounds = 6
evaluate_every = 3
save_every = 2
seed = 5
"""
# Devices that train on the model they last got, which the run keeps for them; a tree of noise.
# They learn nothing at their rate: what is left is noise, with the same bits on every machine.
QUEUE = """
[participation]
kind = "min-separation"
users = 50
cohort = 8
min_separation = 2

[privacy]
clip_norm = 0.5
noise = "tree"
noise_multiplier = 3.0

[fleet]
kind = "queue"
in_flight = 14

[run]
rounds = 6
evaluate_every = 6
save_every = 2
seed = 6
"""
# A round that is charged, and not yet saved.
INTERRUPTED_AFTER = 3
ON_DEVICES = """
[participation]
kind = "min-separation"
users = 50
cohort = 2
min_separation = 0

[privacy]
clip_norm = 0.3
noise = "blt"
noise_multiplier = 4.0
strategy = { decay = [0.9], scale = [0.2] }

[fleet]
over_selection = 1.5
timer_hours = 1e-9
lifetime_participations = 2
deadline = 100.0
patience = 60.0

[run]
rounds = 1
evaluate_every = 1
save_every = 1
"""
# An anchor that remembers a head in a file beside it, wherever the folders are.
ANCHOR = """\
#!/bin/sh
# Agrees where it remembers the first head, the second, or nothing yet; then remembers the second.
remembered=$(cat anchor.head 2>/dev/null)
case "$remembered" in
  "" | "$1" | "$2") printf %s "$2" > anchor.head ;;
  *) echo "another head is remembered" >&2; exit 1 ;;
esac
"""
OPENERS = "hello", "sorry", "please", "thanks", "well", "today", "tomorrow"
PEOPLE = "we", "they", "you", "the children", "my brother", "her aunt"
DEEDS = "read", "bring", "paint", "carry", "water", "find", "leave", "fold"
THINGS = "the blue boat", "a letter", "the garden", "two lamps", "an old map", "the bread"
WHENS = "before noon", "after lunch", "at night", "next week", "again", "by train"


class Interruption(BaseException):
    """Stands for the power going off."""


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("name a new folder: PYTHONPATH=CHECKOUT/src python make.py NEW_FOLDER")
    out, checkout = Path(sys.argv[1]).resolve(), find_checkout()
    out.mkdir(parents=True)
    # Everything is named from here, so that no file has the path of this machine.
    os.chdir(out)
    with tempfile.TemporaryDirectory() as name:
        texts = Path(name)
        write_texts(texts)
        make_public(texts)
        make_people(texts)
        make_others(texts)
        make_runs()
        make_exports()
        run_taciturn("personalise", "pretrained", texts / "own.txt", "--out", "personal")
        make_fleet(texts)
        make_ledger_from_python()
    print_results()
    forget_this_machine(out)
    describe(out)
    keep_ends(out, checkout)


def find_checkout() -> Path:
    """Find the repository whose package this is, and refuse any but that of 694c84f."""
    import taciturn

    checkout = Path(taciturn.__file__).parents[2]
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not head.startswith(MADE_BY):
        raise SystemExit(f"{checkout} is at {head.strip()}, not at {MADE_BY}")
    return checkout


def run_taciturn(*arguments: object, program: Sequence[str] = TACITURN) -> Any:
    """Run a command to its end, and return what it says as JSON."""
    print("taciturn", *arguments, flush=True)
    finished = subprocess.run(
        [*program, *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(finished.stdout)


# --- Text -----------------------------------------------------------------------------------------


def write_texts(folder: Path) -> None:
    choose = random.Random(694)
    for name in ("people.csv", "next_month.csv", "others.csv"):
        write_messages(folder / name, choose)
    (folder / "left.txt").write_text("person 3\nperson 40\n")
    paragraphs = (" ".join(invent_message(choose) for _ in range(6)) for _ in range(80))
    (folder / "public.txt").write_text("\n\n".join(paragraphs) + "\n")
    for number in range(DEVICES):
        lines = (invent_message(choose) for _ in range(10))
        (folder / f"phone-{number}.txt").write_text("\n".join(lines) + "\n")
    own = (invent_message(choose).replace("the blue boat", "the bread") for _ in range(40))
    (folder / "own.txt").write_text("\n".join(own) + "\n")


def write_messages(path: Path, choose: random.Random) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "text"])
        for user in range(USERS):
            for _ in range(choose.randint(3, 6)):
                writer.writerow([f"person {user}", invent_message(choose)])


def invent_message(choose: random.Random) -> str:
    parts = map(choose.choice, (OPENERS, PEOPLE, DEEDS, THINGS, WHENS))
    return " ".join(parts) + "."


# --- Public text, and people ----------------------------------------------------------------------


def make_public(texts: Path) -> None:
    name = "sentences of a script"
    words = "--count-words", "--vocabulary", 60
    run_taciturn("data", "public", texts / "public.txt", "--out", "public", "--name", name, *words)
    run_taciturn("pretrain", "public", "--out", "pretrained", *PRETRAINING)
    interrupt_pretraining()


def interrupt_pretraining() -> None:
    """Leave a training on public text in its second epoch."""
    from taciturn.algorithms.pretraining import Schedule
    from taciturn.data.public import PublicCorpus
    from taciturn.recipe.text import model_settings
    from taciturn.runs.pretrain import pretrained

    def stop(done: int, steps: int, pace: str) -> None:
        if done > steps / EPOCHS:
            raise Interruption

    schedule = Schedule(
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        unroll=UNROLL,
        learning_rate=LEARNING_RATE,
    )
    corpus, settings = PublicCorpus.load(Path("public")), model_settings(list(MODEL))
    with suppress(Interruption):
        pretrained(corpus, settings, schedule, Path("pretraining"), progress=stop)


def make_people(texts: Path) -> None:
    """Make a population with opt-outs and a budget, and another of the same people."""
    left = "--exclude", texts / "left.txt"
    run_taciturn("data", "build", texts / "people.csv", "--out", "people", *KEPT_TEXT, *left)
    run_taciturn("ledger", "budget", "people", "--epsilon", 40, "--delta", 1e-5)
    shared = *KEPT_TEXT, "--same-people-as", "people", "--shard-tokens", 800
    run_taciturn("data", "build", texts / "next_month.csv", "--out", "next-month", *shared)


def make_others(texts: Path) -> None:
    """Make a population whose ledger was adopted, survived a crash and has an anchor."""
    run_taciturn("data", "build", texts / "others.csv", "--out", "others", *KEPT_TEXT)
    run_taciturn("ledger", "adopt", "others")
    with open("others/ledger.jsonl", "ab") as ledger:
        ledger.write(b'{"hash": "0123')
    run_taciturn("ledger", "show", "others")
    Path("anchor.sh").write_text(ANCHOR)
    run_taciturn("ledger", "anchor", "others", "--command", "sh anchor.sh")


# --- Runs -----------------------------------------------------------------------------------------


def make_runs() -> None:
    write_recipes()
    run_taciturn("train", "recipes/private.toml", "--run", "runs/private", "--audit", 20)
    layout = "--set", "data.layout=sentences", "--set", "model.warm_start=runs/private"
    settings = "text=public", "users=[1]", "copies=[1]", "per_cell=2", "sentences=5"
    canaries = [word for one in settings for word in ("--set", f"canaries.{one}")]
    run_taciturn("train", "recipes/sentences.toml", "--run", "runs/sentences", *layout, *canaries)
    run_taciturn("train", "recipes/plain.toml", "--run", "runs/plain", "--non-private")
    counting = "--smoothing", "katz", "--order", 3, "--non-private"
    run_taciturn("keyboard", "ngram", "others", "--out", "counted", *counting)
    interrupt_run("interrupted")
    interrupt_run("queue")


def write_recipes() -> None:
    Path("recipes").mkdir()
    recipes = {
        "private": base_recipe("people") + WITH_NOISE,
        "sentences": base_recipe("next-month") + WITH_NOISE,
        "plain": base_recipe("others", algorithm="fedavg") + WITHOUT_PRIVACY,
        "interrupted": base_recipe("people", algorithm="dp-ftrl") + INTERRUPTED,
        "queue": base_recipe("people", algorithm="dp-ftrl", learning_rate=1e-30) + QUEUE,
        "on-devices": base_recipe("people", algorithm="dp-ftrl") + ON_DEVICES,
    }
    for name, recipe in recipes.items():
        Path("recipes", f"{name}.toml").write_text(recipe)


def base_recipe(
    population: str,
    algorithm: str = "dp-fedavg",
    learning_rate: float = 0.5,
) -> str:
    sections = RECIPE.format(population=population, learning_rate=learning_rate)
    return f'algorithm = "{algorithm}"\n\n{sections}'


def interrupt_run(name: str) -> None:
    import taciturn as tt

    def stop(done: int, rounds: int, row: dict[str, Any]) -> None:
        if done == INTERRUPTED_AFTER:
            raise Interruption

    with suppress(Interruption):
        tt.train(f"recipes/{name}.toml", f"runs/{name}", stop)


def make_exports() -> None:
    small = "--samples", 20_000, "--entries", 300
    for kind in ("model", "js", "arpa", "combined"):
        some = small if kind in ("arpa", "combined") else ()
        out = f"exports/{kind}"
        run_taciturn("export", "runs/private", "--to", kind, "--out", out, *some)
    run_taciturn("ledger", "export", "people", "exports/costs.json")


# --- A fleet --------------------------------------------------------------------------------------


def make_fleet(texts: Path) -> None:
    """Train with three devices, each a process: a run of one round, and one that is interrupted."""
    run_fleet("new", "fleet", "recipes/on-devices.toml")
    homes = [Path(f"phone-{number}") for number in range(DEVICES + 1)]
    for home in homes:
        subprocess.run([*EARLIER_TACITURN, "fleet", "device", str(home), "--new"], check=True)
    requests = [home / "request.txt" for home in homes]
    run_fleet("enrol", "fleet", *requests, "--days", CERTIFICATE_DAYS)
    run_fleet("dismiss", "fleet", DISMISSED)
    for home in homes:
        shutil.copytree("fleet/for-devices", home / "fleet")
    port = find_free_port()
    with devices_running(homes[:DEVICES], texts, port):
        run_fleet("serve", "fleet", "--port", port)
        serving = "fleet", "serve", "fleet", "--port", str(port), "--run", "fleet/interrupted"
        subprocess.run([*DYING_TACITURN, *serving], check=False)
    # Of the other devices only what they asked with is kept.
    for home in homes[1:]:
        shutil.copy(home / "request.txt", f"{home}.txt")
        shutil.rmtree(home)


def run_fleet(*arguments: object) -> None:
    run_taciturn("fleet", *arguments, program=EARLIER_TACITURN)


@contextmanager
def devices_running(homes: list[Path], texts: Path, port: int) -> Iterator[None]:
    devices = []
    try:
        for home in homes:
            server = "--server", f"127.0.0.1:{port}"
            data = "--data", str(texts / f"{home}.txt")
            command = [*EARLIER_TACITURN, "fleet", "device", str(home), *server, *data]
            devices.append(subprocess.Popen(command))
        yield
    finally:
        for device in devices:
            device.terminate()
        for device in devices:
            device.wait()


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# --- A ledger without a population ----------------------------------------------------------------


def make_ledger_from_python() -> None:
    import numpy as np

    import taciturn as tt

    def measure_length(message: Any, user: Any, key: Any) -> dict[str, Any]:
        return {"length": (user.batches != 0).sum() - message.params["length"]}

    algorithm = tt.private_averaging(
        measure_length,
        clip_norm=100,
        noise_multiplier=1.0,
        users=50,
        cohort=20,
    )
    one = tt.UserData(batches=np.ones((1, 1, 60)), weight=np.float32(1), steps=1)
    curator = tt.Curator.for_simulation(algorithm, [one] * 50, ledger="from-python.jsonl", seed=1)
    for state in tt.rounds(algorithm, curator, {"length": np.float32(0)}):
        if state.round == 2:
            break


# --- What is kept ---------------------------------------------------------------------------------


def forget_this_machine(out: Path) -> None:
    """Remove what no one reads back, and where and when the ledgers lay on this disk."""
    for page in out.rglob("report.html"):
        page.unlink()
    for ledger in find_ledgers(out):
        write_standing(ledger, file=0, changed=0, place=str(ledger.relative_to(out)))


def describe(out: Path) -> None:
    modes = {
        str(path.relative_to(out)): f"{path.stat().st_mode & 0o777:o}"
        for path in sorted(out.rglob("*"))
        if path.stat().st_mode & 0o077 == 0
    }
    about = {"commit": MADE_BY, **describe_arithmetic(), "modes": modes}
    (out / ABOUT).write_text(json.dumps(about, indent=1) + "\n")


def keep_ends(out: Path, checkout: Path) -> None:
    """Resume each thing that was interrupted, in a copy, and keep the model in `ended`."""
    program = AS_IN_TESTS.format(tests=str(checkout / "tests"))
    for name, command in ENDINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            copy_folders(copy, made=out)
            arguments = [sys.executable, "-c", program, *map(str, command)]
            subprocess.run(arguments, cwd=copy, check=True)
            ended = out / "ended" / name
            ended.mkdir(parents=True)
            shutil.copyfile(copy / name / "model.safetensors", ended / "model.safetensors")
            print(f"{name} ended with:")
            print_digests(copy / name)


def print_digests(folder: Path) -> None:
    for name in ENDS:
        if (folder / name).exists():
            print(name, hashlib.sha256((folder / name).read_bytes()).hexdigest())


def print_results() -> None:
    """Print what 694c84f says about all this, for the test to hold today's code to."""
    for ledger in LEDGERS:
        print(run_taciturn("ledger", "show", ledger))
    for run in FINISHED:
        print(run_taciturn("evaluate", run))
    for run in AUDITED:
        print(run_taciturn("audit", "run", run, "--references", 100))
        Path(run, "audit.json").unlink()
    print_suggestions()
    print_fingerprint()


def print_suggestions() -> None:
    import taciturn as tt

    models = "runs/private", "runs/sentences", "runs/plain", "counted", "pretrained", "personal"
    for model in (*models, "exports/model", "exports/arpa"):
        print(model, tt.FinishedRun(model).predictor().suggest("well we read "))


def print_fingerprint() -> None:
    """Print by what the fleet's server knows that a device has its recipe, words and authority."""
    from taciturn.fleets.folders import open_device

    print(open_device(Path("phone-0"))._agreement.fingerprint.hex())


if __name__ == "__main__":
    main()
