"""What a person or another tool reads of a run, each a pure function of its Result."""
