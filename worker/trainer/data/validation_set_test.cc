#include "worker/trainer/data/validation_set.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<int32_t> Counting(int32_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = i;
  return tokens;
}

ValidationSet Make(int32_t tokens, const ValidationOptions& options) {
  auto set = ValidationSet::Create(MakeShard({Counting(tokens)}), options);
  EXPECT_TRUE(set.ok()) << set.status();
  return *std::move(set);
}

TEST(ValidationSet, EveryTargetCountsExactlyOnceInOrderForAnyNumberOfRanks) {
  for (const int32_t tokens : {11, 12, 100, 121, 130, 999}) {
    for (const int64_t world : {1, 2, 3, 6}) {
      for (const int64_t micros : {1, 2, 3}) {
        if (12 % (world * micros) != 0) continue;
        const ValidationSet set = Make(tokens, {.global_sequences = 12, .length = 10});
        std::vector<int32_t> counted;
        for (int64_t b = 0; b < set.batches(); ++b) {
          for (int64_t rank = 0; rank < world; ++rank) {
            for (int64_t micro = 0; micro < micros; ++micro) {
              const auto batch = set.Build({b, rank, world, micro, micros});
              ASSERT_TRUE(batch.ok()) << batch.status();
              ASSERT_EQ(batch->sequences, 12 / world / micros);
              for (const int32_t target : batch->targets) {
                if (target != kIgnoredTarget) counted.push_back(target);
              }
            }
          }
        }
        std::vector<int32_t> expected = Counting((tokens - 1) / 10 * 10 + 1);
        expected.erase(expected.begin());  // the first token is no target
        EXPECT_EQ(counted, expected) << tokens << " " << world << " " << micros;
      }
    }
  }
}

TEST(ValidationSet, TheLastBatchIsFilledUpWithItsLastWindowIgnored) {
  const ValidationSet set = Make(31, {.global_sequences = 4, .length = 10});  // three windows
  ASSERT_EQ(set.batches(), 1);
  const auto batch = set.Build({});
  EXPECT_EQ(std::vector<int32_t>(batch->tokens.begin() + 30, batch->tokens.end()),
            std::vector<int32_t>(batch->tokens.begin() + 20, batch->tokens.begin() + 30));
  EXPECT_THAT(std::vector<int32_t>(batch->targets.begin() + 30, batch->targets.end()), Each(-1));
  EXPECT_EQ(batch->targets[29], 30);
}

TEST(ValidationSet, TheFirstBatchesAreTheSameUnderALimit) {
  const ValidationSet all = Make(500, {.global_sequences = 4, .length = 10});
  const ValidationSet two = Make(500, {.global_sequences = 4, .length = 10, .max_batches = 2});
  EXPECT_EQ(all.batches(), 13);
  EXPECT_EQ(two.batches(), 2);
  EXPECT_EQ(Make(500, {.global_sequences = 4, .length = 10, .max_batches = 99}).batches(), 13);
  for (int64_t b = 0; b < 2; ++b) EXPECT_EQ(*two.Build({.step = b}), *all.Build({.step = b}));
  EXPECT_EQ(two.Build({.step = 2}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ValidationSet, WhatCannotValidateIsRefusedByName) {
  const auto error = [](int32_t tokens, const ValidationOptions& options) {
    const absl::Status status =
        ValidationSet::Create(MakeShard({Counting(tokens)}), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(10, {.global_sequences = 1, .length = 10}), HasSubstr("tokens is 10"));
  EXPECT_THAT(error(99, {.global_sequences = 1, .length = 0}), HasSubstr("length is 0"));
  EXPECT_THAT(error(99, {.global_sequences = 0, .length = 1}), HasSubstr("global_sequences is 0"));
  EXPECT_THAT(error(99, {.global_sequences = 1, .length = 1, .max_batches = -1}),
              HasSubstr("max_batches is -1"));
  EXPECT_FALSE(ValidationSet::Create(nullptr, {.global_sequences = 1, .length = 1}).ok());
}

}  // namespace
}  // namespace nibble
