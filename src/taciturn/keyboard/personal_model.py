"""A personal model: a private model, trained further on one person's text, on that person's device,
for that person alone.

**Guarantee:** none. Such a model may repeat what its owner wrote, so it stays on the device: its
card says that it is personal, and every way out (exports, warm starts, guarantees) refuses it. The
people whom the private model was trained on lose nothing. A device trains it as in a round
(algorithms/local_training.py); the text is needed once, and may then be deleted (Popov et al. 2018,
§2.6).
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.algorithms.fine_tuning import rehearsing
from taciturn.algorithms.local_training import LocalTraining, fedavg_update
from taciturn.core import END, UNKNOWN, Key, LanguageModel, Message, Params, UserData
from taciturn.data.layout import Cut, Layout, Sentences, Unrolls
from taciturn.data.public import PublicCorpus
from taciturn.data.sources import Source
from taciturn.data.token_shards import Texts
from taciturn.data.users import user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.evaluation.accuracy import WINDOW, Scores, evaluate
from taciturn.export.word_model import load_word_model
from taciturn.files import check_new_folder, new_folder, sync_folder
from taciturn.models.sgd import sgd_step
from taciturn.progress import Progress, ignore_progress
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.model_file import ModelFileError, save_model

# one message in this many, the last ones, is measured with and never trained on
HELD_OUT = 10
# Popov et al. 2018, §2.5
BATCH_SIZE, UNROLL = 10, 20
SENTENCE_LENGTH = (
    # the default of recipes; a card does not say at which length sentences were cut
    20
)
NOT_NEW = "name a new folder"

# word ids, each message with its end
Messages = Sequence[Sequence[int]]


class Learning(NamedTuple):
    """How a model learns from its owner; docs/keyboard.md says where the defaults come from."""

    epochs: int = 2
    learning_rate: float = 0.25
    general: PublicCorpus | None = (
        # rehearsed beside the owner's text, so that the general language is kept
        None
    )
    # λ: the owner's share of what it then learns from
    user_share: float = 0.5


class Personal(NamedTuple):
    """What a model learned. Scores are on the last messages, which it was not trained on; each has
    a bucket of its own, or nearly.
    """

    before: Scores
    after: Scores
    messages: int
    # of them
    held_out: int
    # words and punctuation, of all messages
    words: int
    # of them
    unknown: int
    # what in the file could not be used, and how often
    left_out: dict[str, int]


def personalise(
    model: Path,
    text: Path,
    out: Path,
    learning: Learning = Learning(),
    delete_text: bool = False,
    progress: Progress = ignore_progress,
) -> Personal:
    """Train a model on all but the last messages of a text, and keep it in the new folder `out` if
    it predicts those better. Any failure leaves no folder, and keeps the text: it is deleted last,
    and only on request.
    """
    check_new_folder(out, NOT_NEW)
    loaded = load_word_model(model)
    card, vocabulary, general = loaded.card, loaded.vocabulary, learning.general
    if card is None or loaded.kind is None:
        raise ModelFileError(
            f"{model} holds n-grams, which are counted and not trained; name a run or a pretrained"
            " model"
        )
    if general is not None and general.vocabulary.words != vocabulary.words:
        raise DataError(
            f"the general text has other words than the model; make it with --vocabulary {model}"
        )
    found = _deletable(text) if delete_text else None
    learned, held_out, left_out = _read(text, vocabulary)
    if delete_text and left_out:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in left_out.items())
        raise DataError(
            f"not all of {text} could be used ({reasons}), so it is not deleted: correct it, or"
            " leave out --delete-text"
        )
    settings = ModelSection(**card.architecture)
    network = build.language_model(settings, len(vocabulary))
    # Text in the form on which the model was trained.
    cut = (
        Sentences(SENTENCE_LENGTH, vocabulary.sentence_ends) if card.sentences else Unrolls(UNROLL)
    )
    measured = Texts.of(map(list, held_out), len(vocabulary)), cut if card.sentences else WINDOW
    before = evaluate(network, loaded.params, *measured)
    params = train_personal_model(
        network, loaded.params, learned, cut, learning, settings.dropout > 0, progress
    )
    after = evaluate(network, params, *measured)
    # nor where it is NaN
    if not after["loss"].value < before["loss"].value:
        was, now = (f"{scores['perplexity'].value:.1f}" for scores in (before, after))
        worse = (
            f"on the last {len(held_out)} messages of {text} its perplexity went from {was} to"
            f" {now}"
        )
        to_do = (
            "It was not kept, and the text stays; try a lower --learning-rate, fewer --epochs, or"
            " more text"
        )
        raise DataError(f"the model did not improve: {worse}. {to_do}")
    sources = (*card.public_sources, *([general.source] if general else ()))
    personal = replace(card, personal=True, public_sources=tuple(dict.fromkeys(sources)))
    # readable by its owner only
    with new_folder(out, NOT_NEW, mode=0o700) as made:
        save_model(made / "model.safetensors", params, personal, mode=0o600)
    if found is not None:
        _delete(text, found, out)
    words = [word for message in (*learned, *held_out) for word in message if word != END]
    messages = len(learned) + len(held_out)
    return Personal(
        before, after, messages, len(held_out), len(words), words.count(UNKNOWN), left_out
    )


def train_personal_model(
    network: LanguageModel,
    params: Params,
    messages: Messages,
    cut: Cut,
    learning: Learning,
    dropout: bool,
    progress: Progress = ignore_progress,
) -> Params:
    """Train as a device does in a round, an epoch at a time, so that progress can be shown: SGD
    carries only θ from one to the next.
    """
    step = sgd_step(network)
    if learning.general is not None:
        step = rehearsing(step, build.general_rows(learning.general, cut), learning.user_share)
    update = fedavg_update(
        step,
        LocalTraining(
            learning_rate=learning.learning_rate, keyed=dropout or learning.general is not None
        ),
    )
    text = np.concatenate([np.asarray(message, np.int32) for message in messages])
    owner = Layout.for_pieces(cut, BATCH_SIZE, len(cut.pieces(text))).user_data(text)

    @jax.jit
    def after(params: Params, owner: UserData, key: Key) -> Params:
        return trees.add(params, update(Message(params, ()), owner, key))

    progress(0, learning.epochs)
    for epoch in range(learning.epochs):
        params = jax.block_until_ready(
            after(params, owner, jax.random.fold_in(jax.random.key(0), epoch))
        )
        progress(epoch + 1, learning.epochs)
    return params


def messages_of(path: Path, vocabulary: Vocabulary) -> tuple[list[list[int]], dict[str, int]]:
    """Return one person's messages that have words in them, each closed by END, and what was left
    out, by reason.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one file, of one person's text")
    source, people = Source(paths=[path]), set()
    messages: list[list[int]] = []
    for batch in source.batches():
        people.update(map(user_id, batch.column("user").to_pylist()))
        encoded = map(vocabulary.encode, batch.column("text").to_pylist())
        messages += [[*words, END] for words in encoded if words]
    if len(people) > 1:
        raise DataError(
            f"{path} holds the text of {len(people):,} people: name a file with the text of one"
            " person"
        )
    return messages, source.left_out.counts


