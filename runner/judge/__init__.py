"""From collectives and records to coverage, outcome, cause and verdict."""
