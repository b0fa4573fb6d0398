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
#include "kernels/cuda/nccl/copy_exchange.h"
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

// The copies of one rank: what its peers would send is read from FakeNccl()'s inputs.
struct FakeCopiesState {
  int64_t released = 0, pieces = 0;
  bool unfinished = false;
  absl::Status peers;
};

class FakeCopies final : public CopyStreams {
 public:
  FakeCopies(FakeCopiesState& state, int rank, int world)
      : state_(state),
        rank_(rank),
        world_(world),
        memory_(static_cast<size_t>(slots().bytes(world)) + 16) {}

  CopySlots slots() const override { return {.slots = 2, .slot_bytes = 4096}; }
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::Status End() override { return absl::OkStatus(); }
  absl::Status Await(int, const Waits&) override { return absl::OkStatus(); }
  // Pieces begin at the same place on every rank.
  absl::Status Push(int peer, int64_t slot, const void* from, int64_t bytes) override {
    slot_ = slot;
    bytes_ = static_cast<size_t>(bytes);
    begin_ = static_cast<const char*>(from) - FakeNccl().in[rank_] - peer * FakeNccl().slice_bytes;
    return absl::OkStatus();
  }
  absl::Status RaiseArrived(int, uint32_t, int) override { return absl::OkStatus(); }
  absl::Status AwaitArrived(uint32_t) override {
    for (int peer = 0; peer < world_; ++peer) {
      if (peer == rank_) continue;
      std::memcpy(slot_memory() + slots().slot_offset(slot_, world_) +
                      CopyLane(rank_, peer) * slots().slot_bytes,
                  FakeNccl().in[peer] + rank_ * FakeNccl().slice_bytes + begin_, bytes_);
    }
    return absl::OkStatus();
  }
  // Whatever was not taken before is lost.
  absl::Status RaiseTaken(uint32_t) override {
    ++state_.pieces;
    std::fill(memory_.begin(), memory_.end(), char{-1});
    return absl::OkStatus();
  }
  char* slot_memory() const override {
    auto* const begin = const_cast<char*>(memory_.data());
    return begin + (16 - reinterpret_cast<uintptr_t>(begin) % 16) % 16;
  }
  void* take_stream() const override { return nullptr; }
  void Release(uint64_t, bool unfinished) override {
    ++state_.released;
    state_.unfinished = unfinished;
  }
  absl::Status PeersStatus() const override { return state_.peers; }

 private:
  FakeCopiesState& state_;
  const int rank_, world_;
  std::vector<char> memory_;
  int64_t slot_ = 0, begin_ = 0;
  size_t bytes_ = 0;
};

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
  void ConnectCopies(int rank, int world) {
    group_.reset();
    copies_ = {};
    auto group =
        ConnectNccl(*backend_, {.rank = rank,
                                .world = world,
                                .copies = {std::make_unique<FakeCopies>(copies_, rank, world), ""},
                                .alone = [this] { return alone_; },
                                .library = &FakeNcclLibrary()});
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
      if (i / count == rank) continue;
      ASSERT_EQ(mine[i], inputs_[rank][i]) << i;
    }
    FakeNccl().in[rank] = reinterpret_cast<const char*>(inputs_[rank].data());
  }

  std::mt19937_64 random_{3};
  std::unique_ptr<CudaBackend> backend_;
  FakeCopiesState copies_;
  bool alone_ = false;
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

TEST_F(EmulatedGroup, SlicesMovedByCopyEnginesHaveTheBitsOfASumInRankOrder) {
  for (const int world : {2, 3, 5}) {
    for (const int64_t count : {1, 5, 1000, 1024, 4097}) {
      MakeInputs(world, count);
      for (int rank = 0; rank < world; ++rank) {
        ConnectCopies(rank, world);
        ExpectReduceScatter(rank, world, count, false);
        ExpectReduceScatter(rank, world, count, true);
        EXPECT_EQ(copies_.pieces, 2 * ((4 * count + 4095) / 4096));
      }
    }
  }
  EXPECT_EQ(FakeNccl().groups, 0);
}

