"""Text where people keep it: object stores, tried against a server on this machine, and datasets of Hugging Face on disk."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as filesystems
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from taciturn.cli import app
from taciturn.data.columns import SourceError
from taciturn.data.places import StoreError, place
from taciturn.data.population import Population
from taciturn.data.sources import Source

ROWS = {"user_id": ["bob", "ann", "bob"], "text": ["hello there", "she left", "ünïcödé 😂"], "secret": [1, 2, 3]}
READ = [("bob", "hello there", None), ("ann", "she left", None), ("bob", "ünïcödé 😂", None)]


def read(*addresses):
    source = Source([Path(one) for one in addresses])
    return [tuple(row.values()) for batch in source.batches() for row in batch.to_pylist()], source


@pytest.fixture(scope="module")
def server():
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def store(server, monkeypatch):
    """A bucket, and the way to it in the environment."""
    for name, value in {"ACCESS_KEY_ID": "made", "SECRET_ACCESS_KEY": "up", "REGION": "us-east-1", "ENDPOINT_URL": server}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = filesystems.S3FileSystem(endpoint_override=server, allow_bucket_creation=True)
    bucket.create_dir("messages")
    return bucket


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


@pytest.mark.parametrize("name", ["one.parquet", "one.arrow", "one.csv", "one.csv.gz", "one.jsonl.zst"])
def test_a_file_in_a_bucket_is_read_as_one_on_disk(store, name):
    lines = "".join(json.dumps({"user_id": user, "text": text}) + "\n" for user, text, _ in READ).encode()
    content = {"parquet": as_parquet(), "arrow": as_arrow(), "jsonl": lines}.get(name.split(".")[1], as_csv())
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.split(".")[-1])
    if codec:
        packed = pa.BufferOutputStream()
        with pa.CompressedOutputStream(packed, codec) as file:
            file.write(content)
        content = packed.getvalue().to_pybytes()
    put(store, f"messages/files/{name}", content)
    rows, source = read(f"s3://messages/files/{name}")
    assert rows == READ
    assert list(source.read_columns) == ["user_id", "text"]
    assert source.bytes == len(content)


def test_a_folder_in_a_bucket_is_read_shard_by_shard(store):
    for name in ("b.parquet", "a.parquet", "_SUCCESS", "notes.md"):
        put(store, f"messages/shards/{name}", as_parquet() if "parquet" in name else b"")
    rows, source = read("s3://messages/shards")
    assert rows == 2 * READ
    assert source.noted.first == {"files of other kinds, not read": "notes.md"}


def test_text_files_in_a_bucket_are_users(store):
    put(store, "messages/people/bob.txt", b"hello there\nsee you\n")
    rows, _ = read("s3://messages/people")
    assert [(user, text.strip()) for user, text, _ in rows] == [("bob", "hello there"), ("bob", "see you")]


def test_the_warehouse_page_is_followed(store, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "warehouse.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("taciturn ")]
    people = [(f"person {person}", f"see you at the station at {hour}") for person in range(60) for hour in range(20)]
    put(store, "messages/2026/06/part-0.parquet", as_parquet({"user_id": [one[0] for one in people], "text": [one[1] for one in people]}))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split()[1:], catch_exceptions=False)
    assert done.exit_code == 0
    assert len(Population(tmp_path / "june").texts) > 40
    assert "s3:" not in str(Population(tmp_path / "june").manifest)  # where it came from is nobody's business later


def test_what_is_not_there_is_said(store):
    for address in ("s3://nobodys-bucket/a.csv", "s3://messages/nothing"):
        with pytest.raises(SourceError, match=f"{address} does not exist"):
            read(address)


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


def test_a_store_that_refuses_names_the_credentials(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(StoreError, match="access is denied; set the credentials in the environment"):
        read("s3://messages/a.csv")
    server.shutdown()


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_said(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(StoreError, match="it cannot be reached: is there a network"):
        read("s3://messages/a.csv")


def test_keys_do_not_belong_into_addresses():
    with pytest.raises(StoreError, match="set it in the environment") as raised:
        read("s3://KEY:SECRET@messages/a.csv")
    assert "SECRET" not in str(raised.value)


def test_other_addresses_go_by_fsspec():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://messages/one.csv", "wb") as file:
        file.write(as_csv())
    assert read("memory://messages/one.csv")[0] == READ
    with pytest.raises(StoreError, match="takes fsspec and what it needs"):
        read("nowhere://messages/one.csv")


def test_no_store_is_asked_about_files_of_this_machine(tmp_path):
    (tmp_path / "s3").mkdir()
    assert place(tmp_path / "s3") == tmp_path / "s3"
    assert place("messages.csv") == Path("messages.csv")


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file], ids=["stream", "file"])
def test_datasets_of_hugging_face_are_read_from_disk(tmp_path, new):
    """As save_to_disk writes a dataset with a split: a stream of Arrow's for each shard, and JSON about it."""
    (tmp_path / "saved" / "train").mkdir(parents=True)
    for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        (tmp_path / "saved" / name).write_text('{"splits": ["train"]}')
    (tmp_path / "saved" / "train" / "data-00000-of-00001.arrow").write_bytes(as_arrow(new=new))
    rows, source = read(tmp_path / "saved")
    assert rows == READ
    assert list(source.read_columns) == ["user_id", "text"]


def test_a_dataset_that_is_cut_off_is_said(tmp_path):
    (tmp_path / "one.arrow").write_bytes(as_arrow()[:-100])
    with pytest.raises(SourceError, match=r"one\.arrow cannot be read: expected to be able to read 112 bytes"):
        read(tmp_path / "one.arrow")


def test_large_batches_are_read_in_pieces(tmp_path):
    rows = {"user_id": ["bob"] * 3000, "text": [f"text {number}" for number in range(3000)]}
    (tmp_path / "one.arrow").write_bytes(as_arrow(rows))
    source = Source([tmp_path / "one.arrow"])
    assert [len(batch) for batch in source.batches()] == [1024, 1024, 952]
