// A simulation of the roles that hand over the buffers of dq (attention_dq_buffers.h): writers,
// consumers and the engine of bulk copies, in random interleavings in which any of them may stand
// still for long. Barriers are those of the card: a wait for a parity is over unless the phase of
// that parity is the current one, and an arrival beyond a phase's count is a fault.
#include "kernels/cuda/layers/attention_dq_buffers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace nibble::gpu {
namespace {

constexpr uint32_t kConsumers = 2;
constexpr uint32_t kTiles = 40;

enum class Action {
  kWait,           // for `phase` of the barriers `kind`
  kArrive,         // at that barrier
  kExpectAndCopy,  // arrive at SumsFull, which the copy of tile `tile` into its buffer completes
  kWrite,          // a consumer's part of tile `tile`
  kTakeWritten,    // the buffer must hold all parts of tile `tile`
  kTakeFetched,    // the buffer must hold the sums of tile `tile`
};
enum Kind { kEmpty, kDone, kSums };
struct Step {
  Action action;
  Kind kind = kEmpty;
  DqPhase phase = {};
  uint32_t tile = 0;
  uint32_t consumer = 0;  // of kWrite
};
using Role = std::vector<Step>;

struct Barrier {
  uint32_t count, pending, phase = 0;
};

// What each role does with tiles of which `fetches` are fetched sums.
template <typename Protocol>
std::vector<Role> MakeRoles(const std::vector<bool>& fetches) {
  std::vector<Role> roles(kWriters + kConsumers);
  uint32_t fetched = 0;
  for (uint32_t tile = 0; tile < fetches.size(); ++tile) {
    const Step wait_empty = {Action::kWait, kEmpty, Protocol::EmptyFor(tile), tile};
    const Step wait_done = {Action::kWait, kDone, Protocol::Done(tile), tile};
    const Step arrive_done = {Action::kArrive, kDone, Protocol::Done(tile), tile};
    const DqPhase sums = Protocol::SumsFull(fetched);
    Role& writer = roles[tile % kWriters];
    if (fetches[tile]) {
      writer.push_back(wait_empty);
      writer.push_back({Action::kExpectAndCopy, kSums, sums, tile});
    }
    writer.push_back(wait_done);
    if (!fetches[tile]) writer.push_back({Action::kTakeWritten, kEmpty, {}, tile});
    writer.push_back({Action::kArrive, kEmpty, Protocol::Empty(tile), tile});
    for (uint32_t consumer = 0; consumer < kConsumers; ++consumer) {
      Role& role = roles[kWriters + consumer];
      if (fetches[tile]) {
        role.push_back({Action::kWait, kSums, sums, tile});
        role.push_back({Action::kTakeFetched, kEmpty, {}, tile});
      } else {
        role.push_back(wait_empty);
        role.push_back({Action::kWrite, kEmpty, {}, tile, consumer});
      }
      role.push_back(arrive_done);
    }
    fetched += fetches[tile] ? 1 : 0;
  }
  return roles;
}

template <typename Protocol>
class Block {
 public:
  explicit Block(const std::vector<bool>& fetches) : roles_(MakeRoles<Protocol>(fetches)) {
    at_.resize(roles_.size());
    barriers_[kEmpty].assign(Protocol::kEmptyBarriers, {1, 1});
    barriers_[kDone].assign(kWriters, {kConsumers, kConsumers});
    // The writer that arrives, and the copy.
    barriers_[kSums].assign(2, {2, 2});
  }

  // Runs to the end. What went wrong; empty: nothing.
  std::string Run(std::mt19937& random) {
    std::vector<uint32_t> pace(roles_.size() + 1);
    for (uint32_t turn = 0;; ++turn) {
      // For a while some roles are a thousand times as fast as others.
      if (turn % 64 == 0) {
        for (uint32_t& p : pace) p = random() % 2 == 0 ? 1 : 1000;
      }
      std::vector<uint32_t> ready, paces;
      bool ended = copies_.empty();
      for (uint32_t role = 0; role < roles_.size(); ++role) {
        if (at_[role] == roles_[role].size()) continue;
        ended = false;
        if (!IsReady(roles_[role][at_[role]])) continue;
        ready.push_back(role);
        paces.push_back(pace[role]);
      }
      if (!copies_.empty()) {
        ready.push_back(static_cast<uint32_t>(roles_.size()));
        paces.push_back(pace.back());
      }
      if (ended) return "";
      if (ready.empty()) return "all wait";
      std::discrete_distribution<uint32_t> chosen(paces.begin(), paces.end());
      const uint32_t role = ready[chosen(random)];
      if (role == roles_.size()) {
        Land(random() % copies_.size());
      } else {
        Do(roles_[role][at_[role]++]);
      }
      if (!fault_.empty()) return fault_;
    }
  }

