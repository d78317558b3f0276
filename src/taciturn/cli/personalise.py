"""`taciturn personalise`: a personal model, which stays on this device."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from taciturn.cli.commands import finite
from taciturn.cli.output import change_text, console, print_table, say
from taciturn.cli.progress_display import bar

# of all words: then it may be another language
MANY_UNKNOWN = 0.3


def personalise(
    model: Annotated[Path, Argument(help="a run, an export, a pretrained or a personal model")],
    text: Annotated[
        Path,
        Argument(
            help=(
                "file of one person's messages: .txt, one on each line, or a table as for `data"
                " build`"
            )
        ),
    ],
    out: Annotated[Path, Option(help="new folder for the personal model")],
    epochs: Annotated[int, Option(min=1, help="passes over the text")] = 2,
    learning_rate: Annotated[float, Option(min=0.0, callback=finite)] = 0.25,
    general: Annotated[
        Path | None,
        Option(help="public text (`data public`) to rehearse, so that general language is kept"),
    ] = None,
    user_share: Annotated[
        float,
        Option(
            min=0.05, max=1.0, help="λ, with --general: the person's share of what is learned from"
        ),
    ] = 0.5,
    delete_text: Annotated[
        bool, Option("--delete-text", help="delete the text once the personal model is on disk")
    ] = False,
) -> dict[str, Any]:
    """Train a model on one person's own text, only for that person.

    The result has no guarantee and stays on this device: type with it (`taciturn keyboard open`);
    it cannot be exported. The last tenth of the messages is held out to measure with. A model that
    did not improve on it is not kept.

    Example: taciturn personalise runs/private sent.txt --out mine --general wiki --delete-text
    """
    from taciturn.data.public import PublicCorpus
    from taciturn.keyboard.personal_model import Learning, personalise

    corpus = PublicCorpus.load(general) if general else None
    learning = Learning(
        epochs=epochs,
        learning_rate=learning_rate,
        general=corpus,
        user_share=user_share,
    )
    with bar("personalising", "epochs") as show:
        done = personalise(
            model, text, out, learning, delete_text, lambda epochs, all: show(epochs, all, "")
        )
    console.print(f"{done.messages:,} messages, {done.words:,} words and punctuation marks")
    for reason, count in done.left_out.items():
        console.print(f"Left out: {reason}: {count:,}")
    if done.unknown > MANY_UNKNOWN * done.words:
        console.print(
            f"{done.unknown / done.words:.0%} of the words are unknown to the model: is it for this"
            " language?",
            style="yellow",
        )
    rows = []
    for metric, name, spec in (
        ("perplexity", "perplexity", ".1f"),
        ("accuracy_top1", "AccuracyTop1", ".2%"),
    ):
        figures = (f"{scores[metric].value:{spec}}" for scores in (done.before, done.after))
        rows.append((name, *figures, change_text(done.after.change_from(done.before, metric))))
    title = f"On the last {done.held_out:,} messages, which were not trained on"
    print_table(("", "before", "after", "change ± 95 %"), rows, title)
    stays = (
        "it may repeat them, so it stays on this device. Type with it: taciturn keyboard open"
        f" {out}"
    )
    say(
        f"{out / 'model.safetensors'}: personal, learned from {done.messages - done.held_out:,}"
        f" messages; {stays}"
    )
    if delete_text:
        say(f"{text} is deleted.")
    found = {
        metric: {"before": done.before[metric].value, "after": done.after[metric].value}
        for metric in ("perplexity", "accuracy_top1")
    }
    return {"model": str(out), "messages": done.messages, **found}
