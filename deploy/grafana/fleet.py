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
)
from variables import CLUSTER, IN_CLUSTER as C


def _jobs(state):
    return f'sum(nibble_jobs{{{C},state="{state}"}})'


def _wait(quantile):
    waits = f"increase(nibble_job_queue_wait_seconds_bucket{{{C}}}[1h])"
    return f"histogram_quantile({quantile}, sum by (queue, le) ({waits}))"


FLEET = Dashboard(
    "nibble-fleet",
    "Nibble / Fleet",
    "Jobs by state, slots, queues, workers and checkpoints of a cluster",
    (CLUSTER,),
    (
        Row(
            "Now",
            (
                panel(
                    "Running",
                    COUNT,
                    "Jobs of which every rank runs",
                    (_jobs("running"), "running"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Queued",
                    COUNT,
                    "Jobs that wait for slots",
                    (_jobs("queued"), "queued"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Recovering",
                    COUNT,
                    "Jobs whose attempt failed and that will be launched again",
                    (_jobs("recovering"), "recovering"),
                    kind="stat",
                    width=4,
                    height=4,
                    bound=1,
                ),
                panel(
                    "Failed",
                    COUNT,
                    "Jobs that failed for good and are still known to the coordinator",
                    (_jobs("failed"), "failed"),
                    kind="stat",
                    width=4,
                    height=4,
                    bound=1,
                ),
                panel(
                    "Slots in use",
                    SHARE,
                    "Slots used by live attempts over slots of present workers",
                    ("cluster:nibble_slots_used:ratio{%s}" % C, "in use"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
                panel(
                    "Missing copies",
                    COUNT,
                    "Copies of checkpoint shards that workers were asked to make and that do not "
                    "exist yet",
                    (f"nibble_checkpoint_copies_missing{{{C}}}", "missing"),
                    kind="stat",
                    width=4,
                    height=4,
                ),
            ),
        ),
        Row(
            "Jobs with ranks",
            (
                panel(
                    "Progress",
                    SHARE,
                    "Steps done over planned steps, of each job",
                    (
                        f"max by (job) (nibble_job_next_step{{{C}}} / "
                        f"nibble_job_planned_steps{{{C}}})",
                        "{{job}}",
                    ),
                    kind="bars",
                    most=1,
                ),
                panel(
                    "Loss",
                    NATS,
                    "Loss per token of the latest step, of each job",
                    (f"max by (job) (nibble_job_loss{{{C}}})", "{{job}}"),
                ),
                panel(
                    "Throughput",
                    TOKENS_PER_SECOND,
                    "Tokens per second of the latest step, of each job",
                    (f"max by (job) (nibble_job_tokens_per_second{{{C}}})", "{{job}}"),
                ),
            ),
        ),
        Row(
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
                    "Jobs that the latest pass of the scheduler left pending: for slots, quota, "
                    "the back-off after a failure, or what no worker has (never)",
                    (f"nibble_jobs_waiting{{{C}}}", "{{for}}"),
                    kind="stacked",
                ),
                panel(
                    "Queue wait",
                    SECONDS,
                    "Time from queueing a job to launching its attempt, over the last hour",
                    (_wait(0.5), "{{queue}}, median"),
                    (_wait(0.95), "{{queue}}, 95 %"),
                ),
                panel(
                    "Ended attempts",
                    COUNT,
                    "Attempts that ended within the last hour, by outcome",
                    (
                        f"sum by (outcome) (increase(nibble_attempts_ended_total{{{C}}}[1h]))",
                        "{{outcome}}",
                    ),
                ),
                panel(
                    "Restarts",
                    COUNT,
                    "Attempts launched after another one within the last hour, by the outcome of "
                    "that one",
                    (
                        f"sum by (reason) (increase(nibble_job_restarts_total{{{C}}}[1h]))",
                        "{{reason}}",
                    ),
                ),
            ),
        ),
        Row(
            "Workers and slots",
            (
                panel(
                    "Slots",
                    COUNT,
                    "Slots of present workers, and those used by live attempts",
                    (f"nibble_slots{{{C}}}", "present"),
                    (f"nibble_slots_used{{{C}}}", "used"),
                ),
                panel(
                    "Workers",
                    COUNT,
                    "Workers known to the coordinator, by lease and mode",
                    (f"sum by (lease, mode) (nibble_workers{{{C}}})", "{{lease}}, {{mode}}"),
                    kind="stacked",
                ),
                panel(
                    "Expired leases",
                    COUNT,
                    "Workers lost within the last hour",
                    (f"increase(nibble_lease_expiries_total{{{C}}}[1h])", "lost"),
                ),
            ),
        ),
        Row(
            "Checkpoints, recipes and notifications",
            (
                panel(
                    "Checkpoints",
                    COUNT,
                    "Checkpoints committed, deleted and found damaged within the last hour",
                    (
                        f"sum by (event) (increase(nibble_checkpoints_total{{{C}}}[1h]))",
                        "{{event}}",
                    ),
                ),
                panel(
                    "Checkpoint bytes",
                    BYTES_PER_SECOND,
                    "Bytes of checkpoint shards made durable per second, without replicas",
                    (
                        f"rate(nibble_checkpoint_stored_bytes_total{{{C}}}[$__rate_interval])",
                        "stored",
                    ),
                ),
                panel(
                    "Missing copies of checkpoints",
                    COUNT,
                    "Copies of checkpoint shards that workers were asked to make and that do not "
                    "exist yet",
                    (f"nibble_checkpoint_copies_missing{{{C}}}", "missing"),
                ),
                panel(
                    "Recipe changes",
                    COUNT,
                    "Recipe changes accepted, and revisions that took effect on ranks, within "
                    "the last hour",
                    (f"increase(nibble_recipe_changes_total{{{C}}}[1h])", "accepted"),
                    (f"increase(nibble_recipe_revisions_in_force_total{{{C}}}[1h])", "in effect"),
                ),
                panel(
                    "Notifications",
                    COUNT,
                    "Job events posted to URLs of notify within the last hour, by result",
                    (
                        f"sum by (result) (increase(nibble_notifications_total{{{C}}}[1h]))",
                        "{{result}}",
                    ),
                ),
                panel(
                    "Jobs with events to post",
                    COUNT,
                    "Jobs with events that are not posted yet",
                    (f"nibble_notifications_waiting_jobs{{{C}}}", "waiting"),
                ),
            ),
        ),
    ),
)
