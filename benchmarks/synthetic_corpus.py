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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import wordfreq

BLOCK = 1000  # users generated at a time
TOPIC_SHARE, GRAMMAR_SHARE = 0.2, 0.25
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
    law = np.random.default_rng([seed, 0])
    cumulative = np.cumsum(1 / np.arange(1, len(words) + 1))
    cumulative /= cumulative[-1]
    preferences = np.stack([law.permutation(len(words)) for _ in range(topics)])
    follower = law.permutation(len(words))
    listed = np.array(words, object)
    for block in range(0, users, BLOCK):
        count = min(BLOCK, users - block)
        draw = np.random.default_rng([seed, 1, block])
        ranks = np.searchsorted(cumulative, draw.random((BLOCK, tokens)))
        topic = draw.integers(0, topics, BLOCK)
        chosen = np.where(
            draw.random(ranks.shape) < TOPIC_SHARE, preferences[topic[:, None], ranks], ranks
        )
        follows = draw.random(ranks.shape) < GRAMMAR_SHARE
        for step in range(1, tokens):
            chosen[:, step] = np.where(
                follows[:, step], follower[chosen[:, step - 1]], chosen[:, step]
            )
        said = listed[chosen[:count]].tolist()
        starts = range(0, tokens, message)
        names = [f"user-{block + index}" for index in range(count) for _ in starts]
        texts = [" ".join(one[start : start + message]) for one in said for start in starts]
        yield pa.record_batch(
            [pa.array(names, pa.string()), pa.array(texts, pa.string())], schema=SCHEMA
        )


def write_shards(
    batches: Iterator[pa.RecordBatch], folder: Path, blocks_per_shard: int = 100
) -> Iterator[int]:
    """Write messages as Parquet shards, as a cluster's job would; yields the number of blocks
    written so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = None
    for done, batch in enumerate(batches):
        if done % blocks_per_shard == 0:
            if writer:
                writer.close()
            writer = parquet.ParquetWriter(
                folder / f"part-{done // blocks_per_shard:05}.parquet", SCHEMA
            )
        assert writer is not None
        writer.write_batch(batch)
        yield done + 1
    if writer:
        writer.close()


def main() -> None:
    asked = argparse.ArgumentParser(
        description=(
            "Write simulated users as Parquet shards (columns user_id and text) into a new folder."
        )
    )
    asked.add_argument("out", type=Path)
    for name, default in (
        ("users", 10_000),
        ("tokens", 400),
        ("message", 20),
        ("topics", 50),
        ("seed", 0),
    ):
        asked.add_argument(f"--{name}", type=int, default=default)
    given = vars(asked.parse_args())
    out = given.pop("out")
    for done in write_shards(synthetic_messages(wordfreq.top_n_list("en", 12_000), **given), out):
        print(
            f"{min(done * BLOCK, given['users']):,} of {given['users']:,} users",
            end="\r",
            flush=True,
        )


if __name__ == "__main__":
    main()
