"""A personal model: a private model, trained further on one person's text.

It is trained on that person's device, only for that person.

**Guarantee:** none. Such a model may repeat what its owner wrote, so it stays on the device: its
card says that it is personal, and every way out (exports, warm starts, guarantees) refuses it. The
people whom the private model was trained on lose nothing. A device trains it as in a round
(algorithms/local_training.py); the text is needed once, and may then be deleted (Popov et al. 2018,
§2.6).
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.algorithms.fine_tuning import with_rehearsal
from taciturn.algorithms.local_training import LocalTraining, UserUpdate, fedavg_update
from taciturn.core import END, UNKNOWN, Key, LanguageModel, Message, Params, UserData
from taciturn.data.layout import Cut, Layout, Sentences, Unrolls
from taciturn.data.public import PublicCorpus
from taciturn.data.sources import Source
from taciturn.data.token_shards import Texts
from taciturn.data.users import user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.evaluation.accuracy import WINDOW, Scores, evaluate
from taciturn.export.word_model import LoadedModel, load_word_model
from taciturn.files import check_new_folder, new_folder, sync_folder
from taciturn.models.sgd import sgd_step
from taciturn.progress import Progress, ignore_progress
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.model_file import ModelCard, ModelFileError, save_model

# One message in this many, the last ones, is measured with and never trained on.
HELD_OUT = 10
# Popov et al. 2018, §2.5.
BATCH_SIZE = 10
UNROLL = 20
# The default of recipes; a card does not say at which length sentences were cut.
SENTENCE_LENGTH = 20
NOT_NEW = "name a new folder"

# Word ids, each message with its end.
Messages = Sequence[Sequence[int]]


class Learning(NamedTuple):
    """How a model learns from its owner; docs/keyboard.md says where the defaults come from."""

    epochs: int = 2
    learning_rate: float = 0.25
    # Rehearsed beside the owner's text, so that the general language is kept.
    general: PublicCorpus | None = None
    # λ: the owner's share of what it then learns from.
    user_share: float = 0.5


class Personal(NamedTuple):
    """What a model learned.

    Scores are on the last messages, which it was not trained on; each has a bucket of its own, or
    nearly.
    """

    before: Scores
    after: Scores
    messages: int
    # Of the messages.
    held_out: int
    # Words and punctuation, of all messages.
    words: int
    # Of the words.
    unknown: int
    # What in the file could not be used, and how often.
    left_out: dict[str, int]


class _Text(NamedTuple):
    """What one person wrote."""

    # What is learned from, and the last messages, which are measured with.
    learned: Messages
    held_out: Messages
    left_out: dict[str, int]

    def words(self) -> list[int]:
        words = []
        for message in (*self.learned, *self.held_out):
            words += [word for word in message if word != END]
        return words


def personalise(
    model: Path,
    text: Path,
    out: Path,
    learning: Learning = Learning(),
    delete_text: bool = False,
    progress: Progress = ignore_progress,
) -> Personal:
    """Train a model on all but the last messages of a text; keep it if it predicts those better.

    Any failure leaves no folder, and keeps the text: it is deleted last, and only on request.

    Args:
        model: a run, an export, a pretrained or a personal model.
        text: a file of one person's messages.
        out: a new folder for the personal model.
        learning: how it learns.
        delete_text: whether the text is deleted once the personal model is on disk.
        progress: called with epochs done, and of how many.

    Raises:
        ModelFileError: the model cannot be trained.
        DataError: the text cannot be used or deleted, or the model did not improve.
    """
    check_new_folder(out, NOT_NEW)
    loaded = load_word_model(model)
    card = _card_to_train(loaded, model)
    vocabulary = loaded.vocabulary
    _check_same_words(learning.general, vocabulary, model)
    as_it_was = _check_deletable(text) if delete_text else None
    messages = _read_text(text, vocabulary)
    if delete_text:
        _check_nothing_left_out(text, messages.left_out)
    learned = _learn(
        loaded,
        card=card,
        messages=messages,
        learning=learning,
        progress=progress,
    )
    _check_improved(learned, text, len(messages.held_out))
    _save(
        out,
        params=learned.params,
        card=card,
        general=learning.general,
    )
    if as_it_was is not None:
        _delete(text, as_it_was, out)
    words = messages.words()
    return Personal(
        before=learned.before,
        after=learned.after,
        messages=len(messages.learned) + len(messages.held_out),
        held_out=len(messages.held_out),
        words=len(words),
        unknown=words.count(UNKNOWN),
        left_out=messages.left_out,
    )


class _Learned(NamedTuple):
    """What came out of training."""

    params: Params
    # On the messages that are held out, as the model was and as it is.
    before: Scores
    after: Scores


def _learn(
    loaded: LoadedModel,
    *,
    card: ModelCard,
    messages: _Text,
    learning: Learning,
    progress: Progress,
) -> _Learned:
    vocabulary = loaded.vocabulary
    settings = ModelSection(**card.architecture)
    network = build.language_model(settings, len(vocabulary))
    cut = _cut_as_trained(card, vocabulary)
    measure = partial(
        evaluate,
        network,
        texts=Texts.of(map(list, messages.held_out), len(vocabulary)),
        cut=cut if card.sentences else WINDOW,
    )
    before = measure(loaded.params)
    params = train_personal_model(
        network,
        loaded.params,
        messages.learned,
        cut=cut,
        learning=learning,
        dropout=settings.dropout > 0,
        progress=progress,
    )
    return _Learned(
        params=params,
        before=before,
        after=measure(params),
    )


def _card_to_train(loaded: LoadedModel, model: Path) -> ModelCard:
    if loaded.card is None or loaded.kind is None:
        raise ModelFileError(
            f"{model} holds n-grams, which are counted and not trained; name a run or a pretrained"
            " model"
        )
    return loaded.card


def _check_same_words(general: PublicCorpus | None, vocabulary: Vocabulary, model: Path) -> None:
    if general is not None and general.vocabulary.words != vocabulary.words:
        raise DataError(
            f"the general text has other words than the model; make it with `vocabulary={model}`"
        )


def _check_nothing_left_out(text: Path, left_out: dict[str, int]) -> None:
    if left_out:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in left_out.items())
        raise DataError(
            f"not all of {text} could be used ({reasons}), so it is not deleted: correct it, or"
            " leave out `delete_text`"
        )


def _cut_as_trained(card: ModelCard, vocabulary: Vocabulary) -> Cut:
    """Return how text gets the form on which the model was trained."""
    if card.sentences:
        return Sentences(SENTENCE_LENGTH, vocabulary.sentence_ends)
    return Unrolls(UNROLL)


def _check_improved(learned: _Learned, text: Path, held_out: int) -> None:
    # A loss that is NaN does not improve either.
    if learned.after["loss"].value < learned.before["loss"].value:
        return
    was = f"{learned.before['perplexity'].value:.1f}"
    now = f"{learned.after['perplexity'].value:.1f}"
    worse = f"on the last {held_out} messages of {text} its perplexity went from {was} to {now}"
    to_do = (
        "It was not kept, and the text stays; try a lower `learning_rate`, fewer `epochs`, or more"
        " text"
    )
    raise DataError(f"the model did not improve: {worse}. {to_do}")


def _save(out: Path, *, params: Params, card: ModelCard, general: PublicCorpus | None) -> None:
    """Save the model as a personal one, readable by its owner only."""
    sources = [*card.public_sources]
    if general is not None:
        sources.append(general.source)
    personal = replace(card, personal=True, public_sources=tuple(dict.fromkeys(sources)))
    with new_folder(out, NOT_NEW, mode=0o700) as folder:
        save_model(folder / "model.safetensors", params, personal, mode=0o600)


def train_personal_model(
    network: LanguageModel,
    params: Params,
    messages: Messages,
    *,
    cut: Cut,
    learning: Learning,
    dropout: bool,
    progress: Progress = ignore_progress,
) -> Params:
    """Train as a device does in a round, an epoch at a time, so that progress can be shown.

    SGD carries only θ from one epoch to the next.

    Args:
        network: the model.
        params: its parameters.
        messages: what it learns from.
        cut: how text is cut into rows.
        learning: how it learns.
        dropout: whether the model draws, for its dropout.
        progress: called with epochs done, and of how many.
    """
    update = _device_update(
        network,
        cut=cut,
        learning=learning,
        dropout=dropout,
    )
    train_epoch = _compile_epoch(update)
    owner = _owner_data(messages, cut)
    first_key = jax.random.key(0)
    progress(0, learning.epochs)
    for epoch in range(learning.epochs):
        key = jax.random.fold_in(first_key, epoch)
        params = jax.block_until_ready(train_epoch(params, owner, key))
        progress(epoch + 1, learning.epochs)
    return params


def _device_update(
    network: LanguageModel, *, cut: Cut, learning: Learning, dropout: bool
) -> UserUpdate:
    """Return what a device computes in a round, with rehearsal where there is general text."""
    step = sgd_step(network)
    if learning.general is not None:
        general = build.general_rows(learning.general, cut)
        step = with_rehearsal(
            step,
            general=general,
            user_share=learning.user_share,
        )
    local = LocalTraining(
        learning_rate=learning.learning_rate,
        keyed=dropout or learning.general is not None,
    )
    return fedavg_update(step, local)


def _compile_epoch(update: UserUpdate) -> Callable[[Params, UserData, Key], Params]:
    @jax.jit
    def train_epoch(params: Params, owner: UserData, key: Key) -> Params:
        # What stays with its owner is not bounded, so nothing is public.
        message = Message(params, ())  # pyright: ignore[reportArgumentType]
        return trees.add(params, update(message, owner, key))

    return train_epoch


def _owner_data(messages: Messages, cut: Cut) -> UserData:
    text = np.concatenate([np.asarray(message, np.int32) for message in messages])
    pieces = len(cut.pieces(text))
    return Layout.for_pieces(cut, BATCH_SIZE, pieces).user_data(text)


def messages_of(path: Path, vocabulary: Vocabulary) -> tuple[list[list[int]], dict[str, int]]:
    """Return one person's messages that have words in them, each closed by END.

    Beside them is what was left out, by reason.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one file, of one person's text")
    source = Source(paths=[path])
    people: set[str] = set()
    messages: list[list[int]] = []
    for batch in source.batches():
        spellings = batch.column("user").to_pylist()
        texts = batch.column("text").to_pylist()
        people.update(map(user_id, spellings))
        encoded = map(vocabulary.encode, texts)
        messages += [[*words, END] for words in encoded if words]
    if len(people) > 1:
        raise DataError(
            f"{path} holds the text of {len(people):,} people: name a file with the text of one"
            " person"
        )
    return messages, source.left_out.counts


