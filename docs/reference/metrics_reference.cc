#include "docs/reference/metrics_reference.h"

#include "absl/strings/str_cat.h"
#include "common/metrics/metric_table.h"
#include "server/controller/coordinator_table.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Made from server/controller/coordinator_table.h and worker/metrics/worker_table.h:
     bazel run //docs/reference:write_metrics_reference > docs/reference/metrics.md -->
# Metrics

Coordinator and daemons serve metrics in Prometheus' text format, at `/metrics` over plain HTTP.
`--http HOST:PORT` sets the address; the default is `127.0.0.1:7701` for the coordinator and
`127.0.0.1:7702` for daemons, or a free port, named in the log, if that one is taken. `--http ''`
turns it off; addresses other than loopback need TLS for calls, or `--insecure`.

The same server has probes: `/healthz` is 200 while the process lives. `/readyz` is 200 while the
coordinator serves and its store is healthy, or while the daemon is connected or within its lease;
otherwise it is 503, with the reason. The coordinator's `/sd` lists itself and every daemon that it
knows, for Prometheus' `http_sd`, with the labels `cluster`, `role` and, for daemons, `worker`:

```
scrape_configs:
  - job_name: nibble
    honor_labels: true   # `job` is Nibble's job where a metric has it
    http_sd_configs: [{url: "http://127.0.0.1:7701/sd"}]
```

Every family is exposed from the start, even before it has a value. A family has at most
)";

constexpr char kBound[] =
    R"( series; values of further series are dropped and counted in `nibble_metrics_dropped_total`.
A job's series on a worker exist while its gang runs there: finished jobs leave none. Its counters
begin at 0 with each attempt. Metrics of cards exist on workers with `--device cuda`, as far as the
card and its driver have them; they are sampled every five seconds.
)";

}  // namespace

std::string MetricsReferenceMarkdown() {
  return absl::StrCat(kIntroduction, MetricTable::kMaxSeries, kBound, "\n## Coordinator\n\n",
                      MetricTableMarkdown(CoordinatorRows()), "\n## Daemon\n\n",
                      MetricTableMarkdown(WorkerRows()));
}

}  // namespace nibble
