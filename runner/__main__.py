"""`python -m symmem_check`."""

from .cli import process

raise SystemExit(process())
