#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// Each token is its position, so that a batch shows where it was read.
Documents Counting(int32_t first, int32_t count) {
  Documents documents;
  for (int32_t i = 0; i < count; ++i) {
    if (i % 13 == 0) documents.emplace_back();
    documents.back().push_back(first + i);
  }
  return documents;
}

std::shared_ptr<const TokenSource> CountingShard(int32_t first, int32_t count) {
  return MakeShard(Counting(first, count), TestOptions(60'000));
}

BatchBuilder Builder(int64_t global_sequences, int64_t length, uint64_t seed = 5) {
  auto builder =
      BatchBuilder::Create({{CountingShard(0, 1000), 3}, {CountingShard(10'000, 301), 1}},
                           {.seed = seed, .global_sequences = global_sequences, .length = length});
  EXPECT_TRUE(builder.ok()) << builder.status();
  return *std::move(builder);
}

// The global batch, concatenated from the micro-batches of all ranks.
Batch Together(const BatchBuilder& builder, int64_t step, int64_t world, int64_t micros) {
  Batch all{.length = builder.options().length};
  for (int64_t rank = 0; rank < world; ++rank) {
    for (int64_t micro = 0; micro < micros; ++micro) {
      const auto batch = builder.Build({step, rank, world, micro, micros});
      EXPECT_TRUE(batch.ok()) << batch.status();
      all.sequences += batch->sequences;
      all.tokens.insert(all.tokens.end(), batch->tokens.begin(), batch->tokens.end());
      all.targets.insert(all.targets.end(), batch->targets.begin(), batch->targets.end());
      all.doc_begin.insert(all.doc_begin.end(), batch->doc_begin.begin(), batch->doc_begin.end());
    }
  }
  return all;
}

TEST(BatchBuilder, TheGlobalBatchIsTheSameForAnyNumberOfRanksAndMicroBatches) {
  for (const int64_t length : {1, 7, 16}) {
    const BatchBuilder builder = Builder(24, length);
    for (int64_t step = 0; step < 12; ++step) {
      const auto whole = builder.Build({.step = step});
      ASSERT_TRUE(whole.ok()) << whole.status();
      ASSERT_EQ(whole->sequences, 24);
      for (const int64_t world : {1, 2, 3, 4, 8, 24}) {
        for (const int64_t micros : {1, 2, 3, 6, 24}) {
          if (24 % (world * micros) != 0) continue;
          ASSERT_EQ(Together(builder, step, world, micros), *whole) << world << " " << micros;
        }
      }
    }
  }
}

TEST(BatchBuilder, TheOrderFollowsTheGlobalIndexForAnyGlobalBatchSize) {
  const Batch a = Together(Builder(24, 8), 0, 1, 1);
  Batch b{.length = 8};
  for (int64_t step = 0; step < 4; ++step) {
    const Batch part = Together(Builder(6, 8), step, 2, 1);
    b.sequences += part.sequences;
    b.tokens.insert(b.tokens.end(), part.tokens.begin(), part.tokens.end());
  }
  EXPECT_EQ(b.sequences, 24);
  EXPECT_EQ(b.tokens, a.tokens);
}

TEST(BatchBuilder, AnEpochTrainsOnEveryTargetExactlyOnce) {
  constexpr int64_t kLength = 9, kSequences = 5;
  for (const int32_t tokens : {10, 11, 100, 991}) {
    const auto builder =
        BatchBuilder::Create({{CountingShard(0, tokens)}},
                             {.seed = 1, .global_sequences = kSequences, .length = kLength});
    ASSERT_TRUE(builder.ok());
    const int64_t samples = (tokens - 1) / kLength;
    std::map<int32_t, int> times;
    const int64_t rows = samples * kSequences;  // as many epochs as the global batch has sequences
    for (int64_t step = 0; step < rows / kSequences; ++step) {
      const auto batch = builder->Build({.step = step});
      for (const int32_t target : batch->targets) ++times[target];
    }
    EXPECT_EQ(static_cast<int64_t>(times.size()), samples * kLength);
    for (const auto& [target, count] : times) {
      EXPECT_GE(target, 1);
      EXPECT_EQ(count, kSequences) << target;
    }
  }
}

TEST(BatchBuilder, SequencesComeFromTheDatasetsInProportionToTheirWeights) {
  const BatchBuilder builder = Builder(4, 10);
  for (int64_t step = 0; step < 50; ++step) {
    const auto batch = builder.Build({.step = step});
    int second = 0;
    for (int64_t row = 0; row < 4; ++row) second += batch->tokens[row * 10] >= 10'000;
    EXPECT_EQ(second, 1) << step;
  }
}

TEST(BatchBuilder, ABatchDoesNotDependOnEarlierBuilds) {
  const BatchBuilder a = Builder(8, 6), b = Builder(8, 6);
  std::vector<Batch> forward;
  for (int64_t step = 0; step < 20; ++step) forward.push_back(*a.Build({.step = step}));
  for (int64_t step = 19; step >= 0; --step) EXPECT_EQ(*b.Build({.step = step}), forward[step]);
  EXPECT_NE(*Builder(8, 6, 6).Build({}), forward[0]);
}

TEST(BatchBuilder, PhasesGiveTheSameGlobalBatchForAnyNumberOfRanks) {
  const auto builder = BatchBuilder::Create(
      {CountingShard(0, 1000), CountingShard(10'000, 301)},
      {{.parts = 70, .weights = {1, 0}}, {.parts = 20, .weights = {1, 1}}, {10, {0, 1}}}, 10,
      {.seed = 5, .global_sequences = 12, .length = 8});
  ASSERT_TRUE(builder.ok()) << builder.status();
  for (int64_t step = 0; step < 12; ++step) {
    const auto whole = builder->Build({.step = step});
    ASSERT_TRUE(whole.ok()) << whole.status();
    int second = 0;
    for (int64_t row = 0; row < 12; ++row) second += whole->tokens[row * 8] >= 10'000;
    EXPECT_EQ(second, step < 7 ? 0 : step < 9 ? 6 : 12) << step;
    for (const int64_t world : {1, 2, 3, 4}) {
      ASSERT_EQ(Together(*builder, step, world, 1), *whole) << world;
    }
  }
}

TEST(BatchBuilder, OnePhaseGivesTheBatchesOfItsWeights) {
  const BatchOptions options{.seed = 5, .global_sequences = 8, .length = 6};
  const BatchBuilder plain = Builder(8, 6);
  const auto phased = BatchBuilder::Create({CountingShard(0, 1000), CountingShard(10'000, 301)},
                                           {{.parts = 1, .weights = {3, 1}}}, 17, options);
  ASSERT_TRUE(phased.ok()) << phased.status();
  for (int64_t step = 0; step < 30; ++step) {
    ASSERT_EQ(*phased->Build({.step = step}), *plain.Build({.step = step}));
  }
}

TEST(BatchBuilder, PhasesThatDoNotFitTheSourcesAreRefused) {
  const absl::Status status =
      BatchBuilder::Create({CountingShard(0, 100)}, {{.parts = 1, .weights = {3, 1}}}, 17,
                           {.global_sequences = 8, .length = 6})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 weights"));
}

TEST(BatchBuilder, SourcesThatCannotBeBlendedAreRefusedByName) {
  const BatchOptions options{.global_sequences = 2, .length = 10};
  const auto error = [](std::vector<BlendedSource> sources, const BatchOptions& with) {
    const absl::Status status = BatchBuilder::Create(std::move(sources), with).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto shard = CountingShard(0, 100);
  ShardOptions other = TestOptions(60'000);
  other.tokenizer = "other";
  EXPECT_THAT(error({}, options), HasSubstr("0 data sets"));
  EXPECT_THAT(error({{shard}, {nullptr}}, options), HasSubstr("data set 1"));
  EXPECT_THAT(error({{shard, 0}}, options), HasSubstr("weights[0]"));
  EXPECT_THAT(error({{shard}, {CountingShard(0, 10)}}, options), HasSubstr("tokens is 10"));
  EXPECT_THAT(error({{shard}, {MakeShard(Counting(0, 50), other)}}, options),
              HasSubstr("tokenizer \"other\""));
  EXPECT_THAT(error({{shard}, {MakeShard(Counting(0, 50), TestOptions(50'000))}}, options),
              HasSubstr("50000"));
  EXPECT_THAT(error({{shard}}, {.global_sequences = 2, .length = 0}), HasSubstr("length is 0"));
  EXPECT_THAT(error({{shard}}, {.global_sequences = 0, .length = 10}),
              HasSubstr("global_sequences is 0"));
}

TEST(BatchBuilder, DamagedDataIsAnError) {
  const TempDirectory directory;
  WriteShard(directory.Path("s"), Counting(0, 1000), TestOptions(60'000));
  std::string bytes = Contents(directory.Path("s"));
  bytes[128 + 777] ^= 4;
  WriteFile(directory.Path("s"), bytes);
  auto shard = TokenShard::Open(directory.Path("s"));
  ASSERT_TRUE(shard.ok());
  const auto builder =
      BatchBuilder::Create({{*std::move(shard)}}, {.global_sequences = 99, .length = 10});
  ASSERT_TRUE(builder.ok());
  EXPECT_EQ(builder->Build({}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(BatchBuilder, SlicesOutOfBoundsAreRefused) {
  EXPECT_EQ(Builder(8, 6).Build({.step = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Builder(8, 6).Build({.rank = 2, .world = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

using ::testing::Each;

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
        expected.erase(expected.begin());  // the first token is not a target
        EXPECT_EQ(counted, expected) << tokens << " " << world << " " << micros;
      }
    }
  }
}

TEST(ValidationSet, TheLastBatchIsPaddedWithItsLastWindowIgnored) {
  const ValidationSet set = Make(31, {.global_sequences = 4, .length = 10});  // three windows
  ASSERT_EQ(set.batches(), 1);
  const auto batch = set.Build({});
  EXPECT_EQ(std::vector<int32_t>(batch->tokens.begin() + 30, batch->tokens.end()),
            std::vector<int32_t>(batch->tokens.begin() + 20, batch->tokens.begin() + 30));
  EXPECT_THAT(std::vector<int32_t>(batch->targets.begin() + 30, batch->targets.end()), Each(-1));
  EXPECT_EQ(batch->targets[29], 30);
}

TEST(ValidationSet, NoBatchIsWhollyIgnored) {
  const auto batches = [](int32_t windows) {
    return Make(10 * windows + 1, {.global_sequences = 4, .length = 10}).batches();
  };
  EXPECT_EQ(batches(47), 12);
  EXPECT_EQ(batches(48), 12);
  EXPECT_EQ(batches(49), 13);
  EXPECT_EQ(batches(1), 1);
}

TEST(ValidationSet, ALimitDoesNotChangeTheFirstBatches) {
  const ValidationSet all = Make(500, {.global_sequences = 4, .length = 10});
  const ValidationSet two = Make(500, {.global_sequences = 4, .length = 10, .max_batches = 2});
  EXPECT_EQ(all.batches(), 13);
  EXPECT_EQ(two.batches(), 2);
  for (const int64_t limit : {13, 14, 99}) {
    EXPECT_EQ(Make(500, {.global_sequences = 4, .length = 10, .max_batches = limit}).batches(), 13);
  }
  for (int64_t b = 0; b < 2; ++b) EXPECT_EQ(*two.Build({.step = b}), *all.Build({.step = b}));
  EXPECT_EQ(two.Build({.step = 2}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ValidationSet, InvalidSourcesAndOptionsAreRefusedByName) {
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
