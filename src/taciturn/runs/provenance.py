"""Where a finished model comes from: whose text, which ledger, and what that says about it.

**Guarantee:** where the ledger of a model's users is in reach, the ledger is asked, and nothing
else. Where it is not, the folder's own rows are believed as far as their signature goes, and the
guarantee says that it is only stated.

**Assumes:** nobody. A folder may come with people and a ledger of its maker's invention, so what
the ledger says is as good as its owner: the fingerprint of the key that signed the run is shown
beside it, and a reader who knows the right one compares (`trust`).
"""

import json
from dataclasses import replace
from pathlib import Path

from taciturn.core import Params
from taciturn.data.population import Population, read_named_ledger
from taciturn.export.word_model import COUNTED_ON, LoadedModel
from taciturn.people import open_ledger
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.ledger import Ledger, Row
from taciturn.privacy.ledger.ledger_key import list_keys
from taciturn.privacy.ledger.signed_rows import (
    Signature,
    SignatureError,
    SignedRows,
    has_signature,
    read_signature,
    read_signed_rows,
)
from taciturn.privacy.ledger.trust import Trust
from taciturn.recipe.recipe import Recipe
from taciturn.release.gate import (
    ExportRefused,
    check_not_personal,
    check_signed_for,
    check_trust,
    stated_guarantee,
    verified_guarantee,
)
from taciturn.release.model_file import ModelCard
from taciturn.runs.folder import RunError, check_not_a_file, recipe_of

NO_TRUST = Trust()


def rows_of(folder: Path) -> Ledger | SignedRows:
    """Return the ledger of a model's users, or the rows in its folder where that is not in reach.

    Raises:
        RunError: there is neither.
        SignatureError: the rows in the folder are not as their maker signed them.
    """
    check_not_a_file(folder)
    place = _find_people(folder)
    if place is not None:
        return open_ledger(Population(place))
    if not has_signature(folder):
        raise RunError(_say_where_people_were(folder, f"nothing in {folder} is signed"))
    return read_signed_rows(folder)


def ledger_of(folder: Path, purpose: str) -> Ledger:
    """Return the ledger of a model's users.

    Args:
        folder: of the model.
        purpose: what takes the ledger, as the beginning of a sentence.

    Raises:
        RunError: it is not in reach.
    """
    rows = rows_of(folder)
    if isinstance(rows, SignedRows):
        raise RunError(_say_where_people_were(folder, purpose))
    return rows


def population_of(folder: Path, purpose: str) -> Population:
    """Return the users that a run, or counted n-grams, came from.

    Args:
        folder: of the model.
        purpose: what takes them, as the beginning of a sentence.

    Raises:
        RunError: they are not in reach.
    """
    ledger_of(folder, purpose)
    place = _find_people(folder)
    assert place is not None
    return Population(place)


def check_has_people(folder: Path, purpose: str) -> None:
    """Refuse a run whose people are not in reach.

    Args:
        folder: of the run.
        purpose: what takes them, as the beginning of a sentence.
    """
    if not has_people(folder):
        raise RunError(_say_where_people_were(folder, purpose))


def has_people(folder: Path) -> bool:
    """Tell whether the people of a run are in reach."""
    return _find_people(folder) is not None


def _find_people(folder: Path) -> Path | None:
    """Return where a model's users are, if that is in reach."""
    return next((place for place in _list_places(folder) if _is_their_place(folder, place)), None)


def _list_places(folder: Path) -> list[Path]:
    """Return where a model's users may be: as seen from here, and from the folders above it.

    Who trained it stood in one of those, as a rule. Only a signature tells the right people there
    from others, so without one those folders are left out.
    """
    place = _place_of_people(folder)
    if place is None:
        return []
    if place.is_absolute() or _find_signature(folder) is None:
        return [place]
    return [place, *(above / place for above in folder.resolve().parents)]


def _place_of_people(folder: Path) -> Path | None:
    """Return where a model's users were when it was made; None of an export, which does not say."""
    if (folder / COUNTED_ON).exists():
        return Path(json.loads((folder / COUNTED_ON).read_text())["population"])
    if (folder / "guarantee.json").exists() and not (folder / "recipe.toml").exists():
        return None
    return Path(recipe_of(folder).data.population)


def _is_their_place(folder: Path, place: Path) -> bool:
    """Tell whether the users of a run are where they were, and not others.

    By the id of the ledger: one that is lost or damaged is refused when it is opened, and the rows
    in the run's folder do not stand in for it.
    """
    signature = _find_signature(folder)
    try:
        named = read_named_ledger(place) if place.is_dir() else None
        is_population = named is not None or (place / "manifest.json").exists()
    # Of another account, or no path on this machine.
    except OSError:
        return False
    if signature is None:
        return is_population
    return named is not None and named.id == signature.ledger


def _find_signature(folder: Path) -> Signature | None:
    """Return the signature in a folder, if there is one that holds."""
    try:
        return read_signature(folder)
    except SignatureError:
        return None


def _say_where_people_were(folder: Path, purpose: str) -> str:
    place = _place_of_people(folder)
    if place is None:
        return (
            f"{purpose}, and {folder} is an export, without the people and their ledger: name the"
            " folder of its run, where those are"
        )
    bring = "bring that folder back"
    if (folder / "recipe.toml").exists():
        bring += f", or set population in {folder / 'recipe.toml'} to where it is now"
    return (
        f"{purpose}, and its people were in '{place}', {_say_what_is_there(folder)}: {bring}. Their"
        " ledger knows what was spent on them, and no new one would"
    )


