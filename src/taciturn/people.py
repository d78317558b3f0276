"""A population and its ledger.

They are built from people's text, opened, never recreated once lost, and adopted after a folder was
moved.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from taciturn.data.columns import Columns
from taciturn.data.ingest import Rules, ingest
from taciturn.data.population import NamedLedger, Population
from taciturn.data.public import WORDS, PublicCorpus, load_words
from taciturn.data.sources import Source
from taciturn.data.token_shards import SHARD_TOKENS
from taciturn.data.users import read_users
from taciturn.data.vocabulary import DataError, Vocabulary, public_vocabulary
from taciturn.privacy.ledger.adopt import adopt
from taciturn.privacy.ledger.hash_chain import LedgerError
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.progress import StageProgress, ignore_progress


def build_population(
    sources: str | Path | Sequence[str | Path],
    folder: str | Path,
    *,
    columns: Columns = Columns(),
    vocabulary: Vocabulary | int | str | Path = 10_000,
    least_tokens: int = 50,
    most_tokens: int = 1600,
    held_out: float = 1 / 16,
    exclude: Iterable[str] | Path = (),
    scrub: bool = False,
    replace: bool = False,
    same_people_as: str | Path | None = None,
    shard_tokens: int = SHARD_TOKENS,
    progress: StageProgress = ignore_progress,
) -> Population:
    """Build a population of users from their text.

    Whatever is released about them is charged to its ledger.

    Args:
        sources: files (Parquet, CSV, JSON lines, text) or folders of them.
        folder: a new one, or with `replace` a population whose text is replaced; its ledger and
            opt-outs stay.
        columns: which hold user, text and time (default: those with the usual names), and which
            mark rows to leave out.
        vocabulary: how many words of the public English list; or a folder (a corpus, a population,
            a run) whose words to take.
        least_tokens: users with fewer are not trained on.
        most_tokens: longer texts are truncated.
        held_out: the share of users to measure with: never trained on, and without a guarantee.
        exclude: ids of users who opted out, or a file of them, now and in all later builds of this
            folder.
        scrub: remove e-mail and web addresses, phone and card numbers.
        same_people_as: a population of the same people with other text: both share its ledger.

    Returns:
        The population, which a recipe names as `data.population`.

    Example:
        people = tt.build_population("messages.parquet", "people", vocabulary=1_000)
        assert len(people.vocabulary) == 1_000
    """
    folder = Path(folder)
    paths = [sources] if isinstance(sources, str | Path) else sources
    check_population_folder(folder, replace)
    words = vocabulary if isinstance(vocabulary, Vocabulary) else vocabulary_of(vocabulary)
    shared = Path(same_people_as) if same_people_as else None
    if shared:
        # It is created now, if there is none.
        open_ledger(Population(shared))
    if isinstance(exclude, str | Path):
        exclude = read_users(Path(exclude))
    rules = Rules(
        vocabulary=words,
        least_tokens=least_tokens,
        most_tokens=most_tokens,
        held_out_share=held_out,
        scrub=scrub,
    )
    return ingest(
        Source(paths=[Path(path) for path in paths], columns=columns),
        folder,
        rules,
        opt_outs=exclude,
        progress=progress,
        shard_tokens=shard_tokens,
        same_people_as=shared,
    )


def check_population_folder(folder: Path, replace: bool) -> None:
    """Refuse a folder in which no population can be built."""
    if (folder / "manifest.json").exists() and not replace:
        raise DataError(
            f"{folder} is a population already: use it as it is"
            f" (`tt.train({str(folder)!r}, epsilon=4)`), or put new text into it with"
            " `replace=True` (its ledger stays). For other people name another `folder`; for other"
            f" text of the same people too, with `same_people_as={folder}`, so that what both cost"
            " them is added up"
        )
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file: name a new folder with `folder`")


def vocabulary_of(
    words: int | str | Path, language: str = "en", characters: bool = False
) -> Vocabulary:
    """Return a number of words of the public list, or the words of a folder."""
    number = str(words).replace("_", "")
    if number.isdecimal():
        unit = "character" if characters else "word"
        return public_vocabulary(int(number), language.lower(), unit)
    if characters or language != "en":
        raise DataError(
            "`vocabulary=FOLDER` takes its words as they are: leave out `language` and `characters`"
        )
    folder = Path(str(words))
    if (folder / "about.json").exists():
        return PublicCorpus.load(folder).vocabulary
    if (folder / WORDS).exists():
        return load_words(folder)
    if (folder / "manifest.json").exists():
        return Population(folder).vocabulary
    if (folder / "model.safetensors").exists():
        # Imported only here, as it loads JAX.
        from taciturn.release.model_file import load_model

        _, card = load_model(folder)
        return Vocabulary.of(card.vocabulary, card.text)
    raise DataError(
        "`vocabulary` must be a number of words, or the folder of a corpus, population, run or"
        f" word list; {words} is neither"
    )


def open_ledger(population: Population) -> Ledger:
    """Open these users' ledger.

    A lost one is not recreated: what was spent is then unknown.
    """
    path = ledger_path(population)
    named = population.ledger
    if named is None:
        ledger = Ledger(path)
        population.pin_ledger(NamedLedger(ledger.id))
        return ledger
    if not path.parent.is_dir():
        raise LedgerError(
            f"{population.folder} shares the ledger in {path.parent}, which cannot be reached."
            " Restore it; or, if it was moved, say where it is: taciturn ledger adopt"
            f" {population.folder} --same-people-as FOLDER"
        )
    return Ledger(path, named.id)


def ledger_path(population: Population) -> Path:
    """Return the path of its ledger, in this folder or in that of the same people."""
    named = population.ledger
    folder = population.folder / named.folder if named else population.folder
    return folder.resolve() / FILE_NAME


def adopt_ledger(folder: Path, same_people_as: Path | None = None) -> tuple[Ledger, Path | None]:
    """Adopt, on a person's word, the ledger of a folder that was copied, restored or moved.

    Args:
        folder: The population's.
        same_people_as: Another folder of the same people, which was moved: the ledger in that
            folder is adopted.

    Returns:
        The ledger, and the original that it retires, if it does.
    """
    population = Population(folder)
    if same_people_as:
        return _share_ledger(population, Population(same_people_as)), None
    named = population.ledger
    adopted, retired = adopt(ledger_path(population), named.id if named else None)
    if named is None:
        population.pin_ledger(NamedLedger(adopted.id))
    return adopted, retired


def _share_ledger(population: Population, shared: Population) -> Ledger:
    """Adopt a ledger that stands in the folder of the same people, wherever that is now."""
    their_ledger = shared.ledger
    own_ledger = population.ledger
    if own_ledger is None or their_ledger is None or own_ledger.id != their_ledger.id:
        raise LedgerError(
            f"{population.folder} does not share the ledger of {shared.folder}: name the folder"
            " that it shares"
        )
    ledger = open_ledger(shared)
    path = os.path.relpath(ledger.path.parent, population.folder.resolve())
    population.pin_ledger(NamedLedger(own_ledger.id, path))
    return ledger
