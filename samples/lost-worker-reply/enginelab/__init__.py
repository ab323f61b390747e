"""Processes of the lab: an engine core with its scheduler, and workers, talking over socket pairs of messages."""
