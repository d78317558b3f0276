"""Train a model on public text, from which private training starts.

While it trains, its folder holds pretraining.safetensors, from which it resumes. In the end there
are model.safetensors and pretraining.json: what was measured, epoch by epoch, on public text that
was held out.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import safetensors

from taciturn.algorithms.pretraining import (
    Block,
    Pretraining,
    Schedule,
    Training,
    fit_schedule,
    pretraining,
    split,
)
from taciturn.core import LanguageModel, Params
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
from taciturn.runs.warm_start import describe_differences, is_nameless

CHECKPOINT = "pretraining.safetensors"
# Called with steps done, of how many, and how well it goes.
Progress = Callable[[int, int, str], None]


class Epoch(NamedTuple):
    """What was measured after one epoch over the public text."""

    # From 1.
    epoch: int
    training_loss: float
    # On held-out text, like the next two.
    loss: float
    perplexity: float
    accuracy_top1: float
    # Of training, without measuring.
    seconds: float
    tokens_per_second: float


class Course(NamedTuple):
    """The state of a training on public text between two epochs."""

    training: Training
    # Parameters of the epoch with the lowest loss on held-out text.
    best: Params
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What came of a training on public text."""

    epochs: tuple[Epoch, ...]
    # The epoch whose parameters were written.
    best: Epoch
    # What it was measured on.
    held_out: str
    # Why it ended before its last epoch, if it did.
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
    """Train on public text, and write the model of the best epoch.

    Args:
        corpus: the public text.
        settings: of the model.
        schedule: of the training; what it leaves open is fitted to the text.
        out: a new folder, for the model.
        progress: called with steps done, all steps, and how well it goes.
        resume: continue an interrupted training, to the same result.
        start: a model of public text to start from.
    """
    _check_out(out, resume)
    text, held_out = split(corpus, schedule.held_out, schedule.seed)
    setup = _set_up(text, settings, schedule)
    words = corpus.vocabulary.words
    architecture = settings.model_dump(mode="json", exclude={"warm_start"})
    terms = {"text": corpus.digest, **architecture, **asdict(setup.schedule)}
    params = setup.params
    sources = (corpus.source,)
    if start:
        params, start_card = _load_public_start(start, words, settings)
        sources = (*start_card.public_sources, *sources)
        terms["start"] = params_digest(params)
    course = Course(setup.trainer.init(params), best=params, epochs=())
    if (out / CHECKPOINT).exists():
        course = _load_course(out / CHECKPOINT, course, terms)
    out.mkdir(parents=True, exist_ok=True)
    measure = partial(evaluate, setup.model, texts=held_out.documents)
    while not _has_ended(course.epochs, setup.schedule):
        course = _train_epoch(course, setup, measure, progress)
        _save_course(out / CHECKPOINT, course, terms)
    card = ModelCard(
        architecture=architecture,
        vocabulary=words,
        text=corpus.vocabulary.about,
        public_sources=sources,
    )
    pretrained = Pretrained(
        epochs=course.epochs,
        best=_best(course.epochs),
        held_out=_describe_held_out(corpus, held_out),
        stopped=_reason_to_stop(course.epochs, setup.schedule),
    )
    _write_result(out, course.best, card, pretrained)
    return pretrained


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """A training on public text that has not begun."""

    # Fitted to the text.
    schedule: Schedule
    # What is measured.
    model: LanguageModel
    trainer: Pretraining
    # To begin with, where no start is named.
    params: Params


def _set_up(text: PublicCorpus, settings: ModelSection, schedule: Schedule) -> _Setup:
    words = len(text.vocabulary)
    try:
        model = build.language_model(settings, words)
        schedule = fit_schedule(schedule, text.documents.tokens, model.unit_norm)
        product = jnp.bfloat16 if schedule.precision == "mixed" else jnp.float32
        trained_model = build.language_model(settings, words, product)
        trainer = pretraining(partial(cross_entropy, trained_model), text, schedule)
        params = model.init(jax.random.key(schedule.seed))
    # A width may not fit the heads, or a text may be too short.
    except ValueError as error:
        raise RecipeError(str(error)) from None
    return _Setup(schedule=schedule, model=model, trainer=trainer, params=params)


def _check_out(out: Path, resume: bool) -> None:
    has_checkpoint = (out / CHECKPOINT).exists()
    if not resume:
        hint = "choose another `out`"
        if has_checkpoint:
            hint += "; or repeat the command with `resume=True`"
        check_new_folder(out, hint)
    elif (out / "model.safetensors").exists() and not has_checkpoint:
        raise RecipeError(f"{out} holds a finished model: choose another `out`")


def _describe_held_out(corpus: PublicCorpus, held_out: PublicCorpus) -> str:
    part = len(held_out.documents)
    whole = len(corpus.documents)
    name = "the end" if whole == 1 else f"{part:,} of {whole:,} documents"
    return f"{name} of {corpus.source} ({held_out.documents.tokens:,} tokens)"


def _write_result(out: Path, params: Params, card: ModelCard, pretrained: Pretrained) -> None:
    """Write what was measured, and the model; then delete the checkpoint.

    It goes last: interrupted before that, training resumes from it, with the same result.
    """
    epochs = [epoch._asdict() for epoch in pretrained.epochs]
    content = {
        "held_out": pretrained.held_out,
        "best_epoch": pretrained.best.epoch,
        "stopped": pretrained.stopped,
        "epochs": epochs,
    }
    write_atomically(out / "pretraining.json", to_json(content, indent=2).encode())
    save_model(out / "model.safetensors", params, card)
    (out / CHECKPOINT).unlink()
    sync_folder(out)


