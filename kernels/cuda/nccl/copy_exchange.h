// How ranks on cards of one host exchange by copies between the cards' memories, without a kernel
// that waits: the order of copies, waits and flags, apart from the streams that run them.
//
// Every rank has slots in its card's memory, some for each peer, into which that peer's copy
// engines write (a lane). A piece goes into the lane's next slot once its last content has been
// taken, and a flag then tells the receiver that it has arrived; the receiver takes the pieces of
// all peers together, in a stream of its own, and a flag tells each peer that the slot is free.
// Senders only read their own memory, so a buffer may be overwritten as soon as this rank's
// operation has run, and only the slots need to be known to other ranks.
//
// A rank sends to one peer at a time, and a peer receives from one rank at a time: in turn i of a
// piece, rank r sends to r + i, once the rank that had the turn before has sent to it. A link
// carries two copies at once at half of its rate altogether (bench/peers/copy_engines.py).
//
// Flags hold the number of the last piece, which counts through all operations and only grows.
// Every wait is for something that the other rank enqueues earlier in the same sequence of calls,
// so the sequence would also finish if each rank ran it in one stream.
//
// Thread-safety: one thread per object, except issued() and Release(); the functions are pure.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_COPY_EXCHANGE_H_
#define NIBBLE_KERNELS_CUDA_NCCL_COPY_EXCHANGE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/status_macros.h"

namespace nibble {

// Slots of one rank: [slots, world - 1, slot_bytes], a lane for each peer in rank order.
struct CopySlots {
  int64_t slots = 0;
  int64_t slot_bytes = 0;

  int64_t slot_offset(int64_t slot, int world) const { return slot * (world - 1) * slot_bytes; }
  int64_t bytes(int world) const { return slot_offset(slots, world); }
};

// The lane of `peer` in the slots of `owner`, another rank.
constexpr int CopyLane(int owner, int peer) { return peer < owner ? peer : peer - 1; }

inline constexpr int64_t kMostCopySlots = 4;  // copies run ahead while a sum waits for processors
// Copies of 16 MiB reach nine tenths of a link's rate, of 1 MiB half of it.
inline constexpr int64_t kMostCopySlotBytes = int64_t{16} << 20;
inline constexpr int64_t kMostCopyBytes = int64_t{224} << 20;  // of a rank's slots

// Large slots before many: as many of the largest as there is memory for, at least two. `world`: at
// least 2.
constexpr CopySlots PlanCopySlots(int world) {
  constexpr int64_t kAlign = 4096;
  const int64_t of_lane = kMostCopyBytes / (world - 1);
  const int64_t slots =
      std::min(kMostCopySlots, std::max<int64_t>(2, of_lane / kMostCopySlotBytes));
  return {.slots = slots,
          .slot_bytes =
              std::max(kAlign, std::min(kMostCopySlotBytes, of_lane / slots / kAlign * kAlign))};
}

// Whose turn it is to send to `peer` after `rank`'s: of the same piece, or the first one's of the
// next piece; `rank` itself where there are two.
constexpr int NextSender(int rank, int peer, int world) {
  const int next = (rank + world - 1) % world;
  return next == peer ? (next + world - 1) % world : next;
}

// A flag and the number it is waited for are the low bits of a piece's number; a wait ends when the
// flag has reached it, which is less than half of all numbers away.
constexpr bool CopyFlagReached(uint32_t flag, uint32_t piece) {
  return static_cast<int32_t>(flag - piece) >= 0;
}
// What a flag is set to where all waits for pieces up to about `issued` shall end.
constexpr uint32_t CopyFlagReleased(uint64_t issued) {
  return static_cast<uint32_t>(issued) + (uint32_t{1} << 30);
}

// The streams of one rank: of its pushes and of its takes. Calls enqueue, and return at once; those
// of a stream run in the order of the calls.
class CopyStreams {
 public:
  virtual ~CopyStreams() = default;

  virtual CopySlots slots() const = 0;
  // Both wait for what the queue of transfers has been given so far, and at the end the queue for
  // them.
  virtual absl::Status Begin() = 0;
  virtual absl::Status End() = 0;

