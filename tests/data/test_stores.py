"""Text where people keep it: object stores, tried against servers on this machine, and datasets of
Hugging Face on disk.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as filesystems
import pyarrow.parquet as parquet
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from taciturn.cli import app
from taciturn.data.places import locate
from taciturn.data.population import Population
from taciturn.data.sources import Source
from taciturn.data.vocabulary import DataError

ROWS = {
    "user_id": ["bob", "ann", "bob"],
    "text": ["hello there", "she left", "ünïcödé 😂"],
    "secret": [1, 2, 3],
}
READ = [("bob", "hello there", None), ("ann", "she left", None), ("bob", "ünïcödé 😂", None)]


def read(*addresses):
    source = Source(paths=[Path(one) for one in addresses])
    return [tuple(row.values()) for batch in source.batches() for row in batch.to_pylist()], source


@pytest.fixture(scope="module")
def s3_server():
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def gs_server():
    """A process of its own: pyarrow opens a file of this store while it holds the lock of the
    interpreter.
    """
    pytest.importorskip("gcp_storage_emulator")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "gcp_storage_emulator",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--in-memory",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        server.kill()


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """The file of a service account, whose key signs its own tokens: no server is asked for one."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("google") / "account.json"
    named = {
        "type": "service_account",
        "client_email": "reader@messages.example",
        "token_uri": "http://127.0.0.1:9",
    }
    file.write_text(json.dumps(named | {"private_key_id": "1", "private_key": key.decode()}))
    return file


@pytest.fixture
def use_s3(monkeypatch):
    def use(endpoint):
        for name, value in {
            "ACCESS_KEY_ID": "made",
            "SECRET_ACCESS_KEY": "up",
            "REGION": "us-east-1",
            "ENDPOINT_URL": endpoint,
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)

    return use


@pytest.fixture
def use_gs(monkeypatch, account):
    def use(endpoint):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", endpoint)

    return use


@pytest.fixture
def s3(s3_server, use_s3):
    """A bucket, and the way to it in the environment."""
    use_s3(s3_server)
    bucket = filesystems.S3FileSystem(endpoint_override=s3_server, allow_bucket_creation=True)
    bucket.create_dir("messages")
    return bucket


@pytest.fixture
def gs(gs_server, use_gs):
    use_gs(gs_server)
    bucket = filesystems.GcsFileSystem(project_id="messages")
    bucket.create_dir("messages")
    return bucket


@pytest.fixture(params=["s3", "gs"])
def scheme(request):
    return request.param


@pytest.fixture
def store(request, scheme):
    return request.getfixturevalue(scheme)


@pytest.fixture
def use(request, scheme):
    return request.getfixturevalue(f"use_{scheme}")


def put(store, path, content):
    with store.open_output_stream(path, compression=None) as file:
        file.write(content)


def as_parquet(rows=ROWS):
    out = pa.BufferOutputStream()
    parquet.write_table(pa.table(rows), out)
    return out.getvalue().to_pybytes()


def as_arrow(rows=ROWS, new=pa.ipc.new_stream):
    out, table = pa.BufferOutputStream(), pa.table(rows)
    with new(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def as_csv():
    return "\n".join(["user_id,text", *(",".join(row[:2]) for row in READ)]).encode()


@pytest.mark.parametrize(
    "name", ["one.parquet", "one.arrow", "one.csv", "one.csv.gz", "one.jsonl.zst"]
)
def test_a_file_in_a_bucket_is_read_as_one_on_disk(store, scheme, name):
    lines = "".join(
        json.dumps({"user_id": user, "text": text}) + "\n" for user, text, _ in READ
    ).encode()
    content = {"parquet": as_parquet(), "arrow": as_arrow(), "jsonl": lines}.get(
        name.split(".")[1], as_csv()
    )
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.split(".")[-1])
    if codec:
        packed = pa.BufferOutputStream()
        with pa.CompressedOutputStream(packed, codec) as file:
            file.write(content)
        content = packed.getvalue().to_pybytes()
    put(store, f"messages/files/{name}", content)
    rows, source = read(f"{scheme}://messages/files/{name}")
    assert rows == READ
    assert list(source.read_columns) == ["user_id", "text"]
    assert source.bytes == len(content)


