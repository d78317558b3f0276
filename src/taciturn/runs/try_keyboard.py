"""Try models at a keyboard: make the page that serves them, each with what is guaranteed for it.

simulate_typing.py has people who are only simulated.
"""

from collections.abc import Sequence
from pathlib import Path

from taciturn.export.formats import page_script
from taciturn.export.word_model import LoadedModel, load_word_model
from taciturn.keyboard.server import KeyboardServer, page_files
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.trust import Trust, parse_trust
from taciturn.progress import Progress, ignore_progress
from taciturn.release.model_file import ModelCard
from taciturn.release.privacy_statement import personal_statement, statement
from taciturn.runs.provenance import guarantee_of, origin_of


def make_keyboard_server(
    paths: Sequence[Path],
    blocked: Sequence[str],
    port: int,
    progress: Progress = ignore_progress,
    trust: str | Sequence[str] | None = None,
) -> KeyboardServer:
    """Make the server of a page with one model or two, each with its guarantee.

    A personal model is shown to its owner only.

    Args:
        paths: of the models.
        blocked: words that are never suggested.
        port: to listen at.
        progress: called with models read, and of how many.
        trust: fingerprints, heads or files of ledgers: a run of another ledger is refused.
    """
    trusted = parse_trust(trust)
    models = []
    scripts = []
    for path, name in zip(paths, _name_models(paths), strict=True):
        progress(len(scripts), len(paths))
        loaded = load_word_model(path)
        models.append(loaded)
        scripts.append(_write_script(loaded, name, blocked, trusted))
    has_personal = any(loaded.is_personal for loaded in models)
    return KeyboardServer(page_files(scripts), port, secret=has_personal)


def _name_models(paths: Sequence[Path]) -> list[str]:
    """Name each model by its folder, with a letter where two folders have one name."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [f"{name} {letter}" for name, letter in zip(names, "AB", strict=False)]


def _write_script(loaded: LoadedModel, name: str, blocked: Sequence[str], trust: Trust) -> str:
    has_guarantee = loaded.is_of_users and not loaded.is_personal
    guarantee = guarantee_of(loaded, trust) if has_guarantee else None
    return page_script(
        loaded=loaded,
        guarantee=guarantee,
        learned_from=origin_of(loaded),
        statement=_write_statement(loaded.card, guarantee),
        name=name,
        blocked=blocked,
    )


def _write_statement(card: ModelCard | None, guarantee: Guarantee | None) -> str:
    if card is None:
        return "The origin of this model is unknown."
    if card.personal:
        return personal_statement(card.run, card.ledger_head)
    if guarantee is None:
        return f"Made of public text only: {'; '.join(card.public_text)}."
    return statement(guarantee, card.public_text)
