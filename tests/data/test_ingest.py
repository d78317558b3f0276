"""From rows to a population: the same text gives the same bytes, nobody changes what another
contributes, nothing is half done.
"""

import csv
import json
import random
import resource
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from synthetic_corpus import synthetic_messages, write_shards

from taciturn.core import END, UNKNOWN
from taciturn.data import grouping
from taciturn.data import ingest as ingesting
from taciturn.data.columns import Columns
from taciturn.data.ingest import Rules, ingest
from taciturn.data.population import COUNTS, HeldOutUsers, Population, hashed_id
from taciturn.data.sources import Source
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import DataError, public_vocabulary

WORDS = public_vocabulary(500)
RULES = Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.1)


def messages(users=40, each=5, seed=0):
    """Rows of (user, text, time) in no order."""
    rng = random.Random(seed)
    words = WORDS.words[WORDS.first_word : WORDS.first_word + 100]
    rows = [
        (f"user{user}", " ".join(rng.choices(words, k=6)) + f" {number}", f"{rng.randrange(10**6)}")
        for user in range(users)
        for number in range(each)
    ]
    rng.shuffle(rows)
    return rows


def write(path, rows, columns=("user_id", "text", "ts")):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row[: len(columns)] for row in rows]
    if path.suffix == ".parquet":
        parquet.write_table(
            pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True))), path
        )
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    else:
        path.write_text(
            "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        )
    return path


def build(folder, *paths, rules=RULES, opt_outs=(), **options):
    return ingest(Source(paths=list(paths), **options), folder, rules, opt_outs=opt_outs)


def contents(population):
    """All text of a population, byte for byte, whatever the shards."""
    text = population.folder / population.manifest["text"]
    return [
        b"".join(path.read_bytes() for path in sorted(text.glob(f"{split}-*.tokens")))
        for split in ("train", "held_out")
    ]


@pytest.mark.parametrize("columns", [("user_id", "text", "ts"), ("user_id", "text")])
def test_the_same_text_gives_the_same_bytes_whatever_the_files(tmp_path, columns):
    rows = messages()
    one = build(tmp_path / "p1", write(tmp_path / "a.parquet", rows, columns))
    shuffled = random.Random(1).sample(rows, len(rows))
    shards = [
        write(tmp_path / f"shards/{index}.csv", shuffled[index::7], columns) for index in range(7)
    ]
    two = build(tmp_path / "p2", *shards)
    three = build(tmp_path / "p3", *reversed(shards))
    four = build(tmp_path / "p4", tmp_path / "shards")
    mixed = [
        write(tmp_path / "half.jsonl", rows[::2], columns),
        write(tmp_path / "half.parquet", rows[1::2], columns),
    ]
    five = build(tmp_path / "p5", *mixed)
    assert len(one) > 20
    assert contents(one) == contents(two) == contents(three) == contents(four) == contents(five)
    assert one.lengths.tolist() == five.lengths.tolist()


def test_the_same_text_gives_the_same_bytes_on_any_number_of_cores(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", messages(400, 30))
    alone = build(tmp_path / "alone", path)
    monkeypatch.setattr(ingesting, "SMALL", 0)
    assert contents(build(tmp_path / "together", path)) == contents(alone)


def test_other_text_gives_other_bytes(tmp_path):
    """The twin that must fail."""
    rows = messages()
    one = build(tmp_path / "p1", write(tmp_path / "a.csv", rows))
    changed = [(rows[0][0], rows[0][1] + " the", rows[0][2]), *rows[1:]]
    assert contents(build(tmp_path / "p2", write(tmp_path / "b.csv", changed))) != contents(one)


def test_messages_are_taken_in_the_order_of_their_times(tmp_path):
    rows = [
        ("a", "the", "30"),
        ("a", "of", "4"),
        ("a", "and", "200"),
        ("b", "you", "2020-01-02"),
        ("b", "me", "2019-12-31"),
    ]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.csv", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
    )
    texts = {tuple(WORDS.words[word] for word in text if word != END) for text in population.texts}
    assert texts == {("of", "the", "and"), ("me", "you")}
    assert all(text[1] == END for text in population.texts)


def test_users_are_cut_and_left_out_by_their_own_length_alone(tmp_path):
    long, short = "the of and to " * 20, "the of"
    rows = [("long", long, "1"), ("short", short, "1")]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.csv", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=10, most_tokens=33, held_out_share=0.0),
    )
    assert population.lengths.tolist() == [33]
    counts = population.manifest[COUNTS]
    assert counts["left_out"] == {"users with fewer than 10 tokens": 1}
    assert counts["changed"] == {"users cut at 33 tokens": 1}


