"""The kernel's socket tables (`/proc/PID/net/tcp`, `tcp6`, `unix`) -> plain values.

      sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
       0: 0100007F:18EB 00000000:0000 0A 00000000:00000003 00:00000000 00000000  1000        0 12345 1 …

    Num       RefCount Protocol Flags    Type St Inode Path
    00000000826fd6d6: 00000002 00000000 00010000 0001 01  1158 /run/redis.sock

`rx_queue` of a listening TCP socket is the number of connections waiting to be accepted.
"""

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAPPED = "0000000000000000FFFF0000"
"""Leading words of an IPv4 address in an IPv6 one, as a little-endian kernel prints them."""
TCP_STATES = {
    "01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2",
    "06": "TIME_WAIT", "07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING",
    "0C": "SYN_RECV",
}
UNIX_STATES = {"01": "UNCONNECTED", "02": "CONNECTING", "03": "ESTABLISHED", "04": "DISCONNECTING"}
ACCEPTS = 0x10000


class Tcp(NamedTuple):
    """One row; addresses still in the kernel's hex (IPv4-mapped ones as IPv4), decoded on demand."""

    inode: int
    local: str
    remote: str
    state: str
    recv_q: int
    send_q: int


class Unix(NamedTuple):
    """One row; path is None for an unnamed socket, `@name` for an abstract one."""

    inode: int
    state: str
    path: str | None


def tcp(lines: Iterable[str]) -> Iterator[Tcp]:
    """Rows of `net/tcp` or `net/tcp6`; lines that are no rows (the header, a torn read) are passed over."""
    for line in lines:
        cells = line.split(None, 10)
        if len(cells) < 10 or not cells[9].isdecimal():
            continue
        queues = cells[4].partition(":")
        try:
            sent, received = int(queues[0], 16), int(queues[2], 16)
        except ValueError:
            continue
        state = TCP_STATES.get(cells[3], cells[3])
        local, remote = cells[1].removeprefix(MAPPED), cells[2].removeprefix(MAPPED)
        yield Tcp(int(cells[9]), local, remote, state, received, sent)


def address(raw: str) -> tuple[str, int]:
    """`0100007F:18EB` -> ("127.0.0.1", 6379). Raises ValueError when it is not one."""
    host, _, port = raw.partition(":")
    words = [int(host[start:start + 8], 16) for start in range(0, len(host), 8)]
    return plain(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)


def plain(host: str | ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """An address as text; IPv4 dressed as IPv6 (`::ffff:10.0.0.5`) as IPv4; what is no address stays."""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def unix(lines: Iterable[str]) -> Iterator[Unix]:
    """Rows of `net/unix`; lines that are no rows are passed over."""
    for line in lines:
        cells = line.rstrip("\n").split(None, 7)
        if len(cells) < 7 or not cells[6].isdecimal():
            continue
        try:
            listens = int(cells[3], 16) & ACCEPTS
        except ValueError:
            continue
        state = "LISTEN" if listens else UNIX_STATES.get(cells[5], cells[5])
        yield Unix(int(cells[6]), state, cells[7] if len(cells) > 7 else None)
