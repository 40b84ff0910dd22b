"""Winners that take another's place: as JSON data, and a note where bits that repeat give way to some that may not."""

from __future__ import annotations

from typing import Any

from mktune.cli import render
from mktune.cli.summary import shape_words
from mktune.trial import Winner


def replacement_document(winner: Winner, replaced: Winner | None) -> dict[str, Any]:
    """Whether the bits of `winner` are known to repeat, and which plan it takes the place of."""
    before = None if replaced is None else {"plan_id": replaced.plan.plan_id, "repeats": replaced.repeats}
    return {"repeats": winner.repeats, "replaces": before}


def note_lost_bits(winner: Winner, replaced: Winner | None) -> None:
    """One line where `winner` takes the place of a plan whose bits are known to repeat, and is not known to itself."""
    if replaced is None or not replaced.repeats or winner.repeats:
        return
    where = f"{shape_words(winner.plan.shape)}, {winner.fingerprint.gpu}"
    said = f"takes the place of {replaced.plan.short_id}, whose bits repeat; its own are not known to"
    if winner.plan == replaced.plan:
        said = "was known to repeat its bits, and by its new record is not"
    render.note(f"mktune: {where}: {winner.plan.short_id} {said} (--deterministic keeps what repeats)")
