"""`taciturn personalise`: a personal model, which stays on this device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.command_classes import finite
from taciturn.cli.output import change_text, console, print_table, say
from taciturn.cli.progress_display import bar

if TYPE_CHECKING:
    from taciturn.keyboard.personal_model import Personal

# What is measured before and after, as it is printed.
NAMES = {"perplexity": "perplexity", "accuracy_top1": "AccuracyTop1"}
SPECS = {"perplexity": ".1f", "accuracy_top1": ".2%"}
# Of all words; with more the text may be in another language.
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
        personalised = personalise(
            model=model,
            text=text,
            out=out,
            learning=learning,
            delete_text=delete_text,
            progress=lambda epochs, all: show(epochs, all, ""),
        )
    _print_text(personalised)
    _print_worth(personalised)
    learned_from = personalised.messages - personalised.held_out
    say(
        f"{out / 'model.safetensors'}: personal, learned from {learned_from:,} messages; it may"
        " repeat them, so it stays on this device. Type with it: taciturn keyboard open"
        f" {out}"
    )
    if delete_text:
        say(f"{text} is deleted.")
    figures = {}
    for metric in NAMES:
        before = personalised.before[metric].value
        figures[metric] = {"before": before, "after": personalised.after[metric].value}
    return {"model": str(out), "messages": personalised.messages, **figures}


def _print_text(personalised: "Personal") -> None:
    """Print how much text there was, and what was left out."""
    words = personalised.words
    unknown = personalised.unknown
    console.print(f"{personalised.messages:,} messages, {words:,} words and punctuation marks")
    for reason, count in personalised.left_out.items():
        console.print(f"Left out: {reason}: {count:,}")
    if unknown > MANY_UNKNOWN * words:
        console.print(
            f"{unknown / words:.0%} of the words are unknown to the model: is it for"
            " this language?",
            style="yellow",
        )


def _print_worth(personalised: "Personal") -> None:
    """Print what the model predicts before and after, on messages that were held out."""
    before = personalised.before
    after = personalised.after
    rows = []
    for metric, name in NAMES.items():
        spec = SPECS[metric]
        row = (
            name,
            format(before[metric].value, spec),
            format(after[metric].value, spec),
            change_text(after.change_from(before, metric)),
        )
        rows.append(row)
    title = f"On the last {personalised.held_out:,} messages, which were not trained on"
    print_table(("", "before", "after", "change ± 95 %"), rows, title)
