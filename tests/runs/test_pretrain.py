"""Training on public text: what is held out, when it stops, and how it goes on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

from harness import WORDS, Cut, made_up_users, quietly
from taciturn.algorithms.pretraining import BLOCK, Schedule, fit_schedule, pretraining, split
from taciturn.cli import app
from taciturn.data.layout import Unrolls
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.evaluation.accuracy import evaluate
from taciturn.files import FolderExists
from taciturn.models.losses import cross_entropy
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import load_model
from taciturn.runs import pretrain
from taciturn.runs.pretrain import CHECKPOINT, pretrain_model

MODEL = ModelSection(kind="lstm", width=8, units=12, dropout=0.2)
SCHEDULE = Schedule(epochs=3, batch_size=4, unroll=5, learning_rate=0.01, held_out=0.2, patience=5)


def corpus_of(documents, vocabulary) -> PublicCorpus:
    return PublicCorpus(Texts.of(documents, WORDS), vocabulary, "made-up text")


@pytest.fixture(scope="module")
def corpus(vocabulary) -> PublicCorpus:
    return corpus_of(made_up_users(24, seed=3).values(), vocabulary)


def params_of(folder: Path) -> dict[str, np.ndarray]:
    return load_model(folder)[0]


def same(left, right) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right)))


def cut_at(patch, place: str, occurrence: int):
    """Cut off at the n-th call of a function of pretrain, before or after it; or of what it tells
    its progress to.
    """
    count = 0

    def cut_here(*_):
        nonlocal count
        count += 1
        if count == occurrence:
            raise Cut

    when, _, name = place.partition(" ")
    if name == "a step":
        return cut_here
    called = getattr(pretrain, name)
    wrapped = {
        "before": lambda *a: (cut_here(), called(*a)),
        "after": lambda *a: (called(*a), cut_here()),
    }[when]
    patch.setattr(pretrain, name, wrapped)
    return quietly


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pretraining") / "uninterrupted"
    pretrain_model(corpus, MODEL, SCHEDULE, out, quietly)
    return out


@pytest.mark.parametrize(
    ("place", "occurrence"),
    [
        ("after a step", 1),
        pytest.param("before save_state", 1, marks=pytest.mark.slow),
        ("after save_state", 1),
        pytest.param("after a step", 3, marks=pytest.mark.slow),
        pytest.param("after save_state", 3, marks=pytest.mark.slow),
        ("before save_model", 1),
        ("after save_model", 1),
    ],
)
def test_interrupted_anywhere_it_ends_with_the_same_model(
    corpus, uninterrupted, tmp_path, monkeypatch, place, occurrence
):
    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        progress = cut_at(patch, place, occurrence)
        with pytest.raises(Cut):
            pretrain_model(corpus, MODEL, SCHEDULE, out, progress)
    pretrain_model(corpus, MODEL, SCHEDULE, out, quietly, resume=True)
    assert same(params_of(out), params_of(uninterrupted))
    assert losses_of(out) == losses_of(uninterrupted)
    assert {path.name for path in out.iterdir()} == {"model.safetensors", "pretraining.json"}


def losses_of(folder: Path) -> list[tuple[float, float]]:
    epochs = json.loads((folder / "pretraining.json").read_text())["epochs"]
    return [(epoch["training_loss"], epoch["loss"]) for epoch in epochs]


def test_without_the_state_of_its_optimiser_it_would_not_come_to_the_same(
    corpus, uninterrupted, cut_off, monkeypatch
):
    """The twin that must fail."""
    load_state = pretrain.load_state

    def forgetful(path, like):
        (training, best), about = load_state(path, like)
        return (training._replace(optimizer=like[0].optimizer), best), about

    monkeypatch.setattr(pretrain, "load_state", forgetful)
    pretrain_model(corpus, MODEL, SCHEDULE, cut_off, quietly, resume=True)
    assert not same(params_of(cut_off), params_of(uninterrupted))


def test_blocks_of_steps_are_plain_steps_of_adam(corpus):
    schedule = replace(SCHEDULE, epochs=1)
    model = build.language_model(ModelSection(width=8, units=12), WORDS)

    def loss(params, rows, key):
        del key
        return cross_entropy(model, params, rows)

    trainer = pretraining(loss, corpus, schedule)
    assert trainer.steps > BLOCK
    training = plain = trainer.init(model.init(jax.random.key(0)))
    blocks = list(trainer.epoch(training, 0))
    rows = np.concatenate([Unrolls(5).pieces(document) for document in corpus.documents])
    order = np.random.default_rng((0, 0)).permutation(len(rows))
    rate = optax.warmup_cosine_decay_schedule(
        0.0, 0.01, trainer.steps // 20 + 1, trainer.steps, 0.0005
    )
    adam = jax.jit(optax.adam(rate).update)
    (params, state), values, gradient_of = plain, [], jax.jit(jax.value_and_grad(loss))
    for batch in order[: 4 * trainer.steps].reshape(-1, 4):
        value, gradient = gradient_of(params, rows[batch], None)
        updates, state = adam(gradient, state)
        params = optax.apply_updates(params, updates)
        values.append(float(value))
    for ours, theirs in zip(
        jax.tree.leaves(blocks[-1].training.params), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [block.steps for block in blocks] == [*range(BLOCK, trainer.steps, BLOCK), trainer.steps]
    assert blocks[0].loss == pytest.approx(np.mean(values[:BLOCK]), abs=1e-4)
    assert sum(block.tokens for block in blocks) == np.count_nonzero(
        rows[order[: 4 * trainer.steps], 1:]
    )


def overfitting(vocabulary) -> PublicCorpus:
    """Ten words in random order. Which ten can be learned from little text; what else is learned
    from it is wrong elsewhere.
    """
    generator = np.random.default_rng(0)
    return corpus_of(generator.integers(10, 20, (12, 80)), vocabulary)


def test_it_stops_when_held_out_text_has_enough_of_it_and_the_best_epoch_is_written(
    vocabulary, tmp_path
):
    corpus, model = overfitting(vocabulary), ModelSection(width=16, units=32)
    schedule = replace(SCHEDULE, epochs=30, learning_rate=0.03, patience=2)
    finished = pretrain_model(corpus, model, schedule, tmp_path / "out", quietly)
    best = min(finished.epochs, key=lambda epoch: epoch.loss)
    assert finished.best == best
    assert 1 < best.epoch == len(finished.epochs) - 2 < 28
    assert f"{best.loss:.3f} after epoch {best.epoch}" in finished.stopped
    assert finished.epochs[-1].training_loss < best.training_loss  # it did go on learning, by heart

    held_out = split(corpus, schedule.held_out, schedule.seed)[1].documents
    written = evaluate(build.language_model(model, WORDS), params_of(tmp_path / "out"), held_out)
    assert written["loss"].value == best.loss


def test_with_patience_it_reads_on_to_the_last_epoch(vocabulary, tmp_path):
    """The twin: the same text, and nothing stops it."""
    schedule = replace(SCHEDULE, epochs=30, learning_rate=0.03, patience=30)
    finished = pretrain_model(
        overfitting(vocabulary),
        ModelSection(width=16, units=32),
        schedule,
        tmp_path / "out",
        quietly,
    )
    assert len(finished.epochs) == 30
    assert finished.stopped is None
    assert finished.best.loss < finished.epochs[-1].loss


RARE = 37


@pytest.mark.parametrize("is_held_out", [True, False])
def test_a_word_of_held_out_documents_alone_is_never_learned_from(
    vocabulary, tmp_path, is_held_out
):
    """With the twin in which a document that is trained on has the word, and its embedding
    moves.
    """
    usual = corpus_of([[5, 6, 7, 8, 9] * 8] * 10, vocabulary)
    numbered = corpus_of([[position] for position in range(10)], vocabulary)
    trained_on, held_out = (
        [int(one[0]) for one in part.documents] for part in split(numbered, 0.2, seed=0)
    )
    assert len(held_out) == 2
    assert sorted(trained_on + held_out) == list(range(10))
    documents = [list(document) for document in usual.documents]
    for position in held_out if is_held_out else trained_on[:1]:
        documents[position][10:20] = [RARE] * 10
    settings = ModelSection(
        kind="cifg", width=8, units=12
    )  # words that go in and words that come out are apart
    pretrain_model(corpus_of(documents, vocabulary), settings, SCHEDULE, tmp_path / "out", quietly)
    before = build.language_model(settings, WORDS).init(jax.random.key(SCHEDULE.seed))["embedding"][
        RARE
    ]
    after = params_of(tmp_path / "out")["embedding"][RARE]
    assert np.array_equal(before, after) == is_held_out


def test_of_a_single_document_the_end_is_held_out(vocabulary, tmp_path):
    corpus = corpus_of([list(range(4, 40)) * 10], vocabulary)
    text, held_out = split(corpus, 0.1, seed=0)
    assert [*text.documents[0], *held_out.documents[0]] == [*corpus.documents[0]]
    assert held_out.documents.tokens == 36
    finished = pretrain_model(
        corpus, MODEL, replace(SCHEDULE, held_out=0.0), tmp_path / "out", quietly
    )
    assert finished.held_out == "the end of made-up text (1 tokens)"


@pytest.fixture(scope="module")
def cut_off_once(corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pretraining") / "cut"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        pretrain_model(corpus, MODEL, SCHEDULE, out, cut_at(patch, "after save_state", 1))
    return out


@pytest.fixture
def cut_off(cut_off_once, tmp_path) -> Path:
    return shutil.copytree(cut_off_once, tmp_path / "cut")


def test_what_was_cut_off_is_not_begun_again_by_mistake(corpus, cut_off):
    with pytest.raises(
        FolderExists, match="choose another `out`; or repeat the command with `resume=True`"
    ):
        pretrain_model(corpus, MODEL, SCHEDULE, cut_off, quietly)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"corpus": made_up_users(24, seed=4)}, "its text is .*, not "),
        ({"model": MODEL.model_copy(update={"width": 9})}, "its width is 8, not 9"),
        (
            {"model": ModelSection(kind="gru", width=8, units=12, dropout=0.2)},
            "its kind is lstm, not gru",
        ),
        ({"schedule": replace(SCHEDULE, epochs=4)}, "its epochs is 3, not 4"),
        (
            {"schedule": replace(SCHEDULE, seed=1, batch_size=5)},
            "its batch_size is 4, not 5; its seed is 0, not 1",
        ),
    ],
)
def test_it_goes_on_only_as_it_began(corpus, cut_off, changed, sentence):
    text = (
        corpus_of(changed["corpus"].values(), corpus.vocabulary) if "corpus" in changed else corpus
    )
    with pytest.raises(RecipeError, match=f"{sentence}.*Repeat the command that began it"):
        pretrain_model(
            text,
            changed.get("model", MODEL),
            changed.get("schedule", SCHEDULE),
            cut_off,
            quietly,
            resume=True,
        )
    assert (cut_off / CHECKPOINT).exists()


def test_what_cannot_be_trained_is_refused_in_a_sentence(corpus, uninterrupted, tmp_path):
    for resume, error, said in (
        (False, FolderExists, "exists already: choose another `out`"),
        (True, RecipeError, "holds a finished model: choose another `out`"),
    ):
        with pytest.raises(error, match=said):
            pretrain_model(corpus, MODEL, SCHEDULE, uninterrupted, quietly, resume)
    with pytest.raises(RecipeError, match=r"too short: .* do not fill a batch of 4000"):
        pretrain_model(corpus, MODEL, replace(SCHEDULE, batch_size=4000), tmp_path / "out", quietly)
    with pytest.raises(RecipeError, match=r"not a number\. Lower the `learning_rate`"):
        pretrain_model(
            corpus, MODEL, replace(SCHEDULE, learning_rate=1e30), tmp_path / "out", quietly
        )
    assert not (tmp_path / "out" / CHECKPOINT).exists()  # nothing to go on from
    (tmp_path / "out" / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(RecipeError, match=r"cannot be read .*; delete it to start again"):
        pretrain_model(corpus, MODEL, SCHEDULE, tmp_path / "out", quietly, resume=True)


def test_mixed_precision_changes_little_and_leaves_a_model_in_float32(
    corpus, uninterrupted, tmp_path
):
    finished = pretrain_model(
        corpus, MODEL, replace(SCHEDULE, precision="mixed"), tmp_path / "mixed", quietly
    )
    mixed, usual = params_of(tmp_path / "mixed"), params_of(uninterrupted)
    assert {leaf.dtype for leaf in mixed.values()} == {np.dtype(np.float32)}
    assert not same(mixed, usual)
    assert finished.best.loss == pytest.approx(losses_of(uninterrupted)[-1][1], rel=0.02)


def run_cli(corpus: Path, out: Path, *options: str):
    small = (
        "--epochs 2 --batch-size 4 --unroll 5 --learning-rate 0.01 --seed 3 --set width=8 --set"
        " units=12"
    )
    command = ["pretrain", str(corpus), "--out", str(out), *small.split(), *options]
    return CliRunner().invoke(app, command, catch_exceptions=False)


def test_the_command_shows_every_epoch_and_leaves_the_figures(corpus, tmp_path):
    corpus.save(tmp_path / "corpus")
    done = run_cli(tmp_path / "corpus", tmp_path / "out")
    assert done.exit_code == 0
    written = json.loads((tmp_path / "out" / "pretraining.json").read_text())
    assert "of 24 documents of made-up text" in written["held_out"]
    assert [epoch["epoch"] for epoch in written["epochs"]] == [1, 2]
    for epoch in written["epochs"]:
        assert epoch["perplexity"] == pytest.approx(np.exp(epoch["loss"]))
        assert f"{epoch['perplexity']:.1f}" in done.output
        assert f"{epoch['accuracy_top1']:.2%}" in done.output
        assert epoch["seconds"] > 0 < epoch["tokens_per_second"]
    settings, schedule = (
        ModelSection(width=8, units=12),
        Schedule(epochs=2, batch_size=4, unroll=5, learning_rate=0.01, seed=3),
    )
    pretrain_model(corpus, settings, schedule, tmp_path / "same", quietly)
    assert same(params_of(tmp_path / "out"), params_of(tmp_path / "same"))


def test_an_interrupted_command_says_how_to_resume(corpus, tmp_path, monkeypatch):
    corpus.save(tmp_path / "corpus")
    monkeypatch.setattr("os._exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    save_state = pretrain.save_state
    for place, words in (
        ("before", "No epoch was finished, so nothing is kept: the same command begins again"),
        ("after", "All finished epochs are kept; continue with the same command and --resume"),
    ):
        with monkeypatch.context() as patch:

            def interrupted(*arguments, place=place):
                if place == "after":
                    save_state(*arguments)
                raise KeyboardInterrupt

            patch.setattr(pretrain, "save_state", interrupted)
            stopped = run_cli(tmp_path / "corpus", tmp_path / "out")
        assert stopped.exit_code == 130
        assert words in " ".join(stopped.output.split())
    assert run_cli(tmp_path / "corpus", tmp_path / "out", "--resume").exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").exists()
    afresh = run_cli(tmp_path / "corpus", tmp_path / "new", "--resume")
    assert "starting with the first" in " ".join(afresh.output.split())
    assert same(params_of(tmp_path / "out"), params_of(tmp_path / "new"))


def test_more_text_is_read_in_larger_batches_and_fewer_times():
    small, middle, large = (
        fit_schedule(Schedule(), tokens, unit_norm=False)
        for tokens in (300_000, 7_000_000, 55_000_000)
    )
    assert [(one.batch_size, one.epochs) for one in (small, middle, large)] == [
        (32, 10),
        (128, 8),
        (1024, 3),
    ]
    assert small.learning_rate == 0.003 < middle.learning_rate < large.learning_rate < 0.012
    assert fit_schedule(Schedule(), 55_000_000, unit_norm=True).learning_rate == 0.012
    given = Schedule(epochs=1, batch_size=7, learning_rate=0.5)
    assert (
        fit_schedule(given, 55_000_000, unit_norm=False) == given
    )  # what a person says is not changed
