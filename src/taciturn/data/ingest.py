"""From a Parquet file of (user, text) rows to a population. Users are split by a hash of their id."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from taciturn.data.population import Population, PopulationError, build_population
from taciturn.data.vocabulary import END, Vocabulary


def from_parquet(
    source: Path,
    folder: Path,
    vocabulary: Vocabulary,
    least_tokens: int,
    most_tokens: int,
    held_out_share: float = 1 / 16,
) -> Population:
    """Each row ends with <eos>; users below `least_tokens` are left out, longer ones cut at `most_tokens` (paper 1: 1,600)."""
    users: dict[str, list[int]] = {}
    for user, text in _rows(source):
        tokens = vocabulary.encode(text)
        if tokens:
            users.setdefault(user, []).extend([*tokens, END])
    train = {}
    held_out = {}
    for user, tokens in users.items():
        if _share(user) < held_out_share:
            held_out[user] = tokens[:most_tokens]
        elif len(tokens) >= least_tokens:
            train[user] = tokens[:most_tokens]
    if not train:
        raise PopulationError(
            f"no user of {source} is left to train on: none has {least_tokens} tokens or more; lower --least-tokens"
        )
    about = {"source": source.name, "least_tokens": least_tokens, "most_tokens": most_tokens}
    return build_population(folder, train, held_out, vocabulary, about)


def _rows(source: Path) -> Iterator[tuple[str, str]]:
    if not source.is_file():
        raise PopulationError(f"{source} is not a file")
    try:
        file = parquet.ParquetFile(source)
    except pa.ArrowInvalid:
        raise PopulationError(f"{source} is not a Parquet file") from None
    missing = {"user_id", "text"} - set(file.schema_arrow.names)
    if missing:
        raise PopulationError(
            f"{source} has no column {' or '.join(sorted(missing))}; its columns are {', '.join(file.schema_arrow.names)}"
        )
    for batch in file.iter_batches(columns=["user_id", "text"]):
        for user, text in zip(batch["user_id"].to_pylist(), batch["text"].to_pylist(), strict=True):
            if text is not None and not isinstance(text, str):
                raise PopulationError(f"{source}: the column text holds {type(text).__name__}, not text")
            if user is not None and text:
                yield str(user), text


def _share(user: str) -> float:
    """A number in [0, 1) from the user's id alone, so that nobody's split depends on anyone else."""
    return int.from_bytes(hashlib.sha256(user.encode()).digest()[:8], "big") / 2**64
