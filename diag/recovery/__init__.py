"""Where the time of a recovery goes: lines and events -> stages, what was noticed when, what came after. Pure."""
