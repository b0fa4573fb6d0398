// Collectives among the threads of a test, in shared memory.
//
// Ownership: a collective shares its group's state. Thread-safety: each collective belongs to the
// thread of its rank.
#ifndef NIBBLE_WORKER_TRAINER_COMM_THREAD_GROUP_TESTING_H_
#define NIBBLE_WORKER_TRAINER_COMM_THREAD_GROUP_TESTING_H_

#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

class ThreadCollective final : public Collective {
 public:
  struct Group {
    explicit Group(int world) : barrier(world), in(static_cast<size_t>(world)) {}
    std::barrier<> barrier;
    std::vector<const void*> in;  // what each rank brings to the operation
  };
  ThreadCollective(std::shared_ptr<Group> group, int rank)
      : Collective(rank, static_cast<int>(group->in.size())), group_(std::move(group)) {}

  std::string Name() const override { return "threads of a test"; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // Every rank sees the operands of all ranks, and continues once all have seen them.
  absl::Status Meet(const void* mine, const std::function<void()>& see) {
    group_->in[static_cast<size_t>(rank())] = mine;
    group_->barrier.arrive_and_wait();
    see();
    group_->barrier.arrive_and_wait();
    return absl::OkStatus();
  }
  template <class T>
  const T* Of(int r) const {
    return static_cast<const T*>(group_->in[static_cast<size_t>(r)]);
  }

  absl::Status DoAllGather(const Operation&, const void* in, void* out, int64_t bytes) override {
    return Meet(in, [&] {
      for (int r = 0; r < world(); ++r) {
        char* to = static_cast<char*>(out) + r * bytes;
        if (to != Of<char>(r)) std::memmove(to, Of<char>(r), static_cast<size_t>(bytes));
      }
    });
  }
  absl::Status DoReduceScatter(const Operation&, const float* in, float* out,
                               int64_t count) override {
    return Meet(in, [&] {
      std::vector<const float*> slices;
      for (int r = 0; r < world(); ++r) slices.push_back(Of<float>(r) + rank() * count);
      SumInRankOrder(slices, out, count);
    });
  }
  absl::Status DoAllReduce(const Operation&, void* data, int64_t count, ReduceElement element,
                           Reduction reduction) override {
    const auto bytes = static_cast<size_t>(count * ReduceElementBytes(element));
    std::vector<char> all(bytes * static_cast<size_t>(world()));
    NIBBLE_RETURN_IF_ERROR(Meet(data, [&] {
      for (int r = 0; r < world(); ++r) {
        std::memcpy(all.data() + static_cast<size_t>(r) * bytes, Of<char>(r), bytes);
      }
    }));
    ReduceInRankOrder(all.data(), data, world(), count, element, reduction);
    return absl::OkStatus();
  }
  absl::Status DoBroadcast(const Operation&, void* data, int64_t bytes, int root) override {
    return Meet(data, [&] {
      if (rank() != root) std::memcpy(data, Of<char>(root), static_cast<size_t>(bytes));
    });
  }
  absl::Status DoBarrier(const Operation&) override {
    return Meet(nullptr, [] {});
  }
  absl::Status DoExchange(const Operation&, uint64_t* words, int64_t count) override {
    return Meet(words + rank() * count, [&] {
      for (int r = 0; r < world(); ++r) {
        if (r != rank()) std::memcpy(words + r * count, Of<uint64_t>(r), 8 * count);
      }
    });
  }

  const std::shared_ptr<Group> group_;
};

// Runs `rank(r, collective)` on a thread for each rank.
inline void RunRanks(int world, const std::function<void(int, std::unique_ptr<Collective>)>& rank) {
  const auto group = std::make_shared<ThreadCollective::Group>(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] { rank(r, std::make_unique<ThreadCollective>(group, r)); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_THREAD_GROUP_TESTING_H_
