"""The variables that dashboards share, and label matchers made of them."""

from panels import Variable

CLUSTER = Variable(
    "cluster",
    "Cluster",
    "Cluster: the coordinator's --cluster",
    "label_values(nibble_build_info, cluster)",
)
JOB = Variable(
    "job",
    "Job",
    "Job that has ranks, or had in the time range",
    'label_values(nibble_job_attempt{cluster="$cluster"}, job)',
)
REFERENCE = Variable(
    "reference",
    "Reference",
    "Job whose loss is drawn beside this one's",
    'label_values(nibble_job_attempt{cluster="$cluster"}, job)',
)
REFERENCE_AGE = Variable(
    "reference_age",
    "Reference started earlier by",
    "How much earlier the reference job started, as 90m or 2d: its loss is shifted by that. At "
    "least 1s.",
    "1s",
    kind="text",
)
OPERAND = Variable(
    "operand",
    "Operand",
    "Operands in the heatmaps over time",
    'label_values(nibble_precision_relative_error_ratio{cluster="$cluster",job="$job"}, operand)',
    all=True,
)
WORKER = Variable(
    "worker",
    "Worker",
    "Workers of the cluster",
    'label_values(nibble_worker_slots{cluster="$cluster"}, worker)',
    all=True,
)

IN_CLUSTER = 'cluster="$cluster"'
OF_JOB = 'cluster="$cluster",job="$job"'
# Of daemons: the coordinator has the same process metrics, and "All" matches series without a worker.
OF_WORKERS = 'cluster="$cluster",role="worker",worker=~"$worker"'
OF_COORDINATOR = 'cluster="$cluster",role="coordinator"'
