#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(BatchSlice, TheSlicesInOrderAreTheGlobalBatch) {
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

using ::testing::ElementsAre;

// FillSequence() as batch.h specifies it, written for clarity.
Batch Reference(const Documents& documents, int64_t window, int64_t length,
                const WindowOptions& options) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> document_of;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const int32_t token : documents[d]) {
      tokens.push_back(token);
      document_of.push_back(static_cast<int64_t>(d));
    }
  }
  Batch batch{.sequences = 1, .length = length};
  for (int64_t i = 0; i < length; ++i) {
    const int64_t at = window * length + i;
    int64_t begin = i;
    while (begin > 0 && document_of[window * length + begin - 1] == document_of[at]) --begin;
    const bool crosses = document_of[at + 1] != document_of[at];
    batch.tokens.push_back(tokens[at]);
    batch.targets.push_back(options.ignore_first_of_document && crosses ? kIgnoredTarget
                                                                        : tokens[at + 1]);
    batch.doc_begin.push_back(options.reset_at_documents ? static_cast<int32_t>(begin) : 0);
  }
  return batch;
}

TEST(Batch, EveryWindowEqualsTheNaiveReference) {
  std::mt19937 random(8);
  for (int i = 0; i < 150; ++i) {
    const Documents documents =
        RandomDocuments(random(), 1 + random() % 40, 1 + random() % 30, 1000);
    const auto shard = MakeShard(documents);
    const int64_t length = 1 + static_cast<int64_t>(random() % 25);
    const int64_t windows = (shard->tokens() - 1) / length;
    for (int64_t window = 0; window < windows; ++window) {
      for (const WindowOptions& options :
           {WindowOptions{true, false}, WindowOptions{true, true}, WindowOptions{false, false},
            WindowOptions{false, true}}) {
        Batch batch = *MakeBatch(1, length);
        const absl::Status status = FillSequence(*shard, window, options, 0, batch);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(batch, Reference(documents, window, length, options)) << i << " " << window;
      }
    }
  }
}

TEST(Batch, AnExampleComputedByHand) {
  ShardOptions shard_options = TestOptions(10);
  shard_options.end_of_document = 9;
  const auto shard = MakeShard({{1, 2}, {3}, {4, 5, 6, 7}}, shard_options);  // 1 2 9 3 9 4 5 6 7 9
  Batch batch = *MakeBatch(1, 6);
  ASSERT_TRUE(FillSequence(*shard, 0, {}, 0, batch).ok());
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 9, 3, 9, 4));
  EXPECT_THAT(batch.targets, ElementsAre(2, 9, 3, 9, 4, 5));
  EXPECT_THAT(batch.doc_begin, ElementsAre(0, 0, 0, 3, 3, 5));
  ASSERT_TRUE(FillSequence(*shard, 0, {.ignore_first_of_document = true}, 0, batch).ok());
  EXPECT_THAT(batch.targets, ElementsAre(2, 9, -1, 9, -1, 5));
}

TEST(Batch, FillingASequenceLeavesOtherRowsUnchanged) {
  const auto shard = MakeShard(RandomDocuments(1, 10, 20, 1000));
  Batch batch = *MakeBatch(3, 5);
  const Batch zeros = batch;
  ASSERT_TRUE(FillSequence(*shard, 1, {}, 1, batch).ok());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(batch.tokens[i], 0);
    EXPECT_EQ(batch.tokens[10 + i], 0);
    EXPECT_EQ(batch.targets[10 + i], 0);
  }
  EXPECT_NE(batch, zeros);
  for (const int64_t row : {-1, 3}) {
    EXPECT_EQ(FillSequence(*shard, 1, {}, row, batch).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(Batch, WindowsPastTheTokensAreRefused) {
  const auto shard = MakeShard({std::vector<int32_t>(10, 1)});
  Batch batch = *MakeBatch(1, 5);
  EXPECT_TRUE(FillSequence(*shard, 0, {}, 0, batch).ok());
  for (const int64_t window : {int64_t{-1}, int64_t{1}, int64_t{2}, int64_t{3}, INT64_MAX}) {
    EXPECT_EQ(FillSequence(*shard, window, {}, 0, batch).code(), absl::StatusCode::kOutOfRange)
        << window;
  }
}

TEST(Batch, ShapesOutOfBoundsAreRefused) {
  EXPECT_THAT(std::string(MakeBatch(1, 0).status().message()), HasSubstr("length is 0"));
  EXPECT_FALSE(MakeBatch(0, 1).ok());
  EXPECT_FALSE(MakeBatch(-1, 1).ok());
  EXPECT_FALSE(MakeBatch(int64_t{1} << 40, 1).ok());
  EXPECT_FALSE(MakeBatch(int64_t{1} << 20, 4096).ok());
  EXPECT_FALSE(MakeBatch(INT64_MAX, INT64_MAX).ok());
}

}  // namespace
}  // namespace nibble
