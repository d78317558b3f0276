"""`taciturn typing · ngram · export · keyboard`: what a model is worth at a keyboard, and how it gets there."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from taciturn.cli.output import console, stages

Blocklist = Annotated[
    Path | None, typer.Option(help="file of words never to suggest, one a line; what follows a # is a comment")
]
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


def typing(
    model: Annotated[
        Path, typer.Argument(help="a run, a pretrained or personal model, counted n-grams (folders), or an .arpa file")
    ],
    text: Annotated[
        list[Path],
        typer.Option(
            help="files of (user, text), as for `data build`; may be repeated. Or the word sotu, for the demonstration's held-out users"
        ),
    ],
    other: Annotated[Path | None, typer.Argument(help="a second one, to compare with the first")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="let the (second) model also learn from what each person typed before")
    ] = False,
    people: Annotated[int, typer.Option(min=1, help="how many, chosen by a hash of their ids")] = 1000,
    words: Annotated[int, typer.Option(min=1, help="that each of them types at most")] = 400,
    user_column: Annotated[str | None, typer.Option(help="who wrote it")] = None,
    text_column: Annotated[str | None, typer.Option(help="what they wrote")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Let people type with a model: keystrokes saved, candidates picked, words mended, a minute.

    The people are simulated, their text is real: of those in the files, all whom the model's population trains on are left out.
    Intervals are 95 % jackknife intervals over people. With two models: what changes from the first to the second, paired.

    An example: taciturn typing runs/private-1 baselines/kneser-ney --text blogs.parquet
    """
    from taciturn.data.columns import Columns
    from taciturn.data.sources import Source
    from taciturn.keyboard.typing_simulation import PICKED_RATE
    from taciturn.runs.typing import simulate_typing

    source = None if text == [Path("sotu")] else Source(text, Columns(user_column, text_column))
    paths = [model] if other is None else [model, other]
    with stages() as show:
        tried = simulate_typing(paths, source, history, people, words, show)
    figures = [{metric: typed[metric] for metric in NAMES} for typed in tried.typings]
    if json_:
        listed: list[dict[str, Any]] = [
            {"model": str(path), **{name: _numbers(one) for name, one in figure.items()}}
            for path, figure in zip(paths, figures, strict=True)
        ]
        content: dict[str, Any] = {
            "people": tried.people,
            "words": tried.words,
            "left_out": tried.trained_on,
            "history": history,
            "models": listed,
        }
        if other is not None:
            first, second = tried.typings
            content["change"] = {metric: _numbers(second.change_from(first, metric)) for metric in NAMES}
        print(json.dumps(content))
        return
    console.print(
        f"{tried.people:,} people (no guarantee for them), {tried.words:,} words and signs; "
        + (
            "whom an ARPA file was counted on, or a personal model trained on, is not known here, so they may be among them"
            if tried.trained_on is None
            else f"{tried.trained_on:,} whom a model was trained on, or who opted out, were left out"
        ),
        highlight=False,
    )
    table = Table()
    letters = "AB"[: len(paths)]
    for name in ("", *(f"{letter} ± 95 %" for letter in letters), *(["B over A, relative"] if other else [])):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for metric, name in NAMES.items():
        cells = [_figure(metric, figure[metric]) for figure in figures]
        style = None
        if other is not None:
            change = tried.typings[1].change_from(tried.typings[0], metric)
            cells.append(f"{100 * change.value:+.2f} % ± {100 * change.margin:.2f}")
            style = "bold" if abs(change.value) > change.margin else "dim"
        table.add_row(name, *cells, style=style)
    for letter, path in zip(letters, paths, strict=True):
        with_history = ", with each person's own history" if history and letter == letters[-1] else ""
        console.print(f"{letter}: {path}{with_history}", highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"Keystrokes: of non-space characters, strip of three, every offered word is picked. Picked rate: per candidate shown, if two "
        f"letters are spared. Smart compose: share of words with a continuation, where {PICKED_RATE:.0%} of those shown are taken. "
        "Modified, and a minute: noisy taps, re-scored by the model.",
        highlight=False,
        style="dim",
    )


def _numbers(interval: Any) -> dict[str, float | None]:
    """JSON has no word for what is no number: the margin of a single person."""
    return {name: value if math.isfinite(value) else None for name, value in vars(interval).items()}


def _figure(metric: str, interval: Any) -> str:
    spec = ".1f" if metric == "words_per_minute" else ".2%"
    return (
        f"{interval:{spec}}" if math.isfinite(interval.margin) else f"{interval.value:{spec}}"
    )  # a single person has no interval


