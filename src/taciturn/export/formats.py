"""A run's model as files that keyboards load.

Each carries its guarantee, and is compared with the JAX model before it is written.
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN, WordModel
from taciturn.data.vocabulary import normalize, spell_for_display
from taciturn.export.aosp_dictionary_of_model import (
    find_probabilities,
    hold_score,
    make_dictionary,
)
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.aosp_dictionary_words import MADE_FROM_MODEL
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.export.arpa import arpa_words, read_arpa, write_arpa
from taciturn.export.combined import (
    STEP,
    ListedWord,
    list_words,
    make_header,
    read_combined,
    score_followers,
    share_of_unknown_words,
    write_combined,
)
from taciturn.export.javascript import (
    Published,
    check_javascript,
    javascript_model,
    javascript_ngram,
)
from taciturn.export.longer_list import list_rarer_words
from taciturn.export.onnx import onnx_model, onnx_scores
from taciturn.export.phone_folder import NEXT_WORDS, PAGE, write_next_words, write_page
from taciturn.export.usage import FILE_NAME as USAGE
from taciturn.export.usage import write_javascript_usage, write_onnx_usage
from taciturn.export.word_model import LoadedModel
from taciturn.files import new_folder
from taciturn.models.ngram import NGram, katz, prune
from taciturn.models.sampling import samples
from taciturn.models.stepping import Neural, Recurrent
from taciturn.names import ExportFormat
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.signed_rows import copy_signed_rows
from taciturn.progress import StageProgress, ignore_progress
from taciturn.release.gate import ExportRefused, check_may_leave
from taciturn.release.model_file import save_model
from taciturn.release.privacy_statement import describe_standing, statement, statement_json

# How many texts a file is compared on, and the words of each that is made of random ones.
CHECKED_TEXTS = 32
CHECKED_WORDS = 64
DISTILLED_ORDER = 3
# Keyboards prefer a word list above this version to their own.
NEWER_THAN_THEIRS = 18
# The n-grams that a page can hold.
PAGE_ENTRIES = 200_000
# Below, something is broken. N-grams are compared with the counted ones, from which files may
# differ by rounding only.
LEAST_AGREEMENT = {
    "onnx": 0.999,
    "onnx-int8": 0.9,
    "js": 0.9,
    "arpa": 0.99,
    "combined": 0.99,
    "dict": 0.99,
    "phone": 0.99,
}

# A text → the log-probabilities at its start and after each word.
Scoring = Callable[[np.ndarray], np.ndarray]
# A word and its score after another → the score that a word list has room for.
Holding = Callable[[str, float], float]


class Check(NamedTuple):
    """How what was written compares with its model, on text sampled from the model."""

    positions: int
    # The share of positions with the same best word.
    agreement: float
    # The largest difference between two probabilities.
    difference: float


class Exported(NamedTuple):
    """What an export wrote, and how it compares with the model."""

    guarantee: Guarantee
    files: list[Path]
    check: Check | None


class Distilled(NamedTuple):
    """N-grams of a model, their words, and how they were made."""

    ngram: NGram
    words: tuple[str, ...]
    how: str


@dataclass(kw_only=True)
class Export:
    """One export. The guarantee is the ledger's, of exactly this model."""

    loaded: LoadedModel
    guarantee: Guarantee
    learned_from: str | None
    to: ExportFormat = "model"
    non_private: bool = False
    blocklist: Iterable[str] = ()
    # How many words are sampled from a model that becomes n-grams.
    words: int = 2_000_000
    # How many n-grams above single words are then kept.
    entries: int = 300_000
    # How many words of a public list a word list has, with those of the model.
    public_words: int = 150_000
    progress: StageProgress = ignore_progress

    def write(self, out: Path) -> Exported:
        """Write the model once its file agrees with it."""
        # A model without a card has no guarantee, and does not get here.
        assert self.loaded.card is not None
        check_may_leave(self.guarantee, self.non_private)
        self.card = self.loaded.card
        self.model = self.loaded.model
        with new_folder(out, "name a new folder") as folder:
            self.blocked = self._normalize(self.blocklist)
            if self.blocked and not self._can_block():
                raise ExportRefused(
                    f"a file of this kind cannot hold a blocklist (`to={self.to}`): leave it out,"
                    " or block the words on the device"
                )
            check = self._write_files(folder)
        return Exported(guarantee=self.guarantee, files=sorted(out.iterdir()), check=check)

    def _normalize(self, words: Iterable[str]) -> list[str]:
        language = self.loaded.vocabulary.language
        return [normalize(word, language).strip() for word in words]

    def _can_block(self) -> bool:
        """Tell whether blocked words can be kept out of such a file."""
        if self.to == "model":
            return False
        is_counted = isinstance(self.model, NGram)
        return not (self.to in ("arpa", "combined", "dict", "phone") and is_counted)

    def _write_files(self, out: Path) -> Check | None:
        self.statement = statement(self.guarantee, self.card.public_text)
        self.json = statement_json(self.guarantee, self.card.public_text)
        # A phone has no use for it.
        if self.to != "phone":
            self.loaded.vocabulary.save(out / "vocabulary.txt")
        (out / "guarantee.txt").write_text(self.statement, encoding="utf-8")
        (out / "guarantee.json").write_text(self.json, encoding="utf-8")
        match self.to:
            case "model":
                # What lets the folder be opened where the ledger is not.
                copy_signed_rows(self.loaded.path, out, self.guarantee.head)
                # The parameters that were verified, not the file they came from.
                return save_model(out / "model.safetensors", self.loaded.params, self.card)
            case "onnx":
                return self._write_onnx(out / "model.onnx")
            case "onnx-int8":
                return self._write_onnx(out / "model.int8.onnx")
            case "js":
                return self._write_javascript(out / "model.js")
            case "arpa":
                return self._write_arpa(out / "model.arpa")
            case "combined":
                language = self.loaded.vocabulary.language
                return self._write_combined(out / f"main_{language}.combined")
            case "dict":
                language = self.loaded.vocabulary.language
                return self._write_dictionary(out / f"main_{language}.dict")
            case "phone":
                return self._write_phone_folder(out)

    def _write_onnx(self, path: Path) -> Check:
        model = self.model
        if not isinstance(model, Recurrent):
            raise _no_cell("ONNX", self.loaded)
        graph = onnx_model(
            cell=model.cell,
            weights=model.weights,
            never={PADDING, UNKNOWN, BEGIN, END, *self._ids_of(self.blocked)},
            restarts=model.restarts,
            about={"guarantee": self.json, "text": json.dumps(self.card.text)},
            as_bytes=self.to == "onnx-int8",
        )
        content = graph.SerializeToString()
        check = self._compare(lambda text: onnx_scores(content, text))
        path.write_bytes(content)
        usage = write_onnx_usage(path.name, self.loaded.vocabulary)
        path.with_name(USAGE).write_text(usage, encoding="utf-8")
        return self._require_agreement(check)

    def _write_javascript(self, path: Path) -> Check:
        script = page_script(
            loaded=self.loaded,
            guarantee=self.guarantee,
            learned_from=self.learned_from,
            statement=self.statement,
            name=self.card.run or "",
            blocked=self.blocked,
        )
        # One start of Node for all texts; they are compared in the order they are scored in.
        scores = iter(check_javascript(script, self._compared_texts, self.card.vocabulary))
        check = self._compare(lambda _: next(scores))
        path.write_text(script, encoding="utf-8")
        usage = write_javascript_usage(self.card.run or "", self.loaded.vocabulary)
        path.with_name(USAGE).write_text(usage, encoding="utf-8")
        return self._require_agreement(check)

    def _write_arpa(self, path: Path) -> Check:
        distilled = self._distill(DISTILLED_ORDER)
        write_arpa(
            path,
            model=distilled.ngram,
            words=distilled.words,
            comments=[self.statement, distilled.how],
        )
        spelled = "".join(f"{word}\n" for word in arpa_words(distilled.words))
        path.with_name("vocabulary.txt").write_text(spelled, encoding="utf-8")
        ngram, words = read_arpa(path)
        score_file = self._scoring_of_file(ngram, words)
        score_counts = self._scoring_of_counts(distilled)
        listed = set(words)
        # The file must hold what was counted; how far that is from the model is shown.
        self._require_agreement(self._compare(score_file, listed, reference=score_counts))
        return self._compare(score_file, listed)

    def _scoring_of_file(self, ngram: NGram, words: Sequence[str]) -> Scoring:
        """Return what scores the model's words by n-grams that were read back."""
        places = {word: place for place, word in enumerate(words)}
        # Where the words of the model stand in the file.
        in_file = np.array([places.get(word, UNKNOWN) for word in self.card.vocabulary])

        def score(text: np.ndarray) -> np.ndarray:
            scores = _scores_along(ngram, in_file[text])
            return scores[:, in_file]

        return score

    def _scoring_of_counts(self, distilled: Distilled) -> Scoring:
        """Return what scores the model's words by counted n-grams."""
        kept = np.array(self._ids_of(distilled.words))
        numbers = self._renumber(kept)

        def score(text: np.ndarray) -> np.ndarray:
            rows = np.full((len(text) + 1, self.model.vocabulary), -np.inf)
            rows[:, kept] = _scores_along(distilled.ngram, numbers[text])
            return rows

        return score

    def _write_combined(self, path: Path) -> Check:
        distilled = self._distill_list()
        rarer = self._list_rarer_words(distilled)
        write_combined(
            path,
            distilled.ngram,
            distilled.words,
            language=self.loaded.vocabulary.language,
            description=self._describe_list(distilled, rarer),
            version=max(NEWER_THAN_THEIRS, self.card.round),
            date=int(datetime.now(UTC).timestamp()),
            more=rarer,
        )
        words, followers = read_combined(path)
        self._require_agreement(_compare_followers(distilled, followers))
        score_list = functools.partial(self._score_listed, words, followers)
        return self._compare(score_list, set(self._normalize(words)))

    def _write_dictionary(self, path: Path) -> Check:
        distilled = self._distill_list()
        rarer = self._list_rarer_words(distilled)
        header = make_header(
            language=self.loaded.vocabulary.language,
            description=self._describe_list(distilled, rarer),
            version=max(NEWER_THAN_THEIRS, self.card.round),
            date=int(datetime.now(UTC).timestamp()),
        )
        listed = list_words(distilled.ngram, distilled.words, rarer)
        dictionary = make_dictionary(header, listed)
        write_dictionary(path, dictionary)
        written = read_dictionary(path)
        if written != dictionary:
            raise ExportRefused("the dictionary reads back as another one: nothing was written")
        words, followers = find_probabilities(written)
        hold = functools.partial(hold_score, written)
        self._require_agreement(_compare_followers(distilled, followers, hold))
        score_list = functools.partial(self._score_listed, words, followers)
        return self._compare(score_list, set(self._normalize(words)))

    def _write_phone_folder(self, out: Path) -> Check:
        language = self.loaded.vocabulary.language
        path = out / f"main_{language}.dict"
        check = self._write_dictionary(path)
        dictionary = read_dictionary(path)
        page = write_page(
            name=self.card.run or "",
            dictionary=path.name,
            description=dictionary.header["description"],
            statement=self.statement,
        )
        (out / PAGE).write_text(page, encoding="utf-8")
        next_words = write_next_words(dictionary, language)
        (out / NEXT_WORDS).write_text(next_words, encoding="utf-8")
        return check

    def _distill_list(self) -> Distilled:
        """Return what a word list is made of."""
        distilled = self._distill(order=2)
        return distilled._replace(words=tuple(self._spell_for_list(distilled.words)))

    def _list_rarer_words(self, distilled: Distilled) -> list[ListedWord]:
        """Return words of a public list that the model does not have."""
        return list_rarer_words(
            self.loaded.vocabulary.language,
            without={*self.card.vocabulary, *self.blocked},
            share=share_of_unknown_words(distilled.ngram),
            size=self.public_words,
        )

    def _spell_for_list(self, words: Iterable[str]) -> list[str]:
        """Return words as people write them, «I'm» and not «i'm»."""
        language = self.loaded.vocabulary.language
        return [spell_for_display(word, language) for word in words]

    def _describe_list(self, distilled: Distilled, rarer: Sequence[ListedWord]) -> str:
        """Return what the header of a word list says of it."""
        worth = _describe_guarantee(self.guarantee)
        described = f"{MADE_FROM_MODEL}{self.card.run}; {worth}; {distilled.how}"
        if rarer:
            described += f"; {len(rarer):,} rarer words are wordfreq's (CC BY-SA 4.0)"
        return described

    def _require_agreement(self, check: Check) -> Check:
        """Return the check; refuse the file if it disagrees with the model."""
        if not check.agreement >= LEAST_AGREEMENT[self.to]:
            raise ExportRefused(
                f"the {self.to} export disagrees with the model on the top word at"
                f" {1 - check.agreement:.1%} of {check.positions:,} positions (probabilities differ"
                f" by up to {check.difference:.2g}): nothing was written"
            )
        return check

    def _score_listed(
        self, words: dict[str, float], followers: dict[str, dict[str, float]], text: np.ndarray
    ) -> np.ndarray:
        """Return a word list's scores before the first word and after each.

        Words have their frequency, and those that follow a word have another one after it. They are
        compared with each other, and made probabilities only here.
        """
        spelled = self._spell_for_list(self.card.vocabulary)
        places = {word: place for place, word in enumerate(spelled)}
        rows = np.tile(self._list_frequencies(words, places), (len(text) + 1, 1))
        words_before = [spelled[word] for word in text]
        for row, word in zip(rows[1:], words_before, strict=True):
            for follower, probability in followers.get(word, {}).items():
                place = places[follower]
                row[place] = max(probability, row[place])
        rows /= rows.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            return np.log(rows)

    def _list_frequencies(self, words: dict[str, float], places: dict[str, int]) -> np.ndarray:
        """Return the frequency of each of the model's words, 0 where a list does not have it."""
        frequencies = np.zeros(len(places))
        for word, frequency in words.items():
            if word in places:
                frequencies[places[word]] = frequency
        return frequencies

    def _distill(self, order: int) -> Distilled:
        """Return the model itself if it is n-grams, or else n-grams counted on its samples."""
        if isinstance(self.model, NGram):
            how = f"{self.model.order}-grams as counted"
            return Distilled(ngram=self.model, words=self.card.vocabulary, how=how)
        assert isinstance(self.model, Neural)
        # Blocked words are not in the list, so no reader can produce them.
        everything = np.arange(self.model.vocabulary)
        kept = np.setdiff1d(everything, self._ids_of(self.blocked))
        texts = samples(
            self.model,
            words=self.words,
            key=jax.random.key(1),
            progress=functools.partial(self.progress, "sampling"),
        )
        numbers = self._renumber(kept)
        # Katz: pruned Kneser–Ney is worse (Chelba et al. 2010).
        counts = katz((numbers[text] for text in texts), len(kept), order)
        how = f"{order}-grams of {self.words:,} words sampled from the model"
        if self.guarantee.is_private:
            how = f"{how}, which costs no privacy"
        return Distilled(
            ngram=prune(counts, self.entries),
            words=tuple(self.card.vocabulary[place] for place in kept),
            how=how,
        )

    def _renumber(self, kept: np.ndarray) -> np.ndarray:
        """Return the ids of the model's words in a list that keeps some of them."""
        numbers = np.full(self.model.vocabulary, UNKNOWN)
        numbers[kept] = np.arange(len(kept))
        return numbers

    def _ids_of(self, words: Iterable[str]) -> list[int]:
        """Return the ids of those words that the model has."""
        ids = self.loaded.vocabulary.ids
        return [ids[word] for word in words if word in ids]

    def _compare(
        self, scores: Scoring, listed: set[str] | None = None, reference: Scoring | None = None
    ) -> Check:
        """Compare scores with a reference.

        Args:
            scores: of what was written.
            listed: the words that a file can hold, where these are not all.
            reference: what to compare with; the model, unless another is given.
        """
        if reference is None:
            reference = functools.partial(_scores_along, self.model)
        silent = self._never_suggested(listed)
        positions = 0
        agreeing = 0
        difference = 0.0
        for text in self._compared_texts:
            expected = np.array(reference(text))
            written = np.array(scores(text))
            expected[:, silent] = -np.inf
            written[:, silent] = -np.inf
            best = np.argmax(expected, axis=1)
            agrees = best == np.argmax(written, axis=1)
            positions += len(agrees)
            agreeing += int(np.count_nonzero(agrees))
            differences = np.abs(np.exp(expected) - np.exp(written))
            difference = max(difference, float(differences.max()))
        return Check(
            positions=positions,
            agreement=agreeing / positions,
            difference=difference,
        )

    def _never_suggested(self, listed: set[str] | None) -> list[int]:
        """Return the ids that a comparison leaves out: special tokens, and words not in a file."""
        silent = [PADDING, UNKNOWN, BEGIN]
        if listed is not None:
            silent += [
                place
                for place, word in enumerate(self.card.vocabulary)
                if place >= END and word not in listed
            ]
        return silent

    @functools.cached_property
    def _compared_texts(self) -> list[np.ndarray]:
        """Return texts of the model's own; n-grams, which are slow to sample, get random words."""
        if isinstance(self.model, Neural):
            return list(samples(self.model, 1, jax.random.key(0)))[:CHECKED_TEXTS]
        generator = np.random.default_rng(0)
        shape = (CHECKED_TEXTS, CHECKED_WORDS)
        return list(generator.integers(UNKNOWN, self.model.vocabulary, shape))


