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
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from taciturn.data.public import PublicCorpus
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import Vocabulary

OUT = Path("local/popov")
EVERY, PEOPLE, DEVICES, LONG, WORDS = 33, 4_000, 10, 1_600, 1_000_000
HELD_OUT = 0.0625  # of users, the default of `taciturn data build`
SENTENCES = {"general": 300, "users": 400}
FEWEST, MOST = 8, 40  # words of a sentence


def taciturn(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "taciturn", "data", *map(str, words)], check=True)


def write(name: str, **columns: list[str]) -> Path:
    path = OUT / f"{name}.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def general(wiki: Path) -> list[str]:
    """Write the corpora, and return the test's articles."""
    articles = parquet.read_table(wiki, columns=["text"])["text"].to_pylist()
    test = articles[EVERY - 1 :: EVERY]
    train = [text for place, text in enumerate(articles, 1) if place % EVERY]
    taciturn(
        "public",
        write("wiki-train", text=train),
        "--out",
        OUT / "general",
        "--count-words",
        "--vocabulary",
        30_000,
    )
    taciturn(
        "public",
        write("wiki-test", text=test),
        "--out",
        OUT / "general-test",
        "--vocabulary",
        OUT / "general",
    )
    return test


def people(blogs: Path) -> list[str]:
    """Write the populations, and return what the held-out users wrote."""
    posts = defaultdict[str, list[str]](list)
    for user, text in zip(
        *parquet.read_table(blogs, columns=["user_id", "text"]).to_pydict().values(), strict=True
    ):
        posts[user].append(text)
    users = sorted(posts, key=lambda user: position(user_id(user)))
    held_out = [user for user in users if position(user_id(user)) < HELD_OUT * 2**64]
    words = {user: sum(len(text.split()) for text in posts[user]) for user in users}
    others = [user for user in users if user not in set(held_out)]
    ten = [user for user in others if words[user] >= LONG][:DEVICES]
    one = [
        user
        for user, before in zip(
            others, accumulate((words[user] for user in others), initial=0), strict=False
        )
        if before < WORDS
    ]
    for name, chosen in {"people": others[:PEOPLE], "ten": ten, "one": one}.items():
        rows = [
            ("one" if name == "one" and user in set(one) else user, text)
            for user in chosen + held_out
            for text in posts[user]
        ]
        ids, texts = map(list, zip(*rows, strict=True))
        most = ["--most-tokens", WORDS] if name == "one" else []
        taciturn(
            "build",
            write(name, user_id=ids, text=texts),
            "--out",
            OUT / name,
            "--vocabulary",
            OUT / "general",
            *most,
        )
    return ["\n".join(posts[user]) for user in held_out]


def first_sentence(text: str, vocabulary: Vocabulary) -> str | None:
    """The first of a text's lines or sentences that is neither short nor long."""
    split = (
        sentence.strip()
        for line in text.split("\n")
        for sentence in line.replace("! ", "!\n").replace(". ", ".\n").split("\n")
    )
    return next((one for one in split if FEWEST <= len(vocabulary.split(one)) <= MOST), None)


def main(wiki: str, blogs: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    texts = {"general": general(Path(wiki)), "users": people(Path(blogs))}
    vocabulary = PublicCorpus.load(OUT / "general").vocabulary
    messages = {}
    for side, most in SENTENCES.items():
        found = filter(None, (first_sentence(text, vocabulary) for text in texts[side]))
        messages[side] = [sentence for _, sentence in zip(range(most), found, strict=False)]
        print(
            f"{side}: {len(messages[side])} sentences of"
            f" {sum(len(vocabulary.split(one)) for one in messages[side]):,} words"
        )
    (OUT / "messages.json").write_text(json.dumps(messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
