"""Rows from anywhere: what can be read is read, what cannot is counted and named, and nothing else
is made of it.
"""

import bz2
import gzip
import io
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taciturn.data import readers
from taciturn.data.columns import LONGEST, Columns
from taciturn.data.sources import Source
from taciturn.data.vocabulary import DataError

ROWS = [
    ("bob", "hello there", "2"),
    ("ann", 'she said "hi", and\nleft', "1"),
    ("bob", "ünïcödé 😂", "3"),
]


def read(*paths, **options):
    source = Source(paths=list(paths), **options)
    return [tuple(row.values()) for batch in source.batches() for row in batch.to_pylist()], source


def write(path, content):
    path.write_bytes(content)
    return path


def as_csv(rows=ROWS, header="user_id,text,ts", delimiter=","):
    import csv

    out = io.StringIO()
    out.write(header.replace(",", delimiter) + "\n")
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def as_json_lines(rows=ROWS):
    return "".join(
        json.dumps({"user_id": u, "text": t, "ts": s}) + "\n" for u, t, s in rows
    ).encode()


def as_parquet(rows=ROWS):
    out = io.BytesIO()
    parquet.write_table(
        pa.table(dict(zip(("user_id", "text", "ts"), zip(*rows, strict=True), strict=True))), out
    )
    return out.getvalue()


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", as_csv()),
        ("a.CSV", as_csv()),
        ("a.csv", b"\xef\xbb\xbf" + as_csv()),
        ("a.csv", as_csv(delimiter=";")),
        ("a.csv.gz", gzip.compress(as_csv())),
        ("a.csv.bz2", bz2.compress(as_csv())),
        ("a.csv.xz", lzma.compress(as_csv())),
        ("a.csv.zst", zstd(as_csv())),
        ("a.jsonl", as_json_lines()),
        ("a.ndjson", as_json_lines()),
        ("a.jsonl.zst", zstd(as_json_lines())),
        ("a.parquet", as_parquet()),
    ],
)
def test_every_kind_of_table_gives_the_same_rows(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    rows, source = read(tmp_path / name)
    assert rows == ROWS
    assert source.left_out.counts == {}
    assert source.rows == 3


def test_columns_may_have_any_name_and_usual_ones_are_found(tmp_path):
    (tmp_path / "reddit.csv").write_bytes(as_csv(header="author,body,created_utc"))
    assert read(tmp_path / "reddit.csv")[0] == ROWS
    (tmp_path / "odd.csv").write_bytes(as_csv(header="wer,was,wann"))
    assert (
        read(tmp_path / "odd.csv", columns=Columns(user="wer", text="was", time="wann"))[0] == ROWS
    )
    assert read(tmp_path / "odd.csv", columns=Columns(user="wer", text="was"))[0] == [
        (u, t, None) for u, t, _ in ROWS
    ]
    with pytest.raises(
        DataError,
        match=(
            r"odd.csv has no column user_id; its . columns have none of the usual"
            r" names.*`columns.user`"
        ),
    ):
        read(tmp_path / "odd.csv")
    with pytest.raises(
        DataError, match=r"no column user_id; its columns are wer, text, wann.*`columns.user`"
    ):
        read(write(tmp_path / "half.csv", as_csv(header="wer,text,wann")))
    with pytest.raises(DataError, match="has no column wo"):
        read(tmp_path / "odd.csv", columns=Columns(user="wer", text="wo"))


def test_numbers_and_dates_are_users_and_times_too(tmp_path):
    import datetime

    table = pa.table(
        {
            "user_id": pa.array([7, 8], pa.int64()),
            "text": pa.array(["a", "b"]).dictionary_encode(),
            "ts": pa.array([datetime.datetime(2020, 1, 2), None], pa.timestamp("s")),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == [
        ("7", "a", "2020-01-02 00:00:00.000"),
        ("8", "b", None),
    ]


def test_a_folder_of_text_files_is_one_user_each_and_keeps_the_order_of_lines(tmp_path):
    (tmp_path / "bob.txt").write_text("one\n\ntwo\n")
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "phone.txt").write_text("three\n")
    (tmp_path / "ann" / "tablet.txt.gz").write_bytes(gzip.compress(b"four\n"))
    (tmp_path / ".hidden.txt").write_text("no")
    rows, _ = read(tmp_path)
    assert [(user, text.strip()) for user, text, _ in rows] == [
        ("ann", "three"),
        ("ann", "four"),
        ("bob", "one"),
        ("bob", "two"),
    ]
    times = [time for user, _, time in rows if user == "bob"]
    assert times == sorted(times)


def test_a_folder_of_shards_is_read_whole_as_a_cluster_writes_it(tmp_path):
    spark = tmp_path / "messages.parquet"
    (spark / "day=1").mkdir(parents=True)
    (spark / "_SUCCESS").write_text("")
    (spark / "part-1.parquet").write_bytes(as_parquet(ROWS[:1]))
    (spark / "day=1" / "part-2.parquet").write_bytes(as_parquet(ROWS[1:]))
    assert sorted(read(spark)[0]) == sorted(ROWS)


def test_rows_that_cannot_be_used_are_left_out_counted_and_named(tmp_path):
    content = b"""user_id,text
bob,hello
,no user
"  ",no user either
ann,
ann,\x01\x02
ann,bad \xff bytes
bob,too,many
carl
"zoe"x,quotes
ok,fine
"""
    (tmp_path / "a.csv").write_bytes(content)
    rows, source = read(tmp_path / "a.csv")
    assert [row[:2] for row in rows] == [("bob", "hello"), ("ok", "fine")]
    assert source.left_out.counts == {
        "rows without a user": 2,
        "rows without text": 2,
        "rows that are not UTF-8": 1,
        "malformed rows": 3,
    }
    assert source.left_out.first["rows that are not UTF-8"] == "a.csv, line 7"
    assert source.left_out.first["malformed rows"] == "a.csv, line 8"
    assert source.left_out.first["rows without a user"] == "a.csv, line 3"


def test_json_lines_that_are_no_rows_are_left_out(tmp_path):
    lines = [
        b'{"text": "a user is named further down"}',
        b'{"user_id": "bob", "text": "hi"}',
        b'{"user_id": "bob", "te',
        b"[1]",
        b'"text"',
        b"",
        b'{"user_id": "ann", "text": ["a", "list"]}',
        b'{"user_id": "ann", "text": null}',
        b'{"user_id": "ann", "text": "b\xffd"}',
        b'{"user_id": "ann", "text": "\\ud800"}',
        b'{"user_id": 5, "text": "five"}',
        b"[" * 100_000,
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    rows, source = read(tmp_path / "a.jsonl")
    assert [row[:2] for row in rows] == [("bob", "hi"), ("5", "five")]
    assert source.left_out.counts == {
        "malformed rows": 5,
        "rows that are not UTF-8": 2,
        "rows without a user": 1,
        "rows without text": 1,
    }
    assert source.left_out.first["malformed rows"] == "a.jsonl, line 3"


def test_broken_strings_in_parquet_are_left_out_and_named(tmp_path):
    bytes_ = pa.py_buffer(b"ab\xff\xfecd")
    broken = pa.Array.from_buffers(
        pa.string(),
        3,
        [None, pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 2, 4, 6))), bytes_],
    )
    parquet.write_table(
        pa.table({"user_id": ["a", "b", "c"], "text": broken}), tmp_path / "a.parquet"
    )
    rows, source = read(tmp_path / "a.parquet")
    assert [row[:2] for row in rows] == [("a", "ab"), ("c", "cd")]
    assert source.left_out.counts == {"rows that are not UTF-8": 1}
    assert source.left_out.first["rows that are not UTF-8"] == "a.parquet, row 2"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_endless_line_is_skipped_in_little_memory(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    with path.open("wb") as file:
        start, end = (b"user_id,text\nbob,hi\nbob,", b"\nann,ok\n")
        if kind == "jsonl":
            start, end = (
                b'{"user_id": "bob", "text": "hi"}\n{"user_id": "bob", "text": "',
                b'"}\n{"user_id": "ann", "text": "ok"}\n',
            )
        file.write(start)
        for _ in range(100):
            file.write(b"x " * 2**19)
        file.write(end)
    rows, source = read(path)
    assert [row[:2] for row in rows] == [("bob", "hi"), ("ann", "ok")]
    assert source.left_out.counts == {"lines longer than 16 MB": 1}


def test_a_line_of_somebodys_text_in_place_of_names_is_not_repeated(tmp_path):
    with pytest.raises(DataError, match="has no column user_id") as error:
        read(write(tmp_path / "a.csv", b"ann,my secret is 1234\nbob,hi\n"))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b'user_id,text\nann,"hello\nbob,secret\nbob,two\ncarl,"yo" x\ndave,hi\n',
        b'user_id,text\nann,"caf\xe9\nbob,hi\ncarl,yo"\ndave,two\n',
        b'user_id,text\nann,"hello\n' + b"x" * (LONGEST + 5) + b'"\nbob,secret\ncarl,"hi"\n',
        b'user_id,text\nann,"' + b"x" * (LONGEST + 5) + b'\nbob,secret\ncarl,"hi"\n',
    ],
)
def test_a_quote_that_takes_in_other_peoples_rows_stops_the_reading(tmp_path, content):
    with pytest.raises(DataError, match=r"a.csv, line [23]:.*unsure"):
        read(write(tmp_path / "a.csv", content))


