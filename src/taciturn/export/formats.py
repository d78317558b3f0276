"""A run's model as files that keyboards load. Each carries its guarantee, and is compared with the
JAX model before it is written.
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN, WordModel
from taciturn.data.vocabulary import normalize
from taciturn.export.arpa import arpa_words, read_arpa, write_arpa
from taciturn.export.combined import STEP, read_combined, write_combined
from taciturn.export.javascript import (
    Published,
    check_javascript,
    javascript_model,
    javascript_ngram,
)
from taciturn.export.onnx import onnx_model, onnx_scores
from taciturn.export.word_model import LoadedModel
from taciturn.files import new_folder
from taciturn.models.ngram import NGram, katz, prune
from taciturn.models.sampling import samples
from taciturn.models.stepping import Neural, Recurrent
from taciturn.names import ExportFormat
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text
from taciturn.privacy.ledger.ledger import Guarantee
from taciturn.progress import StageProgress, ignore_progress
from taciturn.release.gate import ExportRefused, check_may_leave
from taciturn.release.model_file import save_model
from taciturn.release.privacy_statement import statement, statement_json

# of 64 words
CHECKED_TEXTS = 32
DISTILLED_ORDER = 3
# the version above which keyboards prefer a word list to their own
NEWER_THAN_THEIRS = 18
# n-grams that a page can hold
PAGE_ENTRIES = 200_000
# Below, something is broken. N-grams are compared with the counted ones, from which files may
# differ by rounding only.
LEAST_AGREEMENT = {"onnx": 0.999, "onnx-int8": 0.9, "js": 0.9, "arpa": 0.99, "combined": 0.99}

# a text → the log-probabilities at its start and after each word
Scoring = Callable[[np.ndarray], np.ndarray]


class Check(NamedTuple):
    """How what was written compares with the model it was made from, on text sampled from the
    model.
    """

    positions: int
    # share of positions with the same best word
    agreement: float
    # the largest between two probabilities
    difference: float


class Exported(NamedTuple):
    guarantee: Guarantee
    files: list[Path]
    check: Check | None


@dataclass
class Export:
    """One export. The guarantee is the ledger's, of exactly this model."""

    loaded: LoadedModel
    guarantee: Guarantee
    learned_from: str | None
    to: ExportFormat = "model"
    non_private: bool = False
    blocklist: Iterable[str] = ()
    # sampled from a model that becomes n-grams
    words: int = 2_000_000
    # n-grams above single words that are then kept
    entries: int = 300_000
    progress: StageProgress = ignore_progress

    def write(self, out: Path) -> Exported:
        """Write the model once its file agrees with it."""
        # or there would be no guarantee
        assert self.loaded.card is not None
        check_may_leave(self.guarantee, self.non_private)
        self.card, self.model = self.loaded.card, self.loaded.model
        with new_folder(out, "name a new folder") as made:
            self.blocked = [
                normalize(word, self.loaded.vocabulary.language).strip() for word in self.blocklist
            ]
            if self.blocked and (
                self.to == "model"
                or (self.to in ("arpa", "combined") and isinstance(self.model, NGram))
            ):
                refused = f"a file of this kind cannot hold a blocklist (--to {self.to})"
                raise ExportRefused(f"{refused}: leave it out, or block the words on the device")
            check = self._write(made)
        return Exported(self.guarantee, sorted(out.iterdir()), check)

    def _write(self, out: Path) -> Check | None:
        self.statement, self.json = (
            words(self.guarantee, self.card.public_text) for words in (statement, statement_json)
        )
        self.loaded.vocabulary.save(out / "vocabulary.txt")
        (out / "guarantee.txt").write_text(self.statement, encoding="utf-8")
        (out / "guarantee.json").write_text(self.json, encoding="utf-8")
        match self.to:
            case "model":
                # what was verified, not the file
                return save_model(out / "model.safetensors", self.loaded.params, self.card)
            case "onnx" | "onnx-int8":
                return self._onnx(out / ("model.onnx" if self.to == "onnx" else "model.int8.onnx"))
            case "js":
                return self._javascript(out / "model.js")
            case "arpa":
                return self._arpa(out / "model.arpa")
            case "combined":
                return self._combined(out / f"main_{self.loaded.vocabulary.language}.combined")

    def _onnx(self, path: Path) -> Check:
        model = self.model
        if not isinstance(model, Recurrent):
            raise _no_cell("ONNX", self.loaded)
        never = {PADDING, UNKNOWN, BEGIN, END, *self._ids(self.blocked)}
        about = {"guarantee": self.json, "text": json.dumps(self.card.text)}
        content = onnx_model(
            model.cell, model.weights, never, model.restarts, about, self.to == "onnx-int8"
        ).SerializeToString()
        check = self._compare(lambda text: onnx_scores(content, text))
        path.write_bytes(content)
        return self._agreed(check)

    def _javascript(self, path: Path) -> Check:
        script = page_script(
            self.loaded,
            self.guarantee,
            self.learned_from,
            self.statement,
            self.card.run or "",
            self.blocked,
        )
        scores = iter(check_javascript(script, self._compared_texts, self.card.vocabulary))
        check = self._compare(lambda _: next(scores))
        path.write_text(script, encoding="utf-8")
        return self._agreed(check)

    def _arpa(self, path: Path) -> Check:
        ngram, listed, how = self._to_ngram(DISTILLED_ORDER)
        write_arpa(path, ngram, listed, [self.statement, how])
        path.with_name("vocabulary.txt").write_text(
            "".join(f"{word}\n" for word in arpa_words(listed)), encoding="utf-8"
        )
        read_back, words = read_arpa(path)
        places = {word: place for place, word in enumerate(words)}
        ours = np.array([places.get(word, UNKNOWN) for word in self.card.vocabulary])
        kept = np.array(self._ids(listed))
        numbers = self._renumbered(kept)

        def written(text: np.ndarray) -> np.ndarray:
            return _scores_along(read_back, ours[text])[:, ours]

        def counted(text: np.ndarray) -> np.ndarray:
            rows = np.full((len(text) + 1, self.model.vocabulary), -np.inf)
            rows[:, kept] = _scores_along(ngram, numbers[text])
            return rows

        self._agreed(self._compare(written, set(words), counted))
        return self._compare(written, set(words))

    def _combined(self, path: Path) -> Check:
        ngram, listed, how = self._to_ngram(2)
        guarantee, language = self.guarantee, self.loaded.vocabulary.language
        worth = "noise without a promise" if guarantee.is_private else "NO privacy"
        worth = "differentially private" if guarantee.epsilon < math.inf else worth
        worth = "a SIMULATION" if guarantee.is_simulated else worth
        figures = (
            f"epsilon {epsilon_text(guarantee.epsilon)} at delta {delta_text(guarantee.delta)};"
            f" ledger row {guarantee.head}"
        )
        about = f"Taciturn {self.card.run}; {worth}; {figures}; {how}"
        version, now = max(NEWER_THAN_THEIRS, self.card.round), int(datetime.now(UTC).timestamp())
        write_combined(path, ngram, listed, language, about, version, now)
        words, followers = read_combined(path)
        self._agreed(_compare_followers(ngram, listed, followers))
        return self._compare(lambda text: self._listed_scores(words, followers, text), set(words))

    def _agreed(self, check: Check) -> Check:
        if not check.agreement >= LEAST_AGREEMENT[self.to]:
            where = (
                f"{1 - check.agreement:.1%} of {check.positions:,} positions (probabilities differ"
                f" by up to {check.difference:.2g})"
            )
            raise ExportRefused(
                f"the {self.to} export disagrees with the model on the top word at {where}: nothing"
                " was written"
            )
        return check

    def _listed_scores(
        self, words: dict[str, float], followers: dict[str, dict[str, float]], text: np.ndarray
    ) -> np.ndarray:
        """Return a word list's scores before the first word and after each: words by frequency,
        after those that follow.
        """
        ids, spelled = self.loaded.vocabulary.ids, self.card.vocabulary
        alone = np.zeros(len(spelled))
        alone[[ids[word] for word in words]] = list(words.values())
        rows = np.tile(alone, (len(text) + 1, 1))
        for row, word in zip(rows[1:], text.tolist(), strict=True):
            for other, probability in followers.get(spelled[word], {}).items():
                row[ids[other]] = max(probability, row[ids[other]])
        with np.errstate(divide="ignore"):
            return np.log(rows)

    def _to_ngram(self, order: int) -> tuple[NGram, tuple[str, ...], str]:
        """Return n-grams, their words, and how they were made: the model itself if it is one, or
        else counted on its samples.
        """
        if isinstance(self.model, NGram):
            return self.model, self.card.vocabulary, f"{self.model.order}-grams as counted"
        assert isinstance(self.model, Neural)
        texts = samples(
            self.model,
            self.words,
            jax.random.key(1),
            lambda done, all: self.progress("sampling", done, all),
        )
        # Blocked words are not in the list, so no reader can produce them.
        kept = np.setdiff1d(np.arange(self.model.vocabulary), self._ids(self.blocked))
        numbers = self._renumbered(kept)
        # Katz: pruned Kneser–Ney is worse (Chelba et al. 2010).
        counted = katz((numbers[text] for text in texts), len(kept), order)
        cost = ", which costs no privacy" if self.guarantee.is_private else ""
        how = f"{order}-grams of {self.words:,} words sampled from the model{cost}"
        return (
            prune(counted, self.entries),
            tuple(self.card.vocabulary[place] for place in kept),
            how,
        )

    def _renumbered(self, kept: np.ndarray) -> np.ndarray:
        """Return the ids of the model's words in a list that keeps some of them."""
        numbers = np.full(self.model.vocabulary, UNKNOWN)
        numbers[kept] = np.arange(len(kept))
        return numbers

    def _ids(self, words: Iterable[str]) -> list[int]:
        return [
            self.loaded.vocabulary.ids[word] for word in words if word in self.loaded.vocabulary.ids
        ]

    def _compare(
        self, scores: Scoring, listed: set[str] | None = None, reference: Scoring | None = None
    ) -> Check:
        """Compare. `listed` are the words that a file can hold, where not all; the reference is the
        model, unless another is given.
        """
        positions = same = 0
        difference = 0.0
        silent = [PADDING, UNKNOWN, BEGIN]
        if listed is not None:
            silent += [
                place
                for place, word in enumerate(self.card.vocabulary)
                if place >= END and word not in listed
            ]
        for text in self._compared_texts:
            ours, theirs = (
                np.array(reference(text) if reference else _scores_along(self.model, text)),
                np.array(scores(text)),
            )
            ours[:, silent] = theirs[:, silent] = -np.inf
            positions += len(ours)
            same += int(np.count_nonzero(np.argmax(ours, axis=1) == np.argmax(theirs, axis=1)))
            difference = max(difference, float(np.abs(np.exp(ours) - np.exp(theirs)).max()))
        return Check(positions, same / positions, difference)

    @functools.cached_property
    def _compared_texts(self) -> list[np.ndarray]:
        """Return texts of the model's own; n-grams, which are slow to sample, get random words."""
        if isinstance(self.model, Neural):
            return list(samples(self.model, 1, jax.random.key(0)))[:CHECKED_TEXTS]
        generator = np.random.default_rng(0)
        return list(generator.integers(UNKNOWN, self.model.vocabulary, (CHECKED_TEXTS, 64)))


