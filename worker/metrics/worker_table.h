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
      Gauge("nibble_job_next_step", "", {"job"}, "Next step of the job; steps count from 0");
  const MetricSpec& last_step =
      Gauge("nibble_job_planned_steps", "steps", {"job"}, "Steps of the whole run");
  const MetricSpec& flops = Counter("nibble_job_model_flops_total", "FLOP", {"job"},
                                    "Operations of the model's matmuls for the attempt's tokens");
  const MetricSpec& mfu =
      Gauge("nibble_job_mfu_ratio", "ratio", {"job"},
            "Model FLOP/s of the latest step over the peak of the slots; only with --peak-flops");
  const FigureRows products =
      NewestOf(*link::v1::ProductPath::descriptor(), {"job", "gemm", "path"});
  const FigureRows guards =
      NewestOf(*link::v1::GuardTotal::descriptor(), {"job", "guard", "action"});
  const MetricSpec& attempt = Gauge("nibble_job_attempt", "", {"job"},
                                    "Number of the attempt: one more than the restarts before it");
  const MetricSpec& ranks =
      Gauge("nibble_job_ranks", "ranks", {"job", "phase"}, "Ranks on this worker, by phase");
  const MetricSpec& hung =
      Gauge("nibble_job_ranks_hung", "ranks", {"job"}, "Ranks on this worker that make no steps");

  // A rank.
  const FigureRows sums = TotalsOf(*v1::StepSample::descriptor(), {"job"});
  const MetricSpec& rank_memory = Gauge("nibble_rank_memory_bytes", "bytes", {"job", "rank"},
                                        "Memory that the rank has allocated");
  const MetricSpec& rank_device_memory =
      Gauge("nibble_rank_device_memory_bytes", "bytes", {"job", "rank"},
            "Device memory taken by the rank's tensors");
  const MetricSpec& rank_since_step =
      Gauge("nibble_rank_since_step_seconds", "seconds", {"job", "rank"},
            "Time since the rank last finished a step");
  const MetricSpec& rank_median_step =
      Gauge("nibble_rank_median_step_seconds", "seconds", {"job", "rank"},
            "Median duration of the rank's recent steps");
  const MetricSpec& rank_log = Counter("nibble_rank_log_bytes_total", "bytes", {"job", "rank"},
                                       "Bytes that the rank has written to its log");

  // Checkpoints of a job's attempt here; seconds are those of the rank that waited longest.
  const FigureRows checkpoints = NewestOf(*link::v1::CheckpointTotals::descriptor(), {"job"});
  const MetricSpec& replicas = Counter("nibble_replicas_fetched_total", "shards", {"result"},
                                       "Shards copied from other workers: done or failed");
  const MetricSpec& replica_bytes = Counter("nibble_replica_bytes_total", "bytes", {},
                                            "Bytes of shards copied from other workers");
  const MetricSpec& replica_seconds = Histogram("nibble_replica_seconds", "seconds", {},
                                                "Duration of copying a shard", WaitingSeconds());

  // Precision at the latest step that rank 0 sampled, for a sample of the layers, or for all with
  // --precision-series all.
  const MetricSpec& precision_step =
      Gauge("nibble_precision_step", "", {"job"}, "Step of the latest precision sample");
  const MetricSpec& precision_format =
      Gauge("nibble_precision_format_info", "", {"job", "layer", "operand", "format"},
            "Format of the operand, in the labels; always 1");
  const FigureRows precision =
      NewestOf(*link::v1::PrecisionSample::descriptor(), {"job", "layer", "operand"});
  const MetricSpec& precision_layers = Gauge("nibble_precision_layers", "layers", {"job", "shown"},
                                             "Sampled layers, by whether their figures are shown");

  // The worker's cards, as their driver (NVML) reports them; none for figures that a card or its
  // driver lacks. `card`: as in CUDA_VISIBLE_DEVICES.
  const MetricSpec& card_info = Gauge("nibble_card_info", "", {"card", "model"},
                                      "Model of the card, in the labels; always 1");
  const MetricSpec& card_answers =
      Gauge("nibble_card_answers", "", {"card"},
            "State of the card: 1, or 0 if its driver no longer reaches it");
  const MetricSpec& card_memory =
      Gauge("nibble_card_memory_bytes", "bytes", {"card"}, "Memory of the card");
  const MetricSpec& card_memory_used =
      Gauge("nibble_card_memory_used_bytes", "bytes", {"card"},
            "Used memory of the card, of all processes and the driver");
  const MetricSpec& card_busy = Gauge("nibble_card_busy_ratio", "ratio", {"card"},
                                      "Share of the latest sampling interval, at most a second, "
                                      "in which a kernel ran");
  const MetricSpec& card_memory_busy =
      Gauge("nibble_card_memory_busy_ratio", "ratio", {"card"},
            "Share of the latest sampling interval in which memory was read or written");
  const MetricSpec& card_power =
      Gauge("nibble_card_power_watts", "watts", {"card"}, "Power draw of the board");
  const MetricSpec& card_power_limit = Gauge("nibble_card_power_limit_watts", "watts", {"card"},
                                             "Enforced limit on the power draw of the board");
  const MetricSpec& card_energy = Counter("nibble_card_energy_joules_total", "joules", {"card"},
                                          "Energy that the board took since its driver started");
  const MetricSpec& card_temperature =
      Gauge("nibble_card_temperature_celsius", "°C", {"card"}, "Temperature of the card's chip");
  const MetricSpec& card_clock = Gauge("nibble_card_clock_hertz", "Hz", {"card", "clock"},
                                       "Clock of the multiprocessors (sm) and of the memory");
  const MetricSpec& card_clock_limit =
      Gauge("nibble_card_clock_limit_hertz", "Hz", {"card", "clock"},
            "Highest clock of the multiprocessors (sm) and of the memory");
  const MetricSpec& card_slowed =
      Gauge("nibble_card_slowed", "", {"card", "reason"},
            "Reasons for lower clocks: 1 while power_limit, heat or power_brake applies, else 0");
  const MetricSpec& card_errors =
      Counter("nibble_card_errors_total", "errors", {"card", "kind"},
              "Errors since the driver started: of memory (memory_corrected, memory_uncorrected), "
              "NVLink (nvlink_replay, nvlink_recovery, nvlink_crc) and PCIe (pcie_replay)");
  const MetricSpec& card_links =
      Gauge("nibble_card_nvlinks", "links", {"card"}, "Active NVLinks of the card");
  const MetricSpec& card_link_bytes =
      Counter("nibble_card_nvlink_bytes_total", "bytes", {"card", "direction"},
              "Data sent and received over all NVLinks of the card");
  const MetricSpec& card_pcie =
      Gauge("nibble_card_pcie_bytes_per_second", "bytes/s", {"card", "direction"},
            "Data sent and received over PCIe in the latest 20 ms");

  // The daemon and its coordinator.
  const MetricSpec& slots = Gauge("nibble_worker_slots", "slots", {}, "Slots of this worker");
  const MetricSpec& slots_used =
      Gauge("nibble_worker_slots_used", "slots", {}, "Slots with a rank that has not ended");
  const MetricSpec& trash_bytes =
      Gauge("nibble_worker_trash_bytes", "bytes", {},
            "Space that deleted shards take, which is also counted as free space of the disk");
  const MetricSpec& connected =
      Gauge("nibble_coordinator_connected", "", {},
            "Connection to the coordinator: 1 once it has answered on the open stream, else 0");
  const MetricSpec& silence = Gauge("nibble_coordinator_silence_seconds", "seconds", {},
                                    "Time since the coordinator's last answer");
  const MetricSpec& lease = Gauge("nibble_coordinator_lease_seconds", "seconds", {},
                                  "Time without a report after which this worker counts as lost");
  const MetricSpec& reports =
      Counter("nibble_coordinator_reports_total", "reports", {}, "Reports sent to the coordinator");
  const MetricSpec& report_seconds =
      Histogram("nibble_coordinator_report_seconds", "seconds", {},
                "Time from a report to the answer to it", ServiceSeconds());
  const MetricSpec& streams_lost =
      Counter("nibble_coordinator_streams_lost_total", "streams", {"code"},
              "Ended streams to the coordinator, by status code");

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
