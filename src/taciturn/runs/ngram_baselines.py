"""Count n-grams on text: what a neural model has to beat.

Counted on users' text they have no guarantee at all, and say so.

**Guarantee:** none. A count of four words may be one person's sentence. So the ledger of the
population is charged with ε = ∞ before the first text is read, and the model is exported only as
non-private (`taciturn export --non-private`). Interpolated with public text they have no more. For
an n-gram with a guarantee, distil it from a private model: `taciturn export RUN --to arpa`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from dp_accounting import NonPrivateDpEvent

from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.public import PublicCorpus, ingest_public
from taciturn.data.sources import Source
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.export.word_model import COUNTED_ON
from taciturn.files import check_new_folder, new_folder, write_atomically
from taciturn.models.interpolation import fit_share, interpolate
from taciturn.models.ngram import NGram, katz, kneser_ney
from taciturn.names import Smoothing
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import LedgerError
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.release.model_file import ModelCard, card_digest, params_digest, save_model
from taciturn.release.privacy_statement import statement
from taciturn.runs.folder import RunError
from taciturn.runs.ngram_worth import Baseline, FittedShare, measure_baseline
from taciturn.runs.run import unit_of

NOT_NEW = "name a new folder"
# ε is ∞ whatever δ is.
ANY_DELTA = 1e-10
# Of the people to learn from, one in this many is held back to fit the share of the public text.
HELD_BACK = 10


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
    progress: StageProgress = ignore_progress,
    *,
    public: Sequence[Path] = (),
) -> Baseline:
    """Charge the people with ε = ∞, then count n-grams on their text.

    With public text, counts of both are interpolated. The share of the people's is fitted on every
    tenth of the people to learn from, with counts of the others; then all of them are counted.
    Held-out people have no part in it: what the n-grams are worth is measured on them afterwards.

    Args:
        folder: the population.
        out: a new folder, for the model.
        smoothing: of the counts.
        order: the words of the longest n-gram.
        non_private: whether the caller means it.
        progress: called with what is done, how much of it, and of how much.
        public: corpora or files of public text.

    Raises:
        RunError: the caller does not mean it, or too few people can be held back.
        LedgerError: the people have a run of this name.
    """
    check_new_folder(out, NOT_NEW)
    if not non_private:
        raise RunError(
            f"{folder} holds users' text, and counts of it have no guarantee (ε = ∞). If you mean"
            " that, add `non_private=True`; for an n-gram with one, train a private model and"
            " export it: `tt.FinishedRun(RUN).export(FOLDER, to='arpa')`"
        )
    population = Population(folder)
    if public:
        _check_can_hold_back(population)
    _check_new_name(population, out.name)
    with open_public_text(public, population.vocabulary, progress) as corpora:
        # All that can be wrong with the public text was found before anything is charged.
        account = _charge(population, out.name, smoothing, order, corpora)
        if corpora:
            counted = _count_both(population, corpora, smoothing, order, progress)
        else:
            count = _Counting(
                words=len(population.vocabulary),
                smoothing=smoothing,
                order=order,
                progress=progress,
            )
            counted = _Counted(model=count(population.texts, "everybody"), share=None)
        _save(population, out, account, counted, _architecture(smoothing, order), corpora)
        baseline = measure_baseline(
            counted.model,
            texts=HeldOutUsers(folder).texts,
            public=[corpus.documents for corpus in corpora],
            progress=progress,
        )
    return replace(
        baseline,
        people_share=counted.share,
        public_sources=tuple(corpus.source for corpus in corpora),
    )


class _Counted(NamedTuple):
    """N-grams, and the share of the people's where public text was counted too."""

    model: NGram
    share: FittedShare | None


def _check_can_hold_back(population: Population) -> None:
    if len(population) < HELD_BACK:
        raise RunError(
            f"{population.folder} has {len(population)} people to learn from, and the weight of"
            f" their text beside the public text is fitted on one in {HELD_BACK}: leave out"
            " `public`, or build it from more people"
        )


def _check_new_name(population: Population, name: str) -> None:
    """Refuse a name that the ledger has already, as it counts what each name has cost."""
    ledger = open_ledger(population)
    if name in ledger.runs():
        raise LedgerError(
            f"{ledger.path} already has a run {name!r}, perhaps n-grams whose counting was"
            " interrupted: name another `out`"
        )


@contextmanager
def open_public_text(
    paths: Sequence[Path], vocabulary: Vocabulary, progress: StageProgress = ignore_progress
) -> Iterator[list[PublicCorpus]]:
    """Yield public text as corpora of these words; text files are read for as long as it takes.

    Args:
        paths: folders that `data public` made, or files and folders of text.
        vocabulary: the words.
        progress: called with what is done, how much of it, and of how much.
    """
    folders = [path for path in paths if (path / "about.json").exists()]
    files = [path for path in paths if path not in folders]
    corpora = [PublicCorpus.load(folder) for folder in folders]
    for folder, corpus in zip(folders, corpora, strict=True):
        corpus.check_words(vocabulary, str(folder))
    with TemporaryDirectory(prefix="taciturn-") as temporary:
        if files:
            read = Path(temporary) / "public"
            ingest_public(
                Source(paths=files, with_user=False),
                read,
                vocabulary=vocabulary,
                name=", ".join(path.name for path in files),
                language=vocabulary.language,
                progress=progress,
            )
            corpora.append(PublicCorpus.load(read))
        yield corpora


