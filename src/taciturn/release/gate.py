"""The exit: a model leaves only with a guarantee for exactly the ledger row it was made at."""

import math
from dataclasses import replace
from pathlib import Path

from taciturn.core import Params
from taciturn.errors import TaciturnError
from taciturn.privacy.accounting.rounding_up import delta_text
from taciturn.privacy.ledger.early_end import promise
from taciturn.privacy.ledger.guarantee import Guarantee, SignedElsewhere
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.signed_rows import SignedRows
from taciturn.privacy.ledger.trust import Trust
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
    run, head = _place_in_ledger(card)
    recorded = {
        "kind": "model",
        "run": run,
        "params": params_digest(params),
        "hash": head,
    }
    row = next((row for row in ledger.run_rows(run) if recorded.items() <= row.items()), None)
    if row is None:
        raise ExportRefused(
            f"{ledger.path} does not know these parameters as run {run}'s at row"
            f" {head[:12]}…: the model was changed, belongs to another population, or"
            " rows are missing"
        )
    # Rows of old ledgers have no card.
    if row.get("card", card_digest(card)) != card_digest(card):
        raise ExportRefused(
            f"{ledger.path} knows these parameters with other words or another description: the"
            " model file was changed"
        )
    return promise(ledger, run, head)


def stated_guarantee(
    params: Params, card: ModelCard, signed: SignedRows, trust: Trust
) -> Guarantee:
    """Return what a run's maker states about exactly these parameters; refuse any others.

    It is for a run whose ledger is not in reach. The guarantee says that it is only stated, unless
    the reader vouches for the ledger.

    Args:
        params: of the model.
        card: of the model.
        signed: the rows that came with the model.
        trust: what the reader knows of the ledger. Where it is something, nothing else passes.
    """
    check_signed_for(params, card, signed)
    check_trust(signed, trust)
    run, head = _place_in_ledger(card)
    signature = signed.signature
    elsewhere = SignedElsewhere(row=signature.row, date=signature.date, is_trusted=bool(trust))
    try:
        guarantee = promise(signed, run, head)
    # The signer can have signed anything.
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError):
        raise ExportRefused(
            f"{signed.path} has rows that no ledger could hold, although they are signed: do not"
            " rely on this model"
        ) from None
    return replace(guarantee, ledger_key=signature.fingerprint, elsewhere=elsewhere)


def check_signed_for(params: Params, card: ModelCard, signed: SignedRows) -> None:
    """Refuse a model that is not exactly the one whose rows were signed."""
    stated = {
        "run": card.run,
        "hash": card.ledger_head,
        "round": card.round,
        "params": params_digest(params),
        "card": card_digest(card),
    }
    model = signed.rows[-1]
    if not stated.items() <= model.items():
        raise ExportRefused(
            f"{signed.path} is signed for another model than this one, of run"
            f" {signed.signature.run}: the model file was changed, or belongs to another run"
        )


def check_trust(signed: SignedRows, trust: Trust) -> None:
    """Refuse rows that are not of a ledger that the reader vouches for, where there is one."""
    if trust and not trust.covers(signed):
        raise ExportRefused(
            f"{signed.path} is signed by the key {signed.signature.fingerprint}, and what you trust"
            f" ({', '.join(trust.names)}) does not vouch for it: do not rely on this model, or ask"
            " its maker for the fingerprint of the ledger's key"
        )


def _place_in_ledger(card: ModelCard) -> tuple[str, str]:
    """Return the run of a model and its row there; refuse a model without."""
    check_not_personal(card, "this")
    if card.run is None or card.ledger_head is None:
        raise ExportRefused(
            "this model was not trained on users: there is no guarantee to export it with"
        )
    return card.run, card.ledger_head


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
