"""The evidence tables: the data dictionary that rules, bundles and `llmdiag schema` share.

Every table also has `bundle`, `host`, `capture` and `source` (`artefact:line` or `artefact#key`). Times are UTC.
Unknown is NULL; a column whose NULL means something else says so in `null`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TEXT, INT, REAL, FLAG, TIME = "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"


@dataclass(frozen=True)
class Column:
    """One column: DuckDB type, meaning with unit, and what NULL means where it is not "unknown"."""

    name: str
    type: str
    about: str
    null: str = ""


@dataclass(frozen=True)
class Table:
    """One evidence table. A collector or derivation may declare further ones of its own."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


ORIGIN = (
    Column("bundle", TEXT, "bundle or folder the row comes from"),
    Column("host", TEXT, "host the evidence was taken on"),
    Column("capture", TEXT, "which capture of the target: captures are judged each on its own"),
    Column("source", TEXT, "artefact:line or artefact#key of the raw evidence"),
)


def _column(spec: str) -> Column:
    """`name TYPE: about [; NULL = meaning]` -> Column."""
    head, _, about = spec.partition(": ")
    name, kind = head.split()
    about, _, null = about.partition("; NULL = ")
    return Column(name, kind, about, null)


def table(name: str, about: str, *specs: str) -> Table:
    """Declare a table: one text per column, `name TYPE: about[; NULL = meaning]`."""
    return Table(name, about, (*ORIGIN, *(_column(spec) for spec in specs)))


_PID = "pid BIGINT: process id as the host sees it"
_TID = "tid BIGINT: thread id as the host sees it"
_STARTED = "started_at TIMESTAMP: start of the process; identity is (host, pid, started_at)"
_READ = "read BIGINT: number of the read, from 0"
_TS = "ts TIMESTAMP: when it was read"
_DUMP = "dump VARCHAR: name of the dump"
_NAME = "name VARCHAR: tensor, the same in every dump; of a cache that holds both, [k] or [v] at the end"
_RANK = "rank BIGINT: parallel rank; NULL = the dump has none"
_STEP = "step BIGINT: forward pass, round or training step; NULL = the dump has none"
_LAYER = "layer BIGINT: layer of the model, from 0; NULL = belongs to none"
_ROLE = "role VARCHAR: k | v | kv | token_ids | positions | block_table | slot_mapping | context_lens; NULL = another tensor"
_BLOCK = "block BIGINT: token block of the request, from 0 (of the pool where there is no block table); NULL = the whole tensor"

HOST_EVENT_KINDS = (
    "oom_kill", "xid", "nvrm", "device_error", "nccl_error", "heartbeat_lost", "probe_failed", "killing", "restart", "start", "stop", "exit",
    "back_off", "left_over", "reclaim_start", "reclaim_done", "sync_barrier", "drain_start", "drain_done", "traffic_switch", "queue_released",
    "admitted_pct", "weights_hash", "generation", "busy_flag", "cache_get", "cache_set", "cache_error", "hung_task", "segfault",
)  # fmt: skip
"""Also what an events map may name."""

