"""Tables of what was written down: engine logs, journals, access logs, and the rules of watchdogs."""

from diag.tables.declare import PID, STARTED, TS, Table, table

HOST_EVENT_KINDS = (
    "oom_kill", "xid", "nvrm", "device_error", "nccl_error", "heartbeat_lost", "probe_failed", "killing", "restart", "start", "stop", "exit",
    "back_off", "left_over", "reclaim_start", "reclaim_done", "sync_barrier", "drain_start", "drain_done", "traffic_switch", "queue_released",
    "admitted_pct", "weights_hash", "generation", "busy_flag", "cache_get", "cache_set", "cache_error", "hung_task", "segfault",
)  # fmt: skip
"""Also what an events map may name."""

TABLES: tuple[Table, ...] = (
    table(
        "log_events",
        "Lines worth keeping: known events, WARNING and above, one stats line per interval",
        TS, "file VARCHAR: log file or unit", "line BIGINT: line number",
        PID, STARTED, "role VARCHAR: who wrote it", "level VARCHAR: DEBUG INFO WARNING ERROR CRITICAL",
        "logger VARCHAR: logger, module or file:line that wrote it",
        "message VARCHAR: text, redacted",
        "event VARCHAR: known event (engine_stats, startup, shutdown, fatal, …); NULL = other",
        "dated BOOLEAN: the line has its own time; FALSE = ts is that of the last dated line before it",
    ),
    table(
        "log_files",
        "One row per log: how much was written and when it fell silent",
        "file VARCHAR: log file or unit", PID, STARTED,
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
        TS, "origin VARCHAR: dmesg | journald | kubernetes | docker | supervisord | map (of an events map)",
        f"kind VARCHAR: {' '.join(HOST_EVENT_KINDS)}",
        "unit VARCHAR: unit, container or pod", "initiator VARCHAR: who did it; NULL = nobody is named", PID, STARTED,
        "code BIGINT: exit code as a shell gives it (128 + signal), Xid, signal of a killing, HTTP status of a failed probe; NULL = not said",
        "detail VARCHAR: the line, redacted",
    ),
    table(
        "http_events",
        "Access log lines",
        TS, "method VARCHAR: verb", "path VARCHAR: path without query", "status BIGINT: HTTP status",
        "client VARCHAR: peer", "seconds DOUBLE: duration", "bytes BIGINT: size of the answer", "user_agent VARCHAR: client software",
        "dated BOOLEAN: the line has its own time; FALSE = ts is that of the last dated line before it",
        "origin VARCHAR: haproxy | nginx; NULL = the engine's own web server",
        "backend VARCHAR: server that answered, as a proxy names it; NULL = none, or not logged",
        "ended VARCHAR: how it ended, HAProxy's four flags, or `client left`; NULL = not logged",
        "queue_s DOUBLE: waited in the proxy's queue; NULL = not logged", "first_byte_s DOUBLE: until the first byte of the answer; NULL = not logged",
        "queued BIGINT: requests that waited in the proxy before it; NULL = not logged",
        "cached BOOLEAN: a cache in front of the engine answered it; NULL = not logged",
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
)
