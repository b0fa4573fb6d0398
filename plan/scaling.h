// How a data-parallel step scales over nodes: the bytes that each card sends, and the expected time
// of a step, from measured rates. C cards per node, N nodes.
//
//   reduction  FP32, in rank order, within the node first, then nodes in order: of a unit's 4·P
//   bytes
//              each card sends (C − 1)/C within its node, and (N − 1)/N of its sums, 4·P/C, between
//              nodes
//   gather     of B bytes each card receives (N − 1)/N · B/C from the cards of the same place in
//              other nodes, and the other cards' (C − 1)/C · B within its node
//
// Not modelled: latency, stragglers, contention in the fabric, and the reading of memory by
// transfers, which slows computation a little.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_PLAN_SCALING_H_
#define NIBBLE_PLAN_SCALING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plan/rank_memory.h"
#include "plan/sharding.h"
#include "plan/step_time.h"
#include "plan/units.h"

namespace nibble {

// Rates of one card.
struct CardRates {
  double link = 350e9;   // bytes per second within the node: NCCL's bus bandwidth over NVLink
  double fabric = 50e9;  // bytes per second between nodes
  // Operations of the model per second of a whole step without communication: "Where a step goes"
  // in docs/results/gpu.md has 542 TFLOP/s for the 1.2B transformer in BF16.
  double flops = 540e12;
};

enum class GatherForm : uint8_t {
  kPacked,  // quantised weights as codes and scales, others in BF16
  kBf16,
};

struct LinkBytes {
  double node = 0;
  double fabric = 0;
};
LinkBytes ReduceBytes(double bytes, int64_t nodes, int64_t cards_per_node);
LinkBytes GatherBytes(double bytes, int64_t nodes, int64_t cards_per_node);

struct StepRequest {
  Sharding sharding = Sharding::kOptimizer;
  GatherForm form = GatherForm::kPacked;
  int64_t nodes = 1;
  int64_t cards_per_node = 8;
  BatchShape batch;  // of one card
  int64_t micro_batches = 1;
  CardRates rates;
};

struct StepOnPaper {
  LinkBytes gathered, reduced;  // per card and step
  StepTime time;
};
// `units`: of a model, recipe and sequence of batch.length tokens.
StepOnPaper PlanStep(std::span<const Unit> units, const StepRequest& request);

// 1, 2, 4, … and `most`.
std::vector<int64_t> NodesUpTo(int64_t most);

}  // namespace nibble

#endif  // NIBBLE_PLAN_SCALING_H_
