// The transport between the ranks of a job whose tensors are on devices, each on a device of its
// own: what worker/trainer/comm makes a Collective of.
//
// Execution model: an operation is enqueued in the backend's queue of transfers, in the order of
// the calls, which are the same on every rank. A call may wait for the peers' calls while
// connections are made. Sums are in rank order, ((x0 + x1) + x2) + …, each addition rounded, unless
// the group was made with the transport's own reduction.
//
// Failure: a group does not know on its own that a peer is gone. Somebody else watches progress()
// and Health(), and ends a stuck operation with Abort().
//
// Ownership: borrows its backend, whose error Abort() sets; pointers are in the backend's memory
// and borrowed until the operation has run. Thread-safety: operations and the destructor from one
// thread; the rest from any thread.
#ifndef NIBBLE_KERNELS_OPS_RANK_GROUP_H_
#define NIBBLE_KERNELS_OPS_RANK_GROUP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace nibble {

enum class Reduction {
  kSum,  // int64 wraps around
  kMax,  // NaN if any rank has NaN
};

enum class ReduceElement { kFloat32, kFloat64, kInt64 };
constexpr int64_t ReduceElementBytes(ReduceElement element) {
  return element == ReduceElement::kFloat32 ? 4 : 8;
}

class RankGroup {
 public:
  // Aborts what is under way.
  virtual ~RankGroup() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  // The transport and the order of its sums: "nccl 2.28.9, sums in rank order".
  virtual std::string Name() const = 0;

  // `number`: ascending, above 0. Sizes are above 0; buffers as in
  // worker/trainer/comm/collective.h.
  //
  // in: [bytes], out: [world, bytes]
  virtual absl::Status AllGather(uint64_t number, const void* in, void* out, int64_t bytes) = 0;
  // in: [world, count], out: [count]
  virtual absl::Status ReduceScatter(uint64_t number, const float* in, float* out,
                                     int64_t count) = 0;
  // data: [count], in place; for small arrays: every rank gathers all of them.
  virtual absl::Status AllReduce(uint64_t number, void* data, int64_t count, ReduceElement element,
                                 Reduction reduction) = 0;
  // data: [bytes]
  virtual absl::Status Broadcast(uint64_t number, void* data, int64_t bytes, int root) = 0;

  // Numbers of the last operation that the device has begun, and of the last that it has completed.
  struct Progress {
    uint64_t begun = 0;
    uint64_t completed = 0;
  };
  virtual Progress progress() const = 0;
  // An error that the transport has noticed by itself.
  virtual absl::Status Health() = 0;
  // Ends what is under way, with undefined results. `why`, an error, is from now on returned by
  // operations and by the backend's Wait(). The first call counts.
  virtual void Abort(const absl::Status& why) = 0;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_RANK_GROUP_H_
