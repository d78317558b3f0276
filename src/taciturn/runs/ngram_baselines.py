"""N-grams counted on text: what a neural model has to beat. Counted on users' text they have no
guarantee at all, and say so.

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
from taciturn.data.vocabulary import Vocabulary
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
# ε is ∞ at any
ANY_DELTA = 1e-10


def count_public(
    corpus: Path, out: Path, smoothing: Smoothing, order: int, progress: Progress = ignore_progress
) -> None:
    check_new_folder(out, NOT_NEW)
    public = PublicCorpus.load(corpus)
    model = _counted(public.documents, public.vocabulary, smoothing, order, progress)
    card = ModelCard(
        architecture=_architecture(smoothing, order),
        vocabulary=public.vocabulary.words,
        text=public.vocabulary.about,
        public_sources=(public.source,),
    )
    with new_folder(out, NOT_NEW) as made:
        save_model(made / "model.safetensors", model.params(), card)


def count_population(
    folder: Path,
    out: Path,
    smoothing: Smoothing,
    order: int,
    non_private: bool,
    progress: Progress = ignore_progress,
) -> None:
    """Charge first, then count."""
    check_new_folder(out, NOT_NEW)
    if not non_private:
        to_do = (
            "for an n-gram with one, train a private model and export it: taciturn export RUN --to"
            " arpa"
        )
        counts = f"{folder} holds users' text, and counts of it have no guarantee (ε = ∞)"
        raise RunError(f"{counts}. If you mean that, add --non-private; {to_do}")
    population = Population(folder)
    terms = RunTerms(
        name=out.name,
        recipe=f"{smoothing} {order}-grams",
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
    account.charge(round=0, record="n-grams")
    model = _counted(population.texts, population.vocabulary, smoothing, order, progress)
    vocabulary = population.vocabulary
    card = ModelCard(
        architecture=_architecture(smoothing, order),
        vocabulary=vocabulary.words,
        text=vocabulary.about,
        run=terms.name,
        round=1,
    )
    card = replace(
        card, ledger_head=account.record_model(1, params_digest(model.params()), card_digest(card))
    )
    with new_folder(out, NOT_NEW) as made:
        write_atomically(made / COUNTED_ON, json.dumps({"population": str(folder)}).encode())
        save_model(made / "model.safetensors", model.params(), card, mode=0o600)
        write_atomically(
            made / "guarantee.txt", statement(account.guarantee(), card.public_text).encode()
        )


def _architecture(smoothing: Smoothing, order: int) -> dict[str, str | int]:
    return {"kind": "ngram", "smoothing": smoothing, "order": order}


def _counted(
    texts: Texts, vocabulary: Vocabulary, smoothing: Smoothing, order: int, progress: Progress
) -> NGram:
    def watched() -> Iterator[np.ndarray]:
        for number, text in enumerate(texts, 1):
            yield text
            progress(number, len(texts))

    estimate = katz if smoothing == "katz" else kneser_ney
    return estimate(watched(), len(vocabulary), order)
