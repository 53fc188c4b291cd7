"""The event that started a workflow, read from the payload's file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import UserError
from .model import Payload

LARGEST_PAYLOAD = 64 * 2**20
"""Bytes; GitHub's webhook payloads end at 25 MB: https://docs.github.com/en/webhooks/webhook-events-and-payloads"""


def read_payload(path: Path | None) -> Payload:
    """Read an event's payload; an empty one where no file is given. Raises UserError for a file that is none."""
    if path is None:
        return Payload()
    try:
        if path.stat().st_size > LARGEST_PAYLOAD:
            raise UserError(f"{path}: too large for an event's payload; set GITHUB_EVENT_PATH to the event's file")
        return msgspec.json.decode(path.read_bytes(), type=Payload)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error}); set GITHUB_EVENT_PATH") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: not an event's payload ({error}); set GITHUB_EVENT_PATH") from None
