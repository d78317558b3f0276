"""The exit: a model leaves only with a guarantee for exactly the ledger row it was made at."""

import math
from pathlib import Path

from taciturn.core import Params
from taciturn.errors import TaciturnError
from taciturn.privacy.accounting.rounding_up import delta_text
from taciturn.privacy.ledger.early_end import promise
from taciturn.privacy.ledger.ledger import Guarantee, Ledger
from taciturn.release.model_file import ModelCard, card_digest, params_digest


class ExportRefused(TaciturnError):
    """The model may not leave, and why."""


def check_not_personal(card: ModelCard, what: Path | str) -> None:
    """Refuse a personal model at every exit: the card stays with the file."""
    if card.personal:
        raise ExportRefused(
            f"{what} is a personal model of one person's own text, which stays on this device: name"
            " a run"
        )


def verified_guarantee(params: Params, card: ModelCard, ledger: Ledger) -> Guarantee:
    """Return what the ledger says about exactly these parameters; refuse any others."""
    check_not_personal(card, "this")
    if card.run is None or card.ledger_head is None:
        raise ExportRefused(
            "this model was not trained on users: there is no guarantee to export it with"
        )
    recorded = {
        "kind": "model",
        "run": card.run,
        "params": params_digest(params),
        "hash": card.ledger_head,
    }
    rows = ledger.run_rows(card.run)
    row = next((row for row in rows if recorded.items() <= row.items()), None)
    if row is None:
        raise ExportRefused(
            f"{ledger.path} does not know these parameters as run {card.run}'s at row"
            f" {card.ledger_head[:12]}…: the model was changed, belongs to another population, or"
            " rows are missing"
        )
    # Rows of old ledgers have no card.
    if row.get("card", card_digest(card)) != card_digest(card):
        raise ExportRefused(
            f"{ledger.path} knows these parameters with other words or another description: the"
            " model file was changed"
        )
    return promise(ledger, card.run, card.ledger_head)


def check_may_leave(guarantee: Guarantee, non_private: bool) -> None:
    """Refuse a model that has no guarantee, unless it is asked for as such."""
    if non_private:
        return
    if not guarantee.is_private:
        raise ExportRefused(
            f"run {guarantee.run} has no privacy (ε = ∞); to export it anyway, add"
            " `non_private=True`"
        )
    if guarantee.is_noise_known:
        raise ExportRefused(
            f"the noise of run {guarantee.run} came from a seed, and anyone who knows the seed can"
            " remove it: train without [run] seed; to export the model all the same, add"
            " `non_private=True`"
        )
    if guarantee.epsilon == math.inf:
        raise ExportRefused(
            f"the noise of run {guarantee.run} guarantees nothing at δ ="
            f" {delta_text(guarantee.delta)} (ε = ∞); to export it anyway, add `non_private=True`"
        )
