"""Count n-grams on text: what a neural model has to beat.

Counted on users' text they have no guarantee at all, and say so.

**Guarantee:** none. A count of four words may be one person's sentence. So the ledger of the
population is charged with ε = ∞ before the first text is read, and the model is exported only as
non-private (`taciturn export --non-private`). For an n-gram with a guarantee, distil it from a
private model: `taciturn export RUN --to arpa`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from dp_accounting import NonPrivateDpEvent

from taciturn.data.population import Population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.export.word_model import COUNTED_ON
from taciturn.files import check_new_folder, new_folder, write_atomically
from taciturn.models.ngram import NGram, katz, kneser_ney
from taciturn.names import Smoothing
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.progress import Progress, ignore_progress
from taciturn.release.model_file import ModelCard, card_digest, params_digest, save_model
from taciturn.release.privacy_statement import statement
from taciturn.runs.folder import RunError
from taciturn.runs.run import unit_of

NOT_NEW = "name a new folder"
# ε is ∞ whatever δ is.
ANY_DELTA = 1e-10


def count_public(
    corpus: Path, out: Path, smoothing: Smoothing, order: int, progress: Progress = ignore_progress
) -> None:
    """Count n-grams on public text.

    Args:
        corpus: the folder of the text.
        out: a new folder, for the model.
        smoothing: of the counts.
        order: the words of the longest n-gram.
        progress: called with documents read, and of how many.
    """
    check_new_folder(out, NOT_NEW)
    public = PublicCorpus.load(corpus)
    vocabulary = public.vocabulary
    texts = _report_each(public.documents, progress)
    model = _count(texts, len(vocabulary), smoothing, order)
    card = ModelCard(
        architecture=_architecture(smoothing, order),
        vocabulary=vocabulary.words,
        text=vocabulary.about,
        public_sources=(public.source,),
    )
    with new_folder(out, NOT_NEW) as new:
        save_model(new / "model.safetensors", model.params(), card)


def count_population(
    folder: Path,
    out: Path,
    smoothing: Smoothing,
    order: int,
    non_private: bool,
    progress: Progress = ignore_progress,
) -> None:
    """Charge the people with ε = ∞, then count n-grams on their text.

    Args:
        folder: the population.
        out: a new folder, for the model.
        smoothing: of the counts.
        order: the words of the longest n-gram.
        non_private: whether the caller means it.
        progress: called with users read, and of how many.

    Raises:
        RunError: the caller does not mean it.
    """
    check_new_folder(out, NOT_NEW)
    if not non_private:
        raise RunError(
            f"{folder} holds users' text, and counts of it have no guarantee (ε = ∞). If you mean"
            " that, add `non_private=True`; for an n-gram with one, train a private model and"
            " export it: taciturn export RUN --to arpa"
        )
    population = Population(folder)
    vocabulary = population.vocabulary
    account = _open_account(population, name=out.name, recipe=f"{smoothing} {order}-grams")
    account.charge(round=0, record="n-grams")
    texts = _report_each(population.texts, progress)
    model = _count(texts, len(vocabulary), smoothing, order)
    card = ModelCard(
        architecture=_architecture(smoothing, order),
        vocabulary=vocabulary.words,
        text=vocabulary.about,
        run=out.name,
        round=1,
    )
    head = account.record_model(1, params_digest(model.params()), card_digest(card))
    card = replace(card, ledger_head=head)
    words = statement(account.guarantee(), card.public_text)
    origin = json.dumps({"population": str(folder)})
    with new_folder(out, NOT_NEW) as new:
        write_atomically(new / COUNTED_ON, origin.encode())
        save_model(new / "model.safetensors", model.params(), card, mode=0o600)
        write_atomically(new / "guarantee.txt", words.encode())


def _open_account(population: Population, name: str, recipe: str) -> Account:
    """Open a run without privacy in the people's ledger."""
    terms = RunTerms(
        name=name,
        recipe=recipe,
        population=population.id,
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=ANY_DELTA),
        rounds=1,
        unit=unit_of(population),
    )
    account = Account(ledger=open_ledger(population), terms=terms, release=NonPrivateDpEvent())
    account.open()
    return account


def _architecture(smoothing: Smoothing, order: int) -> dict[str, str | int]:
    return {"kind": "ngram", "smoothing": smoothing, "order": order}


def _report_each(texts: Texts, progress: Progress) -> Iterator[np.ndarray]:
    """Yield each text, and report progress once it is read."""
    for number, text in enumerate(texts, 1):
        yield text
        progress(number, len(texts))


def _count(texts: Iterator[np.ndarray], words: int, smoothing: Smoothing, order: int) -> NGram:
    estimate = katz if smoothing == "katz" else kneser_ney
    return estimate(texts, words, order)