def _compare_followers(
    ngram: NGram, listed: Sequence[str], followers: dict[str, dict[str, float]]
) -> Check:
    """Count the words that follow others in a word list with the probability that the n-grams give
    them.
    """
    ids = {word: place for place, word in enumerate(listed)}
    off = []
    for word, others in followers.items():
        # after this word alone, as in a list
        scores = ngram.scores((ids[word],))
        off += [abs(math.log(said) - scores[ids[other]]) for other, said in others.items()]
    right = sum(one <= STEP for one in off)
    return Check(len(off), right / len(off) if off else 1.0, math.expm1(max(off, default=0.0)))


def _scores_along(model: WordModel, text: np.ndarray) -> np.ndarray:
    """Return the scores at the start and after each word."""
    state = model.start()
    rows = [model.scores(state)]
    for word in text.tolist():
        state = model.read(state, word)
        rows.append(model.scores(state))
    return np.stack(rows)


def page_script(
    loaded: LoadedModel,
    guarantee: Guarantee | None,
    learned_from: str | None,
    statement: str,
    name: str,
    blocked: Iterable[str],
) -> str:
    """Return the model as one script, for the page and for export."""
    words = loaded.vocabulary
    about = Published(
        name,
        words.words,
        words.about,
        guarantee,
        statement,
        learned_from,
        list(blocked),
        loaded.is_personal,
    )
    if isinstance(loaded.model, NGram):
        return javascript_ngram(prune(loaded.model, PAGE_ENTRIES), about)
    model, kind = loaded.model, loaded.kind
    if not isinstance(model, Recurrent) or kind is None or kind.javascript_cell is None:
        raise _no_cell("JavaScript", loaded)
    return javascript_model(model.weights, kind.javascript_cell, sorted(model.restarts), about)


def _no_cell(what: str, loaded: LoadedModel) -> ExportRefused:
    name = loaded.path.name
    return ExportRefused(
        f"{what} is for models that read word by word (LSTM, CIFG, GRU); export {name} as n-grams:"
        " --to arpa"
    )
