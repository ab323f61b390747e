"""llmdiag in one file for hosts without a network: `build` makes it (`make dist`), `start` is the first of its code that runs there."""
