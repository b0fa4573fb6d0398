// The kernels of the reductions over ranks, and a group with a NCCL in plain C++ (fake_nccl.h), on
// the host's emulation of a GPU: bits of a sum in rank order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl/fake_nccl.h"
#include "kernels/cuda/nccl/nccl_group.h"
#include "kernels/cuda/nccl/piece_plan.h"
#include "kernels/cuda/nccl/rank_sum_kernels.h"

namespace nibble {
namespace {

using testing::HasSubstr;

// Of very different sizes, so that the order of additions shows.
std::vector<float> RandomFloats(std::mt19937_64& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) {
    const uint64_t bits = random();
    const float mantissa = static_cast<float>(static_cast<int64_t>(bits % 16777216) - 8388608);
    x = std::ldexp(mantissa, static_cast<int>(bits >> 32) % 24);
  }
  return values;
}

// A slice per rank, `skew` elements beyond 16-byte boundaries.
struct KernelCase {
  KernelCase(std::mt19937_64& random, int world, int64_t count, int64_t skew)
      : world(world), count(count), skew(skew), stride((count + 3) / 4 * 4) {
    for (int r = 0; r < world; ++r) slices.push_back(RandomFloats(random, count));
  }
  void Run(int rank, bool in_place) {
    std::vector<float> own(count + skew), others((world - 1) * stride + skew), out(count + skew);
    std::copy(slices[rank].begin(), slices[rank].end(), own.begin() + skew);
    for (int r = 0; r < world; ++r) {
      if (r == rank) continue;
      std::copy(slices[r].begin(), slices[r].end(),
                others.begin() + skew + (r < rank ? r : r - 1) * stride);
    }
    float* const to = in_place ? own.data() + skew : out.data() + skew;
    ASSERT_EQ(gpu::LaunchRankSum({.own = own.data() + skew,
                                  .others = others.data() + skew,
                                  .stride = stride,
                                  .rank = rank,
                                  .world = world},
                                 to, count, nullptr),
              cudaSuccess);
    for (int64_t i = 0; i < count; ++i) {
      float sum = slices[0][i];
      for (int r = 1; r < world; ++r) sum += slices[r][i];
      ASSERT_EQ(std::bit_cast<uint32_t>(to[i]), std::bit_cast<uint32_t>(sum))
          << "rank " << rank << " of " << world << ", element " << i << " of " << count;
    }
  }
  const int world;
  const int64_t count, skew, stride;
  std::vector<std::vector<float>> slices;
};

TEST(EmulatedRankSum, AddsInRankOrderForEveryWorldSizeAndAlignment) {
  std::mt19937_64 random(1);
  for (const int world : {1, 2, 3, 5, 8, 9}) {
    for (const int64_t count : {1, 3, 4, 7, 255, 1025, 4099}) {
      for (const int64_t skew : {0, 1}) {
        KernelCase slices(random, world, count, skew);
        for (const int rank : {0, world / 2, world - 1}) {
          slices.Run(rank, false);
          slices.Run(rank, true);
        }
      }
    }
  }
}

template <class T>
void ExpectReduced(const std::vector<T>& in, int world, Reduction reduction, ReduceElement element,
                   const std::vector<T>& expected) {
  std::vector<T> out(expected.size());
  ASSERT_EQ(
      gpu::LaunchRankReduce(in.data(), out.data(), world, static_cast<int64_t>(expected.size()),
                            element, reduction, nullptr),
      cudaSuccess);
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(T)), 0);
}

TEST(EmulatedRankReduce, SumsAndMaximaOfEveryElement) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  ExpectReduced<double>({1, 2, 1e17, 4, 0.5, -1e17}, 2, Reduction::kSum, ReduceElement::kFloat64,
                        {5, 2.5, 0});
  ExpectReduced<double>({1, nan, -0.0, 4, 0.5, 0.0}, 2, Reduction::kMax, ReduceElement::kFloat64,
                        {4, nan, -0.0});
  ExpectReduced<float>({1, -2, 3, 7, -5, 3}, 3, Reduction::kMax, ReduceElement::kFloat32, {3, 7});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ExpectReduced<int64_t>({kMost, 5, 2, -7}, 2, Reduction::kSum, ReduceElement::kInt64,
                         {std::numeric_limits<int64_t>::min() + 1, -2});
}

