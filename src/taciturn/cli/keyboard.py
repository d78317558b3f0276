"""`taciturn keyboard`: type with a model, simulate people typing, count n-grams."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.command_classes import group
from taciturn.cli.export import Blocklist, Trust
from taciturn.cli.output import begin, console, print_metrics, print_table, say
from taciturn.cli.progress_display import stages
from taciturn.errors import TaciturnError
from taciturn.names import Smoothing

if TYPE_CHECKING:
    from taciturn.evaluation.overlap import Overlap
    from taciturn.runs.ngram_worth import Baseline, Worth
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
    trust: Trust = None,
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
        preparing = partial(show, "preparing")
        server = make_keyboard_server(paths, blocked, port, preparing, trust=trust)
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
                "a run, a pretrained or personal model, counted n-grams (folders), an .arpa file,"
                " or a phone's .dict"
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
            "--history", help="let the model, or both, also learn from what each person has typed"
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
    trust: Trust = None,
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
    from taciturn.keyboard.typing_simulation import OF_NEXT_WORDS, PICKED_RATE
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
            trust=trust,
        )
    _print_people(results)
    _print_models(paths, history)
    names = NAMES
    legend = (
        "Keystrokes: of non-space characters, strip of three, every offered word is picked. Picked"
        " rate: per candidate shown, if two letters are saved."
    )
    if results.next_words_only:
        names = {metric: name for metric, name in NAMES.items() if metric in OF_NEXT_WORDS}
        legend += " A dictionary writes no continuations and re-scores no taps."
    else:
        legend += (
            f" Smart compose: share of words with a continuation, where {PICKED_RATE:.0%} of those"
            " shown are taken. Modified, and a minute: noisy taps, re-scored by the model."
        )
    print_metrics(names, results.typings)
    console.print(legend, style="dim")
    models = []
    for path, typing in zip(paths, results.typings, strict=True):
        figures = {metric: vars(typing[metric]) for metric in names}
        models.append({"model": str(path), **figures})
    content = {
        "people": results.people,
        "words": results.words,
        "left_out": results.left_out,
        "unknown_to": [str(folder) for folder in results.unknown_to],
        "history": history,
        "models": models,
    }
    if other is not None:
        first, second = results.typings
        content["change"] = {metric: vars(second.change_from(first, metric)) for metric in names}
    return content


def _print_people(results: "TypingResults") -> None:
    others = (
        "people on whom an ARPA file, a dictionary or a personal model was trained cannot be known,"
        " so they may be among them"
    )
    if results.left_out is not None:
        others = f"left out: {results.left_out:,} on whom a model was trained, or who opted out"
    for folder in results.unknown_to:
        say(
            f"Nobody in this text is known to {folder}, so people on whom it trains cannot be told"
            " from others: their figures would flatter the model. Are the ids those that it was"
            " built with (--user-column)?",
            style="yellow",
            markup=False,
        )
    console.print(
        f"{results.people:,} people (no guarantee for them), {results.words:,} words and"
        f" punctuation marks; {others}"
    )


def _print_models(paths: list[Path], history: bool) -> None:
    """Print which model is called A and which B, and whether they learn from each person."""
    lines = [str(path) for path in paths]
    if len(paths) > 1:
        lines = [f"{letter}: {path}" for letter, path in zip("AB", paths, strict=True)]
    for line in lines:
        say(f"{line}, with each person's own history" if history else line)


@keyboard_app.command()
def ngram(
    source: Annotated[Path, Argument(help="a population, or a public corpus")],
    out: Annotated[Path, Option(help="new folder for the model")],
    public: Annotated[
        list[Path] | None,
        Option(
            help=(
                "public text to count beside the people's: a folder of `data public`, or files of"
                " text; repeatable. Its weight is fitted on every tenth of the people to learn"
                " from, never on held-out people"
            )
        ),
    ] = None,
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

    With --public, counts of people's and of public text are interpolated, and the command says how
    much of the held-out people's text stands in the public text. It measures the n-grams on
    held-out people, 400 tokens of each, without and with each person's own history.

    N-grams of a population have no guarantee. For n-grams with one, export a private model:
    taciturn export RUN --to arpa --out DIR

    Example: taciturn keyboard ngram people --public corpus --out baselines/kneser-ney --non-private
    """
    begin(f"reading {source}")
    from taciturn.runs.ngram_baselines import count_population, count_public

    about = {"model": str(out), "order": order, "smoothing": smoothing}
    if not (source / "manifest.json").exists():
        if public:
            raise TaciturnError(
                f"{source} is not a population, and --public is for text that is counted beside"
                f" people's: taciturn keyboard ngram PEOPLE --public {source} …, or leave it out"
            )
        with stages() as show:
            count_public(source, out, smoothing, order, partial(show, "counting"))
        console.print(f"{out}: {order}-grams, {smoothing}")
        return {**about, "private": True}
    with stages() as show:
        baseline = count_population(
            source,
            out,
            smoothing=smoothing,
            order=order,
            non_private=non_private,
            progress=show,
            public=public or (),
        )
    console.print(
        f"{out}: {order}-grams, {smoothing}; NO privacy guarantee (ε = ∞), and its ledger says so"
    )
    _print_baseline(baseline)
    console.print("On the page of a run: taciturn report RUN --beside FOLDER", style="dim")
    return {**about, "private": False, **baseline.to_json()}


def _print_baseline(baseline: "Baseline") -> None:
    fitted = baseline.people_share
    if fitted is not None:
        say(
            f"Of people's text, with a weight of {fitted.value:.3f}, and of public text"
            f" ({'; '.join(baseline.public_sources)}). The weight was fitted on"
            f" {fitted.held_back:,} of the people to learn from, every tenth by a hash of their"
            f" ids, with counts of the other {fitted.counted:,}; then all of them were counted.",
            markup=False,
        )
    if baseline.worth is None:
        console.print("Too few people are held out to measure it on them.")
        return
    rows = _worth_rows(baseline.worth, "")
    others = baseline.worth_without_overlap
    if others is not None and others.people < baseline.worth.people:
        rows += _worth_rows(others, f", {others.people:,} of them")
    print_table(
        ("", "AccuracyTop1", "AccuracyTop3"),
        rows,
        f"{baseline.worth.people:,} held-out people, at most 400 tokens of each",
    )
    if baseline.overlap is not None:
        _print_overlap(baseline.overlap)


def _worth_rows(worth: "Worth", which: str) -> list[tuple[str, str, str]]:
    rows = []
    scored = {
        "no history": worth.without_history,
        "each person's history": worth.with_history,
    }
    for name, scores in scored.items():
        top1 = format(scores["accuracy_top1"], ".2%")
        top3 = format(scores["accuracy_top3"], ".2%")
        rows.append((f"{name}{which}", top1, top3))
    return rows


def _print_overlap(overlap: "Overlap") -> None:
    if not overlap.people:
        console.print("No sequence of 13 tokens of theirs stands in the public text.")
        return
    console.print(
        f"Of their sequences of 13 tokens, {overlap.share:.3%} stand in the public text, of"
        f" {overlap.people:,} people, who are left out of the last two rows if enough others are"
        " left."
    )
