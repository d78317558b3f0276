"""The texts of Popov et al. 2018, out of an encyclopedia and blogs: `python
experiments/popov2018/prepare.py wiki.parquet blogs.parquet`.

Writes to local/popov: `general` and `general-test`, every 33rd article being for the test;
`people`, `ten` and `one`, which are 4,000 users, ten of them and a million words of all as if they
were one person's, each with the same held-out users; and messages.json, the sentences that
keystrokes.py types: 300 of the test's articles and one each of 400 held-out users. No text of
anybody is to be published.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from taciturn.data.public import PublicCorpus
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import Vocabulary

OUT = Path("local/popov")
# Which article is for the test.
EVERY = 33
# The users of `people`.
PEOPLE = 4_000
# The users of `ten`, and the words that each has at least.
DEVICES = 10
LONG = 1_600
# The words of `one`.
WORDS = 1_000_000
# Of users, the default of `taciturn data build`.
HELD_OUT = 0.0625
SENTENCES = {"general": 300, "users": 400}
# The words of a sentence.
FEWEST = 8
MOST = 40


def run_data_command(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "taciturn", "data", *map(str, words)], check=True)


def write_table(name: str, **columns: list[str]) -> Path:
    path = OUT / f"{name}.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def write_corpora(wiki: Path) -> list[str]:
    """Write the corpora, and return the test's articles."""
    articles = parquet.read_table(wiki, columns=["text"])["text"].to_pylist()
    test = articles[EVERY - 1 :: EVERY]
    train = [text for place, text in enumerate(articles, 1) if place % EVERY]
    run_data_command(
        "public",
        write_table("wiki-train", text=train),
        "--out",
        OUT / "general",
        "--count-words",
        "--vocabulary",
        30_000,
    )
    run_data_command(
        "public",
        write_table("wiki-test", text=test),
        "--out",
        OUT / "general-test",
        "--vocabulary",
        OUT / "general",
    )
    return test


def write_populations(blogs: Path) -> list[str]:
    """Write the populations, and return what the held-out users wrote."""
    posts = _read_posts(blogs)
    users = sorted(posts, key=_position)
    held_out = [user for user in users if _position(user) < HELD_OUT * 2**64]
    others = users[len(held_out) :]
    words = {user: _count_words(posts[user]) for user in others}
    people = others[:PEOPLE]
    _write_population("people", _rows_of(people + held_out, posts))
    long = [user for user in others if words[user] >= LONG]
    ten = long[:DEVICES]
    _write_population("ten", _rows_of(ten + held_out, posts))
    together = _first_with(WORDS, words)
    rows_of_one = [("one", text) for _, text in _rows_of(together, posts)]
    rows = rows_of_one + _rows_of(held_out, posts)
    _write_population("one", rows, "--most-tokens", WORDS)
    return ["\n".join(posts[user]) for user in held_out]


def _count_words(texts: list[str]) -> int:
    return sum(len(text.split()) for text in texts)


def _read_posts(blogs: Path) -> dict[str, list[str]]:
    """Return what each user wrote."""
    columns = parquet.read_table(blogs, columns=["user_id", "text"]).to_pydict()
    posts = defaultdict[str, list[str]](list)
    for user, text in zip(columns["user_id"], columns["text"], strict=True):
        posts[user].append(text)
    return posts


def _position(user: str) -> int:
    """Return where a user stands in the order by which populations hold out users."""
    return position(user_id(user))


def _first_with(most_words: int, words: dict[str, int]) -> list[str]:
    """Return the first users, until they have this number of words together."""
    first = []
    before = 0
    for user, count in words.items():
        if before >= most_words:
            break
        first.append(user)
        before += count
    return first


def _rows_of(users: list[str], posts: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(user, text) for user in users for text in posts[user]]


def _write_population(name: str, rows: list[tuple[str, str]], *options: object) -> None:
    ids = [user for user, _ in rows]
    texts = [text for _, text in rows]
    run_data_command(
        "build",
        write_table(name, user_id=ids, text=texts),
        "--out",
        OUT / name,
        "--vocabulary",
        OUT / "general",
        *options,
    )


def first_sentence(text: str, vocabulary: Vocabulary) -> str | None:
    """Return the first of a text's lines or sentences that is neither short nor long."""
    for line in text.split("\n"):
        lines_of_sentences = line.replace("! ", "!\n").replace(". ", ".\n")
        for sentence in lines_of_sentences.split("\n"):
            stripped = sentence.strip()
            if FEWEST <= len(vocabulary.split(stripped)) <= MOST:
                return stripped
    return None


def choose_sentences(texts: list[str], most: int, vocabulary: Vocabulary) -> list[str]:
    """Return a sentence of each text that has one, until there are enough."""
    sentences = []
    for text in texts:
        if len(sentences) == most:
            break
        sentence = first_sentence(text, vocabulary)
        if sentence:
            sentences.append(sentence)
    return sentences


def main(wiki: str, blogs: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    texts = {
        "general": write_corpora(Path(wiki)),
        "users": write_populations(Path(blogs)),
    }
    vocabulary = PublicCorpus.load(OUT / "general").vocabulary
    messages = {}
    for side, most in SENTENCES.items():
        sentences = choose_sentences(texts[side], most, vocabulary)
        messages[side] = sentences
        words = sum(len(vocabulary.split(sentence)) for sentence in sentences)
        print(f"{side}: {len(sentences)} sentences of {words:,} words")
    (OUT / "messages.json").write_text(json.dumps(messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