def _describe_guarantee(guarantee: Guarantee) -> str:
    """Return what a word list's header has room to say of a guarantee."""
    if guarantee.is_simulated:
        worth = "a SIMULATION"
    elif guarantee.epsilon < math.inf:
        worth = "differentially private"
    elif guarantee.is_private:
        worth = "noise without a promise"
    else:
        worth = "NO privacy"
    # Who says so comes before what is said.
    worth = "; ".join([*(words.rstrip(".") for words in describe_standing(guarantee)), worth])
    return (
        f"{worth}; epsilon {epsilon_text(guarantee.epsilon)} at delta"
        f" {delta_text(guarantee.delta)}; ledger row {guarantee.head}"
    )


def _hold_exactly(word: str, score: float) -> float:
    return score


def _compare_followers(
    distilled: Distilled,
    followers: dict[str, dict[str, float]],
    hold: Holding = _hold_exactly,
) -> Check:
    """Compare the probabilities of words that follow others, in a word list and in the n-grams."""
    differences = list(_find_differences(distilled, followers, hold))
    if not differences:
        return Check(positions=0, agreement=1.0, difference=0.0)
    within_a_step = sum(difference <= STEP for difference in differences)
    return Check(
        positions=len(differences),
        agreement=within_a_step / len(differences),
        difference=math.expm1(max(differences)),
    )


