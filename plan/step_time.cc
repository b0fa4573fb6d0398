#include "plan/step_time.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

class Links {
 public:
  // Return when a message that may leave at `earliest` has arrived.
  double Gather(double earliest, const LinkTimes& times) {
    return Use(node_free_, Use(fabric_free_, earliest, times.fabric), times.node);
  }
  double Reduce(double earliest, const LinkTimes& times) {
    return Use(fabric_free_, Use(node_free_, earliest, times.node), times.fabric);
  }

 private:
  static double Use(double& free, double earliest, double seconds) {
    if (seconds <= 0) return earliest;
    free = std::max(free, earliest) + seconds;
    return free;
  }

  double node_free_ = 0, fabric_free_ = 0;
};

// The gathered weights that a rank has room for, with level weights.
class GatheredPair {
 public:
  struct Place {
    int64_t unit = -1;
    double ready = 0;    // when its weights have arrived
    int64_t visit = 0;   // number of the computation that used it last
    double is_free = 0;  // when that had ended
  };
  Place* Find(int64_t unit) {
    for (Place& place : places_) {
      if (place.unit == unit) return &place;
    }
    return nullptr;
  }
  Place& Oldest() { return places_[0].visit <= places_[1].visit ? places_[0] : places_[1]; }

 private:
  std::array<Place, 2> places_;
};

}  // namespace

StepTime SimulateStep(std::span<const UnitTimes> units, Sharding sharding, int64_t micro_batches) {
  const auto count = static_cast<int64_t>(units.size());
  const auto at = [&](int64_t unit) -> const UnitTimes& {
    return units[static_cast<size_t>(unit)];
  };
  StepTime time;
  time.gathers.assign(units.size(), 0);
  time.reductions = micro_batches;

  Links links;
  std::vector<double> arrived(units.size(), 0);
  if (sharding != Sharding::kWeights) {
    for (int64_t unit = 0; unit < count; ++unit) {
      arrived[static_cast<size_t>(unit)] = links.Gather(0, at(unit).gather);
    }
    time.gathers.assign(units.size(), 1);
  }
  GatheredPair pair;
  const auto ready = [&](int64_t unit) -> double {
    if (sharding != Sharding::kWeights) return arrived[static_cast<size_t>(unit)];
    if (const GatheredPair::Place* place = pair.Find(unit)) return place->ready;
    ++time.gathers[static_cast<size_t>(unit)];
    GatheredPair::Place& place = pair.Oldest();
    place = {.unit = unit, .ready = links.Gather(place.is_free, at(unit).gather)};
    return place.ready;
  };

  // A reduction is enqueued behind the gather that begins when the same backward pass has ended,
  // which is that of the unit after the next.
  struct Pending {
    int64_t unit;
    double complete;
  };
  std::vector<Pending> pending;
  const auto reduce = [&](size_t keep) {
    while (pending.size() > keep) {
      time.step =
          std::max(time.step, links.Reduce(pending[0].complete, at(pending[0].unit).reduce));
      pending.erase(pending.begin());
    }
  };

  double computed = 0;
  int64_t visits = 0;
  const auto compute = [&](int64_t unit, double seconds) {
    const double begin = std::max(computed, ready(unit));
    computed = begin + seconds;
    time.compute += seconds;
    ++visits;
    if (GatheredPair::Place* place = pair.Find(unit)) {
      place->visit = visits;
      place->is_free = computed;
    }
  };
  for (int64_t batch = 0; batch < micro_batches; ++batch) {
    for (int64_t unit = 0; unit < count; ++unit) {
      compute(unit, at(unit).forward);
      reduce(0);
    }
    for (int64_t unit = count - 1; unit >= 0; --unit) {
      compute(unit, at(unit).backward);
      pending.push_back({unit, computed});
      reduce(2);
    }
  }
  reduce(0);
  time.step = std::max(time.step, computed);
  return time;
}

}  // namespace nibble