CORE: tuple[Table, ...] = (
    table(
        "collected",
        "What was looked at: one row per collector and table it feeds",
        "collector VARCHAR: name of the collector",
        "table_name VARCHAR: table, or table.column for a column that could not be read",
        "status VARCHAR: ok | partial | failed | skipped; only ok means collected",
        "reason VARCHAR: why it is not ok; NULL = nothing to say",
    ),
    table(
        "processes",
        "The service's process tree",
        _PID, "ppid BIGINT: parent", _STARTED,
        "role VARCHAR: api_server engine_core worker scheduler detokenizer router cache_server manager watchdog other",
        "cmd VARCHAR: command line or title, redacted",
        "comm VARCHAR: kernel name of the main thread",
        "state VARCHAR: R S D T t Z X as the kernel says",
        "rss_bytes BIGINT: resident memory",
        "threads BIGINT: number of threads",
        "age_s DOUBLE: seconds since start at the time of the read",
        "ns_pid BIGINT: pid inside its own PID namespace",
        "tracer_pid BIGINT: pid of a debugger or tracer; 0 = none",
        "is_target BOOLEAN: the pid that was asked for",
        "is_python BOOLEAN: a CPython process",
        "exe VARCHAR: path of the executable",
        "uid BIGINT: owner",
        "read BIGINT: number of the read, from 0",
        "ts TIMESTAMP: when it was read",
    ),
    table(
        "threads",
        "Raw counters of every thread, at each read",
        _READ, _TS, _PID, _STARTED, _TID,
        "name VARCHAR: kernel name of the thread (comm)",
        "state VARCHAR: R S D T t Z X",
        "user_s DOUBLE: user CPU since start",
        "sys_s DOUBLE: system CPU since start",
        "run_s DOUBLE: time on a CPU (schedstat)",
        "runq_s DOUBLE: time waiting for a CPU (schedstat)",
        "vol_switches BIGINT: voluntary context switches since start",
        "invol_switches BIGINT: involuntary context switches since start",
        "wchan VARCHAR: kernel function it sleeps in; 0 = none",
        "syscall VARCHAR: number and arguments of the system call it is in, or running",
        "ns_tid BIGINT: thread id inside its own PID namespace",
        "cpu_pct DOUBLE: CPU share since the read before; NULL = given as counters instead",
        "futex_address VARCHAR: address of the lock it waits for, hex; NULL = not waiting on a mutex, or unreadable like syscall",
        "futex_owner_tid BIGINT: thread of the process that holds that lock; NULL = not waiting on a mutex, or the owner is unreadable",
    ),
    table(
        "thread_states",
        "Quick state reads between the full ones",
        _READ, _TS, _PID, _STARTED, _TID,
        "state VARCHAR: R S D T t Z X",
        "sys_no BIGINT: system call it is in; NULL = running or unreadable",
        "fd BIGINT: file descriptor that call waits on; NULL = none",
        "peer VARCHAR: what that descriptor is connected to (ip:port or unix path); NULL = no socket",
        "hits BIGINT: how many equal reads this row stands for; read and ts are of the first",
    ),
    table(
        "stack_frames",
        "Stack frames, leaf first (depth 0)",
        "sample BIGINT: number of the sample, from 0", _TS, _PID, _STARTED, _TID,
        "thread VARCHAR: Python name of the thread",
        "active BOOLEAN: on a CPU, by the dumping tool",
        "owns_gil BOOLEAN: holds the GIL",
        "depth BIGINT: 0 is the innermost frame",
        "func VARCHAR: function, last dotted part",
        "qualname VARCHAR: function as printed",
        "file VARCHAR: file of the function",
        "line BIGINT: line being executed",
        "native BOOLEAN: frame of a shared object",
        "tool VARCHAR: py-spy | faulthandler | pystack | gdb",
        "whole BOOLEAN: the outermost frame is a known thread entry; FALSE = a torn read",
    ),
    table(
        "stack_locals",
        "Local variables that look like keys (or all, with --locals all)",
        "sample BIGINT: number of the sample, from 0", _TS, _PID, _STARTED, _TID,
        "thread VARCHAR: Python name of the thread",
        "depth BIGINT: frame, 0 is the innermost",
        "func VARCHAR: function of that frame, last dotted part",
        "file VARCHAR: file of that frame",
        "line BIGINT: line of that frame",
        "var VARCHAR: name of the variable",
        "repr VARCHAR: its value as text, quotes removed",
        "is_arg BOOLEAN: it is an argument",
        "cut BOOLEAN: the dumping tool cut the text",
        "is_text BOOLEAN: the value is a string; FALSE = the printed form of something else",
    ),
    table(
        "sockets",
        "Listening and connected sockets of the tree (llmdiag's own left out)",
        _READ, _TS, _PID, _STARTED,
        "fd BIGINT: descriptor in that process",
        "proto VARCHAR: tcp | tcp6 | unix",
        "laddr VARCHAR: local address or unix path", "lport BIGINT: local port; NULL = unix socket",
        "raddr VARCHAR: peer address or unix path; NULL = listening", "rport BIGINT: peer port; NULL = none",
        "state VARCHAR: LISTEN ESTABLISHED CLOSE_WAIT …",
        "recv_q BIGINT: bytes not yet read; for LISTEN connections waiting to be accepted",
        "send_q BIGINT: bytes not yet acknowledged; for LISTEN the backlog limit where known",
        "peer_kind VARCHAR: redis | http | zmq where known; NULL = not known",
        "peer_pid BIGINT: process at the other end, on this host; NULL = elsewhere or not found",
    ),
    table(
        "probes",
        "HTTP reads of the service, also those that got no answer",
        _READ, _TS,
        "target VARCHAR: what is probed, host:port",
        "url VARCHAR: the URL",
        "outcome VARCHAR: answer | timeout | refused | reset | garbled",
        "status BIGINT: HTTP status; NULL = no answer",
        "seconds DOUBLE: until the answer or the end of patience",
    ),
    table(
        "metrics",
        "Samples of /metrics; NaN is loaded as NULL",
        _READ, _TS,
        "target VARCHAR: host:port, or the file",
        "name VARCHAR: sample name", "engine VARCHAR: engine or rank label; NULL = none",
        "labels VARCHAR: all labels as sorted JSON",
        "value DOUBLE: value",
    ),
    table(
        "gpu_devices",
        "Accelerators as their tool reports them",
        _READ, _TS,
        "gpu BIGINT: index", "name VARCHAR: model", "uuid VARCHAR: identity",
        "util_pct DOUBLE: busy share", "memory_used_bytes BIGINT: used", "memory_total_bytes BIGINT: capacity",
        "power_w DOUBLE: draw", "temperature_c DOUBLE: temperature", "ecc_errors BIGINT: uncorrected errors",
        "tool VARCHAR: nvidia-smi | rocm-smi | npu-smi | xpu-smi",
    ),
    table(
        "gpu_processes",
        "Processes that hold device memory",
        _READ, _TS,
        "gpu BIGINT: index", _PID, _STARTED, "name VARCHAR: process name",
        "used_bytes BIGINT: device memory", "alive BOOLEAN: the pid exists",
        "ppid BIGINT: its parent; NULL = not told", "cmd VARCHAR: command line, redacted; NULL = not told",
        "ancestors VARCHAR: its parent, whose parent, and so on, as JSON [[pid, command], …]; NULL = not told",
    ),
    table(
        "log_events",
        "Lines worth keeping: known events, WARNING and above, one stats line per interval",
        _TS, "file VARCHAR: log file or unit", "line BIGINT: line number",
        _PID, _STARTED, "role VARCHAR: who wrote it", "level VARCHAR: DEBUG INFO WARNING ERROR CRITICAL",
        "logger VARCHAR: logger, module or file:line that wrote it",
        "message VARCHAR: text, redacted",
        "event VARCHAR: known event (engine_stats, startup, shutdown, fatal, …); NULL = other",
        "dated BOOLEAN: the line has its own time; FALSE = ts is that of the last dated line before it",
    ),
    table(
        "log_files",
        "One row per log: how much was written and when it fell silent",
        "file VARCHAR: log file or unit", _PID, _STARTED,
        "lines BIGINT: lines read", "kept BIGINT: lines kept in log_events", "bytes BIGINT: bytes read",
        "cut BOOLEAN: only the last part was read",
        "first_ts TIMESTAMP: first dated line", "last_ts TIMESTAMP: last dated line",
        "written_at TIMESTAMP: last change of the file when it was collected live",
        "collected_at TIMESTAMP: when it was read live",
        "silent_s DOUBLE: collection time minus last sign of writing",
        "assumed VARCHAR: what was assumed about year or zone; NULL = nothing",
    ),
    table(
        "host_events",
        "What happened to units and processes, from every journal",
        _TS, "origin VARCHAR: dmesg | journald | kubernetes | docker | supervisord | map (of an events map)",
        f"kind VARCHAR: {' '.join(HOST_EVENT_KINDS)}",
        "unit VARCHAR: unit, container or pod", "initiator VARCHAR: who did it; NULL = nobody is named", _PID, _STARTED,
        "code BIGINT: exit code as a shell gives it (128 + signal), Xid, signal of a killing, HTTP status of a failed probe; NULL = not said",
        "detail VARCHAR: the line, redacted",
    ),
    table(
        "http_events",
        "Access log lines",
        _TS, "method VARCHAR: verb", "path VARCHAR: path without query", "status BIGINT: HTTP status",
        "client VARCHAR: peer", "seconds DOUBLE: duration", "bytes BIGINT: size of the answer", "user_agent VARCHAR: client software",
        "dated BOOLEAN: the line has its own time; FALSE = ts is that of the last dated line before it",
        "origin VARCHAR: haproxy | nginx; NULL = the engine's own web server",
        "backend VARCHAR: server that answered, as a proxy names it; NULL = none, or not logged",
        "ended VARCHAR: how it ended, HAProxy's four flags, or `client left`; NULL = not logged",
        "queue_s DOUBLE: waited in the proxy's queue; NULL = not logged", "first_byte_s DOUBLE: until the first byte of the answer; NULL = not logged",
        "queued BIGINT: requests that waited in the proxy before it; NULL = not logged",
    ),
    table(
        "watchdog_rules",
        "By which rule somebody decides that the service is dead, as a specification or an events map says",
        "initiator VARCHAR: who, as in host_events",
        "period_s DOUBLE: how often it looks; NULL = not said",
        "timeout_s DOUBLE: how long it waits for an answer; NULL = not said",
        "strikes BIGINT: failures in a row before it acts; NULL = not said",
        "what VARCHAR: what it looks at",
        "unit VARCHAR: whom it watches; NULL = not said",
        "delay_s DOUBLE: how long after a start it waits before it looks; NULL = not said",
    ),
    table(
        "event_files",
        "Journals and access logs that were handed in: what they cover",
        "file VARCHAR: its name",
        "format VARCHAR: journald | kubernetes | pod | docker | docker inspect | supervisord | haproxy | nginx | map (a log that an events map names)",
        "events BIGINT: rows it gave",
        "first_ts TIMESTAMP: first time in it; NULL = it has none",
        "last_ts TIMESTAMP: last time in it; NULL = it has none",
        "assumed VARCHAR: what was assumed or is missing; NULL = nothing",
    ),
    table(
        "host_facts",
        "Limits and counters of the machine and its cgroup",
        _READ, _TS, "fact VARCHAR: name with unit", "value DOUBLE: number; NULL = no limit or unreadable",
        "text VARCHAR: value as text; NULL = a number",
    ),
    table(
        "redis_servers",
        "Redis or Valkey servers the service talks to",
        _READ, _TS,
        "target VARCHAR: URL without credentials", "product VARCHAR: redis | valkey", "version VARCHAR: version",
        "role VARCHAR: master | slave", "clients BIGINT: connected", "blocked BIGINT: blocked clients",
        "commands BIGINT: commands processed since start", "get_calls BIGINT: GET and MGET calls since start",
        "hits BIGINT: keyspace hits", "misses BIGINT: keyspace misses",
        "used_bytes BIGINT: memory used", "max_bytes BIGINT: memory limit; 0 = none", "keys BIGINT: keys in all databases",
        "ping_s DOUBLE: round trip",
    ),
    table(
        "redis_clients",
        "Connections as the server lists them",
        _READ, _TS,
        "target VARCHAR: server", "client_id BIGINT: id", "addr VARCHAR: client's ip:port or unix path", "name VARCHAR: client name",
        "db BIGINT: database", "cmd VARCHAR: last command", "age_s DOUBLE: since connect", "idle_s DOUBLE: since last command",
        "commands BIGINT: commands run by this client; NULL = server too old to count",
        "pid BIGINT: process of the tree that owns it; NULL = not found", _STARTED,
    ),
    table(
        "cache_keys",
        "Cached values as the scanner judges them; contents are never copied",
        "target VARCHAR: server or file", "db BIGINT: database",
        "key VARCHAR: key; NULL = not UTF-8", "key_hex VARCHAR: key in hex",
        "family VARCHAR: key with hashes and numbers masked", "bytes BIGINT: size of the value; NULL = there is no such key",
        "ttl_s DOUBLE: time to live; NULL = never expires", "idle_s DOUBLE: since the last access, read before the value",
        "codec VARCHAR: pickle, npy, json, …; NULL = there is no such key", "dtype VARCHAR: element type", "shape VARCHAR: 1x512",
        "min DOUBLE: smallest", "max DOUBLE: largest", "mean DOUBLE: mean", "norm DOUBLE: L2 norm",
        "nan BIGINT: NaN count", "inf BIGINT: Inf count", "crc_ok BOOLEAN: checksum of a wrapper; NULL = has none",
        "version VARCHAR: version in key or wrapper; NULL = has none",
        "reasons VARCHAR: reason codes joined by comma and space", "verdict VARCHAR: ok | ghost | soft | unknown",
        "sha256 VARCHAR: digest of the value",
    ),
    table(
        "tensors",
        "Tensors of dumps: one row per tensor, or per token block of a KV cache",
        _DUMP, _NAME, _RANK, _STEP, _LAYER, _ROLE, _BLOCK,
        "dtype VARCHAR: element type, numpy's name or bfloat16, float8_e4m3fn, …",
        "shape VARCHAR: 16x8x128, of the block where there is one; NULL = a scalar",
        "min DOUBLE: smallest finite value; NULL = there is none", "max DOUBLE: largest finite value; NULL = there is none",
        "mean DOUBLE: of the finite values; NULL = there is none", "std DOUBLE: of the finite values; NULL = there is none",
        "norm DOUBLE: L2 norm of the finite values; NULL = there is none",
        "zeros BIGINT: elements that are zero; NULL = content was not measured", "nan BIGINT: NaN count; NULL = content was not measured",
        "inf BIGINT: Inf count; NULL = content was not measured",
        "digest VARCHAR: xxh3_128 of the content in hex; NULL = not computed",
        "ord BIGINT: place in execution order, within dump and rank",
    ),
    table(
        "tensor_pairs",
        "The same tensor, or token block of a KV cache, of a good and a bad run side by side",
        "good_dump VARCHAR: name of the dump of the good run", "bad_dump VARCHAR: name of the dump of the bad run",
        _NAME, _RANK, _STEP, _LAYER, _ROLE,
        "op VARCHAR: operation it belongs to; NULL = the dump does not tell",
        "direction VARCHAR: input | output of that operation; NULL = the dump does not tell",
        _BLOCK,
        "request VARCHAR: row of the batch; NULL = one request, or no block",
        "good_physical BIGINT: the block's id in the pool of the good run; NULL = no block table",
        "bad_physical BIGINT: the block's id in the pool of the bad run; NULL = no block table",
        "ord BIGINT: place in the execution order of the comparison, from 0",
        "dtype VARCHAR: element type in the bad run", "shape VARCHAR: 16x8x128 in the bad run; NULL = a scalar",
        "cosine DOUBLE: cosine similarity; NULL = one side is all zero or not comparable",
        "rel_l2 DOUBLE: |good-bad| / |good|, rounding is below 0.02 to 0.1 by type, other content above 0.3; NULL = good is all zero or not comparable",
        "max_abs DOUBLE: largest difference; NULL = not comparable", "max_rel DOUBLE: largest relative difference; NULL = not comparable",
        "mismatch_pct DOUBLE: share of elements whose values differ; NULL = not comparable",
        "bad_nan BIGINT: NaN and Inf in the bad run; NULL = content was not measured",
        "good_nan BIGINT: NaN and Inf in the good run; NULL = content was not measured",
        "verdict VARCHAR: same | close | different | permuted | zero | nan | shape-mismatch | dtype-mismatch | aliased",
        "doubt VARCHAR: suspicious (between rounding and other content, only a control run tells) | capture-artefact; NULL = none",
        "detail VARCHAR: what more is known, in words; NULL = nothing",
        "rows_differ BIGINT: token rows that hold other content; NULL = no token rows",
        "rows_of BIGINT: token rows that were compared; NULL = no token rows",
        "first_row BIGINT: the first of them, within block or tensor, from 0; NULL = none",
        "shift BIGINT: bad row t is good row t + shift; NULL = not shifted",
        "alias_dump VARCHAR: dump whose content the bad run holds here; NULL = not recognised",
        "alias_name VARCHAR: tensor of that dump; NULL = not recognised", "alias_block BIGINT: block of that tensor; NULL = not recognised",
        "alias_request VARCHAR: request that content belongs to; NULL = not recognised",
        "alias_by VARCHAR: block | rows | fingerprint (same tokens by layer 0 V) | noise (equal but for rounding); NULL = not recognised",
        "is_first BOOLEAN: the first divergence in execution order",
        "follows BOOLEAN: it differs, and an earlier divergence explains that",
        "control_rel_l2 DOUBLE: the same figure between two good runs; NULL = no control run, or not comparable",
    ),
    table(
        "block_lookups",
        "What lookups in a prefix cache saw of single blocks, one row per lookup, method and block; and the lists that they logged",
        "lookup VARCHAR: which lookup, artefact:line where it begins",
        "request VARCHAR: id of the request; NULL = the log does not say",
        "ts TIMESTAMP: when it was logged",
        "method VARCHAR: binary | linear (what such a search looked at) | engine (what the engine says it did)",
        "position BIGINT: place of the block in the prompt, from 0; NULL = this row is a list of ids",
        "block_hash VARCHAR: hash of the block, decimal or hex as logged; NULL = not in the map",
        "block_id BIGINT: physical block; NULL = not in the map",
        "cached BOOLEAN: the hash is in the cache; NULL = not logged",
        "computed BOOLEAN: its content is computed; NULL = not logged",
        "hit BOOLEAN: this method counts the block as reused; NULL = a list",
        "tokens BIGINT: tokens in the block; NULL = not logged",
        "epoch BIGINT: engine generation that wrote the block; NULL = blocks are not tagged",
        "engine_epoch BIGINT: generation of the engine that looks it up; NULL = not logged",
        "listed VARCHAR: block ids of the list that the method logged, joined by a space; NULL = this row is a block",
    ),
    table(
        "lookup_hits",
        "How much of a prompt the engine says it took from the cache, where the log tells no blocks",
        "request VARCHAR: id of the request; NULL = the log does not say",
        "ts TIMESTAMP: when it was logged",
        "cache VARCHAR: vllm | lmcache | sglang | own",
        "hit_tokens BIGINT: tokens taken from the cache",
        "prompt_tokens BIGINT: tokens of the prompt; NULL = not logged",
        "block_size BIGINT: tokens of a block; NULL = not logged",
    ),
    table(
        "kv_events",
        "What an engine published about its cache: one row per block that was stored or removed, one per clearing",
        "ord BIGINT: place in the recording, from 0",
        "seq BIGINT: number of the message; NULL = not recorded",
        "ts TIMESTAMP: when the engine made the message; NULL = the recorder wrote no wall-clock time",
        "origin VARCHAR: data-parallel rank or worker; NULL = the only one",
        "kind VARCHAR: stored | removed | cleared",
        "position BIGINT: place in its event, from 0",
        "block_hash VARCHAR: hex (bytes) or decimal; NULL = cleared",
        "parent_hash VARCHAR: hash of the block before it; NULL = the first block of a prompt, or not a stored block",
        "tokens VARCHAR: token ids of the block, joined by a space; NULL = not recorded",
        "event_tokens BIGINT: token ids in the whole event; NULL = not recorded",
        "event_blocks BIGINT: hashes in the whole event",
        "block_size BIGINT: tokens of a block; NULL = not recorded",
        "lora VARCHAR: adapter; NULL = none",
        "extra_keys VARCHAR: what else is in the key (salt, images), as JSON; NULL = nothing",
        "medium VARCHAR: where the block is; NULL = not said",
        "group_idx BIGINT: group of layers; NULL = one group",
        "spec_kind VARCHAR: kind of attention of that group; NULL = not said",
    ),
    table(
        "prefix_runs",
        "Experiments with a prefix cache: one row each",
        "url VARCHAR: endpoint that was asked",
        "model VARCHAR: model that was asked",
        "verdict VARCHAR: reproduced | no-failure | not-exercised | endpoint-dead",
        "because VARCHAR: why, in sentences, the most important first; NULL = the document does not say",
        "ended VARCHAR: full | reproduced | limit | minutes | interrupted | endpoint-dead",
        "exercised BOOLEAN: re-asks used cached blocks after the cache had been full",
        "healed_by_bypass BOOLEAN: what failed was right with the cache bypassed; NULL = nothing failed",
        "bypass_by VARCHAR: cache_salt | prefix; NULL = it ended before that was known",
        "family VARCHAR: engine family of the counters; NULL = no counters that are known",
        "full_by VARCHAR: what shows that the cache was full; NULL = nothing does",
        "capacity_tokens BIGINT: tokens that the cache holds; NULL = the endpoint does not tell",
        "new_tokens DOUBLE: tokens computed anew during the experiment",
        "requests BIGINT: requests in all arms",
        "failures BIGINT: reproduced failures",
        "noise BIGINT: suspicious answers that were not reproduced",
        "control_failures BIGINT: reproduced failures of the control arm, whose requests fill no new blocks",
        "first_ordinal BIGINT: number of the first reproduced failure within its arm, from 1; NULL = none",
        "first_arm VARCHAR: baseline | control | pressure; NULL = no failure",
        "stickiness DOUBLE: share of later re-asks of that prompt in that arm that failed too, with variants between; NULL = no failure, or none came later",
        "sticky_at_once DOUBLE: share of immediate repetitions of the first failure that failed too; NULL = no failure",
        "started TIMESTAMP: when it began",
        "seconds DOUBLE: how long it took",
    ),
    table(
        "prefix_trials",
        "Questions to an endpoint in an experiment with its prefix cache, one row per request",
        "url VARCHAR: endpoint that was asked",
        "arm VARCHAR: baseline | control (nothing before the final question changes) | pressure (new blocks fill the cache)",
        "ordinal BIGINT: number of the request within its arm, from 1",
        "kind VARCHAR: baseline | variant | reask (a failing prompt as it is) | confirm (a suspicious answer asked again) | repeat (the first failure, again at once)",
        "prompt BIGINT: index of the prompt in the file, from 0; of a variant the one it was made from",
        "variant BIGINT: number of the variant; NULL = a prompt as it stands in the file",
        "answer_class VARCHAR: same | different | empty | cut-short | echo | garbled | unjudged (no good answer is known, and nothing gross) | error",
        "suspicious BOOLEAN: not as it should be, before it was asked again",
        "reproduced BOOLEAN: failed when asked again too, and was right with the cache bypassed; NULL = not put to that test",
        "hit BOOLEAN: cached blocks were used; NULL = the endpoint does not tell",
        "cached_tokens BIGINT: tokens of cached blocks that were used; NULL = the endpoint does not tell",
        "prompt_tokens BIGINT: tokens of the prompt; NULL = the endpoint does not tell",
        "bypass BOOLEAN: asked so that no cached block could be used",
        "seconds DOUBLE: until the whole answer was there",
        "ts TIMESTAMP: when it was sent",
        "note VARCHAR: why it is noise, or why there was no answer; NULL = neither",
        "request VARCHAR: id of the request as the endpoint told it, else as it was sent: what the engine's log calls it; NULL = not kept",
        "sent VARCHAR: X-Request-Id that was sent with it, llmdiag-RUN-N; NULL = not kept",
        "excerpt VARCHAR: beginning of an answer that is not as it should be; NULL = empty, as it should be, or answers were not kept",
    ),
    table(
        "prefix_prompts",
        "Failing prompts that an experiment with a prefix cache asked, and what is right for them; their text is not kept",
        "url VARCHAR: endpoint that was asked",
        "prompt BIGINT: index of the prompt in the file, from 0",
        "line BIGINT: its line in the file, from 1",
        "name VARCHAR: id of the prompt in the file; NULL = it has none",
        "stable BOOLEAN: with the cache bypassed it is answered the same every time; if not, only gross failures are judged",
        "expect_met BOOLEAN: the good answer holds what is expected; NULL = nothing was expected",
        "good VARCHAR: beginning of the good answer; NULL = answers were not kept",
    ),
    table("versions", "Software of the target, read without importing it",
          "component VARCHAR: package or part", "version VARCHAR: version", _PID, _STARTED),
)


def merged(extra: Iterable[Table]) -> Mapping[str, Table]:
    """The core tables plus those that collectors and derivations declare; a name may be declared once."""
    tables = {item.name: item for item in CORE}
    for item in extra:
        if item.name in tables and tables[item.name] != item:
            raise ValueError(f"table {item.name} is declared twice")
        tables[item.name] = item
    return tables
