"""Nodes: the worker daemons, their hosts, cards and ranks."""

from panels import (
    BYTES,
    BYTES_PER_SECOND,
    CELSIUS,
    COUNT,
    CPUS,
    HERTZ,
    NEEDS_CARD,
    NONE,
    PER_SECOND,
    SECONDS,
    SHARE,
    WATTS,
    YES_NO,
    Dashboard,
    Row,
    panel,
)
from queries import last_hour, quantile, rate
from variables import CLUSTER, OF_WORKERS as W, WORKER

_CARD = "{{worker}} card {{card}}"


def _by_worker(title, unit, description, expr, legend="{{worker}}", **options):
    return panel(title, unit, description, (expr, legend), **options)


def _yes_no(title, description, expr):
    return _by_worker(
        title, NONE, description, expr, kind="timeline", states=YES_NO, width=12, height=6
    )


def _card(title, unit, description, expr, legend=_CARD, **options):
    return _by_worker(title, unit, f"{description}. {NEEDS_CARD}", expr, legend, **options)


_WORKERS = Row(
    "Workers",
    (
        _yes_no(
            "Answers scrapes",
            "Whether Prometheus reaches the daemon",
            f'max by (worker) (up{{{W}}})',
        ),
        _yes_no(
            "Connected",
            "Whether the coordinator has answered on the daemon's open stream",
            f"nibble_coordinator_connected{{{W}}}",
        ),
        _by_worker(
            "Slots in use",
            COUNT,
            "Slots with a rank that has not ended",
            f"nibble_worker_slots_used{{{W}}}",
            kind="stacked",
            width=6,
        ),
        _by_worker(
            "Slots",
            COUNT,
            "Slots of each worker",
            f"nibble_worker_slots{{{W}}}",
            kind="stacked",
            width=6,
        ),
        _by_worker(
            "Time in steps",
            SHARE,
            "Share of the time that the ranks of each worker spend in steps",
            f"avg by (worker) ({rate('nibble_rank_steps_seconds_total', W)})",
            most=1,
            width=6,
        ),
        _by_worker(
            "Host memory of ranks",
            BYTES,
            "Host memory that the ranks of each worker have taken",
            f"sum by (worker) (nibble_rank_memory_bytes{{{W}}})",
            least=0,
            width=6,
        ),
    ),
)

_CARDS = Row(
    "Cards",
    (
        _card(
            "Card answers",
            NONE,
            "Whether the driver still reaches the card",
            f"nibble_card_answers{{{W}}}",
            kind="timeline",
            states=((1, "yes", "green"), (0, "lost", "red")),
        ),
        _card(
            "Slowed down",
            NONE,
            "Reasons for which the card runs below its clocks: power limit, heat, the board's power "
            "brake",
            f"max by (worker, card, reason) (nibble_card_slowed{{{W}}})",
            f"{_CARD}: {{{{reason}}}}",
            kind="timeline",
            states=((0, "no", "green"), (1, "yes", "orange")),
        ),
        _card(
            "Errors of cards",
            COUNT,
            "Uncorrected memory errors, NVLink errors and PCIe replays within the last hour",
            last_hour("nibble_card_errors_total", f'{W},kind!="memory_corrected"'),
            f"{_CARD}: {{{{kind}}}}",
            bound=1,
            least=0,
        ),
        _card(
            "Busy",
            SHARE,
            "Share of the time in which a kernel ran",
            f"nibble_card_busy_ratio{{{W}}}",
            most=1,
        ),
        _card(
            "Memory in use",
            SHARE,
            "Used share of the card's memory, of all processes",
            f"nibble_card_memory_used_bytes{{{W}}} / nibble_card_memory_bytes{{{W}}}",
            most=1,
        ),
        _by_worker(
            "Device memory of ranks",
            BYTES,
            "Memory of devices that the tensors of each worker's ranks take",
            f"sum by (worker) (nibble_rank_device_memory_bytes{{{W}}})",
            least=0,
        ),
        panel(
            "Power",
            WATTS,
            "Power draw of the board, and the lowest enforced limit, at which the driver lowers "
            f"clocks. {NEEDS_CARD}",
            (f"nibble_card_power_watts{{{W}}}", _CARD),
            (f"min(nibble_card_power_limit_watts{{{W}}})", "limit"),
            least=0,
        ),
        _card(
            "Temperature",
            CELSIUS,
            "Temperature of the chip",
            f"nibble_card_temperature_celsius{{{W}}}",
        ),
        _card(
            "Clocks",
            HERTZ,
            "Clocks of the multiprocessors and of the memory",
            f"nibble_card_clock_hertz{{{W}}}",
            f"{_CARD}: {{{{clock}}}}",
            least=0,
        ),
        _card(
            "NVLink traffic",
            BYTES_PER_SECOND,
            "Bytes per second over all NVLinks of a card, sent and received",
            rate("nibble_card_nvlink_bytes_total", W),
            f"{_CARD}: {{{{direction}}}}",
        ),
        _card(
            "PCIe traffic",
            BYTES_PER_SECOND,
            "Bytes per second over PCIe, sent and received by the card, in the latest 20 ms",
            f"nibble_card_pcie_bytes_per_second{{{W}}}",
            f"{_CARD}: {{{{direction}}}}",
        ),
        _card(
            "Active NVLinks",
            COUNT,
            "NVLinks of a card that are up",
            f"nibble_card_nvlinks{{{W}}}",
            least=0,
        ),
    ),
)

