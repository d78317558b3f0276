"""A population is whole or not there, says nothing of its users, and is read in shards."""

import json
import os
import signal
import subprocess
import sys
from itertools import accumulate, pairwise

import numpy as np
import pytest

from curators import few_people
from harness import made_up_users, pass_for_untouched
from taciturn.core import END
from taciturn.data.population import (
    COUNTS,
    HeldOutUsers,
    NamedLedger,
    Population,
    remember_opt_outs,
    write_population,
    writing_population,
)
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts, TextWriter
from taciturn.data.users import position
from taciturn.data.vocabulary import DataError
from taciturn.files import FolderExists
from taciturn.people import open_ledger
from taciturn.privacy.ledger.ledger import LedgerError


def test_a_population_comes_back_as_written_with_users_in_an_order_that_says_nothing(
    tmp_path, vocabulary
):
    users = made_up_users(20)
    population = write_population(
        tmp_path / "p", users, made_up_users(3, seed=1), vocabulary, {"source": "made up"}
    )
    stored = [text.tolist() for text in Population(tmp_path / "p").texts]
    assert sorted(stored) == sorted(users.values())
    assert stored == [users[user] for user in sorted(users, key=position)] != list(users.values())
    assert len(HeldOutUsers(tmp_path / "p")) == 3
    listed = (population.folder / population.manifest["text"] / "users.txt").read_text()
    assert len(listed.split()) == 20
    assert "user" not in listed  # hashed ids only


def test_building_again_keeps_the_ledger_and_its_salt(tmp_path, vocabulary):
    write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    (tmp_path / "p" / "ledger.jsonl").write_text("history")
    Population(tmp_path / "p").pin_ledger(NamedLedger("a ledger"))
    salt = (tmp_path / "p" / "private" / "salt").read_bytes()
    population = write_population(tmp_path / "p", made_up_users(30), {}, vocabulary, {})
    assert len(population) == 30
    assert population.ledger == NamedLedger("a ledger")
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["ledger"]["id"] == "a ledger"
    assert (tmp_path / "p" / "ledger.jsonl").read_text() == "history"
    assert (tmp_path / "p" / "private" / "salt").read_bytes() == salt
    assert len(list((tmp_path / "p").glob("text-*"))) == 1


def test_counts_of_users_text_are_marked_private(population):
    manifest = json.loads((population.folder / "manifest.json").read_text())
    assert "private" in COUNTS
    assert "do not publish" in manifest[COUNTS]["note"]
    assert "users" not in manifest
    assert (population.folder / "manifest.json").stat().st_mode & 0o077 == 0
    assert (population.folder / population.manifest["text"]).stat().st_mode & 0o077 == 0


def test_a_folder_that_is_not_a_population_is_refused(tmp_path, vocabulary):
    with pytest.raises(DataError, match="not a population"):
        Population(tmp_path)
    with pytest.raises(DataError, match="no user is left"):
        write_population(tmp_path / "p", {}, {}, vocabulary, {})
    assert not (tmp_path / "p").exists()


def test_the_same_users_have_the_same_bytes_and_name_whatever_the_size_of_a_shard(
    tmp_path, vocabulary
):
    users, held_out = made_up_users(60), made_up_users(9, seed=1)
    names = set()
    for shard_tokens in (1, 100, 10**6):
        population = write_population(
            tmp_path / "p", users, held_out, vocabulary, {}, shard_tokens=shard_tokens
        )
        text = population.folder / population.manifest["text"]
        names.add(
            (
                population.id,
                b"".join(path.read_bytes() for path in sorted(text.glob("train-*.tokens"))),
            )
        )
    assert len(names) == 1
    assert (
        write_population(tmp_path / "p", users | {"one": [5]}, held_out, vocabulary, {}).id
        != population.id
    )
    assert (
        write_population(tmp_path / "p", users, held_out | {"one": [5]}, vocabulary, {}).id
        != population.id
    )


@pytest.mark.parametrize("shard_tokens", [1, 100, 10**6])
def test_lengths_are_those_of_the_texts_whatever_shards_they_are_in(
    tmp_path, vocabulary, shard_tokens
):
    texts = write_population(
        tmp_path / "p", made_up_users(60), {}, vocabulary, {}, shard_tokens=shard_tokens
    ).texts
    for positions in (np.arange(60), np.arange(60)[::-7], np.zeros(0, int)):
        assert texts.lengths(positions).tolist() == [len(texts[position]) for position in positions]
    assert len(set(texts.lengths(np.arange(60)))) > 1
    for nobody in (-1, 60):
        with pytest.raises(IndexError, match="not all"):
            texts.lengths(np.array([0, nobody]))


SUM_OF_PART = """
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from taciturn.data.population import Population
texts = Population(Path(sys.argv[1])).texts
print(sum(int(texts[int(position)].sum()) for position in sys.argv[2:]))
"""


