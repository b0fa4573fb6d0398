// On the late device, whose memory faults where a collective would touch it without a copy.
#include "worker/trainer/comm/staged_collective.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/late/late_device.h"
#include "worker/trainer/comm/thread_group_testing.h"

namespace nibble {
namespace {

constexpr int64_t kPiece = 64;  // bytes: operations take several

struct StagedRank {
  StagedRank(int rank, std::unique_ptr<Collective> host)
      : backend(*LateBackend::Create({.seed = static_cast<uint64_t>(rank) + 7})),
        staged(*StagedCollective::Create(*backend, std::move(host), kPiece)) {}

  template <class T>
  Buffer Put(const std::vector<T>& values) {
    Buffer buffer = *backend->memory().Allocate(values.size() * sizeof(T));
    EXPECT_TRUE(backend->memory().CopyIn(buffer.data(), values.data(), buffer.bytes()).ok());
    return buffer;
  }
  template <class T>
  std::vector<T> Get(const Buffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    EXPECT_TRUE(backend->memory().CopyOut(values.data(), buffer.data(), buffer.bytes()).ok());
    return values;
  }

  std::unique_ptr<LateBackend> backend;
  std::unique_ptr<StagedCollective> staged;
};

// [world, count], the same on every rank.
std::vector<std::vector<float>> Inputs(int world, int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> inputs(world, std::vector<float>(world * count));
  for (std::vector<float>& input : inputs) {
    for (float& x : input) x = normal(random);
  }
  return inputs;
}

class StagedCollectiveTest : public testing::TestWithParam<int> {
 protected:
  const int world_ = GetParam();
};

TEST_P(StagedCollectiveTest, GathersInPieces) {
  constexpr int64_t kCount = 50;
  const auto inputs = Inputs(world_, kCount);
  RunRanks(world_, [&](int r, std::unique_ptr<Collective> host) {
    StagedRank rank(r, std::move(host));
    const Buffer all = rank.Put(std::vector<float>(world_ * kCount));
    const Buffer mine = rank.Put(std::vector<float>(inputs[r].begin(), inputs[r].begin() + kCount));
    ASSERT_TRUE(rank.staged->AllGather(mine.data(), all.data(), kCount * 4).ok());
    const std::vector<float> gathered = rank.Get<float>(all);
    for (int from = 0; from < world_; ++from) {
      for (int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(gathered[from * kCount + i], inputs[from][i]) << from << " " << i;
      }
    }
  });
}

TEST_P(StagedCollectiveTest, SumsInRankOrder) {
  constexpr int64_t kCount = 37;
  const auto inputs = Inputs(world_, kCount);
  RunRanks(world_, [&](int r, std::unique_ptr<Collective> host) {
    StagedRank rank(r, std::move(host));
    const Buffer in = rank.Put(inputs[r]);
    const Buffer out = rank.Put(std::vector<float>(kCount));
    ASSERT_TRUE(rank.staged->ReduceScatter(in.data<float>(), out.data<float>(), kCount).ok());
    const std::vector<float> summed = rank.Get<float>(out);
    for (int64_t i = 0; i < kCount; ++i) {
      float sum = inputs[0][r * kCount + i];
      for (int from = 1; from < world_; ++from) sum += inputs[from][r * kCount + i];
      ASSERT_EQ(summed[i], sum) << i;
    }
  });
}

TEST_P(StagedCollectiveTest, ReducesAndBroadcastsAndExchanges) {
  RunRanks(world_, [&](int r, std::unique_ptr<Collective> host) {
    StagedRank rank(r, std::move(host));
    const Buffer sums = rank.Put(std::vector<double>(20, r + 1));
    ASSERT_TRUE(rank.staged->AllReduce(sums.data<double>(), 20, Reduction::kSum).ok());
    EXPECT_EQ(rank.Get<double>(sums), std::vector<double>(20, world_ * (world_ + 1) / 2));
    const Buffer most = rank.Put(std::vector<int64_t>{r, -r});
    ASSERT_TRUE(rank.staged->AllReduce(most.data<int64_t>(), 2, Reduction::kMax).ok());
    EXPECT_EQ(rank.Get<int64_t>(most), (std::vector<int64_t>{world_ - 1, 0}));
    const Buffer text = rank.Put(std::vector<char>(150, static_cast<char>('a' + r)));
    ASSERT_TRUE(rank.staged->Broadcast(text.data(), 150, world_ - 1).ok());
    EXPECT_EQ(rank.Get<char>(text), std::vector<char>(150, static_cast<char>('a' + world_ - 1)));
    ASSERT_TRUE(rank.staged->Barrier().ok());
    const uint64_t mine[] = {static_cast<uint64_t>(r), 7};
    const std::vector<uint64_t> all = *rank.staged->ExchangeSmall(mine);
    for (int from = 0; from < world_; ++from) {
      EXPECT_EQ(all[2 * from], static_cast<uint64_t>(from));
      EXPECT_EQ(all[2 * from + 1], 7u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StagedCollectiveTest, testing::Values(1, 2, 4));

// A transport whose peer is gone.
class Broken final : public Collective {
 public:
  Broken() : Collective(0, 2) {}
  std::string Name() const override { return "broken"; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  static absl::Status Gone() { return absl::UnavailableError("rank 1 has ended"); }
  absl::Status DoAllGather(const Operation&, const void*, void*, int64_t) override {
    return Gone();
  }
  absl::Status DoReduceScatter(const Operation&, const float*, float*, int64_t) override {
    return Gone();
  }
  absl::Status DoAllReduce(const Operation&, void*, int64_t, ReduceElement, Reduction) override {
    return Gone();
  }
  absl::Status DoBroadcast(const Operation&, void*, int64_t, int) override { return Gone(); }
  absl::Status DoBarrier(const Operation&) override { return Gone(); }
  absl::Status DoExchange(const Operation&, uint64_t*, int64_t) override { return Gone(); }
};

TEST(StagedCollectiveFailure, TheErrorOfTheTransportIsReportedByTheWait) {
  StagedRank rank(0, std::make_unique<Broken>());
  const Buffer in = rank.Put(std::vector<float>(8)), out = rank.Put(std::vector<float>(16));
  ASSERT_TRUE(rank.staged->AllGather(in.data(), out.data(), 32).ok());
  const absl::Status status = rank.staged->Synchronize();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("rank 1 has ended"), absl::string_view::npos) << status;
  EXPECT_FALSE(rank.staged->Barrier().ok());
}

}  // namespace
}  // namespace nibble
