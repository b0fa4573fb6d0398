"""Expressions that several panels share. `labels`: matchers, as in variables.py; `by`: labels to sum by."""


def _summed(expr, by):
    return f"sum by ({by}) ({expr})" if by else expr


def rate(metric, labels, by=""):
    """A counter's increase per second, over the interval of a point."""
    return _summed(f"rate({metric}{{{labels}}}[$__rate_interval])", by)


def last_hour(metric, labels, by=""):
    """A counter's increase within the last hour."""
    return _summed(f"increase({metric}{{{labels}}}[1h])", by)


def quantile(share, metric, labels, by="", over=rate):
    """A histogram's quantile: `over` the interval of a point (rate), or over the last hour."""
    buckets = over(f"{metric}_bucket", labels, f"{by}, le" if by else "le")
    return f"histogram_quantile({share}, {buckets})"


def median_and_99(metric, labels):
    """Two queries with their legends."""
    return (
        (quantile(0.5, metric, labels), "median"),
        (quantile(0.99, metric, labels), "99 %"),
    )