def test_a_folder_in_a_bucket_is_read_shard_by_shard(store, scheme):
    for name in ("b.parquet", "a.parquet", "_SUCCESS", "notes.md"):
        put(store, f"messages/shards/{name}", as_parquet() if "parquet" in name else b"")
    rows, source = read(f"{scheme}://messages/shards")
    assert rows == 2 * READ
    assert source.noted.first == {"files of other kinds, not read": "notes.md"}


def test_text_files_in_a_bucket_are_users(store, scheme):
    put(store, "messages/people/bob.txt", b"hello there\nsee you\n")
    rows, _ = read(f"{scheme}://messages/people")
    assert [(user, text.strip()) for user, text, _ in rows] == [
        ("bob", "hello there"),
        ("bob", "see you"),
    ]


def test_the_warehouse_page_is_followed(s3, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "warehouse.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("taciturn ")]
    people = [
        (f"person {person}", f"see you at the station at {hour}")
        for person in range(60)
        for hour in range(20)
    ]
    put(
        s3,
        "messages/2026/06/part-0.parquet",
        as_parquet({"user_id": [one[0] for one in people], "text": [one[1] for one in people]}),
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split()[1:], catch_exceptions=False)
    assert done.exit_code == 0
    assert len(Population(tmp_path / "june").texts) > 40
    assert "s3:" not in str(
        Population(tmp_path / "june").manifest
    )  # where it came from is nobody's business later


def test_an_address_that_does_not_exist_is_refused(store, scheme):
    for address in (f"{scheme}://no-such-bucket/a.csv", f"{scheme}://messages/nothing"):
        with pytest.raises(DataError, match=f"{address} does not exist"):
            read(address)


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


def test_a_store_that_refuses_names_the_credentials(use, scheme):
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use(f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(DataError, match="access is denied; set the credentials in the environment"):
        read(f"{scheme}://messages/a.csv")
    server.shutdown()


@pytest.mark.slow
def test_an_unreachable_store_is_reported(use, scheme):
    use("http://127.0.0.1:9")
    with pytest.raises(DataError, match="it cannot be reached: is there a network"):
        read(f"{scheme}://messages/a.csv")


def test_keys_do_not_belong_into_addresses():
    with pytest.raises(DataError, match="put keys into the environment") as raised:
        read("s3://KEY:SECRET@messages/a.csv")
    assert "SECRET" not in str(raised.value)


def test_other_addresses_go_by_fsspec():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://messages/one.csv", "wb") as file:
        file.write(as_csv())
    assert read("memory://messages/one.csv")[0] == READ
    with pytest.raises(DataError, match="needs fsspec and its package"):
        read("nowhere://messages/one.csv")


def test_no_store_is_asked_about_files_of_this_machine(tmp_path):
    (tmp_path / "s3").mkdir()
    assert locate(tmp_path / "s3") == tmp_path / "s3"
    assert locate("messages.csv") == Path("messages.csv")


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file], ids=["stream", "file"])
def test_datasets_of_hugging_face_are_read_from_disk(tmp_path, new):
    """As save_to_disk writes a dataset with a split: a stream of Arrow's for each shard, and JSON
    about it.
    """
    (tmp_path / "saved" / "train").mkdir(parents=True)
    for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        (tmp_path / "saved" / name).write_text('{"splits": ["train"]}')
    (tmp_path / "saved" / "train" / "data-00000-of-00001.arrow").write_bytes(as_arrow(new=new))
    rows, source = read(tmp_path / "saved")
    assert rows == READ
    assert list(source.read_columns) == ["user_id", "text"]


def test_an_incomplete_dataset_is_refused(tmp_path):
    (tmp_path / "one.arrow").write_bytes(as_arrow()[:-100])
    with pytest.raises(
        DataError, match=r"one\.arrow cannot be read: expected to be able to read 112 bytes"
    ):
        read(tmp_path / "one.arrow")


def test_large_batches_are_read_in_pieces(tmp_path):
    rows = {"user_id": ["bob"] * 3000, "text": [f"text {number}" for number in range(3000)]}
    (tmp_path / "one.arrow").write_bytes(as_arrow(rows))
    source = Source(paths=[tmp_path / "one.arrow"])
    assert [len(batch) for batch in source.batches()] == [1024, 1024, 952]