def _read(path: Path, vocabulary: Vocabulary) -> tuple[Messages, Messages, dict[str, int]]:
    """Return the messages to learn from, the last ones to measure with, and what was left out."""
    messages, left_out = messages_of(path, vocabulary)
    if len(messages) < 2:
        few = (
            f"{path} holds {'one message' if messages else 'no text'}, and at least two messages"
            " are needed"
        )
        raise DataError(
            f"{few} (in a .txt file a line is one): the last is held out to measure with"
        )
    last = max(1, round(len(messages) / HELD_OUT))
    learned, held_out = messages[:-last], messages[-last:]
    for which, part in (("first", learned), ("last", held_out)):
        if all(word < vocabulary.first_word for message in part for word in message):
            raise DataError(
                f"{path}: the model knows no word of the {which} {len(part):,} messages: is it in"
                f" {vocabulary.language}?"
            )
    return learned, held_out, left_out


def _deletable(path: Path) -> os.stat_result:
    """Return the file as it is now; refuse one that is not the owner's to delete, or of which a
    copy would stay.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    found = path.lstat()
    refused = {
        "is not a file of its own, but a link or a folder": not stat.S_ISREG(found.st_mode),
        "belongs to somebody else": found.st_uid != os.geteuid(),
        "has another name (a hard link), under which the text would stay": found.st_nlink > 1,
    }
    if reason := next((reason for reason, is_so in refused.items() if is_so), None):
        raise DataError(f"{path} {reason}, so it cannot be deleted; leave out --delete-text")
    return found


def _delete(path: Path, found: os.stat_result, out: Path) -> None:
    """Delete the text if it has not changed since it was read: a keyboard may have written to it
    meanwhile.
    """
    try:
        now = path.lstat()
        if any(
            getattr(now, name) != getattr(found, name)
            for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns")
        ):
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
