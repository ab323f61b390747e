"""Which processes a service is, by what a person knows of it: its port, name, unit or container.

One way a module, each with `find(asked) -> Found`. All of them end in pids of this machine, read `/proc`, and raise errors
that say what was seen instead.
"""