def _charge(
    population: Population,
    name: str,
    smoothing: Smoothing,
    order: int,
    corpora: list[PublicCorpus],
) -> Account:
    """Charge the people with ε = ∞, before the first of their text is read."""
    recipe = f"{smoothing} {order}-grams"
    if corpora:
        recipe += ", interpolated with public text"
    account = _open_account(population, name=name, recipe=recipe)
    account.charge(round=0, record="n-grams")
    return account


def _count_both(
    population: Population,
    corpora: list[PublicCorpus],
    smoothing: Smoothing,
    order: int,
    progress: StageProgress,
) -> _Counted:
    """Count people's and public text, and interpolate them."""
    count = _Counting(
        words=len(population.vocabulary), smoothing=smoothing, order=order, progress=progress
    )
    documents = [corpus.documents for corpus in corpora]
    of_public = count(JoinedTexts(documents), "public text")
    learned_from, held_back = hold_back(population.texts)
    of_others = count(learned_from, "nine tenths")
    share = fit_share(of_others, of_public, held_back)
    # To save memory.
    del of_others
    of_people = count(population.texts, "everybody")
    model = interpolate(of_people, of_public, share, partial(progress, "interpolating"))
    fitted = FittedShare(share, held_back=len(held_back), counted=len(learned_from))
    return _Counted(model=model, share=fitted)


@dataclass(frozen=True, kw_only=True)
class _Counting:
    """Counts texts, and says what it does: when all is read, most of the time is still to come."""

    words: int
    smoothing: Smoothing
    order: int
    progress: StageProgress

    def __call__(self, texts: "Texts | SomeTexts | JoinedTexts", whose: str) -> NGram:
        model = _count(self._read(texts, whose), self.words, self.smoothing, self.order)
        self.progress(f"counting {whose}", 1, 1)
        return model

    def _read(self, texts: "Texts | SomeTexts | JoinedTexts", whose: str) -> Iterator[np.ndarray]:
        yield from _report_each(texts, partial(self.progress, f"reading {whose}"))
        self.progress(f"counting {whose}", 0, 1)


def hold_back(texts: Texts) -> tuple["SomeTexts", "SomeTexts"]:
    """Split the texts of people to learn from: those of nine in ten, and those of every tenth.

    People are in the order of a hash of their ids, so that every tenth is a sample.
    """
    everybody = np.arange(len(texts))
    is_held_back = everybody % HELD_BACK == HELD_BACK - 1
    return SomeTexts(texts, everybody[~is_held_back]), SomeTexts(texts, everybody[is_held_back])


@dataclass(frozen=True)
class SomeTexts:
    """Some of the texts."""

    texts: Texts
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.texts[place] for place in self.places.tolist())


@dataclass(frozen=True)
class JoinedTexts:
    """The texts of several collections, one after another."""

    parts: Sequence[Texts]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[np.ndarray]:
        return chain.from_iterable(self.parts)


def _save(
    population: Population,
    out: Path,
    account: Account,
    counted: _Counted,
    architecture: dict[str, Any],
    corpora: list[PublicCorpus],
) -> None:
    """Record the model in the ledger, and write it for its owner's eyes."""
    vocabulary = population.vocabulary
    if counted.share is not None:
        architecture["people_share"] = round(counted.share.value, 4)
    params = counted.model.params()
    card = ModelCard(
        architecture=architecture,
        vocabulary=vocabulary.words,
        text=vocabulary.about,
        run=out.name,
        round=1,
        public_sources=tuple(corpus.source for corpus in corpora),
    )
    head = account.record_model(1, params_digest(params), card_digest(card))
    card = replace(card, ledger_head=head)
    words = statement(account.guarantee(), card.public_text)
    origin = json.dumps({"population": str(population.folder)})
    with new_folder(out, NOT_NEW) as new:
        write_atomically(new / COUNTED_ON, origin.encode())
        save_model(new / "model.safetensors", params, card, mode=0o600)
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


def _architecture(smoothing: Smoothing, order: int) -> dict[str, Any]:
    return {"kind": "ngram", "smoothing": smoothing, "order": order}


def _report_each(
    texts: Texts | SomeTexts | JoinedTexts, progress: Progress
) -> Iterator[np.ndarray]:
    """Yield each text, and report progress once it is read."""
    for number, text in enumerate(texts, 1):
        yield text
        progress(number, len(texts))


def _count(texts: Iterator[np.ndarray], words: int, smoothing: Smoothing, order: int) -> NGram:
    estimate = katz if smoothing == "katz" else kneser_ney
    return estimate(texts, words, order)
