"""The exit: a model leaves only with a guarantee for exactly the ledger row it was made at."""

from pathlib import Path

from taciturn.core import Params
from taciturn.privacy.ledger import Guarantee, Ledger
from taciturn.release.checkpoint import ModelCard, load_model, params_digest, save_model
from taciturn.release.privacy_statement import statement, statement_json


class ExportRefused(Exception):
    """The model may not leave, and why."""


def verified_guarantee(params: Params, card: ModelCard, ledger: Ledger) -> Guarantee:
    """What the ledger says of exactly these parameters; refused where the two do not belong together."""
    if card.run is None or card.ledger_head is None:
        raise ExportRefused("this model was not trained on users: there is no guarantee to export it with")
    recorded = {"kind": "model", "run": card.run, "params": params_digest(params), "hash": card.ledger_head}
    if not any(recorded.items() <= row.items() for row in ledger.run_rows(card.run)):
        raise ExportRefused(
            f"{ledger.path} does not know these parameters as run {card.run}'s at row {card.ledger_head[:12]}…: the model was "
            "changed, belongs to another population, or rows were cut off"
        )
    return ledger.guarantee(card.run, card.ledger_head)


def export_model(model: Path, ledger: Ledger, out: Path, unit: str, non_private: bool = False) -> Guarantee:
    """Copy a model to `out` with its guarantee beside it, after the ledger has been verified from its first row."""
    model = model / "model.safetensors" if model.is_dir() else model
    params, card = load_model(model)
    guarantee = verified_guarantee(params, card, ledger)
    if not guarantee.is_private and not non_private:
        raise ExportRefused(f"run {card.run} has no privacy (ε = ∞); if it may leave all the same, say --non-private")
    if out.exists() and any(out.iterdir()):
        raise ExportRefused(f"{out} is not empty; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocabulary.txt").write_text("\n".join(card.vocabulary) + "\n", encoding="utf-8")
    (out / "guarantee.txt").write_text(statement(guarantee, unit, card.public_text), encoding="utf-8")
    (out / "guarantee.json").write_text(statement_json(guarantee, unit, card.public_text), encoding="utf-8")
    save_model(out / "model.safetensors", params, card)  # what was verified; the file may have changed since
    return guarantee
