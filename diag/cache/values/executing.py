"""Which names in a pickle would run something if a service unpickled it, rather than build something."""

EXECUTING = frozenset({
    "os", "posix", "nt", "subprocess", "sys", "socket", "pty", "shutil", "importlib", "runpy", "ctypes", "code",
    "pdb", "webbrowser", "marshal", "types", "pip", "ensurepip", "multiprocessing", "asyncio", "timeit", "operator",
    "functools", "io", "_io", "tempfile", "pickle", "_pickle", "dill", "cloudpickle", "joblib", "inspect", "signal",
    "threading", "sqlite3", "ftplib", "smtplib", "getpass", "linecache", "_posixsubprocess",
    "_interpreters", "commands", "bdb", "trace", "cProfile", "profile", "http", "urllib", "requests",
})  # fmt: skip
EXECUTING_NAMES = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in ("eval", "exec", "__import__", "getattr", "setattr", "open", "compile", "globals", "apply", "execfile")
)
HARMLESS = frozenset({
    "types.SimpleNamespace", "types.MappingProxyType", "types.GenericAlias", "io.BytesIO", "io.StringIO", "_io.BytesIO", "_io.StringIO",
    "functools.partial", "operator.itemgetter", "operator.attrgetter", "operator.methodcaller", "signal.Signals",
    "inspect.Parameter", "inspect.Signature",
})  # fmt: skip
"""Plain containers of those modules; what they hold is looked at by itself."""
WEB = frozenset({"http", "urllib", "requests"})
"""Their classes hold answers, their functions fetch."""


def runs_code(name: str) -> bool:
    """Would a reader who unpickles this run something rather than build something?"""
    module, _, rest = name.partition(".")
    if name in EXECUTING_NAMES:
        return True
    if name in HARMLESS or (module in WEB and rest.rpartition(".")[2][:1].isupper()):
        return False
    return module in EXECUTING