def _find_differences(
    distilled: Distilled, followers: dict[str, dict[str, float]], hold: Holding
) -> Iterator[float]:
    """Yield by how much the logarithm of each probability differs."""
    ids = {word: place for place, word in enumerate(distilled.words)}
    for word, probabilities in followers.items():
        if not probabilities:
            continue
        # A list knows one word before, and no more.
        context = ids[word]
        scores = distilled.ngram.scores((context,))
        held = score_followers(distilled.ngram, np.array([context]), scores)
        for follower, probability in probabilities.items():
            expected = hold(follower, float(held[ids[follower]]))
            yield abs(math.log(probability) - expected)


def _scores_along(model: WordModel, text: np.ndarray) -> np.ndarray:
    """Return the scores at the start and after each word."""
    state = model.start()
    rows = [model.scores(state)]
    for word in text.tolist():
        state = model.read(state, word)
        rows.append(model.scores(state))
    return np.stack(rows)


def page_script(
    *,
    loaded: LoadedModel,
    guarantee: Guarantee | None,
    learned_from: str | None,
    statement: str,
    name: str,
    blocked: Iterable[str],
) -> str:
    """Return the model as one script, for the page and for export."""
    about = Published(
        name=name,
        words=loaded.vocabulary.words,
        text=loaded.vocabulary.about,
        guarantee=guarantee,
        statement=statement,
        learned_from=learned_from,
        blocked=list(blocked),
        personal=loaded.is_personal,
    )
    model = loaded.model
    kind = loaded.kind
    if isinstance(model, NGram):
        return javascript_ngram(prune(model, PAGE_ENTRIES), about)
    if not isinstance(model, Recurrent) or kind is None or kind.javascript_cell is None:
        raise _no_cell("JavaScript", loaded)
    return javascript_model(
        model.weights,
        cell=kind.javascript_cell,
        restarts=sorted(model.restarts),
        about=about,
    )


def _no_cell(what: str, loaded: LoadedModel) -> ExportRefused:
    if loaded.dictionary is not None:
        return ExportRefused(
            f"{loaded.path.name} is a phone's dictionary, and {what} needs a model: open the run"
            " that it was made from, or put the dictionary on a phone"
        )
    return ExportRefused(
        f"{what} is for models that read word by word (LSTM, CIFG, GRU); export {loaded.path.name}"
        " as n-grams: `to=arpa`"
    )
