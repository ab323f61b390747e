"""Deletes ghost keys and puts them back: plans, rights, backups, the compare-and-delete, scripts, the audit log."""
