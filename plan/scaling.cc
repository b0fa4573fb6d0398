#include "plan/scaling.h"

#include "plan/copies.h"

namespace nibble {
namespace {

// Of `bytes` shared by cards and nodes. Reductions and gathers move the same bytes, in opposite
// orders.
LinkBytes ShareBytes(double bytes, int64_t nodes, int64_t cards_per_node) {
  const auto cards = static_cast<double>(cards_per_node), all = static_cast<double>(nodes);
  return {.node = bytes * (cards - 1) / cards, .fabric = bytes / cards * (all - 1) / all};
}

LinkTimes TimesOf(const LinkBytes& bytes, const CardRates& rates) {
  return {.node = bytes.node / rates.link, .fabric = bytes.fabric / rates.fabric};
}

void AddBytes(const LinkBytes& bytes, int64_t times, LinkBytes& sum) {
  sum.node += bytes.node * static_cast<double>(times);
  sum.fabric += bytes.fabric * static_cast<double>(times);
}

}  // namespace

LinkBytes ReduceBytes(double bytes, int64_t nodes, int64_t cards_per_node) {
  return ShareBytes(bytes, nodes, cards_per_node);
}
LinkBytes GatherBytes(double bytes, int64_t nodes, int64_t cards_per_node) {
  return ShareBytes(bytes, nodes, cards_per_node);
}

StepOnPaper PlanStep(std::span<const Unit> units, const StepRequest& request) {
  const CardRates& rates = request.rates;
  std::vector<LinkBytes> gather, reduce;
  std::vector<UnitTimes> times;
  for (const Unit& unit : units) {
    int64_t weights = request.form == GatherForm::kPacked ? unit.packed_bytes : unit.bf16_bytes;
    // Gathered once for the step, a tied table serves both ends.
    if (request.sharding != Sharding::kWeights) weights -= unit.tied_bytes;
    gather.push_back(
        GatherBytes(static_cast<double>(weights), request.nodes, request.cards_per_node));
    reduce.push_back(ReduceBytes(static_cast<double>(kFp32Bytes * unit.parameters), request.nodes,
                                 request.cards_per_node));
    const double forward =
        unit.forward_flops * static_cast<double>(request.batch.tokens()) / rates.flops;
    times.push_back({.forward = forward,
                     .backward = (request.batch.recompute && unit.block ? 3 : 2) * forward,
                     .gather = TimesOf(gather.back(), rates),
                     .reduce = TimesOf(reduce.back(), rates)});
  }
  StepOnPaper step;
  step.time = SimulateStep(times, request.sharding, request.micro_batches);
  for (size_t i = 0; i < units.size(); ++i) {
    AddBytes(gather[i], step.time.gathers[i], step.gathered);
    AddBytes(reduce[i], step.time.reductions, step.reduced);
  }
  return step;
}

std::vector<int64_t> NodesUpTo(int64_t most) {
  std::vector<int64_t> nodes;
  for (int64_t count = 1; count < most; count *= 2) nodes.push_back(count);
  nodes.push_back(most);
  return nodes;
}

}  // namespace nibble