def _read_text(path: Path, vocabulary: Vocabulary) -> _Text:
    messages, left_out = messages_of(path, vocabulary)
    if len(messages) < 2:
        count = "one message" if messages else "no text"
        raise DataError(
            f"{path} holds {count}, and at least two messages are needed (in a .txt file a line is"
            " one): the last is held out to measure with"
        )
    last = max(1, round(len(messages) / HELD_OUT))
    text = _Text(
        learned=messages[:-last],
        held_out=messages[-last:],
        left_out=left_out,
    )
    for which, messages in (("first", text.learned), ("last", text.held_out)):
        _check_known_words(
            path,
            vocabulary=vocabulary,
            which=which,
            messages=messages,
        )
    return text


def _check_known_words(
    path: Path, *, vocabulary: Vocabulary, which: str, messages: Messages
) -> None:
    for message in messages:
        if any(word >= vocabulary.first_word for word in message):
            return
    raise DataError(
        f"{path}: the model knows no word of the {which} {len(messages):,} messages: is it in"
        f" {vocabulary.language}?"
    )


def _check_deletable(path: Path) -> os.stat_result:
    """Return the file as it is now; refuse one that must not be deleted.

    It must be the owner's to delete, and no copy of it may stay.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    status = path.lstat()
    reason = _reason_not_to_delete(status)
    if reason:
        raise DataError(f"{path} {reason}, so it cannot be deleted; leave out `delete_text`")
    return status


def _reason_not_to_delete(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file of its own, but a link or a folder"
    if status.st_uid != os.geteuid():
        return "belongs to somebody else"
    if status.st_nlink > 1:
        return "has another name (a hard link), under which the text would stay"
    return None


def _delete(path: Path, as_it_was: os.stat_result, out: Path) -> None:
    """Delete the text if it has not changed since it was read.

    A keyboard may have written to it meanwhile.
    """
    try:
        if _has_changed(path.lstat(), as_it_was):
            raise DataError(
                f"{out} holds the personal model; {path} was changed meanwhile, so it was not"
                " deleted"
            )
        path.unlink()
        sync_folder(path.parent)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"{out} holds the personal model, but {path} could not be deleted: {reason}"
        ) from None


def _has_changed(now: os.stat_result, before: os.stat_result) -> bool:
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return any(getattr(now, name) != getattr(before, name) for name in names)
