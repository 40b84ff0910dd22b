"""Plans out of the database: what is damaged there is the store's fault, not the user's input."""

from __future__ import annotations

from mktune import strict_json
from mktune.errors import InputError, StoreError
from mktune.plan import Plan
from mktune.records import winner_from_dict
from mktune.trial import Winner


def stored_plan(text: str) -> Plan:
    """The plan in a row. Raises StoreError where it does not read back."""
    try:
        return Plan.from_json(text)
    except InputError as error:
        raise StoreError(f"the store holds a damaged plan: {error}") from None


def stored_winner(document: str) -> Winner:
    """The winner in a row. Raises StoreError where it does not read back."""
    try:
        return winner_from_dict(strict_json.loads(document, "a stored winner"))
    except InputError as error:
        raise StoreError(f"the store holds a damaged plan: {error}") from None