def _load_public_start(
    start: Path, words: tuple[str, ...], settings: ModelSection
) -> tuple[Params, ModelCard]:
    params, card = load_model(start)
    differences = describe_differences(settings, card)
    if differences:
        raise RecipeError(f"{start} is another model: {differences}; set the same with `settings`")
    is_of_people = card.run is not None or card.personal or is_nameless(start, card)
    if is_of_people:
        raise RecipeError(
            f"{start} learned from people; pretraining must start from a model of public text: name"
            " another"
        )
    if card.vocabulary != words:
        raise RecipeError(
            f"{start} knows other words than the public text; make both with the same `vocabulary`"
        )
    return jax.tree.map(jnp.asarray, params), card


def _save_course(path: Path, course: Course, terms: dict[str, Any]) -> None:
    about = {"terms": json.dumps(terms), "epochs": json.dumps(course.epochs)}
    save_state(path, (course.training, course.best), about)


def _load_course(path: Path, fresh: Course, terms: dict[str, Any]) -> Course:
    """Load the course saved at `path`, if it is one of the same text, model and schedule."""
    _check_terms(path, terms)
    (training, best), about = load_state(path, (fresh.training, fresh.best))
    rows = json.loads(about["epochs"])
    epochs = tuple(Epoch._make(row) for row in rows)
    return Course(training, best, epochs)


def _check_terms(path: Path, terms: dict[str, Any]) -> None:
    """Refuse a checkpoint of another text, model, schedule or start."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise RecipeError(f"{path} cannot be read ({error}); delete it to start again") from None
    saved = json.loads(metadata.get("terms", "{}"))
    differences = []
    # A start that was named before, and is not now, is noticed too.
    for name in dict.fromkeys([*terms, *saved]):
        before = saved.get(name)
        now = terms.get(name)
        if before != now:
            differences.append(f"{name} is {before}, not {now}")
    if differences:
        raise RecipeError(
            f"{path} is of another training: its {'; its '.join(differences)}. Repeat the command"
            " that began it with `resume=True`, or name another `out`"
        )


@dataclass
class _EpochSoFar:
    """Sums over the blocks of an epoch that were trained so far."""

    training: Training
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    # Over all steps.
    loss: float = 0.0

    def add(self, block: Block, seconds: float) -> None:
        """Add a block that took so long."""
        self.training = block.training
        self.seconds += seconds
        self.tokens += block.tokens
        self.loss += block.loss * (block.steps - self.steps)
        self.steps = block.steps


def _train_epoch(
    course: Course,
    setup: _Setup,
    measure: Callable[[Params], Scores],
    progress: Progress,
) -> Course:
    """Do one more epoch, and measure it."""
    so_far = _train_blocks(course, setup, progress)
    params = so_far.training.params
    scores = measure(params)
    epoch = Epoch(
        epoch=len(course.epochs) + 1,
        training_loss=so_far.loss / so_far.steps,
        loss=scores["loss"].value,
        perplexity=scores["perplexity"].value,
        accuracy_top1=scores["accuracy_top1"].value,
        seconds=so_far.seconds,
        tokens_per_second=so_far.tokens / so_far.seconds,
    )
    is_first = not course.epochs
    if is_first and not math.isfinite(epoch.loss):
        raise RecipeError(
            "training diverges: after one epoch the loss is not a number. Lower the `learning_rate`"
        )
    is_best = is_first or epoch.loss < _best(course.epochs).loss
    return Course(
        training=so_far.training,
        best=params if is_best else course.best,
        epochs=(*course.epochs, epoch),
    )


def _train_blocks(course: Course, setup: _Setup, progress: Progress) -> _EpochSoFar:
    """Train an epoch, block by block, and show how well it goes."""
    number = len(course.epochs)
    steps_before = number * setup.trainer.steps
    all_steps = setup.schedule.epochs * setup.trainer.steps
    last_perplexity = ""
    if course.epochs:
        last_perplexity = f"  held-out perplexity {course.epochs[-1].perplexity:.1f}"
    so_far = _EpochSoFar(course.training)
    began = time.perf_counter()
    for block in setup.trainer.epoch(course.training, number):
        took = time.perf_counter() - began
        so_far.add(block, took)
        pace = f"{block.tokens / took:,.0f} tokens/s  loss {block.loss:.3f}{last_perplexity}"
        progress(steps_before + so_far.steps, all_steps, pace)
        began = time.perf_counter()
    return so_far


def _best(epochs: tuple[Epoch, ...]) -> Epoch:
    return min(epochs, key=lambda epoch: epoch.loss)


def _has_ended(epochs: tuple[Epoch, ...], schedule: Schedule) -> bool:
    return len(epochs) >= schedule.epochs or _reason_to_stop(epochs, schedule) is not None


def _reason_to_stop(epochs: tuple[Epoch, ...], schedule: Schedule) -> str | None:
    """Say why a training ends before its last epoch, if it does."""
    if not epochs or len(epochs) == schedule.epochs:
        return None
    best = _best(epochs)
    last = epochs[-1]
    if last.epoch - best.epoch < schedule.patience:
        return None
    return (
        f"after {last.epoch} of {schedule.epochs} epochs: the loss on held-out text was"
        f" {best.loss:.3f} after epoch {best.epoch}, and is {last.loss:.3f} now"
    )