class EmulatedGroup : public testing::Test {
 protected:
  void SetUp() override {
    FakeNccl() = {};
    auto backend = CudaBackend::Create(0);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void TearDown() override { group_.reset(); }

  void Connect(int rank, int world, NcclSums sums = NcclSums::kRankOrder) {
    group_.reset();
    auto group = ConnectNccl(
        *backend_, {.rank = rank, .world = world, .sums = sums, .library = &FakeNcclLibrary()});
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }
  // Inputs of all ranks, [world, count] each.
  void MakeInputs(int world, int64_t count) {
    inputs_.clear();
    FakeNccl().in.clear();
    for (int r = 0; r < world; ++r) inputs_.push_back(RandomFloats(random_, world * count));
    for (const auto& input : inputs_) {
      FakeNccl().in.push_back(reinterpret_cast<const char*>(input.data()));
    }
    FakeNccl().slice_bytes = count * 4;
  }
  void ExpectReduceScatter(int rank, int world, int64_t count, bool in_place) {
    SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << world << ", " << count);
    std::vector<float> out(static_cast<size_t>(count));
    std::vector<float> mine;
    const float* in = inputs_[rank].data();
    float* to = out.data();
    if (in_place) {
      mine = inputs_[rank];
      in = mine.data();
      to = mine.data() + rank * count;
      FakeNccl().in[rank] = reinterpret_cast<const char*>(in);
    }
    ++number_;
    ASSERT_TRUE(group_->ReduceScatter(number_, in, to, count).ok());
    EXPECT_EQ(group_->progress().begun, number_);
    EXPECT_EQ(group_->progress().completed, number_);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      float sum = inputs_[0][rank * count + i];
      for (int r = 1; r < world; ++r) sum += inputs_[r][rank * count + i];
      if (std::bit_cast<uint32_t>(to[i]) != std::bit_cast<uint32_t>(sum)) ++wrong;
    }
    EXPECT_EQ(wrong, 0);
    for (int64_t i = 0; i < static_cast<int64_t>(mine.size()); ++i) {
      if (i / count != rank) ASSERT_EQ(mine[i], inputs_[rank][i]) << i;
    }
    FakeNccl().in[rank] = reinterpret_cast<const char*>(inputs_[rank].data());
  }

  std::mt19937_64 random_{3};
  std::unique_ptr<CudaBackend> backend_;
  std::unique_ptr<RankGroup> group_;
  std::vector<std::vector<float>> inputs_;
  uint64_t number_ = 0;
};

TEST_F(EmulatedGroup, ReduceScatterHasTheBitsOfASumInRankOrder) {
  for (const int world : {1, 2, 3, 4, 7}) {
    for (const int64_t count : {1, 5, 64, 1000, 4097}) {
      MakeInputs(world, count);
      for (int rank = 0; rank < world; ++rank) {
        Connect(rank, world);
        ExpectReduceScatter(rank, world, count, false);
        ExpectReduceScatter(rank, world, count, true);
      }
    }
  }
}

TEST_F(EmulatedGroup, PiecesOfALargeReduceScatterAreThoseOfASmallOne) {
  constexpr int64_t kCount = 2 * kLeastPiece + 12;
  ASSERT_EQ(PlanPieces(2, kCount).pieces, 3);  // a slot is used twice
  MakeInputs(2, kCount);
  Connect(1, 2);
  ExpectReduceScatter(1, 2, kCount, false);
  EXPECT_EQ(FakeNccl().groups, 3);
  ExpectReduceScatter(1, 2, kCount, true);
}

