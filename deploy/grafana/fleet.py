"""Fleet: jobs, slots, queues, workers and checkpoints of a cluster."""

from panels import (
    BYTES_PER_SECOND,
    COUNT,
    NATS,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Dashboard,
    Row,
    panel,
    tile,
)
from queries import last_hour, quantile, rate
from variables import CLUSTER, IN_CLUSTER as C


def _jobs(state, description, **options):
    title = state.capitalize()
    return tile(title, COUNT, description, f'sum(nibble_jobs{{{C},state="{state}"}})', **options)


def _largest(title, unit, description, metric, **options):
    """The largest value of each job."""
    return panel(
        title, unit, description, (f"max by (job) ({metric}{{{C}}})", "{{job}}"), **options
    )


def _hourly(title, description, metric, by, **options):
    """What a counter counted within the last hour, by a label."""
    return panel(
        title, COUNT, description, (last_hour(metric, C, by), f"{{{{{by}}}}}"), **options
    )


_NOW = Row(
    "Now",
    (
        tile(
            "Firing alerts",
            COUNT,
            "Alerts that fire now; each has a section in docs/guide/alerts.md",
            f'count(ALERTS{{{C},alertstate="firing"}}) or vector(0)',
            bound=1,
        ),
        _jobs("failed", "Jobs that failed for good and are still known to the coordinator", bound=1),
        _jobs(
            "recovering", "Jobs whose attempt failed and that will be launched again", bound=1
        ),
        _jobs("running", "Jobs whose ranks all run"),
        _jobs("queued", "Jobs that wait for slots"),
        tile(
            "Slots in use",
            SHARE,
            "Slots used by live attempts over slots of present workers",
            f"cluster:nibble_slots_used:ratio{{{C}}}",
        ),
        tile(
            "Lost workers",
            COUNT,
            "Workers that have not reported within their lease, without cordoned ones",
            f'sum(nibble_workers{{{C},lease="lost",mode="open"}}) or vector(0)',
            bound=1,
        ),
        tile(
            "Missing copies",
            COUNT,
            "Copies of checkpoint shards that workers were asked to make and that do not exist yet",
            f"nibble_checkpoint_copies_missing{{{C}}}",
            warning=1,
        ),
    ),
)

_RUNNING = Row(
    "Jobs with ranks",
    (
        panel(
            "Progress",
            SHARE,
            "Steps done over planned steps, of each job",
            (
                f"max by (job) (nibble_job_next_step{{{C}}} / nibble_job_planned_steps{{{C}}})",
                "{{job}}",
            ),
            kind="bars",
            most=1,
        ),
        _largest("Loss", NATS, "Loss per token of the latest step, of each job", "nibble_job_loss"),
        _largest(
            "Throughput",
            TOKENS_PER_SECOND,
            "Tokens per second of the latest step, of each job",
            "nibble_job_tokens_per_second",
            least=0,
        ),
        panel(
            "Alerts over time",
            COUNT,
            "Alerts that fire, and the job, worker or cluster that they name",
            (
                f'max by (alertname, job, worker) (ALERTS{{{C},alertstate="firing"}})',
                "{{alertname}} {{job}} {{worker}}",
            ),
            kind="timeline",
            states=((1, "firing", "red"),),
            width=16,
        ),
        panel(
            "Training without a checkpoint",
            SECONDS,
            "Time of training that a restart would repeat, of each job that writes checkpoints; the "
            "line is the bound of the alert",
            (
                f"time() - max by (job) (nibble_job_checkpoint_time_seconds{{{C}}})",
                "{{job}}",
            ),
            bound=3600,
            least=0,
        ),
    ),
)