_DISKS = Row(
    "Disks and replicas",
    (
        _by_worker(
            "Free disk",
            SHARE,
            "Free share of the file system with the worker's data",
            f"nibble_disk_free_bytes{{{W}}} / nibble_disk_size_bytes{{{W}}}",
            most=1,
        ),
        _by_worker(
            "Free disk, bytes",
            BYTES,
            "Free space of the file system with the worker's data",
            f"nibble_disk_free_bytes{{{W}}}",
            least=0,
        ),
        _by_worker(
            "Checkpoint bytes",
            BYTES_PER_SECOND,
            "Bytes of checkpoints that the ranks of each worker store per second",
            rate("nibble_job_checkpoint_bytes_total", W, "worker"),
        ),
        _by_worker(
            "Fetched replicas",
            COUNT,
            "Shards copied from other workers within the last hour, by result",
            last_hour("nibble_replicas_fetched_total", W, "worker, result"),
            "{{worker}} {{result}}",
        ),
        _by_worker(
            "Replica bytes",
            BYTES_PER_SECOND,
            "Bytes that came from other workers per second",
            rate("nibble_replica_bytes_total", W),
        ),
        _by_worker(
            "Replica duration",
            SECONDS,
            "Duration of copying a shard, over the last hour",
            quantile(0.5, "nibble_replica_seconds", W, "worker", last_hour),
            "{{worker}}, median",
        ),
    ),
)

_CONNECTION = Row(
    "Connection to the coordinator",
    (
        panel(
            "Silence of the coordinator",
            SECONDS,
            "Time since the coordinator was last heard, beside the lease after which the worker "
            "counts as lost",
            (f"nibble_coordinator_silence_seconds{{{W}}}", "{{worker}}"),
            (f"min(nibble_coordinator_lease_seconds{{{W}}})", "lease"),
            width=6,
        ),
        _by_worker(
            "Report to answer, 99 %",
            SECONDS,
            "Time from a report to an answer that follows from it, which 99 % stay below",
            quantile(0.99, "nibble_coordinator_report_seconds", W, "worker"),
            log=True,
            width=6,
        ),
        _by_worker(
            "Reports",
            PER_SECOND,
            "Reports made per second",
            rate("nibble_coordinator_reports_total", W),
            width=6,
        ),
        _by_worker(
            "Lost streams",
            COUNT,
            "Streams to the coordinator that ended within the last hour, by code",
            last_hour("nibble_coordinator_streams_lost_total", W, "worker, code"),
            "{{worker}} {{code}}",
            width=6,
        ),
    ),
)

_DAEMONS = Row(
    "Daemons",
    (
        _by_worker(
            "Processor time",
            CPUS,
            "Processor time of the daemon, without its ranks, in CPUs",
            rate("nibble_process_cpu_seconds_total", W),
        ),
        _by_worker(
            "Resident memory",
            BYTES,
            "Resident memory of the daemon, without its ranks",
            f"nibble_process_resident_memory_bytes{{{W}}}",
            least=0,
        ),
        _by_worker(
            "Open files",
            SHARE,
            "Open file descriptors of the daemon over their limit",
            f"nibble_process_open_fds{{{W}}} / nibble_process_max_fds{{{W}}}",
        ),
        _by_worker(
            "Up for",
            SECONDS,
            "Time since the daemon started",
            f"time() - nibble_process_start_time_seconds{{{W}}}",
            width=12,
        ),
        _by_worker(
            "Dropped series",
            COUNT,
            "Values dropped because their family already had its most series",
            f"nibble_metrics_dropped_total{{{W}}}",
            bound=1,
            width=12,
        ),
    ),
)

NODES = Dashboard(
    "nibble-nodes",
    "Nibble / Nodes",
    "Slots, memory, cards, disks, replicas and connections of the workers",
    (CLUSTER, WORKER),
    (_WORKERS, _CARDS, _DISKS, _CONNECTION, _DAEMONS),
)