TEST_F(EmulatedGroup, NcclsOwnSumsAreUsedOnlyIfNamed) {
  MakeInputs(3, 1000);
  Connect(1, 3, NcclSums::kLibrary);
  EXPECT_EQ(group_->Name(), "nccl 2.28.9, sums in NCCL's order");
  std::vector<float> out(1000);
  ASSERT_TRUE(group_->ReduceScatter(1, inputs_[1].data(), out.data(), 1000).ok());
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(out[i], inputs_[2][1000 + i] + inputs_[1][1000 + i] + inputs_[0][1000 + i]);
  }
  Connect(1, 3);
  EXPECT_EQ(group_->Name(), "nccl 2.28.9, sums in rank order");
}

TEST_F(EmulatedGroup, GathersBroadcastsAndReduces) {
  MakeInputs(3, 10);
  Connect(1, 3);
  std::vector<float> all(30);
  ASSERT_TRUE(group_->AllGather(1, inputs_[1].data(), all.data(), 40).ok());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(all[i], inputs_[i / 10][i % 10]);
  std::vector<float> data(10);
  ASSERT_TRUE(group_->Broadcast(2, data.data(), 40, 2).ok());
  EXPECT_EQ(std::memcmp(data.data(), inputs_[2].data(), 40), 0);
  std::vector<float> mine(inputs_[1].begin(), inputs_[1].begin() + 10);
  ASSERT_TRUE(group_->AllReduce(3, mine.data(), 10, ReduceElement::kFloat32, Reduction::kSum).ok());
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(mine[i], inputs_[0][i] + inputs_[1][i] + inputs_[2][i]);
  }
  EXPECT_EQ(group_->progress().completed, 3u);
}

TEST_F(EmulatedGroup, AnOperationThatIsStillBeingEnqueuedIsWaitedFor) {
  FakeNccl().busy = 5;
  MakeInputs(2, 100);
  Connect(0, 2);
  ExpectReduceScatter(0, 2, 100, false);
}

TEST_F(EmulatedGroup, RanksThatAreNotConnectedInTimeAreAnError) {
  FakeNccl().busy = std::numeric_limits<int64_t>::max();
  const auto late = ConnectNccl(*backend_, {.rank = 1,
                                            .world = 2,
                                            .connect_timeout = std::chrono::milliseconds(20),
                                            .library = &FakeNcclLibrary()});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_EQ(FakeNccl().aborts, 1);
  const auto gone = ConnectNccl(*backend_, {.rank = 1,
                                            .world = 2,
                                            .check = [] { return absl::UnavailableError("gone"); },
                                            .library = &FakeNcclLibrary()});
  EXPECT_TRUE(absl::IsUnavailable(gone.status())) << gone.status();
}

TEST_F(EmulatedGroup, AnErrorThatNcclNoticesIsReportedByTheGroupsHealth) {
  Connect(0, 2);
  EXPECT_TRUE(group_->Health().ok());
  FakeNccl().state = ncclRemoteError;
  EXPECT_TRUE(absl::IsUnavailable(group_->Health())) << group_->Health();
  EXPECT_THAT(std::string(group_->Health().message()), HasSubstr("remote process exited"));
}

TEST_F(EmulatedGroup, AnAbortedGroupReturnsItsCauseAndSoDoesTheBackend) {
  MakeInputs(2, 100);
  Connect(0, 2);
  const absl::Status why = absl::UnavailableError("lost rank 1");
  group_->Abort(why);
  group_->Abort(absl::InternalError("later"));
  EXPECT_EQ(FakeNccl().aborts, 1);
  std::vector<float> out(100);
  EXPECT_EQ(group_->ReduceScatter(1, inputs_[0].data(), out.data(), 100), why);
  EXPECT_EQ(group_->Health(), why);
  EXPECT_EQ(backend_->Synchronize(), why);
}

TEST_F(EmulatedGroup, AGroupThatEndsWellLeavesTheBackendUsable) {
  Connect(0, 2);
  group_.reset();
  EXPECT_EQ(FakeNccl().aborts, 1);
  EXPECT_TRUE(backend_->Synchronize().ok());
}

}  // namespace
}  // namespace nibble
