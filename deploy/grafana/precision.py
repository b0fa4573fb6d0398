"""Precision: what quantisation costs, by layer and operand."""

from job import ANNOTATIONS
from panels import COUNT, NONE, OCTAVES, SHARE, Dashboard, Row, panel
from variables import CLUSTER, JOB, OF_JOB as J, OPERAND

# Name of the metric, title, unit, description. The first two are drawn larger.
FIGURES = (
    (
        "relative_error_ratio",
        "Relative error",
        SHARE,
        "Norm of the quantisation error over the norm of the values",
    ),
    ("underflow_ratio", "Underflow", SHARE, "Share of the non-zero values that became zero"),
    ("clipped_ratio", "Clipped", SHARE, "Share of the values beyond the largest code"),
    ("amax", "Largest magnitude", NONE, "Largest magnitude (amax)"),
    (
        "scale_spread",
        "Scale spread",
        OCTAVES,
        "Octaves between the smallest and the largest block scale",
    ),
)


def _width(metric):
    return 12 if metric in (FIGURES[0][0], FIGURES[1][0]) else 8


def _matrix(metric, title, unit, description):
    return panel(
        title,
        unit,
        f"{description}, at the latest sampled step: a row per layer, a column per operand",
        (f"max by (layer, operand) (nibble_precision_{metric}{{{J}}})", "{{layer}} {{operand}}"),
        kind="matrix",
        rows="layer",
        columns="operand",
        width=_width(metric),
        height=11,
    )


def _heatmap(metric, title, unit, description):
    return panel(
        f"{title} over time",
        unit,
        f"{description}: a row per layer and operand",
        (
            f'max by (layer, operand) (nibble_precision_{metric}{{{J},operand=~"$operand"}})',
            "{{layer}} {{operand}}",
        ),
        kind="heatmap",
        width=_width(metric),
        height=11,
    )


PRECISION = Dashboard(
    "nibble-precision",
    "Nibble / Precision",
    "Quantisation figures per layer and operand of one job, at the steps that were sampled",
    (CLUSTER, JOB, OPERAND),
    (
        Row(
            "Most sensitive",
            (
                panel(
                    "Largest relative errors",
                    SHARE,
                    "The ten layers and operands with the largest relative error",
                    (
                        f"topk(10, max by (layer, operand) "
                        f"(nibble_precision_relative_error_ratio{{{J}}}))",
                        "{{layer}} {{operand}}",
                    ),
                    kind="bars",
                    width=12,
                    height=9,
                ),
                panel(
                    "Largest underflows",
                    SHARE,
                    "The ten layers and operands with the most values that became zero",
                    (
                        f"topk(10, max by (layer, operand) "
                        f"(nibble_precision_underflow_ratio{{{J}}}))",
                        "{{layer}} {{operand}}",
                    ),
                    kind="bars",
                    width=12,
                    height=9,
                    bound=0.5,
                    most=1,
                ),
                panel(
                    "Relative error by operand",
                    SHARE,
                    "Mean over the shown layers",
                    (
                        f"avg by (operand) (nibble_precision_relative_error_ratio{{{J}}})",
                        "{{operand}}",
                    ),
                ),
                panel(
                    "Values that are not finite",
                    COUNT,
                    "NaN or infinite values in quantised operands",
                    (f"sum by (operand) (nibble_precision_non_finite{{{J}}})", "{{operand}}"),
                    bound=1,
                ),
                panel(
                    "Decisions of guards",
                    COUNT,
                    "Decisions in the attempt, by guard and action; also those that only observe",
                    (
                        f"sum by (guard, action) (nibble_job_guard_decisions_total{{{J}}})",
                        "{{guard}}: {{action}}",
                    ),
                ),
            ),
        ),
        Row("Latest sample", tuple(_matrix(*figure) for figure in FIGURES)),
        Row("Over time", tuple(_heatmap(*figure) for figure in FIGURES)),
        Row(
            "Formats and paths",
            (
                panel(
                    "Operands by format",
                    COUNT,
                    "Operands of the shown layers, by the format they are in",
                    (f"count by (format) (nibble_precision_format_info{{{J}}})", "{{format}}"),
                    kind="stacked",
                    width=6,
                ),
                panel(
                    "Linear layers by path",
                    COUNT,
                    "Linear layers by GEMM and by the path that computes it: native, or emulated",
                    (f"sum by (gemm, path) (nibble_job_products{{{J}}})", "{{gemm}}: {{path}}"),
                    width=6,
                ),
                panel(
                    "Sampled layers",
                    COUNT,
                    "Layers that were sampled, by whether they are shown here; "
                    "--precision-series all of nibble-worker shows all",
                    (f"sum by (shown) (nibble_precision_layers{{{J}}})", "shown: {{shown}}"),
                    width=6,
                ),
                panel(
                    "Sampled step",
                    NONE,
                    "The step that the figures belong to",
                    (f"max(nibble_precision_step{{{J}}})", "step"),
                    width=6,
                ),
            ),
        ),
    ),
    ANNOTATIONS,
)