  // In the stream of pushes: waits for what `waits` names; copies into the slot of `peer`; tells it
  // that `piece` has arrived, and `next`, if it is another rank, that it is its turn.
  struct Waits {
    std::optional<uint32_t> taken;  // until the peer has taken this piece of this rank
    std::optional<uint32_t> turn;   // until the sender before has sent this piece to the peer
  };
  virtual absl::Status Await(int peer, const Waits& waits) = 0;
  virtual absl::Status Push(int peer, int64_t slot, const void* from, int64_t bytes) = 0;
  virtual absl::Status RaiseArrived(int peer, uint32_t piece, int next) = 0;
  // In the stream of takes: waits until `piece` of every peer has arrived; tells every peer that
  // its piece has been taken.
  virtual absl::Status AwaitArrived(uint32_t piece) = 0;
  virtual absl::Status RaiseTaken(uint32_t piece) = 0;

  // This rank's slots, and the stream of takes: a cudaStream_t.
  virtual char* slot_memory() const = 0;
  virtual void* take_stream() const = 0;

  // Ends all waits, now and from now on, from any thread; `issued`: the last piece's number, or a
  // little less. The streams go on with whatever is in the slots, and so may peers: where
  // `unfinished`, their PeersStatus() is an error before anything of this can reach them.
  virtual void Release(uint64_t issued, bool unfinished) = 0;
  // Unavailable, naming the rank, if a peer was released before it had finished: what has arrived
  // since then is not to be used. Asked by the queue of transfers after an exchange.
  virtual absl::Status PeersStatus() const = 0;
};

// One rank's sequence of exchanges. All ranks run the same ones, in the same order.
class CopyExchange {
 public:
  // `first`: the number of the first piece; other than 1 in tests.
  CopyExchange(CopyStreams& streams, int rank, int world, uint64_t first = 1)
      : streams_(streams),
        slots_(streams.slots()),
        rank_(rank),
        world_(world),
        first_(first),
        issued_(first - 1) {}

  // Enqueues an exchange of `bytes` with each peer. `from(peer)`: what is sent to it, [bytes].
  // `take(first, bytes, lanes)` enqueues, in the stream of takes, what is done with a piece:
  // `lanes`: [world - 1, slot_bytes], by CopyLane; `bytes` of each, from `first` of what the peer
  // sends on.
  absl::Status Run(int64_t bytes, absl::FunctionRef<const void*(int peer)> from,
                   absl::FunctionRef<absl::Status(int64_t first, int64_t bytes, char* lanes)> take);

  // Pieces of a slice of `bytes`.
  int64_t pieces(int64_t bytes) const {
    return (bytes + slots_.slot_bytes - 1) / slots_.slot_bytes;
  }
  // The number of the last piece; from any thread.
  uint64_t issued() const { return issued_.load(std::memory_order_relaxed); }

 private:
  CopyStreams& streams_;
  const CopySlots slots_;
  const int rank_, world_;
  const uint64_t first_;
  std::atomic<uint64_t> issued_;
};

inline absl::Status CopyExchange::Run(
    int64_t bytes, absl::FunctionRef<const void*(int peer)> from,
    absl::FunctionRef<absl::Status(int64_t first, int64_t bytes, char* lanes)> take) {
  const auto slots = static_cast<uint64_t>(slots_.slots);
  NIBBLE_RETURN_IF_ERROR(streams_.Begin());
  for (int64_t first = 0; first < bytes; first += slots_.slot_bytes) {
    const int64_t part = std::min(slots_.slot_bytes, bytes - first);
    const uint64_t number = issued() + 1;
    issued_.store(number, std::memory_order_relaxed);
    const auto piece = static_cast<uint32_t>(number);
    const auto slot = static_cast<int64_t>((number - first_) % slots);
    for (int i = 1; i < world_; ++i) {
      const int to = (rank_ + i) % world_;
      CopyStreams::Waits waits;
      if (number - first_ >= slots) waits.taken = static_cast<uint32_t>(number - slots);
      // The last turn of the piece before, or this piece's turn before.
      if (world_ > 2 && i > 1) waits.turn = piece;
      if (world_ > 2 && i == 1 && number > first_) waits.turn = piece - 1;
      NIBBLE_RETURN_IF_ERROR(streams_.Await(to, waits));
      NIBBLE_RETURN_IF_ERROR(
          streams_.Push(to, slot, static_cast<const char*>(from(to)) + first, part));
      NIBBLE_RETURN_IF_ERROR(streams_.RaiseArrived(to, piece, NextSender(rank_, to, world_)));
    }
    NIBBLE_RETURN_IF_ERROR(streams_.AwaitArrived(piece));
    NIBBLE_RETURN_IF_ERROR(
        take(first, part, streams_.slot_memory() + slots_.slot_offset(slot, world_)));
    NIBBLE_RETURN_IF_ERROR(streams_.RaiseTaken(piece));
  }
  return streams_.End();
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_COPY_EXCHANGE_H_
