"""Coordinator: its calls, its store, its scheduler, its process."""

from panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    CPUS,
    NONE,
    PER_SECOND,
    SECONDS,
    YES_NO,
    Dashboard,
    Row,
    panel,
    tile,
)
from queries import last_hour, median_and_99, quantile, rate
from variables import CLUSTER, IN_CLUSTER as C, OF_COORDINATOR as O


def _duration(title, description, histogram):
    """Median and 99th percentile of durations."""
    return panel(title, SECONDS, description, *median_and_99(histogram, C), log=True)


def _one(title, unit, description, expr, legend, **options):
    return panel(title, unit, description, (expr, legend), **options)


_NOW = Row(
    "Now",
    (
        tile(
            "Answers scrapes",
            NONE,
            "Whether Prometheus reaches the coordinator's HTTP",
            f"max(up{{{O}}})",
            states=YES_NO,
            width=4,
        ),
        tile(
            "Store",
            NONE,
            "Whether every write of the store has succeeded since the start",
            f"nibble_store_healthy{{{C}}}",
            states=((1, "healthy", "green"), (0, "failed", "red")),
            width=4,
        ),
        tile(
            "Up for",
            SECONDS,
            "Time since the coordinator started",
            f"time() - nibble_process_start_time_seconds{{{O}}}",
            width=4,
        ),
        tile(
            "Newest update",
            NONE,
            "Sequence number of the newest durable update",
            f"nibble_journal_sequence{{{C}}}",
            width=4,
        ),
        tile(
            "Recovery",
            SECONDS,
            "Time that the last start took to open the store and to load the state",
            f"nibble_recovery_seconds{{{C}}}",
            legend="{{part}}",
            width=8,
        ),
    ),
)

_CALLS = Row(
    "Calls",
    (
        _one(
            "RPCs",
            PER_SECOND,
            "Finished RPCs per second, by method",
            rate("nibble_rpcs_total", C, "method"),
            "{{method}}",
        ),
        _one(
            "RPCs that failed",
            PER_SECOND,
            "RPCs per second that ended with a code other than OK",
            rate("nibble_rpcs_total", f'{C},code!="OK"', "method, code"),
            "{{method}} {{code}}",
        ),
        _one(
            "RPC duration, 99 %",
            SECONDS,
            "Duration that 99 % of the unary RPCs stay below, by method",
            quantile(0.99, "nibble_rpc_seconds", C, "method"),
            "{{method}}",
            log=True,
        ),
        _one(
            "Reports of workers",
            PER_SECOND,
            "Reports of worker daemons per second, by the status of handling them",
            rate("nibble_worker_reports_total", C, "code"),
            "{{code}}",
        ),
        _duration(
            "Report duration",
            "Time from receiving a report until its consequences are durable",
            "nibble_worker_report_seconds",
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
)

_STORE = Row(
    "Store",
    (
        _duration(
            "Synced write",
            "Duration of one synced write, including its fsync",
            "nibble_store_write_seconds",
        ),
        _one(
            "Queue depth",
            COUNT,
            "Batches that wait for their write to the disk",
            f"nibble_store_waiting_commits{{{C}}}",
            "batches",
            least=0,
        ),
        _one(
            "Queued bytes",
            BYTES,
            "Bytes of batches that wait for their write to the disk",
            f"nibble_store_waiting_bytes{{{C}}}",
            "waiting",
            least=0,
        ),
        panel(
            "Commits",
            PER_SECOND,
            "Batches per second that became durable, that were accepted and then failed, and that "
            "were not accepted",
            *(
                (rate(f"nibble_store_{metric}_total", C), legend)
                for metric, legend in (
                    ("commits", "durable"),
                    ("failed_commits", "failed"),
                    ("refused_commits", "refused"),
                )
            ),
        ),
        _one(
            "Batches per write",
            COUNT,
            "Mean number of batches that share one synced write",
            f"{rate('nibble_store_write_batches_sum', C)} / "
            f"{rate('nibble_store_write_batches_count', C)}",
            "batches",
        ),
        _one(
            "Committed bytes",
            BYTES_PER_SECOND,
            "Bytes of durable batches per second",
            rate("nibble_store_committed_bytes_total", C),
            "durable",
        ),
        _one(
            "Updates by kind",
            PER_SECOND,
            "Changes of the state per second, by their field name in the journal",
            rate("nibble_facts_total", C, "fact"),
            "{{fact}}",
        ),
        _one(
            "Entities",
            COUNT,
            "Entities of the state in memory",
            f"nibble_entities{{{C}}}",
            "{{kind}}",
        ),
        _one(
            "Entity bytes",
            BYTES,
            "Estimated serialised size of the entities",
            f"nibble_entity_bytes{{{C}}}",
            "{{kind}}",
            kind="stacked",
        ),
        _one(
            "Kept updates",
            COUNT,
            "Updates in the journal, from the oldest that is kept to the newest",
            f"nibble_journal_sequence{{{C}}} - nibble_journal_first_sequence{{{C}}} + 1",
            "updates",
        ),
        _duration(
            "Scheduling pass",
            "Duration of one pass of the scheduler",
            "nibble_scheduling_pass_seconds",
        ),
        _one(
            "Scheduling decisions",
            COUNT,
            "Decisions of the scheduler within the last hour",
            last_hour("nibble_scheduling_decisions_total", C, "action"),
            "{{action}}",
        ),
    ),
)

_PROCESS = Row(
    "Process",
    (
        _one(
            "Processor time",
            CPUS,
            "Processor time of the coordinator, in CPUs",
            rate("nibble_process_cpu_seconds_total", O),
            "CPUs",
            width=6,
        ),
        _one(
            "Resident memory",
            BYTES,
            "Resident memory of the coordinator",
            f"nibble_process_resident_memory_bytes{{{O}}}",
            "resident",
            width=6,
            least=0,
        ),
        panel(
            "Threads and open files",
            COUNT,
            "Threads and open file descriptors of the coordinator",
            (f"nibble_process_threads{{{O}}}", "threads"),
            (f"nibble_process_open_fds{{{O}}}", "open files"),
            width=6,
            least=0,
        ),
        panel(
            "Free disk",
            BYTES,
            "Free space and size of the file system with the coordinator's store",
            (f"nibble_disk_free_bytes{{{O}}}", "free"),
            (f"nibble_disk_size_bytes{{{O}}}", "size"),
            width=6,
            least=0,
        ),
    ),
)

COORDINATOR = Dashboard(
    "nibble-coordinator",
    "Nibble / Coordinator",
    "RPCs, the durable store, the scheduler, connections and the process of the coordinator",
    (CLUSTER,),
    (_NOW, _CALLS, _STORE, _PROCESS),
)
