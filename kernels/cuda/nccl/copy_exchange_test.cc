// The order of copies, waits and flags, with streams in plain C++: all ranks' streams advance in
// random order, one operation at a time, and copies in halves.
#include "kernels/cuda/nccl/copy_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/nccl/copy_offer.h"

namespace nibble {
namespace {

using testing::HasSubstr;

struct FakeOperation {
  std::function<bool()> ready;  // null: always
  std::function<void()> run;
};
using FakeStream = std::deque<FakeOperation>;

enum StreamKind : int { kPushes, kTakes, kTransfers, kStreams };
enum FlagKind : int { kArrived, kTaken, kTurn, kFlags };

// The cards of one host: streams, and the flags that they share.
class FakeCards {
 public:
  FakeCards(int world, uint64_t first, CopySlots slots, bool one_stream)
      : world(world),
        plan(slots),
        one_stream(one_stream),
        streams(static_cast<size_t>(world * kStreams)),
        flags(static_cast<size_t>(kFlags * world * world), static_cast<uint32_t>(first - 1)),
        receiving(static_cast<size_t>(world), 0) {
    for (int r = 0; r < world; ++r) memory.emplace_back(static_cast<size_t>(plan.bytes(world)));
  }

  FakeStream& StreamOf(int rank, StreamKind kind) {
    return streams[static_cast<size_t>(rank * kStreams + (one_stream ? 0 : kind))];
  }
  // `index`: the writer's rank, or the receiver's whose turn it is.
  uint32_t& Flag(FlagKind kind, int owner, int index) {
    return flags[static_cast<size_t>((kind * world + owner) * world + index)];
  }

  // Runs one operation that is ready, of `only` or of any rank; false if there is none.
  bool Step(std::mt19937_64& random, const std::vector<bool>& stopped = {}) {
    std::vector<size_t> ready;
    for (size_t s = 0; s < streams.size(); ++s) {
      const size_t rank = s / kStreams;
      if (streams[s].empty() || (!stopped.empty() && stopped[rank])) continue;
      if (!streams[s].front().ready || streams[s].front().ready()) ready.push_back(s);
    }
    if (ready.empty()) return false;
    FakeStream& stream = streams[ready[random() % ready.size()]];
    const FakeOperation operation = std::move(stream.front());
    stream.pop_front();
    operation.run();
    return true;
  }
  bool Idle(int rank) {
    for (int i = 0; i < kStreams; ++i) {
      if (!streams[static_cast<size_t>(rank * kStreams + i)].empty()) return false;
    }
    return true;
  }

  const int world;
  const CopySlots plan;
  const bool one_stream;  // of each rank
  std::vector<FakeStream> streams;
  std::vector<uint32_t> flags;
  std::vector<int> receiving;             // copies that are under way to a rank
  int most_received = 0;                  // at once
  std::vector<std::vector<char>> memory;  // slots, by rank
};

class FakeStreams final : public CopyStreams {
 public:
  FakeStreams(FakeCards& cards, int rank) : cards_(cards), rank_(rank) {}

