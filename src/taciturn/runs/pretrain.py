"""Train a model on public text, from which private training starts.

While it trains, its folder holds pretraining.safetensors, from which it resumes. In the end there
are model.safetensors and
pretraining.json: what was measured, epoch by epoch, on public text that was held out.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import safetensors

from taciturn.algorithms.pretraining import (
    Pretraining,
    Schedule,
    Training,
    fit_schedule,
    pretraining,
    split,
)
from taciturn.core import Params
from taciturn.data.public import PublicCorpus
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.files import check_new_folder, sync_folder, to_json, write_atomically
from taciturn.models.losses import cross_entropy
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import (
    ModelCard,
    load_model,
    load_state,
    params_digest,
    save_model,
    save_state,
)
from taciturn.runs.warm_start import differences

CHECKPOINT = "pretraining.safetensors"
# steps done, of how many, how well it goes
Progress = Callable[[int, int, str], None]


class Epoch(NamedTuple):
    """What was measured after one epoch over the public text."""

    # from 1
    epoch: int
    training_loss: float
    # on held-out text, like the next two
    loss: float
    perplexity: float
    accuracy_top1: float
    # of training, without measuring
    seconds: float
    tokens_per_second: float


class Course(NamedTuple):
    """The state of a training on public text between two epochs."""

    training: Training
    # of the epoch with the lowest loss on held-out text
    best: Params
    epochs: tuple[Epoch, ...]


class Pretrained(NamedTuple):
    epochs: tuple[Epoch, ...]
    # whose parameters were written
    best: Epoch
    # what it was measured on
    held_out: str
    # why it ended before its last epoch, if it did
    stopped: str | None


def pretrain_model(
    corpus: PublicCorpus,
    settings: ModelSection,
    schedule: Schedule,
    out: Path,
    progress: Progress,
    resume: bool = False,
    start: Path | None = None,
) -> Pretrained:
    """Train on public text, from `start` if given, and write the best epoch's model to `out`;
    `resume` continues to the same result.
    """
    if not resume:
        check_new_folder(
            out,
            "choose another --out"
            + ("; or repeat the command with --resume" if (out / CHECKPOINT).exists() else ""),
        )
    elif (out / "model.safetensors").exists() and not (out / CHECKPOINT).exists():
        raise RecipeError(f"{out} holds a finished model: choose another --out")
    text, held_out = split(corpus, schedule.held_out, schedule.seed)
    try:
        model = build.language_model(settings, len(corpus.vocabulary))
        schedule = fit_schedule(schedule, text.documents.tokens, model.unit_norm)
        product = jnp.bfloat16 if schedule.precision == "mixed" else jnp.float32
        loss = partial(
            cross_entropy, build.language_model(settings, len(corpus.vocabulary), product)
        )
        trainer = pretraining(loss, text, schedule)
        params = model.init(jax.random.key(schedule.seed))
    # a width that does not fit the heads, a text too short
    except ValueError as error:
        raise RecipeError(str(error)) from None
    sources = (corpus.source,)
    if start:
        params, before = _public_start(start, corpus.vocabulary.words, settings)
        sources = (*before.public_sources, *sources)
    course = Course(trainer.init(params), params, ())
    architecture = settings.model_dump(mode="json", exclude={"warm_start"})
    terms = {
        "text": corpus.digest,
        **architecture,
        **asdict(schedule),
        **({"start": params_digest(params)} if start else {}),
    }
    if (out / CHECKPOINT).exists():
        course = _saved_course(out / CHECKPOINT, course, terms)
    out.mkdir(parents=True, exist_ok=True)
    while len(course.epochs) < schedule.epochs and not _stopped(course.epochs, schedule):
        course = _next_epoch(
            course,
            trainer,
            schedule.epochs,
            partial(evaluate, model, texts=held_out.documents),
            progress,
        )
        about = {"terms": json.dumps(terms), "epochs": json.dumps(course.epochs)}
        save_state(out / CHECKPOINT, (course.training, course.best), about)
    part, whole = len(held_out.documents), len(corpus.documents)
    end = "the end" if whole == 1 else f"{part:,} of {whole:,} documents"
    measured_on = f"{end} of {corpus.source} ({held_out.documents.tokens:,} tokens)"
    best, stopped = _best(course.epochs), _stopped(course.epochs, schedule)
    about = {
        "held_out": measured_on,
        "best_epoch": best.epoch,
        "stopped": stopped,
        "epochs": [one._asdict() for one in course.epochs],
    }
    write_atomically(out / "pretraining.json", to_json(about, indent=2).encode())
    card = ModelCard(
        architecture, corpus.vocabulary.words, corpus.vocabulary.about, public_sources=sources
    )
    save_model(out / "model.safetensors", course.best, card)
    (
        out / CHECKPOINT
        # last: interrupted before this, it resumes from the checkpoint, with the same result
    ).unlink()
    sync_folder(out)
    return Pretrained(course.epochs, best, measured_on, stopped)


def _public_start(
    start: Path, words: tuple[str, ...], settings: ModelSection
) -> tuple[Params, ModelCard]:
    params, card = load_model(start)
    differing = differences(settings, card)
    if differing:
        raise RecipeError(f"{start} is another model: {differing}; set the same with --set")
    if card.run is not None or card.personal:
        raise RecipeError(
            f"{start} learned from people; pretraining must start from a model of public text: name"
            " another"
        )
    if card.vocabulary != words:
        raise RecipeError(
            f"{start} knows other words than the public text; make both with the same --vocabulary"
        )
    return jax.tree.map(jnp.asarray, params), card


def _saved_course(path: Path, fresh: Course, terms: dict[str, Any]) -> Course:
    """Load the course saved at `path`, if it is one of the same text, model and schedule."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            saved = json.loads((file.metadata() or {}).get("terms", "{}"))
    except safetensors.SafetensorError as error:
        raise RecipeError(f"{path} cannot be read ({error}); delete it to start again") from None
    # a start that was named before is noticed too
    names = dict.fromkeys([*terms, *saved])
    differing = [
        f"{name} is {saved.get(name)}, not {terms.get(name)}"
        for name in names
        if saved.get(name) != terms.get(name)
    ]
    if differing:
        to_do = "Repeat the command that began it with --resume, or name another --out"
        raise RecipeError(f"{path} is of another training: its {'; its '.join(differing)}. {to_do}")
    (training, best), about = load_state(path, (fresh.training, fresh.best))
    return Course(training, best, tuple(Epoch(*row) for row in json.loads(about["epochs"])))