TEST_F(EmulatedGroup, CopyEnginesGatherInPlaceAndApart) {
  MakeInputs(3, 1100);
  FakeNccl().slice_bytes = 0;
  for (int rank = 0; rank < 3; ++rank) {
    for (const bool in_place : {false, true}) {
      ConnectCopies(rank, 3);
      constexpr int64_t kBytes = 8801;
      std::vector<char> all(3 * kBytes);
      const char* in = FakeNccl().in[rank];
      if (in_place) {
        std::memcpy(all.data() + rank * kBytes, in, kBytes);
        in = FakeNccl().in[rank] = all.data() + rank * kBytes;
      }
      ASSERT_TRUE(group_->AllGather(1, in, all.data(), kBytes).ok());
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ(std::memcmp(all.data() + r * kBytes, inputs_[r].data(), kBytes), 0) << r;
      }
      FakeNccl().in[rank] = reinterpret_cast<const char*>(inputs_[rank].data());
    }
  }
  EXPECT_EQ(FakeNccl().groups, 0);
}

TEST_F(EmulatedGroup, BesideNothingKernelsMoveTheSlicesWithTheSameBits) {
  for (const int64_t count : {1, 1000, 4097}) {
    MakeInputs(3, count);
    for (int rank = 0; rank < 3; ++rank) {
      ConnectCopies(rank, 3);
      FakeNccl().groups = 0;
      alone_ = true;
      ExpectReduceScatter(rank, 3, count, false);
      ExpectReduceScatter(rank, 3, count, true);
      std::vector<float> all(static_cast<size_t>(3 * count));
      ASSERT_TRUE(group_->AllGather(++number_, inputs_[rank].data(), all.data(), 4 * count).ok());
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ(std::memcmp(all.data() + r * count, inputs_[r].data(), 4 * count), 0) << r;
      }
      EXPECT_EQ(copies_.pieces, 0);
      EXPECT_EQ(FakeNccl().groups, 3);
      // Between them copies go on as before.
      alone_ = false;
      ExpectReduceScatter(rank, 3, count, false);
      EXPECT_EQ(copies_.pieces, (4 * count + 4095) / 4096);
      EXPECT_EQ(FakeNccl().groups, 3);
    }
  }
}

TEST_F(EmulatedGroup, TheNameTellsWhatMovesSlices) {
  ConnectCopies(0, 2);
  EXPECT_EQ(group_->Name(), "nccl 2.28.9, sums in rank order, moved by copy engines");
  group_.reset();
  const auto without = ConnectNccl(
      *backend_,
      {.rank = 0, .world = 2, .copies = {nullptr, "rank 1 cannot"}, .library = &FakeNcclLibrary()});
  EXPECT_EQ((*without)->Name(),
            "nccl 2.28.9, sums in rank order, moved by NCCL's kernels, since rank 1 cannot");
  const auto own =
      ConnectNccl(*backend_, {.rank = 0,
                              .world = 2,
                              .sums = NcclSums::kLibrary,
                              .copies = {std::make_unique<FakeCopies>(copies_, 0, 2), ""},
                              .library = &FakeNcclLibrary()});
  EXPECT_TRUE(absl::IsInvalidArgument(own.status())) << own.status();
}

TEST_F(EmulatedGroup, AnAbortReleasesTheStreamsThatWaitForPeers) {
  ConnectCopies(0, 2);
  group_->Abort(absl::UnavailableError("lost rank 1"));
  EXPECT_EQ(copies_.released, 1);
  EXPECT_TRUE(copies_.unfinished);
  EXPECT_EQ(FakeNccl().aborts, 1);
  // A group that ends well leaves nothing unfinished.
  MakeInputs(2, 10);
  ConnectCopies(0, 2);
  ExpectReduceScatter(0, 2, 10, false);
  group_.reset();
  EXPECT_EQ(copies_.released, 1);
  EXPECT_FALSE(copies_.unfinished);
}

TEST_F(EmulatedGroup, WhatArrivesAfterAPeerHasGivenUpIsNotUsed) {
  MakeInputs(2, 10);
  ConnectCopies(0, 2);
  copies_.peers = absl::UnavailableError("rank 1 gave up");
  std::vector<float> out(10);
  ASSERT_TRUE(group_->ReduceScatter(1, inputs_[0].data(), out.data(), 10).ok());
  EXPECT_EQ(backend_->Synchronize(), copies_.peers);
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
