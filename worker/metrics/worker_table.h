// The metrics of a daemon: of itself, and of each job while it has ranks here. Rows of figures that
// ranks report are declared with those figures, in metrics.proto and link.proto.
//
// Ownership: the table owns its rows. Thread-safety: const.
#ifndef NIBBLE_WORKER_METRICS_WORKER_TABLE_H_
#define NIBBLE_WORKER_METRICS_WORKER_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "common/metrics/metric_table.h"
#include "common/metrics/program_table.h"
#include "google/protobuf/descriptor.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "proto/nibble/v1/figure.pb.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// The rows that the options of a message's fields declare (proto/nibble/v1/figure.proto): of each
// field the newest value or the total.
using FigureRows = std::map<const google::protobuf::FieldDescriptor*, const MetricSpec*>;

struct WorkerTable : ProgramTable {
  // A job. Figures of training exist on the worker of rank 0, from that rank's latest step.
  const FigureRows step = NewestOf(*v1::StepSample::descriptor(), {"job"});
  const FigureRows steps = NewestOf(*link::v1::StepTotals::descriptor(), {"job"});
  const MetricSpec& next_step =
      Gauge("nibble_job_next_step", "", {"job"}, "that is to be made; steps count from 0");
  const MetricSpec& last_step =
      Gauge("nibble_job_planned_steps", "steps", {"job"}, "of the whole run");
  const MetricSpec& flops = Counter("nibble_job_model_flops_total", "FLOP", {"job"},
                                    "of the model's products, that the attempt's tokens took");
  const MetricSpec& mfu =
      Gauge("nibble_job_mfu_ratio", "ratio", {"job"},
            "of the step: the model's FLOP/s over what the slots can do; where --peak-flops is "
            "given");
  const FigureRows products =
      NewestOf(*link::v1::ProductPath::descriptor(), {"job", "gemm", "path"});
  const MetricSpec& attempt =
      Gauge("nibble_job_attempt", "", {"job"}, "its number: one more than the restarts before it");
  const MetricSpec& ranks =
      Gauge("nibble_job_ranks", "ranks", {"job", "phase"}, "that are here, by where they are");
  const MetricSpec& hung =
      Gauge("nibble_job_ranks_hung", "ranks", {"job"}, "that are here and make no steps");

  // A rank.
  const FigureRows sums = TotalsOf(*v1::StepSample::descriptor(), {"job"});
  const MetricSpec& rank_memory =
      Gauge("nibble_rank_memory_bytes", "bytes", {"job", "rank"}, "that it has taken");
  const MetricSpec& rank_device_memory =
      Gauge("nibble_rank_device_memory_bytes", "bytes", {"job", "rank"},
            "that its tensors take of its device's memory");
  const MetricSpec& rank_since_step = Gauge("nibble_rank_since_step_seconds", "seconds",
                                            {"job", "rank"}, "since it last finished a step");
  const MetricSpec& rank_median_step =
      Gauge("nibble_rank_median_step_seconds", "seconds", {"job", "rank"}, "over its last steps");
  const MetricSpec& rank_log = Counter("nibble_rank_log_bytes_total", "bytes", {"job", "rank"},
                                       "that it has written to its log");

  // Checkpoints of a job's attempt here; seconds are those of the rank that waited longest.
  const FigureRows checkpoints = NewestOf(*link::v1::CheckpointTotals::descriptor(), {"job"});
  const MetricSpec& replicas = Counter("nibble_replicas_fetched_total", "shards", {"result"},
                                       "copied from other workers: done or failed");
  const MetricSpec& replica_bytes =
      Counter("nibble_replica_bytes_total", "bytes", {}, "that came from other workers");
  const MetricSpec& replica_seconds = Histogram("nibble_replica_seconds", "seconds", {},
                                                "a copy of a shard took", WaitingSeconds());

  // Precision at the latest step that rank 0 sampled, for a sample of the layers, or for all with
  // --precision-series all.
  const MetricSpec& precision_step =
      Gauge("nibble_precision_step", "", {"job"}, "that was sampled");
  const MetricSpec& precision_format =
      Gauge("nibble_precision_format_info", "", {"job", "layer", "operand", "format"},
            "1; what the operand is in");
  const FigureRows precision =
      NewestOf(*link::v1::PrecisionSample::descriptor(), {"job", "layer", "operand"});
  const MetricSpec& precision_layers = Gauge("nibble_precision_layers", "layers", {"job", "shown"},
                                             "that were sampled, by whether "
                                             "they are shown");

  // The daemon and its coordinator.
  const MetricSpec& slots = Gauge("nibble_worker_slots", "slots", {}, "of this worker");
  const MetricSpec& slots_used =
      Gauge("nibble_worker_slots_used", "slots", {}, "with a rank that has not ended");
  const MetricSpec& connected = Gauge("nibble_coordinator_connected", "", {},
                                      "1 while the coordinator has answered on the open stream");
  const MetricSpec& silence =
      Gauge("nibble_coordinator_silence_seconds", "seconds", {}, "since it was last heard");
  const MetricSpec& lease = Gauge("nibble_coordinator_lease_seconds", "seconds", {},
                                  "without a report for so long this worker counts as lost");
  const MetricSpec& reports =
      Counter("nibble_coordinator_reports_total", "reports", {}, "that were made");
  const MetricSpec& report_seconds =
      Histogram("nibble_coordinator_report_seconds", "seconds", {},
                "from a report to an answer that follows from it", ServiceSeconds());
  const MetricSpec& streams_lost =
      Counter("nibble_coordinator_streams_lost_total", "streams", {"code"}, "that have ended");

 private:
  // Declare the rows of a message with these labels and those that its options add.
  FigureRows NewestOf(const google::protobuf::Descriptor& message, std::vector<std::string> labels);
  FigureRows TotalsOf(const google::protobuf::Descriptor& message, std::vector<std::string> labels);
  const MetricSpec& Declare(const v1::MetricRow& row, std::vector<std::string> labels);
};

// One for the program.
const WorkerTable& WorkerRows();

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_WORKER_TABLE_H_