def test_repeats_are_left_out_within_a_user_and_never_across(tmp_path):
    rows = [("a", "the of and", "1"), ("a", "the of and", "2"), ("b", "the of and", "3")]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.csv", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
    )
    assert population.lengths.tolist() == [4, 4]
    assert population.manifest[COUNTS]["left_out"] == {"texts that repeat one of the same user": 1}


def test_no_user_changes_what_another_contributes(tmp_path):
    """User-level privacy rests on this: with one user more or less, all others' texts stay as they
    are.
    """
    rows = messages(30)
    everyone = build(tmp_path / "p1", write(tmp_path / "a.csv", rows))
    others = [row for row in rows if row[0] != "user7"] + [("loud", rows[3][1], "1")] * 2000
    without = build(tmp_path / "p2", write(tmp_path / "b.csv", others))

    def by_user(population, names):
        held_out = HeldOutUsers(population.folder).texts
        ordered = sorted(names, key=position)
        split = {True: iter(held_out), False: iter(population.texts)}
        return {name: next(split[position(name) < 0.1 * 2**64]).tolist() for name in ordered}

    before = by_user(everyone, {row[0] for row in rows})
    after = by_user(without, {row[0] for row in others})
    assert "user7" in before
    assert {name: before[name] for name in before if name != "user7"} == {
        name: after[name] for name in after if name != "loud"
    }


def test_users_spelled_in_several_ways_are_one_person_and_are_counted(tmp_path):
    rows = [
        ("Bob", "the of", "1"),
        ("bob ", "and to", "2"),
        ("BOB", "in is", "3"),
        ("rene\u0301", "a", "1"),
        ("ren\u00e9", "an", "2"),
        ("ann", "it", "1"),
    ]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.jsonl", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
    )
    assert sorted(population.lengths.tolist()) == [2, 4, 9]
    assert population.manifest[COUNTS]["changed"] == {
        "users spelled in several ways, taken as one": 2
    }


def test_users_who_opted_out_stay_out_of_this_build_and_every_later_one(tmp_path):
    path = write(tmp_path / "a.csv", messages(20))
    population = build(tmp_path / "p", path, opt_outs=["USER3", " user4"])
    gone = {
        hashed_id((tmp_path / "p/private/salt").read_bytes(), user) for user in ("user3", "user4")
    }
    listed = set(
        (population.folder / population.manifest["text"] / "users.txt").read_text().split()
    )
    assert not gone & listed
    assert population.manifest[COUNTS]["left_out"]["users who opted out"] == 2
    assert population.manifest["about"]["opt_outs"] == 2
    again = build(tmp_path / "p", path, opt_outs=["user5"])
    assert again.manifest[COUNTS]["left_out"]["users who opted out"] == 3
    assert (
        "user3" not in (tmp_path / "p" / "private" / "opted-out.txt").read_text()
    )  # hashed there too


def test_the_split_depends_on_the_user_alone_and_holds_out_the_share_asked_for(tmp_path):
    path = write(tmp_path / "a.parquet", messages(2000, 1))
    population = build(
        tmp_path / "p", path, rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.25)
    )
    held_out = len(HeldOutUsers(tmp_path / "p"))
    assert held_out + len(population) == 2000
    assert 400 < held_out < 600
    fewer = build(
        tmp_path / "q",
        write(tmp_path / "b.parquet", messages(1000, 1)),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.25),
    )
    # Those 1,000 are users of the first population too, and on the same side of the split.
    assert len(fewer) + len(HeldOutUsers(tmp_path / "q")) == 1000
    assert 200 < len(HeldOutUsers(tmp_path / "q")) < 300


def test_unknown_words_are_counted(tmp_path):
    rows = [("a", "the xylophonist of zymurgy", "1")]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.csv", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
    )
    assert population.texts[0].tolist()[1] == UNKNOWN
    assert population.manifest[COUNTS]["unknown"]["train"] == 2


def test_scrubbing_is_counted_and_leaves_unknown_words_behind(tmp_path):
    rows = [
        ("a", "the mail is ann.b@example.org or www.example.org/x call +1 555 010 9999 the", "1")
    ]
    rules = Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0, scrub=True)
    population = build(tmp_path / "p", write(tmp_path / "a.csv", rows), rules=rules)
    words = [WORDS.words[word] for word in population.texts[0]]
    assert "org" not in words
    assert population.manifest[COUNTS]["scrubbed"] == {
        "e-mail addresses": 1,
        "phone numbers": 1,
        "web addresses": 1,
    }
    assert population.manifest["about"]["scrubbed"] is True


