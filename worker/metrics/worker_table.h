// The metrics of a daemon: of itself, and of each job while it has ranks here.
//
// Thread-safety: const.
#ifndef NIBBLE_WORKER_METRICS_WORKER_TABLE_H_
#define NIBBLE_WORKER_METRICS_WORKER_TABLE_H_

#include "common/metrics/metric_table.h"
#include "common/metrics/program_table.h"

namespace nibble {

struct WorkerTable : ProgramTable {
  // A job. Figures of training exist on the worker of rank 0, from that rank's latest step.
  const MetricSpec& loss = Gauge("nibble_job_loss", "nats per token", {"job"}, "mean of the step");
  const MetricSpec& gradient_norm =
      Gauge("nibble_job_gradient_norm", "", {"job"}, "before clipping");
  const MetricSpec& learning_rate = Gauge("nibble_job_learning_rate", "", {"job"}, "of the step");
  const MetricSpec& next_step =
      Gauge("nibble_job_next_step", "", {"job"}, "that is to be made; steps count from 0");
  const MetricSpec& last_step =
      Gauge("nibble_job_planned_steps", "steps", {"job"}, "of the whole run");
  const MetricSpec& trained_tokens =
      Gauge("nibble_job_trained_tokens", "tokens", {"job"}, "from step 0, over all attempts");
  const MetricSpec& steps =
      Counter("nibble_job_steps_total", "steps", {"job"}, "made by the attempt");
  const MetricSpec& tokens =
      Counter("nibble_job_tokens_total", "tokens", {"job"}, "trained on by the attempt");
  const MetricSpec& skipped = Counter("nibble_job_skipped_updates_total", "steps", {"job"},
                                      "of the attempt whose update a guard skipped");
  const MetricSpec& token_rate =
      Gauge("nibble_job_tokens_per_second", "tokens/s", {"job"}, "of the step");
  const MetricSpec& step_seconds =
      Gauge("nibble_job_step_seconds", "seconds", {"job"}, "the step took");
  const MetricSpec& flops = Counter("nibble_job_model_flops_total", "FLOP", {"job"},
                                    "of the model's products, that the attempt's tokens took");
  const MetricSpec& mfu =
      Gauge("nibble_job_mfu_ratio", "ratio", {"job"},
            "of the step: the model's FLOP/s over what the slots can do; where --peak-flops is "
            "given");
  const MetricSpec& revision = Gauge("nibble_job_recipe_revision", "", {"job"}, "that is in force");
  const MetricSpec& revision_step =
      Gauge("nibble_job_recipe_first_step", "", {"job"}, "from which that revision is in force");
  const MetricSpec& attempt =
      Gauge("nibble_job_attempt", "", {"job"}, "its number: one more than the restarts before it");
  const MetricSpec& ranks =
      Gauge("nibble_job_ranks", "ranks", {"job", "phase"}, "that are here, by where they are");
  const MetricSpec& hung =
      Gauge("nibble_job_ranks_hung", "ranks", {"job"}, "that are here and make no steps");

  // A rank.
  const MetricSpec& part_seconds =
      Counter("nibble_rank_step_part_seconds_total", "seconds", {"job", "rank", "part"},
              "of its steps: data (waiting for batches), weights, forward, backward, communication "
              "(gradients over ranks), optimizer");
  const MetricSpec& rank_seconds =
      Counter("nibble_rank_steps_seconds_total", "seconds", {"job", "rank"}, "its steps took");
  const MetricSpec& rank_memory =
      Gauge("nibble_rank_memory_bytes", "bytes", {"job", "rank"}, "that it has taken");
  const MetricSpec& rank_since_step = Gauge("nibble_rank_since_step_seconds", "seconds",
                                            {"job", "rank"}, "since it last finished a step");
  const MetricSpec& rank_median_step =
      Gauge("nibble_rank_median_step_seconds", "seconds", {"job", "rank"}, "over its last steps");
  const MetricSpec& rank_log = Counter("nibble_rank_log_bytes_total", "bytes", {"job", "rank"},
                                       "that it has written to its log");

  // Checkpoints of a job's attempt here; seconds are those of the rank that waited longest.
  const MetricSpec& checkpoints = Counter("nibble_job_checkpoints_total", "checkpoints",
                                          {"job", "result"}, "stored or failed, as rank 0 saw it");
  const MetricSpec& checkpoint_bytes = Counter("nibble_job_checkpoint_bytes_total", "bytes",
                                               {"job"}, "of the ranks here, in those stored");
  const MetricSpec& checkpoint_stall =
      Counter("nibble_job_checkpoint_stall_seconds_total", "seconds", {"job"}, "training waited");
  const MetricSpec& checkpoint_write =
      Counter("nibble_job_checkpoint_write_seconds_total", "seconds", {"job"},
              "from the last copy into memory until they were committed");
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
  const MetricSpec& precision_error =
      Gauge("nibble_precision_relative_error_ratio", "ratio", {"job", "layer", "operand"},
            "norm of the error over norm of the values");
  const MetricSpec& precision_underflow =
      Gauge("nibble_precision_underflow_ratio", "ratio", {"job", "layer", "operand"},
            "of the non-zero values, those that became zero");
  const MetricSpec& precision_clipped =
      Gauge("nibble_precision_clipped_ratio", "ratio", {"job", "layer", "operand"},
            "of all values, those beyond the largest code");
  const MetricSpec& precision_amax =
      Gauge("nibble_precision_amax", "", {"job", "layer", "operand"}, "largest magnitude");
  const MetricSpec& precision_spread =
      Gauge("nibble_precision_scale_spread", "octaves", {"job", "layer", "operand"},
            "between the smallest and the largest block scale");
  const MetricSpec& precision_non_finite =
      Gauge("nibble_precision_non_finite", "values", {"job", "layer", "operand"},
            "that are NaN or infinite");
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
};

// One for the program.
const WorkerTable& WorkerRows();

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_WORKER_TABLE_H_
