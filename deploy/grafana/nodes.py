"""Nodes: the worker daemons, their hosts and their ranks."""

from panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    NONE,
    PER_SECOND,
    SECONDS,
    SHARE,
    Dashboard,
    Row,
    panel,
)
from variables import CLUSTER, OF_WORKERS as W, WORKER

NODES = Dashboard(
    "nibble-nodes",
    "Nibble / Nodes",
    "Slots, memory, disks, replicas and connections of the workers",
    (CLUSTER, WORKER),
    (
        Row(
            "Slots and ranks",
            (
                panel(
                    "Answers scrapes",
                    NONE,
                    "1 where Prometheus reaches the daemon, otherwise 0",
                    (f'max by (worker) (up{{{W},role="worker"}})', "{{worker}}"),
                ),
                panel(
                    "Slots",
                    COUNT,
                    "Slots of each worker",
                    (f"nibble_worker_slots{{{W}}}", "{{worker}}"),
                    kind="stacked",
                ),
                panel(
                    "Slots in use",
                    COUNT,
                    "Slots with a rank that has not ended",
                    (f"nibble_worker_slots_used{{{W}}}", "{{worker}}"),
                    kind="stacked",
                ),
                panel(
                    "Host memory of ranks",
                    BYTES,
                    "Host memory that the ranks of each worker have taken",
                    (f"sum by (worker) (nibble_rank_memory_bytes{{{W}}})", "{{worker}}"),
                ),
                panel(
                    "Device memory of ranks",
                    BYTES,
                    "Memory of devices that the tensors of each worker's ranks take",
                    (f"sum by (worker) (nibble_rank_device_memory_bytes{{{W}}})", "{{worker}}"),
                ),
                panel(
                    "Time in steps",
                    SHARE,
                    "Share of the time that the ranks of each worker spend in steps",
                    (
                        f"avg by (worker) "
                        f"(rate(nibble_rank_steps_seconds_total{{{W}}}[$__rate_interval]))",
                        "{{worker}}",
                    ),
                ),
            ),
        ),
        Row(
            "Disks and replicas",
            (
                panel(
                    "Free disk",
                    SHARE,
                    "Free share of the file system with the worker's data",
                    (
                        f"nibble_disk_free_bytes{{{W}}} / nibble_disk_size_bytes{{{W}}}",
                        "{{worker}}",
                    ),
                    most=1,
                ),
                panel(
                    "Free disk, bytes",
                    BYTES,
                    "Free space of the file system with the worker's data",
                    (f"nibble_disk_free_bytes{{{W}}}", "{{worker}}"),
                ),
                panel(
                    "Checkpoint bytes",
                    BYTES_PER_SECOND,
                    "Bytes of checkpoints that the ranks of each worker store per second",
                    (
                        f"sum by (worker) "
                        f"(rate(nibble_job_checkpoint_bytes_total{{{W}}}[$__rate_interval]))",
                        "{{worker}}",
                    ),
                ),
                panel(
                    "Fetched replicas",
                    COUNT,
                    "Shards copied from other workers within the last hour, by result",
                    (
                        f"sum by (worker, result) "
                        f"(increase(nibble_replicas_fetched_total{{{W}}}[1h]))",
                        "{{worker}} {{result}}",
                    ),
                ),
                panel(
                    "Replica bytes",
                    BYTES_PER_SECOND,
                    "Bytes that came from other workers per second",
                    (f"rate(nibble_replica_bytes_total{{{W}}}[$__rate_interval])", "{{worker}}"),
                ),
                panel(
                    "Replica duration",
                    SECONDS,
                    "Duration of copying a shard, over the last hour",
                    (
                        f"histogram_quantile(0.5, sum by (worker, le) "
                        f"(increase(nibble_replica_seconds_bucket{{{W}}}[1h])))",
                        "{{worker}}, median",
                    ),
                ),
            ),
        ),
        Row(
            "Connection to the coordinator",
            (
                panel(
                    "Connected",
                    NONE,
                    "1 while the coordinator has answered on the open stream",
                    (f"nibble_coordinator_connected{{{W}}}", "{{worker}}"),
                ),
                panel(
                    "Silence of the coordinator",
                    SECONDS,
                    "Time since the coordinator was last heard, beside the lease after which the "
                    "worker counts as lost",
                    (f"nibble_coordinator_silence_seconds{{{W}}}", "{{worker}}"),
                    (f"min(nibble_coordinator_lease_seconds{{{W}}})", "lease"),
                ),
                panel(
                    "Report to answer, 99 %",
                    SECONDS,
                    "Time from a report to an answer that follows from it, which 99 % stay below",
                    (
                        "histogram_quantile(0.99, sum by (worker, le) (rate("
                        f"nibble_coordinator_report_seconds_bucket{{{W}}}[$__rate_interval])))",
                        "{{worker}}",
                    ),
                    log=True,
                ),
                panel(
                    "Reports",
                    PER_SECOND,
                    "Reports made per second",
                    (
                        f"rate(nibble_coordinator_reports_total{{{W}}}[$__rate_interval])",
                        "{{worker}}",
                    ),
                ),
                panel(
                    "Lost streams",
                    COUNT,
                    "Streams to the coordinator that ended within the last hour, by code",
                    (
                        f"sum by (worker, code) "
                        f"(increase(nibble_coordinator_streams_lost_total{{{W}}}[1h]))",
                        "{{worker}} {{code}}",
                    ),
                ),
            ),
        ),
        Row(
            "Daemons",
            (
                panel(
                    "Processor time",
                    "suffix: CPUs",
                    "Processor time of the daemon, without its ranks, in CPUs",
                    (
                        f"rate(nibble_process_cpu_seconds_total{{{W}}}[$__rate_interval])",
                        "{{worker}}",
                    ),
                ),
                panel(
                    "Resident memory",
                    BYTES,
                    "Resident memory of the daemon, without its ranks",
                    (f"nibble_process_resident_memory_bytes{{{W}}}", "{{worker}}"),
                ),
                panel(
                    "Open files",
                    SHARE,
                    "Open file descriptors of the daemon over their limit",
                    (
                        f"nibble_process_open_fds{{{W}}} / nibble_process_max_fds{{{W}}}",
                        "{{worker}}",
                    ),
                ),
                panel(
                    "Up for",
                    SECONDS,
                    "Time since the daemon started",
                    (f"time() - nibble_process_start_time_seconds{{{W}}}", "{{worker}}"),
                ),
                panel(
                    "Dropped series",
                    COUNT,
                    "Values dropped because their family already had its most series",
                    (f"nibble_metrics_dropped_total{{{W}}}", "{{worker}}"),
                    bound=1,
                ),
            ),
        ),
    ),
)