def test_rows_over_several_lines_are_read_and_noted(tmp_path):
    rows, source = read(write(tmp_path / "a.csv", b'user_id,text\nann,"two\nlines"\nbob,hi\n'))
    assert [row[:2] for row in rows] == [("ann", "two\nlines"), ("bob", "hi")]
    assert source.noted.counts == {"rows that span several lines": 1}
    rows, source = read(
        write(tmp_path / "a.tsv", b'user_id\ttext\nann\t"hello\nbob\tsecret\ncarl\tfive"\n')
    )
    assert [row[:2] for row in rows] == [("ann", '"hello'), ("bob", "secret"), ("carl", 'five"')]


def test_a_time_that_shows_up_late_is_asked_for(tmp_path):
    lines = [json.dumps({"user_id": "a", "text": str(n)}) for n in range(600)] + [
        '{"user_id": "a", "text": "x", "ts": 1}'
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    with pytest.raises(DataError, match=r"line 601.*`columns.time`"):
        read(path)
    assert len(read(path, columns=Columns(time="user_id"))[0]) == 601


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["user_id", "text", "text"]
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns named text"):
        read(tmp_path / "a.parquet")


def test_other_files_in_a_folder_are_mentioned(tmp_path):
    (tmp_path / "a.csv").write_bytes(as_csv())
    (tmp_path / "b.csv.zip").write_bytes(b"?")
    (tmp_path / "part-0001").write_bytes(b"?")
    _, source = read(tmp_path)
    assert source.noted.counts["files of other kinds, not read"] == 2


def test_an_endless_text_in_parquet_is_left_out(tmp_path):
    parquet.write_table(
        pa.table({"user_id": ["a", "b"], "text": ["x" * (LONGEST + 1), "y"]}),
        tmp_path / "a.parquet",
    )
    rows, source = read(tmp_path / "a.parquet")
    assert [row[:2] for row in rows] == [("b", "y")]
    assert source.left_out.counts == {"texts longer than 16 MB": 1}


def test_rows_flagged_sensitive_are_left_out_and_other_columns_are_never_read(tmp_path):
    rows = [
        {"user_id": "a", "text": str(n), "password": flag, "home": "x"}
        for n, flag in enumerate([True, False, "yes", 0, None, 1, "False"])
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept, source = read(tmp_path / "a.jsonl", columns=Columns(sensitive=("password",)))
    assert [row[1] for row in kept] == ["1", "3", "4", "6"]
    assert source.left_out.counts == {"rows flagged sensitive": 3}
    assert "home" not in source.read_columns
    with pytest.raises(DataError, match="has no column secret"):
        read(tmp_path / "a.jsonl", columns=Columns(sensitive=("secret",)))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"", "is empty"),
        ("a.jsonl", b"", "has no line with a JSON object"),
        ("a.jsonl", b"\n\nnot json\n", "has no line with a JSON object"),
        ("a.jsonl", b'[{"user_id": "a"}]', "one JSON list"),
        ("a.parquet", b"", "not a Parquet file"),
        ("a.parquet", as_parquet()[:-20], "not a Parquet file"),
        ("a.csv", "user_id,text\n".encode("utf-16"), "UTF-16"),
        (
            "a.csv",
            b'user_id,text\nbob,"never closed\nann,x\nann,y\n',
            "line 2: a quote is opened and not closed",
        ),
        ("a.csv.gz", gzip.compress(as_csv() * 500)[:-30], "damaged or incomplete"),
        ("a.csv.gz", b"no gzip", "damaged or incomplete"),
        ("a.csv.xz", lzma.compress(as_csv())[:30], "damaged or incomplete"),
        ("a.csv.bz2", b"no bzip2", "cannot be read"),
        ("a.csv.zst", zstd(as_csv() * 500)[:50], "a.csv.zst"),
        ("a.doc", b"?", "not of a kind that can be read"),
        ("README", b"?", "not of a kind that can be read"),
    ],
)
def test_a_file_that_cannot_be_read_stops_with_a_sentence_that_names_it(
    tmp_path, name, content, sentence
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as error:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_places_that_are_not_sources_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist: name a file or folder"):
        read(tmp_path / "nowhere.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="a folder without text; put files into it"):
        read(tmp_path / "empty")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "a.txt").write_text("x")
    (tmp_path / "both" / "a.csv").write_bytes(as_csv())
    with pytest.raises(DataError, match="name files of one kind"):
        read(tmp_path / "both")
    parquet.write_table(
        pa.table({"user_id": ["a"], "text": [["a", "list"]]}), tmp_path / "list.parquet"
    )
    with pytest.raises(DataError, match=r"list.parquet.*holds list"):
        read(tmp_path / "list.parquet")
    parquet.write_table(pa.table({"user_id": ["a"], "text": [5]}), tmp_path / "number.parquet")
    with pytest.raises(DataError, match=r"number.parquet.*holds int64"):
        read(tmp_path / "number.parquet")


def test_progress_comes_to_an_end(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(as_csv() * 2000))
    (tmp_path / "b.parquet").write_bytes(as_parquet())
    told = []
    source = Source(paths=[tmp_path / "a.csv.gz", tmp_path / "b.parquet"])
    list(source.batches(lambda done, all: told.append((done, all))))
    assert told[-1] == (source.bytes, source.bytes)
    assert told == sorted(told)


FUZZ = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PIECES = [
    b"user_id",
    b"text",
    b",",
    b'"',
    b'""',
    b"\n",
    b"\r\n",
    b"\r",
    b"bob",
    b"\xff",
    b"\x00",
    b"{",
    b"}",
    b":",
    b"[",
    b"]",
    b"null",
    b"\\u",
    b"d800",
    b"\xed\xa0\x80",
    b"5",
    b" ",
]
CONTENT = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)
)


