"""The GitHub side: one comment on a pull request, the baseline from an artifact, and the client for both.

Nothing here is needed to run or judge; what can't be posted becomes a notice, and never the gate's failure. Nothing is
imported here, since the command line reads `settings` for its flags at every start.
"""
