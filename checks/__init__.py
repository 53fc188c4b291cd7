"""The half that makes evidence: it runs collectives on the GPUs and writes traces and records.

It imports torch and the standard library only, runs in the user's own Python, and judges nothing. One
process a rank reads a plan and writes, for each case, a record and a trace into the run folder. It is
started by path and loads itself under a private name, so that a repository's own `checks` package and
this one never meet.
"""
