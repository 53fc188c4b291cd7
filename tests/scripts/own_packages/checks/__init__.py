"""A training repository's own package of this name."""

OWNER = "the script's own checks"
