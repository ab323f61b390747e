"""A pickle machine that builds a description instead of objects: nothing is imported, looked up or called.

GLOBAL becomes `Global("posix.system")`, REDUCE becomes `Call(...)`. Protocols 0 to 5. Bytes are views of the input.
Every declared length is compared with what is left before it is used; operations, memo and numbers are bounded, so
a hostile pickle costs at most time in proportion to its own length.
"""

import re
import struct
from collections.abc import Callable
from typing import Any

from diag.decode.decoded import Buffer
from diag.decode.pickle_nodes import Bag, Call, Corrupt, Global, Node, Pairs, Persistent, Truncated, Unsupported

MAX_OPS = 200_000
MAX_MEMO = 65_536
MAX_LONG_BYTES = 1_024
MAX_LINE_BYTES = 1 << 20
MAX_GLOBALS = 256

class Machine:
    """State of one run: where it reads, the stack, the memo. `run` is the only thing to call."""

    __slots__ = ("at", "data", "end", "globals", "marks", "max_memo", "max_ops", "memo", "root", "stack")

    def __init__(self, data: Buffer, at: int = 0, *, max_ops: int = MAX_OPS, max_memo: int = MAX_MEMO) -> None:
        self.data = memoryview(data)
        self.at = at
        self.end = len(self.data)
        self.stack: list[Node] = []
        self.marks: list[list[Node]] = []
        self.memo: dict[int, Node] = {}
        self.globals: dict[str, None] = {}
        self.root: Node = None
        self.max_ops = max_ops
        self.max_memo = max_memo

    def run(self) -> Node:
        """The description of the pickled object; `at` is then behind its STOP. Truncated, Corrupt, Unsupported."""
        data, end = self.data, self.end
        try:
            for _ in range(self.max_ops):
                if self.at >= end:
                    raise Truncated(self.at + 1)
                code = data[self.at]
                self.at += 1
                if code == 0x2E:
                    return self._stop()
                operation = OPERATIONS.get(code)
                if operation is None:
                    raise Corrupt(f"no such operation: byte 0x{code:02x} at {self.at - 1}")
                operation(self)
        except (IndexError, KeyError) as error:
            raise Corrupt(f"takes something that is not there, before byte {self.at}") from error
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise Corrupt(f"{type(error).__name__} before byte {self.at}") from error
        raise Unsupported(f"more than {self.max_ops} operations")

    def _stop(self) -> Node:
        root = self.stack.pop()
        if self.stack or self.marks:
            raise Corrupt("leaves more than one object")
        self.root = root
        return root

    def take(self, count: int) -> memoryview:
        """The next `count` bytes."""
        start, stop = self.at, self.at + count
        if stop > self.end:
            raise Truncated(stop)
        self.at = stop
        return self.data[start:stop]

    def number(self, layout: struct.Struct) -> Any:
        """The next number of that layout."""
        return layout.unpack(self.take(layout.size))[0]

    def line(self) -> bytes:
        """The next text argument, up to its newline."""
        length = 256  # most lines are short: copying much for each would be quadratic
        while True:
            window = bytes(self.data[self.at : self.at + length])
            stop = window.find(b"\n")
            if stop >= 0:
                self.at += stop + 1
                return window[:stop]
            if self.at + len(window) >= self.end:
                raise Truncated(self.end + 1)
            if length >= MAX_LINE_BYTES:
                raise Unsupported(f"a line of more than {MAX_LINE_BYTES} bytes")
            length *= 16

    def items(self) -> list[Node]:
        """Everything since the last mark."""
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def remember(self, index: int, node: Node) -> None:
        if len(self.memo) >= self.max_memo:
            raise Unsupported(f"remembers more than {self.max_memo} objects")
        self.memo[index] = node

    def recall(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def name(self, module: str, attribute: str) -> Global:
        full = f"{module}.{attribute}"
        if len(self.globals) < MAX_GLOBALS:
            self.globals[full] = None
        return Global(full)


_U1, _U2, _I4, _U4, _U8 = (struct.Struct(layout) for layout in ("<B", "<H", "<i", "<I", "<Q"))
_F8 = struct.Struct(">d")
_PROTOCOL_0_FLAGS = {b"00": False, b"01": True}

ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

Operation = Callable[[Machine], None]


def _push(value: Node) -> Operation:
    return lambda m: m.stack.append(value)


def _push_number(layout: struct.Struct) -> Operation:
    return lambda m: m.stack.append(m.number(layout))


def _push_bytes(length: struct.Struct) -> Operation:
    return lambda m: m.stack.append(m.take(m.number(length)))


def _push_text(length: struct.Struct) -> Operation:
    return lambda m: m.stack.append(str(m.take(m.number(length)), "utf-8", "surrogatepass"))


def _old_bytes(m: Machine) -> None:
    m.stack.append(m.take(max(m.number(_I4), 0)))


def _long(length: struct.Struct) -> Operation:
    def operation(m: Machine) -> None:
        count = m.number(length)
        if count > m.end - m.at:
            raise Truncated(m.at + count)
        if count > MAX_LONG_BYTES or count < 0:
            raise Unsupported(f"an integer of {count} bytes")
        m.stack.append(int.from_bytes(m.take(count), "little", signed=True))

    return operation


def _text_int(m: Machine) -> None:
    text = m.line()
    if len(text) > MAX_LONG_BYTES:
        raise Unsupported(f"an integer of {len(text)} digits")
    m.stack.append(_PROTOCOL_0_FLAGS.get(text) if text in _PROTOCOL_0_FLAGS else int(text.rstrip(b"L")))


def _text_string(m: Machine) -> None:
    text = m.line().strip()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in b"'\"":
        raise Corrupt("a string without quotes")
    m.stack.append(memoryview(ESCAPE.sub(_unescape, text[1:-1])))


def _unescape(found: re.Match[bytes]) -> bytes:
    text = found[1]
    if text[:1] == b"x":
        return bytes([int(text[1:], 16)])
    return bytes([int(text, 8) & 0xFF]) if text[:1] in b"01234567" else ESCAPES.get(text, text)


def _mark(m: Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.items()


def _tuple(count: int) -> Operation:
    def operation(m: Machine) -> None:
        if len(m.stack) < count:
            raise Corrupt("a tuple of things that are not there")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return operation


def _collect(make: Callable[[list[Node]], Node]) -> Operation:
    def operation(m: Machine) -> None:
        items = m.items()
        m.stack.append(make(items))

    return operation


def _paired(flat: list[Node]) -> list[tuple[Node, Node]]:
    if len(flat) % 2:
        raise Corrupt("a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _add(target: Node, items: list[Node]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, (Call, Bag)):
        target.items.extend(items)
    else:
        raise Corrupt("adds items to what is no container")


def _set(target: Node, pairs: list[tuple[Node, Node]]) -> None:
    if not isinstance(target, (Call, Pairs)):
        raise Corrupt("sets items of what is no mapping")
    target.pairs.extend(pairs)


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _add(m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = m.items()
    _add(m.stack[-1], items)


def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _set(m.stack[-1], [(key, value)])


def _setitems(m: Machine) -> None:
    pairs = _paired(m.items())
    _set(m.stack[-1], pairs)


def _global(m: Machine) -> None:
    module, attribute = m.line().decode(), m.line().decode()
    m.stack.append(m.name(module, attribute))


def _stack_global(m: Machine) -> None:
    attribute, module = m.stack.pop(), m.stack.pop()
    if not isinstance(attribute, str) or not isinstance(module, str):
        raise Corrupt("a global whose name is no text")
    m.stack.append(m.name(module, attribute))


def _reduce(m: Machine) -> None:
    args, func = m.stack.pop(), m.stack.pop()
    # protocols 0 and 1 spell "new object of class C" as copyreg._reconstructor(C, object, None), 2 as __newobj__
    if isinstance(func, Global) and isinstance(args, tuple) and args and isinstance(args[0], Global):
        if func.name in ("copyreg.__newobj__", "copy_reg.__newobj__"):
            m.stack.append(Call(args[0], args[1:]))
            return
        if func.name in ("copyreg._reconstructor", "copy_reg._reconstructor"):
            m.stack.append(Call(args[0], ()))
            return
    m.stack.append(Call(func, args))


def _newobj(m: Machine) -> None:
    args, cls = m.stack.pop(), m.stack.pop()
    m.stack.append(Call(cls, args))


def _newobj_ex(m: Machine) -> None:
    kwargs, args, cls = m.stack.pop(), m.stack.pop(), m.stack.pop()
    m.stack.append(Call(cls, args, kwargs))


def _inst(m: Machine) -> None:
    module, attribute = m.line().decode(), m.line().decode()
    args = m.items()
    m.stack.append(Call(m.name(module, attribute), tuple(args)))


def _obj(m: Machine) -> None:
    cls, *args = m.items()
    m.stack.append(Call(cls, tuple(args)))


def _build(m: Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if isinstance(target, Call):
        target.state = state
    elif not isinstance(target, (Global, Persistent)):
        raise Corrupt("gives a state to what has none")


def _pop_mark(m: Machine) -> None:
    m.items()


def _frame(m: Machine) -> None:
    length = m.number(_U8)
    if length > m.end - m.at:
        raise Truncated(m.at + length)


def _refuse(what: str) -> Operation:
    def operation(m: Machine) -> None:
        raise Unsupported(what)

    return operation


def _proto(m: Machine) -> None:
    version = m.number(_U1)
    if version > 5:
        raise Corrupt(f"protocol {version}")


OPERATIONS: dict[int, Operation] = {
    0x80: _proto,
    0x95: _frame,
    ord("("): _mark,
    ord("0"): _pop,
    ord("1"): _pop_mark,
    ord("2"): lambda m: m.stack.append(m.stack[-1]),
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("I"): _text_int,
    ord("L"): _text_int,
    ord("F"): lambda m: m.stack.append(float(m.line()[:64])),
    ord("J"): _push_number(_I4),
    ord("K"): _push_number(_U1),
    ord("M"): _push_number(_U2),
    ord("G"): _push_number(_F8),
    0x8A: _long(_U1),
    0x8B: _long(_I4),
    ord("S"): _text_string,
    ord("T"): _old_bytes,
    ord("U"): _push_bytes(_U1),
    ord("V"): lambda m: m.stack.append(str(m.line(), "raw-unicode-escape")),
    ord("X"): _push_text(_U4),
    0x8C: _push_text(_U1),
    0x8D: _push_text(_U8),
    ord("B"): _push_bytes(_U4),
    ord("C"): _push_bytes(_U1),
    0x8E: _push_bytes(_U8),
    0x96: _push_bytes(_U8),
    0x97: _refuse("its data travels outside of the pickle"),
    0x98: lambda m: None,
    ord(")"): _push(()),
    ord("t"): _collect(tuple),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("]"): lambda m: m.stack.append([]),
    ord("l"): _collect(list),
    ord("a"): _append,
    ord("e"): _appends,
    ord("}"): lambda m: m.stack.append(Pairs()),
    ord("d"): _collect(lambda items: Pairs(_paired(items))),
    ord("s"): _setitem,
    ord("u"): _setitems,
    0x8F: lambda m: m.stack.append(Bag()),
    0x90: _appends,
    0x91: _collect(Bag),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _newobj,
    0x92: _newobj_ex,
    ord("i"): _inst,
    ord("o"): _obj,
    ord("b"): _build,
    ord("P"): lambda m: m.stack.append(Persistent(m.line().decode())),
    ord("Q"): lambda m: m.stack.append(Persistent(m.stack.pop())),
    ord("p"): lambda m: m.remember(int(m.line()), m.stack[-1]),
    ord("q"): lambda m: m.remember(m.number(_U1), m.stack[-1]),
    ord("r"): lambda m: m.remember(m.number(_U4), m.stack[-1]),
    0x94: lambda m: m.remember(len(m.memo), m.stack[-1]),
    ord("g"): lambda m: m.recall(int(m.line())),
    ord("h"): lambda m: m.recall(m.number(_U1)),
    ord("j"): lambda m: m.recall(m.number(_U4)),
    0x82: _refuse("extension codes"),
    0x83: _refuse("extension codes"),
    0x84: _refuse("extension codes"),
}
