"""Job: one run of training, beside a reference."""

from panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    FLOPS,
    NATS,
    NONE,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_PER_SECOND,
    Annotation,
    Dashboard,
    Row,
    panel,
    tile,
)
from queries import rate
from variables import CLUSTER, JOB, OF_JOB as J, REFERENCE, REFERENCE_AGE

# A revision, or an attempt, is an interval with its number.
ANNOTATIONS = (
    Annotation(
        "Recipe revisions",
        "purple",
        f'count_values by (job) ("revision", nibble_job_recipe_revision{{{J}}})',
        "Recipe revision {{revision}}",
        "{{job}}",
    ),
    Annotation(
        "Attempts",
        "red",
        f'count_values by (job) ("attempt", nibble_job_attempt{{{J}}})',
        "Attempt {{attempt}}",
        "{{job}}",
    ),
    Annotation(
        "Checkpoints",
        "blue",
        f'sum by (job, result) (increase(nibble_job_checkpoints_total{{{J}}}[1m])) > 0',
        "Checkpoint {{result}}",
        "{{job}}",
    ),
    Annotation(
        "Guards",
        "orange",
        f'sum by (job, guard, action) (increase(nibble_job_guard_decisions_total{{{J}}}[1m])) > 0',
        "Guard {{guard}}: {{action}}",
        "{{job}}",
    ),
)


def _quarter(*of_panel):
    return panel(*of_panel, width=6)


def _latest(metric):
    return f"max(nibble_job_{metric}{{{J}}})"


def _share(metric):
    return f"max({rate(f'nibble_job_{metric}', J)})"