def _say_what_is_there(folder: Path) -> str:
    """Say where a model's users were looked for, and what is there instead."""
    places = _list_places(folder)
    for place in places:
        try:
            is_other = place.exists()
        except OSError as error:
            return f"which cannot be read here ({error.strerror})"
        if is_other:
            return f"and {place} here is not theirs (another ledger, or none); theirs is not here"
    if len(places) == 1:
        return "which is not here"
    return f"which is neither here nor in a folder above {folder}"


def guarantee_of(loaded: LoadedModel, trust: Trust = NO_TRUST) -> Guarantee:
    """Return what is guaranteed for exactly this model.

    By its users' ledger; or, where that is not in reach, as its maker states.

    Args:
        loaded: the model.
        trust: what the reader knows of the ledger; a model of another is refused.

    Raises:
        ExportRefused: the ledger does not know it, it was not signed, or it protects nobody.
    """
    if loaded.card is None:
        raise ExportRefused(
            f"{loaded.path} does not say where it comes from: nothing is known about its privacy"
        )
    check_not_personal(loaded.card, loaded.path)
    if not loaded.is_of_users:
        raise ExportRefused(
            f"{loaded.path} is made of public text only: it protects nobody, so there is no"
            " guarantee to export it with"
        )
    try:
        rows = rows_of(loaded.path)
        if isinstance(rows, SignedRows):
            return stated_guarantee(loaded.params, loaded.card, rows, trust)
        return guarantee_in(rows, loaded.path, loaded.params, loaded.card, trust)
    except SignatureError as error:
        raise ExportRefused(str(error)) from None


def guarantee_in(
    ledger: Ledger, folder: Path, params: Params, card: ModelCard, trust: Trust
) -> Guarantee:
    """Return what a ledger says about exactly these parameters, and which key of it signed them.

    Args:
        ledger: of the model's users.
        folder: of the model, with its signature.
        params: of the model.
        card: of the model.
        trust: what the reader knows of the ledger; a model that it does not cover is refused.
    """
    guarantee = verified_guarantee(params, card, ledger)
    if trust:
        signed = read_signed_rows(folder)
        # Else the rows of a trusted run could lie beside the model of an invented ledger.
        check_signed_for(params, card, signed)
        check_trust(signed, trust)
    return replace(guarantee, ledger_key=_find_key(folder, ledger, guarantee.head))


def _find_key(folder: Path, ledger: Ledger, head: str) -> str | None:
    """Return the fingerprint of the key of this ledger that signed a model; None if none did.

    A row of the key is not enough, as anybody can copy one into a ledger.
    """
    signature = _find_signature(folder)
    if signature is None or signature.head != head:
        return None
    is_theirs = bytes.fromhex(signature.key) in list_keys(ledger.run_rows(None))
    return signature.fingerprint if is_theirs else None


def opening_of(loaded: LoadedModel) -> Row:
    """Return what its run declared before the first round."""
    return rows_of(loaded.path).run_rows(guarantee_of(loaded).run)[0]


def origin_of(loaded: LoadedModel) -> str | None:
    """Say whose text it learned from; None where that is unknown."""
    if loaded.card is None:
        return None
    if loaded.is_personal:
        return "your own text"
    if not loaded.is_of_users:
        return "public text"
    if (loaded.path / "recipe.toml").exists():
        return whose_text(recipe_of(loaded.path), opening_of(loaded))
    return "people's text"


def whose_text(recipe: Recipe, opened: Row) -> str:
    """Describe whose text a run learned from, by its recipe and what it declared."""
    # If the recipe was changed since, its number of users is not the one that was declared.
    if recipe.fingerprint != opened["recipe"]:
        return "people's text"
    is_simulated = opened.get("unit", "").startswith("one simulated")
    users = "simulated users" if is_simulated else "people"
    return f"the text of about {recipe.participation.users:,} {users}"


def folder_known_to(loaded: LoadedModel) -> Path:
    """Return the population of all on whom this model and its starts were trained.

    Raises:
        RunError: some of them are unknown.
    """
    population = population_of(
        loaded.path, f"only its ledger knows on whom {loaded.path} was trained"
    )
    ledger = open_ledger(population)
    opening = opening_of(loaded)
    while True:
        if opening["population"] != population.id:
            raise RunError(
                f"{population.folder} was built again since {opening['run']} was trained on it, so"
                " its users are no longer known"
            )
        if not opening["lineage"]:
            return population.folder
        start = _row_of_start(ledger, opening)
        if start is None:
            raise RunError(
                f"{opening['run']} started from a model of other users than {population.folder}'s,"
                " and they are unknown here"
            )
        opening = ledger.run_rows(start["run"])[0]


def _row_of_start(ledger: Ledger, opening: Row) -> Row | None:
    """Return the row of the model that a run started from, if this ledger has it."""
    # A run also records its start, as its own round 0: only what is before the run counts.
    for row in ledger.rows[: ledger.rows.index(opening)]:
        if row.get("params") == opening["start"]:
            return row
    return None