  CopySlots slots() const override { return cards_.plan; }
  absl::Status Begin() override {
    const auto begun = RecordIn(kTransfers);
    for (const StreamKind kind : {kPushes, kTakes}) WaitIn(kind, begun);
    return absl::OkStatus();
  }
  absl::Status End() override {
    for (const StreamKind kind : {kPushes, kTakes}) WaitIn(kTransfers, RecordIn(kind));
    return absl::OkStatus();
  }
  absl::Status Await(int peer, const Waits& waits) override {
    FakeStream& pushes = cards_.StreamOf(rank_, kPushes);
    if (waits.taken.has_value()) pushes.push_back({Reached(kTaken, peer, *waits.taken), [] {}});
    if (waits.turn.has_value()) pushes.push_back({Reached(kTurn, peer, *waits.turn), [] {}});
    return absl::OkStatus();
  }
  absl::Status Push(int peer, int64_t slot, const void* from, int64_t bytes) override {
    char* const to = cards_.memory[static_cast<size_t>(peer)].data() +
                     cards_.plan.slot_offset(slot, cards_.world) +
                     CopyLane(peer, rank_) * cards_.plan.slot_bytes;
    const auto* const source = static_cast<const char*>(from);
    const auto half = static_cast<size_t>(bytes / 2), rest = static_cast<size_t>(bytes) - half;
    FakeStream& pushes = cards_.StreamOf(rank_, kPushes);
    int& receiving = cards_.receiving[static_cast<size_t>(peer)];
    pushes.push_back({nullptr, [=, this, &receiving] {
                        cards_.most_received = std::max(cards_.most_received, ++receiving);
                        std::memcpy(to, source, half);
                      }});
    pushes.push_back({nullptr, [=, &receiving] {
                        std::memcpy(to + half, source + half, rest);
                        --receiving;
                      }});
    return absl::OkStatus();
  }
  absl::Status RaiseArrived(int peer, uint32_t piece, int next) override {
    Raise(kPushes, kArrived, peer, rank_, piece);
    if (next != rank_) Raise(kPushes, kTurn, next, peer, piece);
    return absl::OkStatus();
  }
  absl::Status AwaitArrived(uint32_t piece) override {
    for (int peer = 0; peer < cards_.world; ++peer) {
      if (peer == rank_) continue;
      cards_.StreamOf(rank_, kTakes).push_back({Reached(kArrived, peer, piece), [] {}});
    }
    return absl::OkStatus();
  }
  absl::Status RaiseTaken(uint32_t piece) override {
    for (int peer = 0; peer < cards_.world; ++peer) {
      if (peer != rank_) Raise(kTakes, kTaken, peer, rank_, piece);
    }
    return absl::OkStatus();
  }
  char* slot_memory() const override { return cards_.memory[static_cast<size_t>(rank_)].data(); }
  void* take_stream() const override { return nullptr; }
  absl::Status PeersStatus() const override { return absl::OkStatus(); }
  void Release(uint64_t issued, bool) override {
    for (const FlagKind kind : {kArrived, kTaken, kTurn}) {
      for (int peer = 0; peer < cards_.world; ++peer) {
        cards_.Flag(kind, rank_, peer) = CopyFlagReleased(issued);
      }
    }
  }

 private:
  std::function<bool()> Reached(FlagKind kind, int index, uint32_t piece) {
    return
        [flag = &cards_.Flag(kind, rank_, index), piece] { return CopyFlagReached(*flag, piece); };
  }
  void Raise(StreamKind stream, FlagKind kind, int owner, int index, uint32_t piece) {
    cards_.StreamOf(rank_, stream)
        .push_back({nullptr, [flag = &cards_.Flag(kind, owner, index), piece] { *flag = piece; }});
  }
  std::shared_ptr<bool> RecordIn(StreamKind stream) {
    auto passed = std::make_shared<bool>(false);
    cards_.StreamOf(rank_, stream).push_back({nullptr, [passed] { *passed = true; }});
    return passed;
  }
  void WaitIn(StreamKind stream, const std::shared_ptr<bool>& passed) {
    cards_.StreamOf(rank_, stream).push_back({[passed] { return *passed; }, [] {}});
  }

  FakeCards& cards_;
  const int rank_;
};

// A rank and its buffers: in: [world, count], whose slices are summed in rank order.
struct FakeRank {
  FakeRank(FakeCards& cards, int rank, uint64_t first)
      : cards(cards),
        rank(rank),
        streams(cards, rank),
        exchange(streams, rank, cards.world, first) {}