def _next_epoch(
    course: Course,
    trainer: Pretraining,
    epochs: int,
    measured: Callable[[Params], Scores],
    progress: Progress,
) -> Course:
    number, training = len(course.epochs), course.training
    known = f"  held-out perplexity {course.epochs[-1].perplexity:.1f}" if course.epochs else ""
    seconds, tokens, lost, steps = 0.0, 0, 0.0, 0
    began = time.perf_counter()
    for block in trainer.epoch(course.training, number):
        took = time.perf_counter() - began
        training, seconds, tokens = block.training, seconds + took, tokens + block.tokens
        lost, steps = lost + block.loss * (block.steps - steps), block.steps
        pace = f"{block.tokens / took:,.0f} tokens/s  loss {block.loss:.3f}{known}"
        progress(number * trainer.steps + steps, epochs * trainer.steps, pace)
        began = time.perf_counter()
    scores = measured(training.params)
    loss, perplexity, top1 = (
        scores[name].value for name in ("loss", "perplexity", "accuracy_top1")
    )
    epoch = Epoch(number + 1, lost / steps, loss, perplexity, top1, seconds, tokens / seconds)
    if not course.epochs and not math.isfinite(epoch.loss):
        raise RecipeError(
            "training diverges: after one epoch the loss is not a number. Lower the --learning-rate"
        )
    is_best = not course.epochs or epoch.loss < _best(course.epochs).loss
    return Course(training, training.params if is_best else course.best, (*course.epochs, epoch))


def _best(epochs: tuple[Epoch, ...]) -> Epoch:
    return min(epochs, key=lambda one: one.loss)


def _stopped(epochs: tuple[Epoch, ...], schedule: Schedule) -> str | None:
    """Say why a training ends before its last epoch, if it does."""
    if not epochs or len(epochs) == schedule.epochs:
        return None
    best, last = _best(epochs), epochs[-1]
    if last.epoch - best.epoch < schedule.patience:
        return None
    rose = f"was {best.loss:.3f} after epoch {best.epoch}, and is {last.loss:.3f} now"
    return f"after {last.epoch} of {schedule.epochs} epochs: the loss on held-out text {rose}"