 private:
  struct Contents {
    std::optional<uint32_t> fetched;                 // the tile whose sums it holds
    std::optional<uint32_t> parts[kConsumers] = {};  // the tiles of which it holds these parts
  };

  bool IsReady(const Step& step) {
    if (step.action != Action::kWait) return true;
    return (barriers_[step.kind][step.phase.barrier].phase & 1u) != step.phase.parity;
  }
  void Arrive(Kind kind, DqPhase at) {
    Barrier& barrier = barriers_[kind][at.barrier];
    if ((barrier.phase & 1u) != at.parity) fault_ = "an arrival in another phase than its own";
    if (--barrier.pending == 0) {
      barrier.pending = barrier.count;
      ++barrier.phase;
    }
  }
  void Do(const Step& step) {
    Contents& buffer = buffers_[Protocol::Buffer(step.tile)];
    switch (step.action) {
      case Action::kWait:
        return;
      case Action::kArrive:
        return Arrive(step.kind, step.phase);
      case Action::kExpectAndCopy:
        // Two writers that arrive in one phase complete it without their copies: the card's fault.
        if (expected_[step.phase.barrier]) fault_ = "two writers arrive in one phase of SumsFull";
        expected_[step.phase.barrier] = true;
        copies_.push_back(step);
        return Arrive(step.kind, step.phase);
      case Action::kWrite:
        buffer.parts[step.consumer] = step.tile;
        buffer.fetched.reset();
        return;
      case Action::kTakeWritten:
        for (const auto& part : buffer.parts) {
          if (part != step.tile) fault_ = "a writer adds another tile than its own";
        }
        return;
      case Action::kTakeFetched:
        if (buffer.fetched != step.tile) fault_ = "a consumer reads other sums than its own";
        return;
    }
  }
  // The copy's bytes arrive.
  void Land(size_t which) {
    const Step step = copies_[which];
    copies_.erase(copies_.begin() + static_cast<int64_t>(which));
    Contents& buffer = buffers_[Protocol::Buffer(step.tile)];
    buffer.fetched = step.tile;
    for (auto& part : buffer.parts) part.reset();
    expected_[step.phase.barrier] = false;
    Arrive(kSums, step.phase);
  }

  const std::vector<Role> roles_;
  std::vector<size_t> at_;  // by role: its next step
  std::vector<Barrier> barriers_[3];
  Contents buffers_[kDqBuffers];
  bool expected_[2] = {};
  std::vector<Step> copies_;  // that are under way
  std::string fault_;
};

// The number of runs with a fault, and the first one.
template <typename Protocol>
std::pair<int, std::string> Faults(int runs) {
  std::mt19937 random(20);
  int faults = 0;
  std::string first;
  for (int run = 0; run < runs; ++run) {
    std::vector<bool> fetches(kTiles);
    const uint32_t one_in = 1 + random() % 4;
    for (size_t tile = 0; tile < kTiles; ++tile) fetches[tile] = random() % one_in == 0;
    const std::string fault = Block<Protocol>(fetches).Run(random);
    if (fault.empty()) continue;
    if (faults++ == 0) first = fault;
  }
  return {faults, first};
}

TEST(DqBuffersTest, EveryInterleavingHandsOverWholeTiles) {
  const auto [faults, first] = Faults<DqBuffers>(4000);
  EXPECT_EQ(faults, 0) << first;
}

TEST(DqBuffersTest, OneBarrierPerBufferIsNotEnough) {
  const auto [faults, first] = Faults<DqHandover<1>>(4000);
  EXPECT_GT(faults, 1000) << first;
}

}  // namespace
}  // namespace nibble::gpu
