"""perf's report and script output."""

from diag.collectors import stacks
from tests.collectors.harness import parse

REPORT = '''\
# To display the perf.data header info, please use --header/--header-only options.
#
# Total Lost Samples: 0
#
# Samples: 4K of event 'cpu-clock'
# Event count (approx.): 1001500000
#
# Overhead       Samples  Command  Shared Object         Symbol
# ........  ............  .......  ....................  ...................................
#
    94.43%          3783  VLLM::Worker  libz.so.1.2.13        [.] crc32_z
            |
            ---crc32_z

     5.42%           217  VLLM::Worker  [unknown]             [.] 0x00007fabb6648640
            |
             --5.42%--0x7fabb6648640
'''
CHILDREN = '''\
# Samples: 3K of event 'cpu-clock'
#
# Children      Self  Command  Shared Object         Symbol
# ........  ........  .......  ....................  ...................................
#
    77.97%     0.00%  python   [unknown]             [.] 0x00007f1707a56240
    33.72%    33.52%  python   libpython3.11.so.1.0  [.] std::vector<int>::at  (int) const
'''
BY_PID = '''\
# Overhead      Pid:Command          Symbol
# ........  .......................  .........................
#
    94.43%    15391:python           [k] do_syscall_64
'''
SCRIPT = '''\
python 15391/15403  4089.620847: cpu-clock:
\t          16e0ba __memset_avx512_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)
\t    7fabb6648640 [unknown] ([unknown])

python 15391/15403 [001]  4089.621093:     250000 cpu-clock:ppp:
\t            3e64 crc32_z+0x37 (/usr/lib/x86_64-linux-gnu/libz.so.1.2.13)

VLLM::Worker TP0 15500  4089.621345:     250000 cycles:
\t            3e36 crc32_z+0x12 (/usr/lib/x86_64-linux-gnu/libz.so.1.2.13)

python 15391/15403  4089.621592: cpu-clock:
\t    7fabb6648640 [unknown] ([unknown])

'''


def hot(name: str, text: str) -> list[tuple[object, ...]]:
    rows = parse(stacks, {name: text})
    assert [(row["table_name"], row["status"]) for row in rows["collected"]] == [("hot_functions", "ok")]
    return [(row["pid"], row["comm"], row["func"], row["object"], row["share_pct"], row["samples"]) for row in rows["hot_functions"]]


def test_report() -> None:
    assert hot("perf.txt", REPORT) == [
        (None, "VLLM::Worker", "crc32_z", "libz.so.1.2.13", 94.43, 3783), (None, "VLLM::Worker", "0x00007fabb6648640", None, 5.42, 217),
    ]


def test_of_a_report_with_callers_only_the_own_share_counts() -> None:
    assert hot("perf-4711.txt", CHILDREN) == [(4711, "python", "std::vector<int>::at  (int) const", "libpython3.11.so.1.0", 33.52, None)]


def test_report_sorted_by_process() -> None:
    assert hot("perf.txt", BY_PID) == [(15391, "python", "do_syscall_64", None, 94.43, None)]


def test_script_counts_innermost_functions_per_thread() -> None:
    rows = parse(stacks, {"perf.script": SCRIPT})["hot_functions"]
    assert {(row["pid"], row["tid"], row["comm"], row["func"], row["object"], row["samples"], row["share_pct"]) for row in rows} == {
        (15391, 15403, "python", "__memset_avx512_unaligned_erms", "libc.so.6", 1, 25.0),
        (15391, 15403, "python", "crc32_z", "libz.so.1.2.13", 1, 25.0),
        (None, 15500, "VLLM::Worker TP0", "crc32_z", "libz.so.1.2.13", 1, 25.0),
        (15391, 15403, "python", "0x7fabb6648640", None, 1, 25.0),
    }
    assert rows[0]["source"] == "perf.script:2"