def test_several_processes_read_their_own_shards_alone(tmp_path, vocabulary):
    """Each has only the files of its shards, as hosts that share no disk would."""
    population = write_population(
        tmp_path / "p", made_up_users(60), {}, vocabulary, {}, shard_tokens=200
    )
    ends = list(
        accumulate((len(shard.offsets) - 1 for shard in population.texts.shards), initial=0)
    )
    shards = [range(start, end) for start, end in pairwise(ends)]
    assert len(shards) > 4
    total = sum(int(text.sum()) for text in population.texts)
    halves = [shards[: len(shards) // 2], shards[len(shards) // 2 :]]
    processes = []
    for half, mine in enumerate(halves):
        host = tmp_path / f"host{half}"
        text = host / population.manifest["text"]
        text.mkdir(parents=True)
        (host / "manifest.json").write_text((population.folder / "manifest.json").read_text())
        original = population.folder / population.manifest["text"]
        wanted = [
            f"train-{shards.index(shard):05}.{kind}"
            for shard in mine
            for kind in ("tokens", "offsets")
        ]
        for name in ("vocabulary.txt", *wanted):
            (text / name).write_bytes((original / name).read_bytes())
        command = [
            sys.executable,
            "-c",
            SUM_OF_PART,
            host,
            *(str(position) for shard in mine for position in shard),
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    assert sum(int(process.communicate(timeout=60)[0]) for process in processes) == total
    with pytest.raises(DataError, match="not on this machine"):
        Population(tmp_path / "host0").texts[len(population) - 1]


def test_an_incomplete_file_is_not_accepted(tmp_path, vocabulary):
    population = write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    tokens = population.folder / population.manifest["text"] / "train-00000.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(DataError, match="incomplete"):
        Population(tmp_path / "p").texts[0]


def test_a_build_that_fails_leaves_the_population_as_it_was(tmp_path, vocabulary):
    before = write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})

    def failing():
        with writing_population(tmp_path / "p", vocabulary) as writer:
            writer.add("train", "x", [4, 5])
            raise KeyError("as it is written")

    with pytest.raises(KeyError, match="as it is written"):
        failing()
    after = Population(tmp_path / "p")
    assert after.manifest == before.manifest
    assert after.texts[19].tolist() == before.texts[19].tolist()
    assert len(list((tmp_path / "p").glob("text-*"))) == 1


def test_two_builds_in_one_folder_do_not_mix(tmp_path, vocabulary):
    with writing_population(tmp_path / "p", vocabulary) as writer:
        with (
            pytest.raises(DataError, match="another build"),
            writing_population(tmp_path / "p", vocabulary),
        ):
            pass
        writer.add("train", "x", [4, 5])
        writer.finish(about={}, counts={})
    assert len(Population(tmp_path / "p")) == 1


SLOW_BUILD = """
import sys, time
from pathlib import Path
from taciturn.data.population import writing_population
from taciturn.data.vocabulary import public_vocabulary
with writing_population(Path(sys.argv[1]), public_vocabulary(100)) as writer:
    for _ in range(10_000):
        writer.add("train", "x", [5, 6, 7])
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_build_is_not_accepted_and_the_next_one_cleans_up(tmp_path, vocabulary):
    def killed(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW_BUILD, str(folder)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    killed(tmp_path / "new")
    with pytest.raises(DataError, match="not a population"):
        Population(tmp_path / "new")
    write_population(tmp_path / "new", made_up_users(20), {}, vocabulary, {})
    before = Population(tmp_path / "new").manifest
    killed(tmp_path / "new")
    assert Population(tmp_path / "new").manifest == before
    assert len(Population(tmp_path / "new").texts[3]) > 0
    assert len(list((tmp_path / "new").glob("text-*"))) == 2
    assert len(write_population(tmp_path / "new", made_up_users(30), {}, vocabulary, {})) == 30
    assert len(list((tmp_path / "new").glob("text-*"))) == 1


@pytest.mark.parametrize("damage", ["gone", "empty", "other", "list gone", "list shorter"])
def test_a_lost_salt_or_list_does_not_bring_back_those_who_opted_out(tmp_path, vocabulary, damage):
    private = tmp_path / "p" / "private"
    write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {"opt_outs": 2})
    (private / "opted-out.txt").write_text("abc\ndef\n")
    if damage == "gone":
        (private / "salt").unlink()
    elif damage == "list gone":
        (private / "opted-out.txt").unlink()
    elif damage == "list shorter":
        (private / "opted-out.txt").write_text("abc\n")
    else:
        (private / "salt").write_bytes(b"" if damage == "empty" else b"x" * 32)

    def build():
        with writing_population(tmp_path / "p", vocabulary) as writer:
            remember_opt_outs(tmp_path / "p", writer.salt, ())

    with pytest.raises(DataError, match="opted out"):
        build()


def test_a_damaged_manifest_does_not_forget_which_ledger_there_was(tmp_path, vocabulary):
    """Found by a second reader: manifest and ledger lost together made a fresh start."""
    population = write_population(
        tmp_path / "p", made_up_users(20), made_up_users(3, 1), vocabulary, {}
    )
    open_ledger(population)
    for damage in ("{", "[]", "null", "{}", None):
        if damage is None:
            (tmp_path / "p" / "manifest.json").unlink()
        else:
            (tmp_path / "p" / "manifest.json").write_text(damage)
            with pytest.raises(DataError, match="its ledger stays"):
                Population(tmp_path / "p")
        (tmp_path / "p" / "ledger.jsonl").rename(tmp_path / "ledger.jsonl")
        again = write_population(
            tmp_path / "p", made_up_users(20), made_up_users(3, 1), vocabulary, {}
        )
        with pytest.raises(LedgerError, match="is gone"):
            open_ledger(again)
        (tmp_path / "ledger.jsonl").rename(tmp_path / "p" / "ledger.jsonl")
        pass_for_untouched(tmp_path / "p" / "ledger.jsonl")
        open_ledger(again)
    (tmp_path / "p" / "ledger.jsonl").write_text("")
    with pytest.raises(LedgerError, match="0 rows"):
        open_ledger(again)


def test_pinning_a_ledger_does_not_bring_back_an_old_manifest(tmp_path, vocabulary):
    old = write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    write_population(tmp_path / "p", made_up_users(30), {}, vocabulary, {})
    open_ledger(old)
    assert len(Population(tmp_path / "p")) == 30


def test_only_what_a_build_made_is_ever_removed(tmp_path, vocabulary):
    """Found by a second reader: folders that happened to be called text-… were deleted."""
    write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    for name in ("text-notes", "text-7"):
        (tmp_path / "p" / name).mkdir()
        (tmp_path / "p" / name / "precious").write_text("mine")
    (tmp_path / "p" / "text-8").write_text("a file")
    write_population(tmp_path / "p", made_up_users(30), {}, vocabulary, {})
    assert (tmp_path / "p" / "text-notes" / "precious").read_text() == "mine"
    assert (tmp_path / "p" / "text-7" / "precious").read_text() == "mine"
    assert (tmp_path / "p" / "text-8").read_text() == "a file"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "text-1").mkdir()
    with pytest.raises(DataError, match="holds other things"):
        write_population(tmp_path / "new", made_up_users(20), {}, vocabulary, {})


def test_files_of_users_are_for_the_owners_eyes(tmp_path, vocabulary):
    umask = os.umask(0)
    try:
        population = write_population(
            tmp_path / "p", made_up_users(20), made_up_users(3, 1), vocabulary, {}
        )
        assert os.umask(0) == 0  # as it was
    finally:
        os.umask(umask)
    files = [path for path in population.folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_damaged_offsets_and_words_are_noticed(tmp_path, vocabulary):
    population = write_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    text = population.folder / population.manifest["text"]
    offsets = np.fromfile(text / "train-00000.offsets", np.int64)
    offsets[3] = offsets[5]
    offsets.tofile(text / "train-00000.offsets")
    with pytest.raises(DataError, match="damaged"):
        Population(tmp_path / "p").texts[0]
    (text / "vocabulary.txt").write_text("\n".join(vocabulary.words[:-2]) + "\n")
    with pytest.raises(DataError, match="incomplete"):
        Population(tmp_path / "p")


def test_texts_are_read_without_being_copied_into_memory(tmp_path):
    writer = TextWriter(tmp_path, "train", words=100)
    for _ in range(1000):
        writer.add(np.arange(1000) % 100)
    texts = Texts.load(tmp_path, "train", writer.close())
    assert isinstance(texts.shard(0).tokens.base, np.memmap)
    assert np.shares_memory(texts[7], texts.shard(0).tokens)
    with pytest.raises(IndexError, match="there is no text 1000"):
        texts[1000]
    with pytest.raises(IndexError, match="there is no text -1"):
        texts[-1]


def test_large_vocabularies_have_larger_tokens(tmp_path):
    writer = TextWriter(tmp_path, "train", words=70_000)
    writer.add([69_999, 1])
    assert Texts.load(tmp_path, "train", writer.close())[0].tolist() == [69_999, 1]


def test_public_text_survives_being_saved(tmp_path, vocabulary):
    corpus = PublicCorpus.of(["word1 word2", "word3"], vocabulary, "a book")
    corpus.save(tmp_path / "public")
    loaded = PublicCorpus.load(tmp_path / "public")
    assert loaded.source == "a book"
    assert [document.tolist() for document in loaded.documents] == [
        document.tolist() for document in corpus.documents
    ]
    assert all(document[-1] == END for document in loaded.documents)
    assert loaded.vocabulary == vocabulary


def test_saving_public_text_overwrites_nothing(tmp_path, vocabulary):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderExists, match="exists already"):
        PublicCorpus.of(["word1"], vocabulary, "a book").save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_the_name_of_a_population_cannot_be_worked_out_from_guessed_text(tmp_path):
    assert few_people(tmp_path / "one", users=1).id != few_people(tmp_path / "two", users=1).id


def test_private_counts_of_a_population_are_not_for_everyone_to_read(finished_runs):
    assert (finished_runs / "people" / "manifest.json").stat().st_mode & 0o077 == 0


def test_users_text_is_not_taken_for_general_text(population):
    with pytest.raises(Exception, match="is a population, not a public corpus"):
        PublicCorpus.load(population.folder)
