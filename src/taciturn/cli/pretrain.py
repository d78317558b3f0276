"""`taciturn pretrain`: a model of public text, to start private training from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.command_classes import finite
from taciturn.cli.output import begin, console, leave_interrupted, print_table, say
from taciturn.cli.progress_display import bar
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.runs.display import PretrainingProgress
    from taciturn.runs.pretrain import Pretrained

# What is printed of each epoch.
SPECS = {
    "epoch": "d",
    "training_loss": ".3f",
    "loss": ".3f",
    "perplexity": ".1f",
    "accuracy_top1": ".2%",
    "tokens_per_second": ",.0f",
}


def pretrain(
    corpus: Annotated[Path, Argument(help="folder made by `taciturn data public`")],
    out: Annotated[Path, Option(help="folder for model.safetensors and pretraining.json")],
    epochs: Annotated[
        int | None,
        Option(
            min=1, help="at most; the rate falls over them (default: 3 to 10, more for less text)"
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        Option(help="model setting as in the recipe to follow: kind=cifg, width=64"),
    ] = None,
    start: Annotated[
        Path | None,
        Option(
            help="a model of public text to start from; taciturn:english comes with the package"
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(min=1, help="pieces of text a step (default: 32 to 1024, by the text's size)"),
    ] = None,
    unroll: Annotated[
        int, Option(min=1, help="tokens predicted in a row: the length of a piece")
    ] = 20,
    learning_rate: Annotated[
        float | None,
        Option(min=1e-9, callback=finite, help="Adam's highest (default: 0.003 to 0.012)"),
    ] = None,
    precision: Annotated[
        Precision, Option(help="of matrix products; mixed takes them in bfloat16")
    ] = "float32",
    held_out: Annotated[
        float,
        Option(
            min=0.0,
            max=0.5,
            help="share of documents to measure with after each epoch; at least one",
        ),
    ] = 0.02,
    patience: Annotated[
        int,
        Option(
            min=1,
            help="stop after this many epochs in a row without a better one; the best is written",
        ),
    ] = 2,
    seed: Annotated[
        int, Option(min=0, help="the same seed gives the same model, on machines of one kind")
    ] = 0,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="resume a training that was interrupted, with the options that began it",
        ),
    ] = False,
) -> dict[str, Any]:
    """Train a model on public text, to start private training from. Costs no privacy.

    After each epoch the model is measured on documents that it never trains on, and saved. If it is
    interrupted, continue with --resume.

    Example: taciturn pretrain speeches --out pretrained --set kind=cifg
    """
    begin(f"reading {corpus}")
    from taciturn.algorithms.pretraining import Schedule
    from taciturn.data.public import PublicCorpus
    from taciturn.recipe.text import model_settings
    from taciturn.runs.pretrain import CHECKPOINT, pretrain_model

    settings = model_settings(set or [])
    schedule = Schedule(
        epochs=epochs or 0,
        batch_size=batch_size or 0,
        unroll=unroll,
        learning_rate=learning_rate or 0.0,
        precision=precision,
        held_out=held_out,
        patience=patience,
        seed=seed,
    )
    public = PublicCorpus.load(corpus)
    if resume and not (out / CHECKPOINT).exists():
        say(f"No epoch is saved in {out}: starting with the first")
    with pretraining_bar(out, again=" and --resume") as show:
        finished = pretrain_model(
            corpus=public,
            settings=settings,
            schedule=schedule,
            out=out,
            progress=show,
            resume=resume,
            start=start,
        )
    _print_epochs(finished)
    if finished.stopped:
        say(f"Stopped early, {finished.stopped}.", style="yellow")
    if finished.best != finished.epochs[-1]:
        console.print(f"Epoch {finished.best.epoch} was the best; its model was written.")
    say(
        f"{out / 'model.safetensors'}: {settings.kind}, width {settings.width}; start from it with"
        f" --set model.warm_start={out}"
    )
    return {
        "model": str(out),
        "best": finished.best._asdict(),
        "epochs": [epoch._asdict() for epoch in finished.epochs],
    }


def _print_epochs(finished: "Pretrained") -> None:
    """Print all epochs; the one whose model was written is in bold."""
    rows = []
    styles = []
    for epoch in finished.epochs:
        rows.append([format(getattr(epoch, name), spec) for name, spec in SPECS.items()])
        styles.append("bold" if epoch == finished.best else "")
    print_table(
        ("epoch", "training loss", "held-out loss", "perplexity", "Top1", "tokens/s"),
        rows,
        f"Measured on {finished.held_out}",
        styles=styles,
    )


@contextmanager
def pretraining_bar(out: Path, again: str) -> Iterator["PretrainingProgress"]:
    """Show the steps of a training on public text; after Ctrl-C, say how to resume.

    Args:
        out: the folder of its model.
        again: what resumes it, besides the same command.
    """
    try:
        with bar("pretraining", "steps") as show:
            show(0, None, "compiling")
            yield show
    except KeyboardInterrupt:
        from taciturn.runs.pretrain import CHECKPOINT

        if not (out / CHECKPOINT).exists():
            leave_interrupted(
                "No epoch was finished, so nothing is kept: the same command begins again"
            )
        leave_interrupted(f"All finished epochs are kept; continue with the same command{again}")