def ngram(
    source: Annotated[Path, typer.Argument(help="a public corpus, or a population")],
    out: Annotated[Path, typer.Option(help="new folder for the model")],
    smoothing: Annotated[
        Literal["kneser-ney", "katz"], typer.Option(help="modified Kneser–Ney or Katz")
    ] = "kneser-ney",
    order: Annotated[int, typer.Option(min=1, max=5, help="words of the longest n-gram")] = 4,
    non_private: Annotated[
        bool, typer.Option("--non-private", help="count users' text, with no guarantee at all (the ledger is told)")
    ] = False,
) -> None:
    """Count n-grams: the baseline that keyboards have today.

    On a population they have no guarantee. For n-grams with one, export a private model: taciturn export RUN --to arpa --out DIR
    """
    from taciturn.runs.ngram_baselines import count_population, count_public

    is_population = (source / "manifest.json").exists()
    with console.status("counting"):
        if is_population:
            count_population(source, out, smoothing, order, non_private)
        else:
            count_public(source, out, smoothing, order)
    warning = "; NO privacy guarantee (ε = ∞), and its ledger says so" if is_population else ""
    console.print(f"{out}: {order}-grams, {smoothing}{warning}", highlight=False)


def export(
    run: Annotated[Path, typer.Argument(help="a run folder, or a folder of n-grams counted on users")],
    out: Annotated[Path, typer.Option(help="new folder for the model and its guarantee")],
    to: Annotated[
        Literal["model", "onnx", "onnx-int8", "arpa", "combined", "js"],
        typer.Option(
            help="model.safetensors; an ONNX step graph, of floats or of bytes; n-grams for Presage, fcitx, KenLM; a word list for "
            "HeliBoard and other AOSP keyboards; one script for pages and Keyman"
        ),
    ] = "model",
    non_private: Annotated[bool, typer.Option("--non-private", help="let a model without any guarantee leave")] = False,
    blocklist: Blocklist = None,
    samples: Annotated[
        int, typer.Option(min=1000, help="arpa, combined: words that the model makes up to be counted")
    ] = 2_000_000,
    entries: Annotated[int, typer.Option(min=0, help="arpa, combined: n-grams to keep beside single words")] = 300_000,
) -> None:
    """Write a run's model as a file that keyboards load, with its guarantee inside and beside it.

    Refused where the ledger and the model do not belong together, or where the file does not say what the model says.
    """
    from taciturn.export.formats import Distilling
    from taciturn.keyboard.predictor import load_blocklist
    from taciturn.privacy.figures import delta_text, epsilon_text
    from taciturn.runs.finished import export_run

    blocked = load_blocklist(blocklist) if blocklist else []
    with stages() as show:
        exported = export_run(
            run, out, to, non_private, blocklist=blocked, distilling=Distilling(samples, entries), progress=show
        )
    for path in exported.files:
        console.print(f"{path}  {path.stat().st_size / 1e3:,.0f} kB", highlight=False, soft_wrap=True)
    if exported.check is not None:
        check = exported.check
        console.print(
            f"Against the model it was made from, on {check.positions:,} places of text: the same best word at "
            f"{check.agreement:.2%}, probabilities differ by {check.difference:.2g} at most"
            + (f" ({check.note})" if check.note else ""),
            highlight=False,
        )
    guarantee = exported.guarantee
    console.print(
        f"ε = {epsilon_text(guarantee.epsilon)}, δ = {delta_text(guarantee.delta)}; ledger row {guarantee.head[:16]}…"
    )


def keyboard(
    run: Annotated[Path, typer.Argument(help="a run folder, a personal model, or a folder of counted n-grams")],
    beside: Annotated[
        Path | None, typer.Option(help="a second model to type with at the same time; an .arpa file too")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the page on this machine; 0 takes any")] = 8765,
    blocklist: Blocklist = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open it in a browser")] = True,
) -> None:
    """Type with a model: a keyboard as a page on this machine.

    The model runs in the browser, and what is typed does not leave the page. Nothing is reached over the network but this machine.
    """
    import webbrowser

    from taciturn.keyboard.predictor import load_blocklist
    from taciturn.runs.typing import keyboard_server

    blocked = load_blocklist(blocklist) if blocklist else []
    with console.status("preparing the page"):
        server = keyboard_server([run] if beside is None else [run, beside], blocked, port)
    console.print(f"{server.url}  (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    if server.secret:  # others on this machine see with what programs are started
        console.print("A personal model: open this address yourself, it is a secret.", highlight=False)
    elif browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.close()
