// Collective operations among the ranks of one job. One interface for all transports: Gloo between
// CPU ranks (gloo_collective.h), NCCL between cards (device_collective.h), Gloo through host memory
// for ranks that share a card (staged_collective.h), none for a job of one rank.
//
// Execution model: as kernels/ops/backend.h. A collective belongs to one backend's queue: pointers
// lie in that backend's memory, an operation is checked when called (a bad argument is refused
// before anything is sent), then runs in the order of the calls, possibly after the call has
// returned, with no round trip to the host. Synchronize waits for the queue and returns the first
// failure of what ran in it. On the CPU an operation runs in the call itself and its status is the
// outcome. ExchangeSmall is the exception: its words lie on the host and it always waits.
//
// Every rank calls the same operations in the same order with the same sizes. A disagreement is
// reported as a failure within the timeout; it never gives wrong data.
//
// Determinism: a sum is taken in rank order, ((x0 + x1) + x2) + …, in the type of the elements:
// FP32 sums round to FP32 at each addition. A result is a function of the inputs and the world
// size, and every rank that receives it has the same bits. bench/comm_bench.cc measures the cost
// compared to a ring, whose order of summation depends on the position in the data.
//
// Failure: a rank that dies or hangs fails the operations of the others within the timeout:
// UNAVAILABLE when it is known to have ended, DEADLINE_EXCEEDED when it does not answer; the
// message names the operation, its number, this rank and the missing rank. A group that has failed
// once stays failed: later operations return the same error at once. Start a new attempt.
//
// Ownership: buffers belong to the caller and must live until the operation has run.
// Thread-safety: one thread at a time per object.
#ifndef NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/rank_group.h"

namespace nibble {

// Called when an operation begins and when its call returns.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  // `operation`: a name with static lifetime. `number` counts the rank's operations.
  virtual void Entered(const char* operation, uint64_t number) = 0;
  virtual void Left() = 0;
};

// What the device does while an operation runs. A transport that computes to move data slows down
// computation beside it, and may be the faster one where there is none. No bits depend on it.
enum class Beside { kComputation, kNothing };

class Collective {
 public:
  // AllReduce is for norms, losses and amaxes. Gradients go through ReduceScatter and AllGather,
  // whose traffic does not grow with the world.
  static constexpr int64_t kMaxAllReduceBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxExchangeWords = 1024;

  virtual ~Collective() = default;

  int rank() const { return rank_; }
  int world() const { return world_; }
  // The transport and the rank: "gloo tcp 127.0.0.1, rank 1 of 4".
  virtual std::string Name() const = 0;

  // `beside`: what this rank's device does meanwhile; the same on every rank.
  //
  // in: [bytes], out: [world, bytes]; out[r] is rank r's `in`. In place: in == out[rank].
  absl::Status AllGather(const void* in, void* out, int64_t bytes,
                         Beside beside = Beside::kComputation);

  // in: [world, count] f32, out: [count] f32; out = sum over ranks r of in_r[rank], in rank order.
  // In place: out == in[rank]; the rest of `in` is unchanged.
  absl::Status ReduceScatter(const float* in, float* out, int64_t count,
                             Beside beside = Beside::kComputation);

  // data: [count], in place. At most kMaxAllReduceBytes.
  absl::Status AllReduce(float* data, int64_t count, Reduction reduction);
  absl::Status AllReduce(double* data, int64_t count, Reduction reduction);
  absl::Status AllReduce(int64_t* data, int64_t count, Reduction reduction);

  // data: [bytes]; every rank gets the data of `root`.
  absl::Status Broadcast(void* data, int64_t bytes, int root);

  // Returns once every rank has entered it.
  absl::Status Barrier();

  // Control words of the step boundary, on the host: returns [world, mine.size()], row r from rank
  // r. All ranks get the same words, so any pure function of them ("rank 0's request", "the
  // greatest") is an agreement. Every rank passes the same number of words, at most
  // kMaxExchangeWords.
  absl::StatusOr<std::vector<uint64_t>> ExchangeSmall(std::span<const uint64_t> mine);

  virtual absl::Status Synchronize() = 0;

  // That this rank has begun.
  uint64_t operations() const { return operations_; }
  // By them, to other ranks: what they need of this rank's data. A reduction that moves more
  // (NCCL's own) is counted as one in rank order; words of ExchangeSmall are not counted.
  int64_t sent_bytes() const { return sent_bytes_; }
  // That the caller has spent in operations, moving data and waiting for other ranks. 0 where they
  // are only enqueued.
  double seconds_inside() const { return at_once() ? seconds_inside_ : 0.0; }

  // Borrowed; null: none.
  virtual void set_observer(CollectiveObserver* observer) { observer_ = observer; }
  // Called around the call of every operation, on the caller's thread, also where a device's queue
  // runs the operation later. Borrowed; null: none.
  void set_tracer(CollectiveObserver* tracer) { tracer_ = tracer; }

 protected:
  // `number` counts the operations of this rank from 1.
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier, kExchange };
  struct Operation {
    Kind kind;
    uint64_t number;
    Beside beside = Beside::kComputation;
  };

  Collective(int rank, int world) : rank_(rank), world_(world) {}

  // Whether an operation is over when its call returns.
  virtual bool at_once() const { return false; }

  // Arguments have been checked: no pointer is null, sizes fit and are not zero, buffers are
  // disjoint or in place.
  virtual absl::Status DoAllGather(const Operation& operation, const void* in, void* out,
                                   int64_t bytes) = 0;
  virtual absl::Status DoReduceScatter(const Operation& operation, const float* in, float* out,
                                       int64_t count) = 0;
  virtual absl::Status DoAllReduce(const Operation& operation, void* data, int64_t count,
                                   ReduceElement element, Reduction reduction) = 0;
  virtual absl::Status DoBroadcast(const Operation& operation, void* data, int64_t bytes,
                                   int root) = 0;
  virtual absl::Status DoBarrier(const Operation& operation) = 0;
  // words: [world, count], on the host; row `rank` contains this rank's.
  virtual absl::Status DoExchange(const Operation& operation, uint64_t* words, int64_t count) = 0;

 private:
  // Returns the error of an earlier failure; otherwise counts and runs the operation, and puts its
  // name before an error.
  // `sends`: bytes to each other rank.
  absl::Status Run(Kind kind, int64_t sends, absl::FunctionRef<absl::Status(const Operation&)> run,
                   Beside beside = Beside::kComputation);
  absl::Status Refuse(Kind kind, const std::string& why) const;
  absl::Status AllReduceAny(void* data, int64_t count, ReduceElement element, Reduction reduction);

  const int rank_;
  const int world_;
  uint64_t operations_ = 0;
  int64_t sent_bytes_ = 0;
  double seconds_inside_ = 0;
  CollectiveObserver* observer_ = nullptr;
  CollectiveObserver* tracer_ = nullptr;
  absl::Status failed_;
};

// The collective of a job of one rank. In-place operations touch no memory, so they work with any
// backend; the others copy on the host.
std::unique_ptr<Collective> CreateLocal();

// The reductions of the collectives on the CPU, in rank order; pure functions.
//
// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + …, each addition rounded to FP32.
// in: [ranks] pointers to [count] f32; out: [count] f32, apart from every input or equal to one.
void SumInRankOrder(std::span<const float* const> in, float* out, int64_t count);

// The same for a small array of any element. in: [ranks, count], out: [count], apart.
void ReduceInRankOrder(const void* in, void* out, int ranks, int64_t count, ReduceElement element,
                       Reduction reduction);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_COLLECTIVE_H_