JOB_BOARD = Dashboard(
    "nibble-job",
    "Nibble / Job",
    "Loss beside a reference job, optimisation, throughput, step time, ranks and checkpoints of "
    "one job",
    (CLUSTER, JOB, REFERENCE, REFERENCE_AGE),
    (
        Row(
            "Now",
            (
                tile("Loss", NATS, "Mean loss of the latest step", _latest("loss"), decimals=4),
                tile(
                    "Progress",
                    SHARE,
                    "Steps done over planned steps",
                    f"{_latest('next_step')} / {_latest('planned_steps')}",
                ),
                tile(
                    "Time left",
                    SECONDS,
                    "Steps that are left, at the duration of the latest step",
                    f"({_latest('planned_steps')} - {_latest('next_step')}) * "
                    f"{_latest('step_seconds')}",
                ),
                tile(
                    "Next step",
                    NONE,
                    "Step that is to be made; steps count from 0",
                    _latest("next_step"),
                ),
                tile(
                    "Trained tokens",
                    TOKENS,
                    "Tokens since step 0, over all attempts",
                    _latest("trained_tokens"),
                ),
                tile(
                    "Without a checkpoint",
                    SECONDS,
                    "Time of training that a restart would repeat; empty for jobs that write no "
                    "checkpoints while they train",
                    f"time() - {_latest('checkpoint_time_seconds')}",
                    bound=3600,
                ),
                tile(
                    "Recipe revision",
                    NONE,
                    "The recipe revision in effect",
                    _latest("recipe_revision"),
                ),
                tile(
                    "Attempt",
                    NONE,
                    "Number of the attempt: one more than the restarts before it",
                    _latest("attempt"),
                    warning=2,
                ),
            ),
        ),
        Row(
            "Optimisation",
            (
                panel(
                    "Loss",
                    NATS,
                    "Mean loss of the step, beside the reference job's. `nibble job compare` "
                    "compares by step rather than by time.",
                    (_latest("loss"), "$job"),
                    (
                        'max(nibble_job_loss{cluster="$cluster",job="$reference"} offset '
                        '$reference_age)',
                        "$reference (reference)",
                    ),
                    width=12,
                    height=10,
                ),
                panel(
                    "Gradient norm",
                    NONE,
                    "Norm of the gradient before clipping, and its median over the last 30 minutes",
                    (_latest("gradient_norm"), "gradient norm"),
                    (f"job:nibble_job_gradient_norm:median30m{{{J}}}", "median"),
                    width=12,
                    height=10,
                    log=True,
                ),
                panel(
                    "Learning rate",
                    NONE,
                    "Learning rate of the step",
                    (_latest("learning_rate"), "learning rate"),
                ),
                panel(
                    "Recipe and attempts",
                    NONE,
                    "Recipe revision in effect, and number of the attempt; `nibble recipe history` "
                    "shows the changes",
                    (_latest("recipe_revision"), "revision"),
                    (_latest("attempt"), "attempt"),
                    kind="timeline",
                ),
                panel(
                    "Skipped updates",
                    COUNT,
                    "Steps of the attempt whose update a guard skipped",
                    (_latest("skipped_updates_total"), "skipped"),
                ),
            ),
        ),
        Row(
            "Throughput",
            (
                panel(
                    "Tokens per second",
                    TOKENS_PER_SECOND,
                    "Tokens per second: of the latest step, and over the interval",
                    (_latest("tokens_per_second"), "latest step"),
                    (f"sum({rate('nibble_job_tokens_total', J)})", "interval"),
                ),
                panel(
                    "Model FLOP/s",
                    FLOPS,
                    "FLOP per second of the model's matmuls",
                    (f"sum({rate('nibble_job_model_flops_total', J)})", "model"),
                ),
                panel(
                    "MFU",
                    SHARE,
                    "The model's FLOP/s over what the slots can do; needs --peak-flops of "
                    "nibble-worker",
                    (_latest("mfu_ratio"), "MFU"),
                ),
                panel(
                    "Step time",
                    SECONDS,
                    "Duration of the latest step",
                    (_latest("step_seconds"), "step"),
                ),
                panel(
                    "Step time by part",
                    SHARE,
                    "Mean over ranks: share of the time in data (waiting for batches), weights, "
                    "forward, backward, communication and optimizer",
                    (
                        f"avg by (part) ({rate('nibble_rank_step_part_seconds_total', J)})",
                        "{{part}}",
                    ),
                    kind="stacked",
                    most=1,
                ),
                panel(
                    "Steps per second",
                    "suffix: steps/s",
                    "Steps per second over the interval",
                    (f"sum({rate('nibble_job_steps_total', J)})", "steps"),
                ),
            ),
        ),
        Row(
            "Ranks",
            (
                _quarter(
                    "Own work by rank",
                    SHARE,
                    "Share of the time that each rank spends in its steps without communication, in "
                    "which it waits for the others: a slow rank has the most",
                    (f"rank:nibble_rank_own_seconds:rate5m{{{J}}}", "rank {{rank}}"),
                ),
                _quarter(
                    "Median step by rank",
                    SECONDS,
                    "Median duration of the last steps of each rank",
                    (f"nibble_rank_median_step_seconds{{{J}}}", "rank {{rank}}"),
                ),
                _quarter(
                    "Time since the last step",
                    SECONDS,
                    "Time since each rank last finished a step",
                    (f"nibble_rank_since_step_seconds{{{J}}}", "rank {{rank}}"),
                ),
                _quarter(
                    "Ranks by phase",
                    COUNT,
                    "Ranks by phase, and those that make no steps",
                    (f"sum by (phase) (nibble_job_ranks{{{J}}})", "{{phase}}"),
                    (f"sum(nibble_job_ranks_hung{{{J}}})", "hung"),
                ),
                _quarter(
                    "Memory by rank",
                    BYTES,
                    "Host memory that each rank has taken",
                    (f"nibble_rank_memory_bytes{{{J}}}", "rank {{rank}}"),
                ),
                _quarter(
                    "Device memory by rank",
                    BYTES,
                    "Memory of its device that each rank's tensors take",
                    (f"nibble_rank_device_memory_bytes{{{J}}}", "rank {{rank}}"),
                ),
                _quarter(
                    "Step seconds by rank",
                    SHARE,
                    "Share of the time that each rank spends in steps; the rest is start, "
                    "checkpoints and pauses",
                    (
                        rate("nibble_rank_steps_seconds_total", J),
                        "rank {{rank}}",
                    ),
                ),
                _quarter(
                    "Log output",
                    BYTES_PER_SECOND,
                    "Bytes that each rank writes to its log",
                    (
                        rate("nibble_rank_log_bytes_total", J),
                        "rank {{rank}}",
                    ),
                ),
            ),
        ),
        Row(
            "Checkpoints",
            (
                _quarter(
                    "Checkpoints of the attempt",
                    COUNT,
                    "Checkpoints stored and failed, as rank 0 saw it",
                    (f"sum by (result) (nibble_job_checkpoints_total{{{J}}})", "{{result}}"),
                ),
                _quarter(
                    "Checkpoint bytes",
                    BYTES_PER_SECOND,
                    "Bytes of stored checkpoints per second",
                    (
                        f"sum({rate('nibble_job_checkpoint_bytes_total', J)})",
                        "stored",
                    ),
                ),
                _quarter(
                    "Checkpoint stall",
                    SHARE,
                    "Share of the time that training waited for checkpoints",
                    (
                        _share("checkpoint_stall_seconds_total"),
                        "waiting",
                    ),
                ),
                _quarter(
                    "Checkpoint writing",
                    SHARE,
                    "Share of the time from the last copy into memory until the checkpoint is "
                    "committed; training continues meanwhile",
                    (
                        _share("checkpoint_write_seconds_total"),
                        "writing",
                    ),
                ),
            ),
        ),
    ),
    ANNOTATIONS,
)
