"""Is the engine dead, or only busy? Reads of its own /metrics -> one state per backend and engine. Nothing here does I/O
but the modules that say so: polling, probing, recorded, process_evidence."""