  // Writes new values once the queue gets there, and reduces them; `out` holds the sum afterwards.
  // The values are destroyed as soon as the operation has run on this rank.
  void ReduceScatter(std::mt19937_64& random, int64_t count) {
    auto in = std::make_shared<std::vector<float>>(static_cast<size_t>(cards.world * count), -1.0f);
    auto values = std::make_shared<std::vector<float>>(in->size());
    for (float& x : *values) {
      x = std::ldexp(static_cast<float>(random() % 16777216), static_cast<int>(random() % 24));
    }
    ins.push_back(values);
    outs.push_back(std::make_shared<std::vector<float>>(static_cast<size_t>(count)));
    const std::shared_ptr<std::vector<float>> out = outs.back();
    FakeStream& transfers = cards.StreamOf(rank, kTransfers);
    transfers.push_back({nullptr, [in, values] { *in = *values; }});
    const auto stride = cards.plan.slot_bytes / 4;
    const absl::Status status = exchange.Run(
        4 * count, [&](int peer) { return in->data() + peer * count; },
        [&](int64_t first_byte, int64_t bytes, const char* lanes) {
          const int64_t first = first_byte / 4;
          FakeStream& take = cards.StreamOf(rank, kTakes);
          take.push_back({nullptr, [=, this] {
                            for (int64_t i = 0; i < bytes / 4; ++i) {
                              float sum = 0;
                              for (int r = 0; r < cards.world; ++r) {
                                const float* slice = r == rank
                                                         ? in->data() + rank * count + first
                                                         : reinterpret_cast<const float*>(lanes) +
                                                               CopyLane(rank, r) * stride;
                                sum = r == 0 ? slice[i] : sum + slice[i];
                              }
                              (*out)[static_cast<size_t>(first + i)] = sum;
                            }
                          }});
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    transfers.push_back({nullptr, [in] { in->assign(in->size(), -2.0f); }});
  }

  FakeCards& cards;
  const int rank;
  FakeStreams streams;
  CopyExchange exchange;
  std::vector<std::shared_ptr<std::vector<float>>> ins, outs;  // by operation
};

struct FakeGroup {
  FakeGroup(int world, CopySlots slots, uint64_t first = 1, bool one_stream = false)
      : cards(world, first, slots, one_stream) {
    for (int r = 0; r < world; ++r) ranks.push_back(std::make_unique<FakeRank>(cards, r, first));
  }
  // The elements that are not the sum in rank order.
  int64_t Wrong() const {
    int64_t wrong = 0;
    const auto world = static_cast<size_t>(cards.world);
    for (size_t o = 0; o < ranks[0]->outs.size(); ++o) {
      const size_t count = ranks[0]->outs[o]->size();
      for (size_t r = 0; r < world; ++r) {
        for (size_t i = 0; i < count; ++i) {
          float sum = (*ranks[0]->ins[o])[r * count + i];
          for (size_t s = 1; s < world; ++s) sum += (*ranks[s]->ins[o])[r * count + i];
          if ((*ranks[r]->outs[o])[i] != sum) ++wrong;
        }
      }
    }
    return wrong;
  }
  bool Idle() {
    for (int r = 0; r < cards.world; ++r) {
      if (!cards.Idle(r)) return false;
    }
    return true;
  }

  FakeCards cards;
  std::vector<std::unique_ptr<FakeRank>> ranks;
};

// Ranks call at different times: the streams advance between the calls.
void RunOperations(FakeGroup& group, std::mt19937_64& random, int operations, int64_t most) {
  std::vector<int64_t> counts;
  for (int o = 0; o < operations; ++o) {
    counts.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
  }
  std::vector<int> called(group.ranks.size(), 0);
  for (size_t left = group.ranks.size() * counts.size(); left > 0; --left) {
    size_t r = random() % group.ranks.size();
    while (called[r] == operations) r = (r + 1) % group.ranks.size();
    group.ranks[r]->ReduceScatter(random, counts[static_cast<size_t>(called[r]++)]);
    for (uint64_t steps = random() % 200; steps > 0 && group.cards.Step(random); --steps) {
    }
  }
  while (group.cards.Step(random)) {
  }
}

TEST(CopyExchangeTest, SumsAreThoseOfRankOrderHoweverTheStreamsAdvance) {
  std::mt19937_64 random(1);
  for (const int world : {2, 3, 4, 8}) {
    for (const int64_t slots : {1, 2, 4}) {
      for (int trial = 0; trial < 6; ++trial) {
        FakeGroup group(world, {.slots = slots, .slot_bytes = 32});
        RunOperations(group, random, 4, 70);
        ASSERT_TRUE(group.Idle()) << world << " ranks, " << slots << " slots";
        ASSERT_EQ(group.Wrong(), 0) << world << " ranks, " << slots << " slots";
        ASSERT_EQ(group.cards.most_received, 1) << "copies to one rank at once";
      }
    }
  }
}

TEST(CopyExchangeTest, NumbersOfPiecesMayWrapAround) {
  std::mt19937_64 random(2);
  for (const uint64_t first : {(uint64_t{1} << 32) - 9, (uint64_t{1} << 31) - 9}) {
    FakeGroup group(3, {.slots = 2, .slot_bytes = 16}, first);
    RunOperations(group, random, 5, 40);
    EXPECT_TRUE(group.Idle());
    EXPECT_EQ(group.Wrong(), 0);
  }
}

// Cards have fewer hardware queues than there may be streams, so that a stream may wait for another
// one's wait.
TEST(CopyExchangeTest, RanksThatRunEverythingInOneStreamFinish) {
  std::mt19937_64 random(3);
  for (const int world : {2, 3, 5}) {
    for (int trial = 0; trial < 10; ++trial) {
      FakeGroup group(world, {.slots = 2, .slot_bytes = 32}, 1, true);
      RunOperations(group, random, 3, 100);
      ASSERT_TRUE(group.Idle());
      ASSERT_EQ(group.Wrong(), 0);
    }
  }
}

TEST(CopyExchangeTest, AReleasedRankEndsWhereverItsPeersHaveStopped) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    FakeGroup group(3, {.slots = 2, .slot_bytes = 16});
    std::vector<uint64_t> issued;  // before the last call: Release() comes from another thread
    for (const auto& rank : group.ranks) {
      rank->ReduceScatter(random, 60);
      issued.push_back(rank->exchange.issued());
      rank->ReduceScatter(random, 60);
    }
    for (uint64_t steps = random() % 800; steps > 0 && group.cards.Step(random); --steps) {
    }
    // Rank 2 is lost. The others may still set one another's flags after they are released, so that
    // a rank releases itself until its streams have ended.
    const std::vector<bool> stopped = {false, false, true};
    while (group.cards.Step(random, stopped)) {
    }
    for (int beat = 0; beat < 400; ++beat) {
      for (const int r : {0, 1}) group.ranks[r]->streams.Release(issued[r], true);
      for (int steps = 0; steps < 5 && group.cards.Step(random, stopped); ++steps) {
      }
    }
    ASSERT_TRUE(group.cards.Idle(0) && group.cards.Idle(1)) << "trial " << trial;
  }
}

TEST(CopyExchangeTest, SlotsOfAllWorldsFitIntoTheirMemory) {
  for (int world = 2; world <= 64; ++world) {
    const CopySlots slots = PlanCopySlots(world);
    EXPECT_GE(slots.slots, 2);
    EXPECT_GT(slots.slot_bytes, 0);
    EXPECT_EQ(slots.slot_bytes % 4096, 0);
    EXPECT_LE(slots.bytes(world), kMostCopyBytes);
  }
  for (const int world : {2, 4, 8}) {
    EXPECT_EQ(PlanCopySlots(world).slot_bytes, int64_t{16} << 20) << world;
  }
  EXPECT_EQ(PlanCopySlots(4).slots, 4);
}

TEST(CopyOfferTest, WordsAreAllOfAnOffer) {
  const CopyOffer offer = {.host = {1, 2},
                           .slots = {3, 4, 5, 6, 7, 8, 9, 10},
                           .flags = 11,
                           .obstacle = CopyObstacle::kFlags};
  const auto words = offer.ToWords();
  EXPECT_EQ(CopyOffer::FromWords(words).ToWords(), words);
}

TEST(CopyOfferTest, OneRankThatCannotIsNamedToAll) {
  std::vector<CopyOffer> offers(3);
  EXPECT_EQ(WhyNoCopies(offers), "");
  offers[1].obstacle = CopyObstacle::kSlots;
  EXPECT_EQ(WhyNoCopies(offers), "rank 1 cannot share memory of its card");
  offers[1].obstacle = CopyObstacle::kNone;
  offers[2].host = {0, 1};
  EXPECT_EQ(WhyNoCopies(offers), "ranks 0 and 2 are on different hosts");
  EXPECT_THAT(DescribeObstacle(4, CopyObstacle::kPeers), HasSubstr("rank 4 cannot map"));
}

}  // namespace
}  // namespace nibble