_QUEUES = Row(
    "Jobs and queues",
    (
        panel(
            "Jobs by state",
            COUNT,
            "Jobs known to the coordinator, without those that have ended",
            (
                f'sum by (state) (nibble_jobs{{{C},state!~"succeeded|failed|cancelled"}})',
                "{{state}}",
            ),
            kind="stacked",
        ),
        panel(
            "Queued jobs by queue",
            COUNT,
            "Jobs that wait for slots, by queue",
            (f'sum by (queue) (nibble_jobs{{{C},state="queued"}})', "{{queue}}"),
            kind="stacked",
        ),
        panel(
            "Pending jobs by reason",
            COUNT,
            "Jobs that the latest pass of the scheduler left pending: for slots, quota, the "
            "back-off after a failure, or what no worker has (never)",
            (f"nibble_jobs_waiting{{{C}}}", "{{for}}"),
            kind="stacked",
        ),
        panel(
            "Queue wait",
            SECONDS,
            "Time from queueing a job to launching its attempt, over the last hour",
            *(
                (quantile(share, "nibble_job_queue_wait_seconds", C, "queue", last_hour), legend)
                for share, legend in ((0.5, "{{queue}}, median"), (0.95, "{{queue}}, 95 %"))
            ),
            least=0,
        ),
        _hourly(
            "Ended attempts",
            "Attempts that ended within the last hour, by outcome",
            "nibble_attempts_ended_total",
            "outcome",
        ),
        _hourly(
            "Restarts",
            "Attempts launched after another one within the last hour, by the outcome of that one",
            "nibble_job_restarts_total",
            "reason",
        ),
    ),
)

_WORKERS = Row(
    "Workers and slots",
    (
        panel(
            "Slots",
            COUNT,
            "Slots of present workers, and those used by live attempts",
            (f"nibble_slots{{{C}}}", "present"),
            (f"nibble_slots_used{{{C}}}", "used"),
            least=0,
            width=6,
        ),
        panel(
            "Workers",
            COUNT,
            "Workers known to the coordinator, by lease and mode",
            (f"sum by (lease, mode) (nibble_workers{{{C}}})", "{{lease}}, {{mode}}"),
            kind="stacked",
            width=6,
        ),
        panel(
            "Expired leases",
            COUNT,
            "Workers lost within the last hour",
            (last_hour("nibble_lease_expiries_total", C), "lost"),
            least=0,
            width=6,
        ),
        panel(
            "Certificates expire in",
            SECONDS,
            "Time that the ten certificates that expire first have left: a program's own, or the "
            "first of its authorities; the colours change where the alerts begin. Empty without TLS",
            (
                f"bottomk(10, nibble_certificate_expiry_timestamp_seconds{{{C}}} - time())",
                "{{instance}} {{certificate}}",
            ),
            kind="bars",
            warning=14 * 86400,
            bound=2 * 86400,
            low_is_bad=True,
            width=6,
        ),
    ),
)

_CHECKPOINTS = Row(
    "Checkpoints, recipes and notifications",
    (
        _hourly(
            "Checkpoints",
            "Checkpoints committed, deleted and found damaged within the last hour",
            "nibble_checkpoints_total",
            "event",
        ),
        panel(
            "Checkpoint bytes",
            BYTES_PER_SECOND,
            "Bytes of checkpoint shards made durable per second, without replicas",
            (rate("nibble_checkpoint_stored_bytes_total", C), "stored"),
        ),
        panel(
            "Missing copies of checkpoints",
            COUNT,
            "Copies of checkpoint shards that workers were asked to make and that do not exist yet",
            (f"nibble_checkpoint_copies_missing{{{C}}}", "missing"),
            least=0,
        ),
        panel(
            "Recipe changes",
            COUNT,
            "Recipe changes accepted, and revisions that took effect on ranks, within the last "
            "hour",
            (last_hour("nibble_recipe_changes_total", C), "accepted"),
            (last_hour("nibble_recipe_revisions_in_force_total", C), "in effect"),
        ),
        _hourly(
            "Notifications",
            "Job events posted to URLs of notify within the last hour, by result",
            "nibble_notifications_total",
            "result",
        ),
        panel(
            "Jobs with events to post",
            COUNT,
            "Jobs with events that are not posted yet",
            (f"nibble_notifications_waiting_jobs{{{C}}}", "waiting"),
            least=0,
        ),
    ),
)

FLEET = Dashboard(
    "nibble-fleet",
    "Nibble / Fleet",
    "Jobs by state, slots, queues, workers and checkpoints of a cluster",
    (CLUSTER,),
    (_NOW, _RUNNING, _QUEUES, _WORKERS, _CHECKPOINTS),
)