def test_a_source_that_breaks_half_way_leaves_the_old_population(tmp_path):
    good = write(tmp_path / "a.csv", messages(20))
    before = build(tmp_path / "p", good)
    bad = tmp_path / "b.csv"
    bad.write_text('user_id,text\nbob,"never closed\n')
    with pytest.raises(DataError, match=r"b.csv, line 2"):
        build(tmp_path / "p", good, bad)
    assert Population(tmp_path / "p").manifest == before.manifest
    assert [path.name for path in (tmp_path / "p").glob("text-*")] == [before.manifest["text"]]
    with pytest.raises(DataError, match="a quote is opened and not closed"):
        build(tmp_path / "new", good, bad)
    assert not (tmp_path / "new").exists()


def test_text_without_anyone_to_train_on_is_refused(tmp_path):
    with pytest.raises(DataError, match="no user is left"):
        build(
            tmp_path / "p",
            write(tmp_path / "a.csv", messages(5)),
            rules=Rules(
                vocabulary=WORDS, least_tokens=10**6, most_tokens=10**6, held_out_share=0.0
            ),
        )
    (tmp_path / "header.csv").write_text("user_id,text\n")
    with pytest.raises(DataError, match="no user is left"):
        build(tmp_path / "p", tmp_path / "header.csv")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from taciturn.data.ingest import *
from taciturn.data.vocabulary import DataError, public_vocabulary
try:
    rules = Rules(vocabulary=public_vocabulary(500), least_tokens=1)
    ingest(Source(paths=[Path(sys.argv[1])]), Path(sys.argv[2]), rules)
except DataError as error:
    print(error)
