"""strace's recordings and summaries."""

from diag.collectors import stacks
from tests.collectors.harness import parse

TRACE = '''\
15479 07:11:27.528054 clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, {tv_sec=4091, tv_nsec=849884470}, NULL) = 0 <0.001071>
15479 07:11:27.529187 clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, {tv_sec=4091, tv_nsec=851016879}, NULL) = 0 <0.001069>
15479 07:11:27.534767 munmap(0x7f1bc57ba000, 16384 <unfinished ...>
15478 07:11:27.534774 <... futex resumed>) = 0 <0.022339>
15479 07:11:27.534804 <... munmap resumed>) = 0 <0.000032>
15478 07:11:27.534811 futex(0x7f1bc574e6f0, FUTEX_WAIT_BITSET_PRIVATE, 0, {tv_sec=4091}, FUTEX_BITSET_MATCH_ANY <unfinished ...>
15478 07:11:27.534850 <... futex resumed>) = -1 EAGAIN (Resource temporarily unavailable) <0.000027>
15479 07:11:27.534866 recvfrom(9, "+PONG = 7\\r\\n", 65536, 0, NULL, NULL) = 7 <0.000010>
15479 07:11:27.534957 exit(0)           = ?
15479 07:11:27.535000 +++ exited with 0 +++
'''
SUMMARY = '''\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 93.75    0.000015          15         1         1 restart_syscall
  6.25    0.000001           0       129           write
------ ----------- ----------- --------- --------- ----------------
100.00    0.000016           0       130         1 total
'''
ATTACHED = '''\
strace: Process 15153 attached with 4 threads
[pid 15157] 07:10:51.032292 restart_syscall(<... resuming interrupted read ...> <unfinished ...>
[pid 15155] 07:10:51.032341 write(3, "= 5", 3) = 3
[pid 15155] 07:10:51.032391 write(3, "x", 1) = -1 EPIPE (Broken pipe)
[pid 15155] 07:10:51.032392 --- SIGPIPE {si_signo=SIGPIPE, si_code=SI_USER} ---
strace: Process 15155 detached
'''


def counts(name: str, text: str) -> dict[tuple[object, object, object], tuple[object, object, object]]:
    rows = parse(stacks, {name: text})
    assert [(row["table_name"], row["status"]) for row in rows["collected"]] == [("syscall_counts", "ok")]
    return {(row["pid"], row["tid"], row["syscall"]): (row["calls"], row["errors"], row["seconds"]) for row in rows["syscall_counts"]}


def test_recording_with_threads_and_times() -> None:
    assert counts("strace.txt", TRACE) == {
        (None, 15479, "clock_nanosleep"): (2, 0, 0.00214), (None, 15479, "munmap"): (1, 0, 0.000032),
        (None, 15478, "futex"): (1, 1, 0.022366), (None, 15479, "recvfrom"): (1, 0, 0.00001), (None, 15479, "exit"): (1, 0, None),
    }


def test_summary_is_of_the_process_in_the_file_name() -> None:
    assert counts("strace-15153.txt", SUMMARY) == {
        (15153, None, "restart_syscall"): (1, 1, 0.000015), (15153, None, "write"): (129, 0, 0.000001),
    }


def test_attached_process_is_named_by_strace_itself() -> None:
    found = counts("trace.log", ATTACHED)
    assert found == {(15153, 15157, "restart_syscall"): (1, 0, None), (15153, 15155, "write"): (2, 1, None)}
