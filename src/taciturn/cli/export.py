"""`taciturn export`: a run's model as a file that keyboards load."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.output import begin, console, say
from taciturn.cli.progress_display import stages
from taciturn.names import ExportFormat
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text

if TYPE_CHECKING:
    from taciturn.export.formats import Check

To = Option(
    help=(
        "model: model.safetensors; onnx, onnx-int8: an ONNX step graph, of floats or of bytes;"
        " arpa: n-grams for Presage, fcitx, KenLM; phone: a folder for a phone, with a dictionary"
        " for HeliBoard and FUTO Keyboard, next words for AnySoftKeyboard and a page that says what"
        " goes where; dict: only the dictionary; combined: the same as text, for AOSP's compiler;"
        " js: one script for pages and Keyman"
    )
)
Blocklist = Annotated[
    Path | None, Option(help="file of words never to suggest, one on each line; # begins a comment")
]
Trust = Annotated[
    list[str] | None,
    Option(
        help=(
            "fingerprint of the ledger's key, a head or a file of the ledger, which you have from"
            " its owner; a run of another ledger is refused; repeatable: one of them must fit"
        )
    ),
]


def export(
    run: Annotated[
        Path,
        Argument(help="a run folder, an export of it --to model, or n-grams counted on users"),
    ],
    out: Annotated[Path, Option(help="new folder for the model and its guarantee")],
    to: Annotated[ExportFormat, To] = "model",
    non_private: Annotated[
        bool, Option("--non-private", help="export a model without any guarantee")
    ] = False,
    blocklist: Blocklist = None,
    samples: Annotated[
        int,
        Option(
            min=1000,
            help="arpa, phone, dict, combined: words that the model generates, to be counted",
        ),
    ] = 2_000_000,
    entries: Annotated[
        int,
        Option(min=0, help="arpa, phone, dict, combined: n-grams to keep besides single words"),
    ] = 300_000,
    public_words: Annotated[
        int,
        Option(
            min=0,
            help=(
                "phone, dict, combined: words of wordfreq's list to add below those of the model;"
                " 0 for none"
            ),
        ),
    ] = 150_000,
    trust: Trust = None,
) -> dict[str, Any]:
    """Write a run's model as a file that keyboards load. Its guarantee is inside and beside it.

    The command refuses a model that the ledger does not know, and a file that does not predict what
    the model predicts. Where the ledger is not in reach, as on another machine, the guarantee is
    what the run's maker states, and says so.

    Example: taciturn export runs/first --to onnx --out exported
    """
    begin(f"reading {run}")
    from taciturn.export.phone_folder import PAGE
    from taciturn.keyboard.predictor import load_blocklist
    from taciturn.release.privacy_statement import describe_standing

    blocked = load_blocklist(blocklist) if blocklist else []
    with stages() as show:
        exported = tt.FinishedRun(run, trust).export(
            out,
            to,
            non_private,
            blocklist=blocked,
            words=samples,
            entries=entries,
            public_words=public_words,
            progress=show,
        )
    for path in exported.files:
        say(f"{path}  {path.stat().st_size / 1e3:,.0f} kB")
    guarantee = exported.guarantee
    agreement = None
    if exported.check is not None:
        agreement = exported.check.agreement
        say(_describe_check(exported.check, to))
    figures = f"ε = {epsilon_text(guarantee.epsilon)}, δ = {delta_text(guarantee.delta)}"
    if guarantee.is_noise_known:
        figures = f"ε = ∞, as its noise came from a seed (of the method: {figures})"
    place = f"ledger row {guarantee.head[:16]}…"
    if guarantee.ledger_key:
        place = f"{place}, signed by ledger {guarantee.ledger_key}"
    console.print(f"{figures}; {place}")
    for words in describe_standing(guarantee):
        say(words, style="yellow")
    if to == "phone":
        say(f"Next: open {out / PAGE}, which says what goes where", markup=False)
    return {
        "files": [str(path) for path in exported.files],
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "head": guarantee.head,
        "standing": guarantee.standing,
        "ledger_key": guarantee.ledger_key,
        "agreement": agreement,
    }


def _describe_check(check: "Check", to: ExportFormat) -> str:
    """Say how well the file predicts what the model predicts."""
    near = f"probabilities differ by {check.difference:.2g} at most"
    # The largest difference of n-grams is at a word that only words further back give away.
    if to in ("arpa", "combined", "dict", "phone"):
        near = (
            "at the others they differ, as expected: this file looks back at a word or two, the"
            " model at all of them"
        )
    return (
        f"Compared with the model on {check.positions:,} positions of text: the same best word"
        f" at {check.agreement:.2%}; {near}"
    )
