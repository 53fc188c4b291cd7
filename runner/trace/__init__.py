"""From a trace file to the collectives in it: source, text, reader, then join and phase."""
