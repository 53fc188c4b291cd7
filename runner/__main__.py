"""`python -m symmem_check`."""

from .cli import main

raise SystemExit(main())
