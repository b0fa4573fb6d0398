#include "worker/trainer/data/batch_slice.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(BatchSlice, RanksAndTheirMicroBatchesInOrderAreTheGlobalBatchInOrder) {
  for (const int64_t sequences : {1, 2, 7, 12, 24, 48, 97}) {
    for (int64_t world = 1; world <= sequences; ++world) {
      for (int64_t micros = 1; world * micros <= sequences; ++micros) {
        if (sequences % (world * micros) != 0) continue;
        int64_t next = 0;
        for (int64_t step = 0; step < 3; ++step) {
          for (int64_t rank = 0; rank < world; ++rank) {
            for (int64_t micro = 0; micro < micros; ++micro) {
              const auto range = SliceRange(sequences, {step, rank, world, micro, micros});
              ASSERT_TRUE(range.ok()) << range.status();
              ASSERT_EQ(*range, (IndexRange{next, sequences / world / micros}));
              next += range->count;
            }
          }
        }
        ASSERT_EQ(next, 3 * sequences);
      }
    }
  }
}

TEST(BatchSlice, SlicesOutOfBoundsAreRefusedByName) {
  const struct {
    const char* message;
    int64_t sequences;
    BatchSlice slice;
  } kCases[] = {
      {"global_sequences is 0", 0, {}},
      {"global_sequences is -4", -4, {}},
      {"world is 0", 4, {.world = 0}},
      {"world is 5", 4, {.world = 5}},
      {"micros is 0", 4, {.micros = 0}},
      {"micros is 8", 4, {.micros = 8}},
      {"rank is 2", 4, {.rank = 2, .world = 2}},
      {"rank is -1", 4, {.rank = -1, .world = 2}},
      {"micro is 2", 4, {.micro = 2, .micros = 2}},
      {"micro is -1", 4, {.micro = -1, .micros = 2}},
      {"step is -1", 4, {.step = -1}},
      {"step is", 4, {.step = int64_t{1} << 60}},
      {"step is", 3, {.step = INT64_MAX}},
      {"world 3 times micros 1", 4, {.world = 3}},
      {"world 2 times micros 4", 4, {.world = 2, .micros = 4}},
      {"not a multiple", int64_t{1} << 40, {.world = int64_t{1} << 40, .micros = int64_t{1} << 40}},
  };
  for (const auto& one : kCases) {
    const absl::Status status = SliceRange(one.sequences, one.slice).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
  }
  EXPECT_TRUE(SliceRange(4, {.step = (int64_t{1} << 60) - 1}).ok());
}

}  // namespace
}  // namespace nibble
