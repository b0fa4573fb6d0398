// For tests: revisions and timelines.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_TIMELINE_TESTING_H_
#define NIBBLE_WORKER_TRAINER_LOOP_TIMELINE_TESTING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "recipe/timeline.h"

namespace nibble {

inline Revision RevisionAt(int64_t number, int64_t first_step) {
  return {.number = number, .first_step = first_step, .recipe = {.preset = "nvfp4"}};
}

inline Timeline TimelineOf(std::vector<Revision> revisions) {
  absl::StatusOr<Timeline> timeline = Timeline::FromRevisions(std::move(revisions));
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *std::move(timeline);
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_TIMELINE_TESTING_H_