"""


def test_a_full_disk_is_reported_and_changes_nothing(tmp_path):
    """The limit on the size of a file fails a write half-way, as a full disk does."""
    assert resource.RLIMIT_FSIZE
    path = write(tmp_path / "a.parquet", messages(300, 10))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(tmp_path / "p")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "is full" in done.stdout, done.stderr
    assert "Nothing was changed" in done.stdout
    assert not (tmp_path / "p").exists()


def test_files_that_grow_too_large_are_dealt_again_and_give_the_same_bytes(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", messages(75, 20))
    whole = build(tmp_path / "whole", path)
    monkeypatch.setattr(grouping, "FILE_BYTES", 3_000)
    monkeypatch.setattr(grouping, "BUFFER_BYTES", 500)
    dealt = build(tmp_path / "dealt", path)
    assert contents(dealt) == contents(whole)
    assert dealt.manifest[COUNTS]["left_out"] == whole.manifest[COUNTS]["left_out"]


@pytest.mark.parametrize("file_bytes", [5_000, 10**9])
def test_a_user_with_endless_text_is_left_out_entirely_whoever_else_is_there(
    tmp_path, monkeypatch, file_bytes
):
    """Found by a second reader: how much of such a user was kept depended on the others."""
    monkeypatch.setattr(grouping, "FILE_BYTES", file_bytes)
    monkeypatch.setattr(grouping, "MOST_OF_ONE_USER", 8_000)
    endless = [("bot", f"the of and {number}", f"{number}") for number in range(1_200)]
    rules = Rules(vocabulary=WORDS, least_tokens=1, most_tokens=300, held_out_share=0.0)
    alone = build(
        tmp_path / "alone", write(tmp_path / "a.parquet", endless + messages(5)), rules=rules
    )
    among = build(
        tmp_path / "among", write(tmp_path / "b.parquet", endless + messages(100)), rules=rules
    )
    for population, users in ((alone, 5), (among, 100)):
        assert len(population) == users
        assert population.manifest[COUNTS]["left_out"][grouping.describe_giants()] == 1


def test_long_texts_and_many_of_them_stay_in_memory_that_does_not_grow(tmp_path):
    """Found by a second reader: a database's sort of whole texts ran out of memory on a gigabyte of
    long ones.
    """
    rows = [
        (f"user{number % 40}", "the of and to " * 10_000 + str(number), str(number))
        for number in range(800)
    ]
    path = write(tmp_path / "a.parquet", rows)  # 115 MB of text
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    population = build(
        tmp_path / "p", path, rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0)
    )
    assert population.lengths.tolist() == [1600] * 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000  # kB


def test_a_source_inside_of_the_population_is_not_swept_away(tmp_path):
    path = write(tmp_path / "out" / "text-raw" / "a.csv", messages(5))
    with pytest.raises(DataError, match="lies inside"):
        build(tmp_path / "out", path)
    assert path.exists()


def test_missing_times_sort_alike_in_every_kind_of_file(tmp_path):
    rows = [("a", "the", "2020-01-02"), ("a", "of", ""), ("a", "and", "2020-01-01")]
    rules = Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0)
    one = build(tmp_path / "p1", write(tmp_path / "a.csv", rows), rules=rules)
    nulls = [(user, text, time or None) for user, text, time in rows]
    two = build(tmp_path / "p2", write(tmp_path / "b.jsonl", nulls), rules=rules)
    three = build(tmp_path / "p3", write(tmp_path / "c.parquet", nulls), rules=rules)
    assert contents(one) == contents(two) == contents(three)


def test_columns_are_named_in_the_record(tmp_path):
    path = write(tmp_path / "a.csv", messages(5), ("wer", "was", "wann"))
    population = build(tmp_path / "p", path, columns=Columns(user="wer", text="was", time="wann"))
    assert population.manifest["about"]["columns"] == ["wer", "was", "wann"]
    assert population.manifest[COUNTS]["rows"] == 25


@pytest.mark.parametrize(
    "spellings",
    [
        [
            "ann",
            "ANN",
            " ann\t",
            "ann\xa0",
            "\u3000ann",
            "ann\u2028",
            "a\u200bnn",
            "ａｎｎ",
            "\x00ann",
        ],
        ["ann lee", "Ann  Lee", "ann\xa0lee", "ann \t lee"],
        ["rene\u0301", "ren\u00e9", "RENÉ"],
        ["H\u0331x", "\u1e96x"],
        ["ΟΔΟΣ", "οδος"],
        ["STRASSE", "straße"],
        ["ﬁ", "fi"],
        ["7", "7.0", "7.", "07", "+7", "٧", "７", "7\u200b.00"],
        ["123456789012345", "1.23456789012345e+14"],
        ["i̇rem", "İrem", "irem", "ırem", "IREM", "İREM"],
        ["", " ", "[deleted]", "NaN", "None", "\u200b", "x" * 2000],
    ],
)
def test_a_user_is_one_user_however_spelled(spellings):
    assert len({user_id(spelling) for spelling in spellings}) == 1


def test_different_users_stay_different():
    assert (
        len(
            {
                user_id(name)
                for name in ("ann", "anna", "an n", "7", "70", "7.5", "john.smith", "john.doe")
            }
        )
        == 8
    )


def test_opting_out_cannot_be_undone_by_spelling(tmp_path):
    rows = [("ann\xa0", "the of", "1"), ("ANN", "and to", "2"), ("bob", "in is", "1")]
    population = build(
        tmp_path / "p",
        write(tmp_path / "a.jsonl", rows),
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
        opt_outs=["ann"],
    )
    assert len(population) == 1
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("john.smith", "john.doe", "ann@example.org", "bob"):
        (folder / f"{name}.txt").write_text("the of and to\n")
    left = build(
        tmp_path / "q",
        folder,
        rules=Rules(vocabulary=WORDS, least_tokens=1, held_out_share=0.0),
        opt_outs=["John.Smith", "ann@example.org"],
    )
    assert len(left) == 2


def test_synthetic_users_are_repeatable_streamed_and_can_be_learned_from(tmp_path):
    words = [f"word{index}" for index in range(200)]

    def rows(users, **options):
        return [
            tuple(row.values())
            for batch in synthetic_messages(words, users, 60, 20, **options)
            for row in batch.to_pylist()
        ]

    assert rows(1500) == rows(1500)
    assert rows(1500)[:3000] == rows(1200)[:3000]
    assert rows(3) != rows(3, seed=1)
    assert len(rows(3)) == 9
    counts = np.unique(
        [word for _, text in rows(1000) for word in text.split()], return_counts=True
    )[1]
    assert counts.max() > 20 * np.median(counts)  # Zipf's law
    for _ in write_shards(
        synthetic_messages(words, 3000, 60), tmp_path / "shards", blocks_per_shard=2
    ):
        pass
    assert len(list((tmp_path / "shards").glob("*.parquet"))) == 2
    population = build(tmp_path / "p", tmp_path / "shards")
    assert len(population) + len(HeldOutUsers(tmp_path / "p")) == 3000
