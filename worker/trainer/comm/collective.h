// Collectives: what the ranks of one job do together. One interface, whatever carries the bytes:
// Gloo between CPU ranks, nothing at all for a job of one rank, a GPU library on devices.
//
// Execution model: as kernels/ops/backend.h. A collective belongs to one backend's queue: pointers
// lie in that backend's memory, an operation is checked when called (a bad argument is refused
// before anything is sent), then runs in the order of the calls, possibly after the call has
// returned, with no round trip to the host. Synchronize waits for the queue and returns the first
// failure of what ran in it. On the CPU an operation runs in the call itself and its status is the
// outcome. ExchangeSmall is the exception: its words lie on the host and it always waits.
//
// Every rank calls the same operations in the same order with the same sizes. Ranks that disagree
// are told so by a failure within the timeout, never by wrong data.
//
// Determinism: a sum is taken in rank order, ((x0 + x1) + x2) + …, in the type of the elements:
// FP32 sums round to FP32 at each addition. A result is a function of the inputs and the world
// size, and every rank that receives it has the same bits. What this costs over a ring, whose order
// depends on the position in the data, is in bench/comm_bench.cc.
//
// Failure: a rank that dies or hangs fails the operations of the others within the timeout:
// UNAVAILABLE when it is known to be gone, DEADLINE_EXCEEDED when it does not answer; the message
// names the operation, its number, this rank and the rank that is missing. A group that has failed
// once stays failed: later operations repeat the cause at once. Start a new attempt.
//
// Ownership: buffers belong to the caller and must live until the operation has run.
// Thread-safety: one thread at a time per object.
#ifndef NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

enum class Reduction {
  kSum,  // int64 wraps around
  kMax,  // NaN if any rank has NaN
};

enum class ReduceElement { kFloat32, kFloat64, kInt64 };
int64_t ReduceElementBytes(ReduceElement element);

// Is told when an operation begins and when its call returns.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  // `operation`: a name that lives as long as the program. Numbers count a rank's operations.
  virtual void Entered(const char* operation, uint64_t number) = 0;
  virtual void Left() = 0;
};

class Collective {
 public:
  // AllReduce is for norms, losses and amaxes. Gradients go through ReduceScatter and AllGather,
  // whose traffic does not grow with the world.
  static constexpr int64_t kMaxAllReduceBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxExchangeWords = 1024;

  virtual ~Collective() = default;

  int rank() const { return rank_; }
  int world() const { return world_; }
  // What carries the bytes and who this is: "gloo tcp 127.0.0.1, rank 1 of 4".
  virtual std::string Name() const = 0;

  // in: [bytes], out: [world, bytes]; out[r] is what rank r gave. In place: in == out[rank].
  absl::Status AllGather(const void* in, void* out, int64_t bytes);

  // in: [world, count] f32, out: [count] f32; out = sum over ranks r of in_r[rank], in rank order.
  // In place: out == in[rank]; the rest of `in` is left as it was.
  absl::Status ReduceScatter(const float* in, float* out, int64_t count);

  // data: [count], in place. At most kMaxAllReduceBytes.
  absl::Status AllReduce(float* data, int64_t count, Reduction reduction);
  absl::Status AllReduce(double* data, int64_t count, Reduction reduction);
  absl::Status AllReduce(int64_t* data, int64_t count, Reduction reduction);

  // data: [bytes]; every rank ends with what `root` had.
  absl::Status Broadcast(void* data, int64_t bytes, int root);

  // Returns once every rank has entered it.
  absl::Status Barrier();

  // Control words of the step boundary, on the host: [world, mine.size()], row r from rank r. All
  // ranks see the same words, so any pure rule over them ("rank 0's request", "the greatest") is an
  // agreement. At most kMaxExchangeWords a rank; every rank gives the same number.
  absl::StatusOr<std::vector<uint64_t>> ExchangeSmall(std::span<const uint64_t> mine);

  virtual absl::Status Synchronize() = 0;

  // Borrowed; null: none.
  void set_observer(CollectiveObserver* observer) { observer_ = observer; }

 protected:
  // What an implementation is asked to run; `number` counts the operations of this rank from 1.
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier, kExchange };
  struct Operation {
    Kind kind;
    uint64_t number;
  };

  Collective(int rank, int world) : rank_(rank), world_(world) {}
  uint64_t operations() const { return operations_; }

  // Arguments have been checked: pointers are there, sizes fit and are not zero, buffers are either
  // apart or in place.
  virtual absl::Status DoAllGather(const Operation& operation, const void* in, void* out,
                                   int64_t bytes) = 0;
  virtual absl::Status DoReduceScatter(const Operation& operation, const float* in, float* out,
                                       int64_t count) = 0;
  virtual absl::Status DoAllReduce(const Operation& operation, void* data, int64_t count,
                                   ReduceElement element, Reduction reduction) = 0;
  virtual absl::Status DoBroadcast(const Operation& operation, void* data, int64_t bytes,
                                   int root) = 0;
  virtual absl::Status DoBarrier(const Operation& operation) = 0;
  // words: [world, count], on the host; row `rank` holds this rank's.
  virtual absl::Status DoExchange(const Operation& operation, uint64_t* words, int64_t count) = 0;

 private:
  // Refuses after a failure; otherwise counts, runs, and puts the operation's name before an error.
  absl::Status Run(Kind kind, absl::FunctionRef<absl::Status(const Operation&)> run);
  absl::Status Refuse(Kind kind, const std::string& why) const;
  absl::Status AllReduceAny(void* data, int64_t count, ReduceElement element, Reduction reduction);

  const int rank_;
  const int world_;
  uint64_t operations_ = 0;
  CollectiveObserver* observer_ = nullptr;
  absl::Status failed_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_
