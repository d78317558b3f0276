"""Simulated users for tests and benchmarks: Zipf's words, topics, and a little grammar, any number
of users, streamed.

    python benchmarks/synthetic_corpus.py raw --users 1000000 --tokens 400 && taciturn data build
        raw --out people

A word is drawn by Zipf's law: from the whole list, or, one time in five, from the order of words
that the user's topic prefers. One time in four it is instead the word that always follows the one
before it. Users come in blocks that are generated apart.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import wordfreq

# Users generated at a time.
BLOCK = 1000
# Of words, which are drawn by topic, and which follow from the word before.
TOPIC_SHARE = 0.2
GRAMMAR_SHARE = 0.25
SCHEMA = pa.schema({"user_id": pa.string(), "text": pa.string()})


def synthetic_messages(
    words: Sequence[str],
    users: int,
    tokens: int,
    message: int = 20,
    topics: int = 50,
    seed: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of (user_id, text): each user has `tokens` words in messages of `message`."""
    language = _Language.draw(len(words), topics, seed)
    word_list = np.array(words, object)
    starts = range(0, tokens, message)
    for block in range(0, users, BLOCK):
        count = min(BLOCK, users - block)
        generator = np.random.default_rng([seed, 1, block])
        ids = language.draw_texts(generator, tokens)[:count]
        names = []
        texts = []
        for user, words_of_user in enumerate(word_list[ids].tolist(), start=block):
            for start in starts:
                words_of_message = words_of_user[start : start + message]
                names.append(f"user-{user}")
                texts.append(" ".join(words_of_message))
        columns = [pa.array(names, pa.string()), pa.array(texts, pa.string())]
        yield pa.record_batch(columns, schema=SCHEMA)


class _Language(NamedTuple):
    """What all users have in common."""

    # Zipf's law: the probability of a word or a commoner one.
    cumulative: np.ndarray
    # [topics, words]: the words of each topic, those that it prefers first.
    preferences: np.ndarray
    # The word that always follows each.
    followers: np.ndarray

    @classmethod
    def draw(cls, words: int, topics: int, seed: int) -> "_Language":
        generator = np.random.default_rng([seed, 0])
        cumulative = np.cumsum(1 / np.arange(1, words + 1))
        cumulative /= cumulative[-1]
        preferences = np.stack([generator.permutation(words) for _ in range(topics)])
        followers = generator.permutation(words)
        return cls(cumulative, preferences, followers)

    def draw_texts(self, generator: np.random.Generator, tokens: int) -> np.ndarray:
        """Return ids [BLOCK, tokens], a row for each user."""
        shape = (BLOCK, tokens)
        ranks = np.searchsorted(self.cumulative, generator.random(shape))
        topics = generator.integers(0, len(self.preferences), BLOCK)
        is_of_topic = generator.random(shape) < TOPIC_SHARE
        preferred = self.preferences[topics[:, None], ranks]
        ids = np.where(is_of_topic, preferred, ranks)
        follows = generator.random(shape) < GRAMMAR_SHARE
        for step in range(1, tokens):
            before = ids[:, step - 1]
            following = self.followers[before]
            ids[:, step] = np.where(follows[:, step], following, ids[:, step])
        return ids


def write_shards(
    batches: Iterator[pa.RecordBatch], folder: Path, blocks_per_shard: int = 100
) -> Iterator[int]:
    """Write messages as Parquet shards, as a cluster's job would; yield the number of blocks
    written so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = None
    for done, batch in enumerate(batches):
        if done % blocks_per_shard == 0:
            if writer:
                writer.close()
            shard = done // blocks_per_shard
            writer = parquet.ParquetWriter(folder / f"part-{shard:05}.parquet", SCHEMA)
        assert writer is not None
        writer.write_batch(batch)
        yield done + 1
    if writer:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(
            "Write simulated users as Parquet shards (columns user_id and text) into a new folder."
        )
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--message", type=int, default=20)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    messages = synthetic_messages(
        wordfreq.top_n_list("en", 12_000),
        users=options.users,
        tokens=options.tokens,
        message=options.message,
        topics=options.topics,
        seed=options.seed,
    )
    for done in write_shards(messages, options.out):
        users = min(done * BLOCK, options.users)
        print(f"{users:,} of {options.users:,} users", end="\r", flush=True)


if __name__ == "__main__":
    main()
