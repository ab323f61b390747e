"""Ghost keys in caches: families of keys, facts about values, verdicts, purge with a backup, restore."""
