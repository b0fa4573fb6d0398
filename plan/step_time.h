// The time of a data-parallel step, from the times of its parts, by a discrete simulation of one
// rank: a queue that computes and two links that each carry one message at a time, in the order in
// which they were enqueued. All ranks are alike.
//
//   gather      of a unit's weights: over the fabric between nodes, then over the link in the node
//   reduction   of a unit's gradients: over the link in the node, then over the fabric
//
// A step begins when all parts of the weights are updated, which needs the norm of all gradients
// and with it the end of all reductions. So steps do not overlap, and one step is simulated:
//   - Levels optimizer and gradients: the gathers are enqueued at once, in the order of the forward
//     pass. A unit's forward pass waits for its gather.
//   - Level weights: two units have room. A gather begins when the unit before the previous one has
//     been computed, and is left out while the unit is still there: where the passes turn, the last
//     two units are.
//   - A unit's reduction is enqueued when its backward pass has ended, in each micro-batch.
//   - The step ends with the last reduction. The update's own time is part of the compute rate.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_PLAN_STEP_TIME_H_
#define NIBBLE_PLAN_STEP_TIME_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plan/sharding.h"

namespace nibble {

// Seconds on each link; 0 where nothing is sent: the link is then not waited for.
struct LinkTimes {
  double node = 0;
  double fabric = 0;
};

struct UnitTimes {
  double forward = 0;   // seconds of computation, for one micro-batch
  double backward = 0;  // with the forward pass again, if it is recomputed
  LinkTimes gather, reduce;
};

struct StepTime {
  double compute = 0;  // seconds
  double step = 0;     // from the update of one step to the end of the next one's reductions
  std::vector<int64_t> gathers;  // of each unit's weights in a step
  int64_t reductions = 0;        // of each unit's gradients

  double exposed() const { return step - compute; }  // communication that nothing hides
  double efficiency() const { return step > 0 ? compute / step : 1; }
};

// `units`: in the order of the forward pass. `micro_batches`: at least 1.
StepTime SimulateStep(std::span<const UnitTimes> units, Sharding sharding, int64_t micro_batches);

}  // namespace nibble

#endif  // NIBBLE_PLAN_STEP_TIME_H_