@pytest.mark.parametrize(
    "name",
    [
        "a.csv",
        "a.tsv",
        "a.jsonl",
        "a.parquet",
        "a.txt",
        "a.csv.gz",
        "a.jsonl.zst",
        "a.csv.xz",
        "a.txt.bz2",
    ],
)
@FUZZ
@given(content=CONTENT, with_header=st.booleans(), packed=st.booleans())
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(
    tmp_path, name, content, with_header, packed
):
    start = {
        "csv": b"user_id,text\n",
        "tsv": b"user_id\ttext\n",
        "jsonl": b'{"user_id": "a", "text": "b"}\n',
    }
    content = (start.get(name.split(".")[1], b"") if with_header else b"") + content
    pack = {"gz": gzip.compress, "zst": zstd, "xz": lzma.compress, "bz2": bz2.compress}.get(
        name.split(".")[-1]
    )
    (tmp_path / name).write_bytes(pack(content) if pack and packed else content)
    try:
        rows, _ = read(tmp_path / name)
    except DataError as error:
        rows, named = [], str(tmp_path) in str(error)
    else:
        named = True
    assert named
    assert all(user.strip() and text.strip() for user, text, _ in rows)


@FUZZ
@given(
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_a_damaged_parquet_file_is_read_or_refused_in_a_sentence(tmp_path, damage):
    content = bytearray(as_parquet(ROWS * 20))
    for place, value in damage:
        content[place % len(content)] = value
    (tmp_path / "a.parquet").write_bytes(content)
    try:
        read(tmp_path / "a.parquet")
    except DataError as error:
        sentence = str(error)
    else:
        sentence = "a.parquet"
    assert "a.parquet" in sentence


def test_batches_are_small_whatever_a_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(as_csv([("bob", "x" * 300, "1")] * 50))
    sizes = [len(batch) for batch in Source(paths=[tmp_path / "a.csv"]).batches()]
    assert sum(sizes) == 50
    assert max(sizes) <= 4
