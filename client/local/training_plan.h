// `nibble model show`: what training a model takes, on paper (the room plan/). Memory per rank for
// each level of sharding, and with --nodes the bytes and the expected time of a step from one node
// on.
//
// Ownership: the command keeps references to the flags. Thread-safety: none.
#ifndef NIBBLE_CLIENT_LOCAL_TRAINING_PLAN_H_
#define NIBBLE_CLIENT_LOCAL_TRAINING_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "common/command_line/command_line.h"
#include "model/outline.h"

namespace nibble {

struct TrainingFlags {
  int64_t ranks = 1;
  std::string sharding;       // a level; empty: all
  std::string device_memory;  // empty: plans are not compared with a card
  std::string recipe = "nvfp4";
  std::string capability = "9.0";
  int64_t batch = 1;  // sequences of a micro-batch on a rank
  int64_t micro_batches = 1;
  bool recompute = false;
  int64_t nodes = 0;  // 0: of ranks; no table of steps
  int64_t cards_per_node = 8;
  std::string link = "350GB/s";
  std::string fabric = "400Gb/s";
  std::string rate = "540TFLOP/s";
};
void AddTrainingOptions(Command verb, TrainingFlags& flags);

struct TrainingPlanReply {
  std::string text;             // for people; ends with a newline
  nlohmann::ordered_json json;  // an object
};
// InvalidArgument naming the field, its value and the bound: of plan/rank_memory.h, of Resolve for
// the recipe, and for ranks that do not fill their nodes. NotFound for an unknown recipe.
absl::StatusOr<TrainingPlanReply> PlanTraining(const Outline& outline, int64_t sequence,
                                               const TrainingFlags& flags);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_TRAINING_PLAN_H_
