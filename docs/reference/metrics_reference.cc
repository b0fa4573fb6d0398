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

Coordinator and daemons show metrics in Prometheus' text format at `/metrics` of their plain HTTP
(`--http HOST:PORT`; by default `127.0.0.1:7701` and `127.0.0.1:7702`, or a free port where that is
taken, which the log names; `--http ''` turns it off; off loopback only with `--insecure`).
Beside it: `/healthz` is 200 while the process lives; `/readyz` is 200 while the coordinator serves
and its store is healthy, or while the daemon is connected or within its lease, otherwise 503 and
why. The coordinator's `/sd` lists itself and every daemon that it knows, for Prometheus' `http_sd`,
with the labels `cluster`, `role` and, of daemons, `worker`:

```
scrape_configs:
  - job_name: nibble
    honor_labels: true   # `job` is Nibble's job where a metric has it
    http_sd_configs: [{url: "http://127.0.0.1:7701/sd"}]
```

Every row is there from the start, also before it has a value. A family has at most
)";

constexpr char kBound[] =
    R"( series; what is for another is dropped and counted in `nibble_metrics_dropped_total`.
Series of a job are those of its gang on the worker, and go with it: finished jobs leave none. Its
counters begin at 0 with each attempt.
)";

}  // namespace

std::string MetricsReferenceMarkdown() {
  return absl::StrCat(kIntroduction, MetricTable::kMaxSeries, kBound, "\n## Coordinator\n\n",
                      MetricTableMarkdown(CoordinatorRows()), "\n## Daemon\n\n",
                      MetricTableMarkdown(WorkerRows()));
}

}  // namespace nibble
