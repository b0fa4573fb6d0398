"""Coordinator: its calls, its store, its scheduler, its process."""

from panels import BYTES, BYTES_PER_SECOND, COUNT, NONE, PER_SECOND, SECONDS, Dashboard, Row, panel
from variables import CLUSTER, IN_CLUSTER as C, OF_COORDINATOR as O


def _quantile(quantile, metric, by=""):
    labels = f"le, {by}" if by else "le"
    rate = f"rate({metric}_bucket{{{C}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by ({labels}) ({rate}))"


COORDINATOR = Dashboard(
    "nibble-coordinator",
    "Nibble / Coordinator",
    "RPCs, the durable store, the scheduler, connections and the process of the coordinator",
    (CLUSTER,),
    (
        Row(
            "Now",
            (
                panel(
                    "Store healthy",
                    NONE,
                    "1; 0 once a write of the store has failed",
                    (f"nibble_store_healthy{{{C}}}", "healthy"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Up for",
                    SECONDS,
                    "Time since the coordinator started",
                    (f"time() - nibble_process_start_time_seconds{{{O}}}", "up for"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Newest update",
                    NONE,
                    "Sequence number of the newest durable update",
                    (f"nibble_journal_sequence{{{C}}}", "sequence"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Recovery",
                    SECONDS,
                    "Time that the last start took to open the store and to load the state",
                    (f"nibble_recovery_seconds{{{C}}}", "{{part}}"),
                    kind="stat",
                    width=12,
                    height=4,
                ),
            ),
        ),
        Row(
            "Calls",
            (
                panel(
                    "RPCs",
                    PER_SECOND,
                    "Finished RPCs per second, by method",
                    (
                        f"sum by (method) (rate(nibble_rpcs_total{{{C}}}[$__rate_interval]))",
                        "{{method}}",
                    ),
                ),
                panel(
                    "RPCs that failed",
                    PER_SECOND,
                    "RPCs per second that ended with a code other than OK",
                    (
                        f'sum by (method, code) '
                        f'(rate(nibble_rpcs_total{{{C},code!="OK"}}[$__rate_interval]))',
                        "{{method}} {{code}}",
                    ),
                ),
                panel(
                    "RPC duration, 99 %",
                    SECONDS,
                    "Duration that 99 % of the unary RPCs stay below, by method",
                    (_quantile(0.99, "nibble_rpc_seconds", "method"), "{{method}}"),
                    log=True,
                ),
                panel(
                    "Reports of workers",
                    PER_SECOND,
                    "Reports of worker daemons per second, by the status of handling them",
                    (
                        f"sum by (code) "
                        f"(rate(nibble_worker_reports_total{{{C}}}[$__rate_interval]))",
                        "{{code}}",
                    ),
                ),
                panel(
                    "Report duration",
                    SECONDS,
                    "Time from receiving a report until its consequences are durable",
                    (_quantile(0.5, "nibble_worker_report_seconds"), "median"),
                    (_quantile(0.99, "nibble_worker_report_seconds"), "99 %"),
                    log=True,
                ),
                panel(
                    "Streams, watches and waits",
                    COUNT,
                    "Open streams of workers, watches of jobs and waits for jobs",
                    (f"nibble_worker_streams{{{C}}}", "worker streams"),
                    (f"nibble_watches_open{{{C}}}", "watches"),
                    (f"nibble_waits_open{{{C}}}", "waits"),
                ),
            ),
        ),
        Row(
            "Store",
            (
                panel(
                    "Synced write",
                    SECONDS,
                    "Duration of one synced write, including its fsync",
                    (_quantile(0.5, "nibble_store_write_seconds"), "median"),
                    (_quantile(0.99, "nibble_store_write_seconds"), "99 %"),
                    log=True,
                ),
                panel(
                    "Batches per write",
                    COUNT,
                    "Mean number of batches that share one synced write",
                    (
                        f"rate(nibble_store_write_batches_sum{{{C}}}[$__rate_interval]) / "
                        f"rate(nibble_store_write_batches_count{{{C}}}[$__rate_interval])",
                        "batches",
                    ),
                ),
                panel(
                    "Queue depth",
                    COUNT,
                    "Batches that wait for their write to the disk",
                    (f"nibble_store_waiting_commits{{{C}}}", "batches"),
                ),
                panel(
                    "Queued bytes",
                    BYTES,
                    "Bytes of batches that wait for their write to the disk",
                    (f"nibble_store_waiting_bytes{{{C}}}", "waiting"),
                ),
                panel(
                    "Commits",
                    PER_SECOND,
                    "Batches per second that became durable, that were accepted and then failed, "
                    "and that were not accepted",
                    (f"rate(nibble_store_commits_total{{{C}}}[$__rate_interval])", "durable"),
                    (f"rate(nibble_store_failed_commits_total{{{C}}}[$__rate_interval])", "failed"),
                    (
                        f"rate(nibble_store_refused_commits_total{{{C}}}[$__rate_interval])",
                        "refused",
                    ),
                ),
                panel(
                    "Committed bytes",
                    BYTES_PER_SECOND,
                    "Bytes of durable batches per second",
                    (
                        f"rate(nibble_store_committed_bytes_total{{{C}}}[$__rate_interval])",
                        "durable",
                    ),
                ),
                panel(
                    "Kept updates",
                    COUNT,
                    "Updates in the journal, from the oldest that is kept to the newest",
                    (
                        f"nibble_journal_sequence{{{C}}} - nibble_journal_first_sequence{{{C}}} + "
                        f"1",
                        "updates",
                    ),
                ),
                panel(
                    "Updates by kind",
                    PER_SECOND,
                    "Changes of the state per second, by their field name in the journal",
                    (
                        f"sum by (fact) (rate(nibble_facts_total{{{C}}}[$__rate_interval]))",
                        "{{fact}}",
                    ),
                ),
                panel(
                    "Entities",
                    COUNT,
                    "Entities of the state in memory",
                    (f"nibble_entities{{{C}}}", "{{kind}}"),
                ),
                panel(
                    "Entity bytes",
                    BYTES,
                    "Estimated serialised size of the entities",
                    (f"nibble_entity_bytes{{{C}}}", "{{kind}}"),
                    kind="stacked",
                ),
            ),
        ),
        Row(
            "Scheduler",
            (
                panel(
                    "Scheduling pass",
                    SECONDS,
                    "Duration of one pass of the scheduler",
                    (_quantile(0.5, "nibble_scheduling_pass_seconds"), "median"),
                    (_quantile(0.99, "nibble_scheduling_pass_seconds"), "99 %"),
                    log=True,
                ),
                panel(
                    "Decisions",
                    COUNT,
                    "Decisions of the scheduler within the last hour",
                    (
                        f"sum by (action) (increase(nibble_scheduling_decisions_total{{{C}}}[1h]))",
                        "{{action}}",
                    ),
                ),
            ),
        ),
        Row(
            "Process",
            (
                panel(
                    "Processor time",
                    "suffix: CPUs",
                    "Processor time of the coordinator, in CPUs",
                    (f"rate(nibble_process_cpu_seconds_total{{{O}}}[$__rate_interval])", "CPUs"),
                ),
                panel(
                    "Resident memory",
                    BYTES,
                    "Resident memory of the coordinator",
                    (f"nibble_process_resident_memory_bytes{{{O}}}", "resident"),
                ),
                panel(
                    "Threads and open files",
                    COUNT,
                    "Threads and open file descriptors of the coordinator",
                    (f"nibble_process_threads{{{O}}}", "threads"),
                    (f"nibble_process_open_fds{{{O}}}", "open files"),
                ),
                panel(
                    "Free disk",
                    BYTES,
                    "Free space and size of the file system with the coordinator's store",
                    (f"nibble_disk_free_bytes{{{O}}}", "free"),
                    (f"nibble_disk_size_bytes{{{O}}}", "size"),
                ),
            ),
        ),
    ),
)
