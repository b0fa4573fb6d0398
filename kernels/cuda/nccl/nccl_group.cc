#include "kernels/cuda/nccl/nccl_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl/copy_exchange.h"
#include "kernels/cuda/nccl/nccl_communicator.h"
#include "kernels/cuda/nccl/nccl_library.h"
#include "kernels/cuda/nccl/piece_plan.h"
#include "kernels/cuda/nccl/rank_sum_kernels.h"

namespace nibble {
namespace {

// A queue holds about a thousand launches, of which a call takes up to four; beyond that launches
// wait for the card, and where a peer is lost they would wait in NCCL, out of Abort()'s reach.
constexpr int64_t kMostCallsAhead = 128;

ncclDataType_t TypeOf(ReduceElement element) {
  switch (element) {
    case ReduceElement::kFloat32:
      return ncclFloat32;
    case ReduceElement::kFloat64:
      return ncclFloat64;
    case ReduceElement::kInt64:
      break;
  }
  return ncclInt64;
}

std::string NameOf(int version, NcclSums sums, const PeerCopies& copies) {
  std::string name = absl::StrCat("nccl ", NcclVersionText(version), ", sums in ",
                                  sums == NcclSums::kRankOrder ? "rank order" : "NCCL's order");
  if (copies.streams != nullptr) {
    absl::StrAppend(&name, ", moved by copy engines");
  } else if (!copies.why_not.empty()) {
    absl::StrAppend(&name, ", moved by NCCL's kernels, since ", copies.why_not);
  }
  return name;
}

class NcclGroup final : public RankGroup {
 public:
  NcclGroup(CudaBackend& backend, const NcclLibrary& library, NcclOptions& options, int version)
      : backend_(backend),
        nccl_(library),
        comm_(library),
        rank_(options.rank),
        world_(options.world),
        sums_(options.sums),
        name_(NameOf(version, options.sums, options.copies)),
        copies_(std::move(options.copies.streams)),
        alone_(std::move(options.alone)) {
    if (copies_ != nullptr) exchange_.emplace(*copies_, rank_, world_);
  }
  ~NcclGroup() override;

  absl::Status Connect(const NcclOptions& options);

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::string Name() const override { return name_; }

  absl::Status AllGather(uint64_t number, const void* in, void* out, int64_t bytes) override;
  absl::Status ReduceScatter(uint64_t number, const float* in, float* out, int64_t count) override;
  absl::Status AllReduce(uint64_t number, void* data, int64_t count, ReduceElement element,
                         Reduction reduction) override;
  absl::Status Broadcast(uint64_t number, void* data, int64_t bytes, int root) override;

  Progress progress() const override;
  absl::Status Health() override;
  void Abort(const absl::Status& why) override;

 private:
  enum Mark { kBegun, kCompleted };

  absl::Status Call(const char* name, absl::FunctionRef<ncclResult_t(ncclComm_t)> calls) {
    return comm_.Call(name, calls);
  }
  void End(const absl::Status& why, bool fails_the_queues);
  absl::Status Set(Mark mark, uint64_t number);
  // Marks the operation's begin and its end around `run`, which makes so many calls of NCCL.
  absl::Status Enqueue(uint64_t number, int64_t calls, absl::FunctionRef<absl::Status()> run);
  // Waits until so many more calls may be enqueued.
  absl::Status AwaitRoom(int64_t calls);
  absl::Status SumInOrder(const float* in, float* out, int64_t count);
  // Sends this rank's piece of every slice, and receives that of its own slice from the others.
  absl::Status ExchangePiece(const PiecePlan& plan, int64_t p, const float* in, float* slot);
  absl::Status SumPiece(const PiecePlan& plan, int64_t p, const float* in, float* out,
                        const float* slot, cudaStream_t stream);
  absl::StatusOr<float*> Scratch(size_t bytes);
  absl::Status GatherByCopies(const char* in, char* out, int64_t bytes);
  absl::Status SumByCopies(const float* in, float* out, int64_t count);
  // Whether copy engines move it: beside nothing NCCL's kernels are faster, with three peers by a
  // third, and for a few bytes by a tenth of a millisecond (docs/results/gpu.md).
  bool Copies() const { return exchange_.has_value() && !(alone_ != nullptr && alone_()); }
  // After an exchange by copies: an error of the queues if a peer has given up.
  absl::Status CheckPeers() {
    return backend_.transfers().Host([this] { return copies_->PeersStatus(); });
  }

  cudaStream_t transfers() const { return backend_.transfers().stream(); }

  CudaBackend& backend_;
  const NcclLibrary& nccl_;
  NcclCommunicator comm_;
  const int rank_, world_;
  const NcclSums sums_;
  const std::string name_;

  Buffer marks_;  // pinned, uint64_t by Mark
  struct Ahead {
    uint64_t number;
    int64_t calls;
  };
  std::deque<Ahead> ahead_;  // operations that were not complete when last seen
  int64_t calls_ahead_ = 0;  // of them
  cudaStream_t sum_stream_ = nullptr;
  std::unique_ptr<CudaEvent> arrived_[2], summed_[2];  // by slot
  const std::unique_ptr<CopyStreams> copies_;          // null: NCCL moves everything
  const std::function<bool()> alone_;
  std::optional<CopyExchange> exchange_;  // by them
  // Outgrown buffers stay: operations may still use them.
  std::vector<Buffer> scratch_;
};

absl::Status NcclGroup::Connect(const NcclOptions& options) {
  const int device = backend_.device();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device), "cudaSetDevice"));
  NIBBLE_ASSIGN_OR_RETURN(marks_, backend_.pinned().Allocate(2 * sizeof(uint64_t)));
  std::memset(marks_.data(), 0, marks_.bytes());
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&sum_stream_, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags"));
  for (auto* events : {&arrived_, &summed_}) {
    for (std::unique_ptr<CudaEvent>& event : *events) {
      NIBBLE_ASSIGN_OR_RETURN(event, CudaEvent::Create());
    }
  }
  return comm_.Connect(options);
}

NcclGroup::~NcclGroup() {
  // NCCL's orderly end waits for the peers, which may be gone; nothing is under way in a group that
  // ends well.
  End(absl::CancelledError("the group has been closed"), false);
  (void)cudaSetDevice(backend_.device());
  (void)cudaStreamSynchronize(transfers());
  if (sum_stream_ == nullptr) return;
  (void)cudaStreamSynchronize(sum_stream_);
  (void)cudaStreamDestroy(sum_stream_);
}

absl::Status NcclGroup::Set(Mark mark, uint64_t number) {
  return StatusOf(gpu::LaunchMark(marks_.data<uint64_t>() + mark, number, transfers()),
                  "launch of a mark");
}

absl::Status NcclGroup::AwaitRoom(int64_t calls) {
  EnqueueWait wait;
  while (true) {
    const uint64_t completed = progress().completed;
    while (!ahead_.empty() && ahead_.front().number <= completed) {
      calls_ahead_ -= ahead_.front().calls;
      ahead_.pop_front();
    }
    if (ahead_.empty() || calls_ahead_ + calls <= kMostCallsAhead) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(comm_.State().status());
    wait.Pause();
  }
}

absl::Status NcclGroup::Enqueue(uint64_t number, int64_t calls,
                                absl::FunctionRef<absl::Status()> run) {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(backend_.device()), "cudaSetDevice"));
  NIBBLE_RETURN_IF_ERROR(AwaitRoom(calls));
  ahead_.push_back({number, calls});
  calls_ahead_ += calls;
  NIBBLE_RETURN_IF_ERROR(Set(kBegun, number));
  NIBBLE_RETURN_IF_ERROR(run());
  return Set(kCompleted, number);
}

absl::Status NcclGroup::AllGather(uint64_t number, const void* in, void* out, int64_t bytes) {
  if (Copies()) {
    return Enqueue(number, exchange_->pieces(bytes), [&] {
      return GatherByCopies(static_cast<const char*>(in), static_cast<char*>(out), bytes);
    });
  }
  return Enqueue(number, 1, [&] {
    return Call("ncclAllGather", [&](ncclComm_t comm) {
      return nccl_.AllGather(in, out, static_cast<size_t>(bytes), ncclInt8, comm, transfers());
    });
  });
}

absl::Status NcclGroup::Broadcast(uint64_t number, void* data, int64_t bytes, int root) {
  return Enqueue(number, 1, [&] {
    return Call("ncclBroadcast", [&](ncclComm_t comm) {
      return nccl_.Broadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root, comm,
                             transfers());
    });
  });
}

absl::Status NcclGroup::ReduceScatter(uint64_t number, const float* in, float* out, int64_t count) {
  if (Copies()) {
    return Enqueue(number, exchange_->pieces(count * static_cast<int64_t>(sizeof(float))),
                   [&] { return SumByCopies(in, out, count); });
  }
  const int64_t calls = sums_ == NcclSums::kRankOrder ? PlanPieces(world_, count).pieces : 1;
  return Enqueue(number, calls, [&] {
    if (sums_ == NcclSums::kRankOrder) return SumInOrder(in, out, count);
    return Call("ncclReduceScatter", [&](ncclComm_t comm) {
      return nccl_.ReduceScatter(in, out, static_cast<size_t>(count), ncclFloat32, ncclSum, comm,
                                 transfers());
    });
  });
}

absl::Status NcclGroup::AllReduce(uint64_t number, void* data, int64_t count, ReduceElement element,
                                  Reduction reduction) {
  return Enqueue(number, 1, [&]() -> absl::Status {
    // NCCL's maximum may lose a NaN.
    if (sums_ == NcclSums::kLibrary && reduction == Reduction::kSum) {
      return Call("ncclAllReduce", [&](ncclComm_t comm) {
        return nccl_.AllReduce(data, data, static_cast<size_t>(count), TypeOf(element), ncclSum,
                               comm, transfers());
      });
    }
    const auto bytes = static_cast<size_t>(count * ReduceElementBytes(element));
    NIBBLE_ASSIGN_OR_RETURN(float* const all, Scratch(bytes * static_cast<size_t>(world_)));
    NIBBLE_RETURN_IF_ERROR(Call("ncclAllGather", [&](ncclComm_t comm) {
      return nccl_.AllGather(data, all, bytes, ncclInt8, comm, transfers());
    }));
    return StatusOf(
        gpu::LaunchRankReduce(all, data, world_, count, element, reduction, transfers()),
        "launch of the reduction over ranks");
  });
}

absl::StatusOr<float*> NcclGroup::Scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t has = scratch_.empty() ? 0 : scratch_.back().bytes();
  if (has < bytes) {
    // Twice as much at a time, so that all together are at most twice what a plan asks for.
    const size_t most = static_cast<size_t>(kMostScratch) * sizeof(float);
    NIBBLE_ASSIGN_OR_RETURN(Buffer grown,
                            backend_.memory().Allocate(std::max(bytes, std::min(2 * has, most))));
    scratch_.push_back(std::move(grown));
  }
  return scratch_.back().data<float>();
}

absl::Status NcclGroup::ExchangePiece(const PiecePlan& plan, int64_t p, const float* in,
                                      float* slot) {
  const auto elements = static_cast<size_t>(plan.elements(p));
  return Call("ncclSend and ncclRecv", [&](ncclComm_t comm) {
    for (int i = 1; i < world_; ++i) {
      // Each rank begins with its successor, so that not all send to the same one.
      const int to = (rank_ + i) % world_, from = (rank_ + world_ - i) % world_;
      const ncclResult_t sent = nccl_.Send(in + to * plan.count + plan.first(p), elements,
                                           ncclFloat32, to, comm, transfers());
      if (sent != ncclSuccess && sent != ncclInProgress) return sent;
      const ncclResult_t received =
          nccl_.Recv(slot + (from < rank_ ? from : from - 1) * plan.stride, elements, ncclFloat32,
                     from, comm, transfers());
      if (received != ncclSuccess && received != ncclInProgress) return received;
    }
    return ncclSuccess;
  });
}

absl::Status NcclGroup::SumPiece(const PiecePlan& plan, int64_t p, const float* in, float* out,
                                 const float* slot, cudaStream_t stream) {
  return StatusOf(gpu::LaunchRankSum({.own = in + rank_ * plan.count + plan.first(p),
                                      .others = slot,
                                      .stride = plan.stride,
                                      .rank = rank_,
                                      .world = world_},
                                     out + plan.first(p), plan.elements(p), stream),
                  "launch of the sum over ranks");
}

absl::Status NcclGroup::SumInOrder(const float* in, float* out, int64_t count) {
  if (world_ == 1 && out == in) return absl::OkStatus();
  const PiecePlan plan = PlanPieces(world_, count);
  NIBBLE_ASSIGN_OR_RETURN(float* const scratch,
                          Scratch(static_cast<size_t>(plan.scratch_elements()) * sizeof(float)));
  if (plan.pieces == 1) {
    if (world_ > 1) NIBBLE_RETURN_IF_ERROR(ExchangePiece(plan, 0, in, scratch));
    return SumPiece(plan, 0, in, out, scratch, transfers());
  }
  CudaQueue& queue = backend_.transfers();
  for (int64_t p = 0; p < plan.pieces; ++p) {
    const int64_t s = p % plan.slots;
    float* const slot = scratch + s * plan.slot_elements;
    if (p >= plan.slots) NIBBLE_RETURN_IF_ERROR(queue.WaitFor(*summed_[s]));
    NIBBLE_RETURN_IF_ERROR(ExchangePiece(plan, p, in, slot));
    NIBBLE_RETURN_IF_ERROR(queue.Record(*arrived_[s]));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaStreamWaitEvent(sum_stream_, arrived_[s]->get(), 0), "cudaStreamWaitEvent"));
    NIBBLE_RETURN_IF_ERROR(SumPiece(plan, p, in, out, slot, sum_stream_));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaEventRecord(summed_[s]->get(), sum_stream_), "cudaEventRecord"));
  }
  // The last sum comes after all others.
  return queue.WaitFor(*summed_[(plan.pieces - 1) % plan.slots]);
}

absl::Status NcclGroup::SumByCopies(const float* in, float* out, int64_t count) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  const auto stream = static_cast<cudaStream_t>(copies_->take_stream());
  const int64_t stride = copies_->slots().slot_bytes / kBytes;
  NIBBLE_RETURN_IF_ERROR(exchange_->Run(
      count * kBytes, [&](int peer) { return in + peer * count; },
      [&](int64_t first_byte, int64_t bytes, const char* lanes) {
        const int64_t first = first_byte / kBytes;
        return StatusOf(gpu::LaunchRankSum({.own = in + rank_ * count + first,
                                            .others = reinterpret_cast<const float*>(lanes),
                                            .stride = stride,
                                            .rank = rank_,
                                            .world = world_},
                                           out + first, bytes / kBytes, stream),
                        "launch of the sum over ranks");
      }));
  return CheckPeers();
}

absl::Status NcclGroup::GatherByCopies(const char* in, char* out, int64_t bytes) {
  const auto stream = static_cast<cudaStream_t>(copies_->take_stream());
  const auto copy = [&](char* to, const char* from, int64_t part) {
    return StatusOf(
        cudaMemcpyAsync(to, from, static_cast<size_t>(part), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  };
  NIBBLE_RETURN_IF_ERROR(exchange_->Run(
      bytes, [&](int) { return in; },
      [&](int64_t first, int64_t part, const char* lanes) {
        absl::Status status;
        for (int peer = 0; peer < world_; ++peer) {
          char* const to = out + peer * bytes + first;
          const char* from = in + first;
          if (peer != rank_) from = lanes + CopyLane(rank_, peer) * copies_->slots().slot_bytes;
          if (to != from) status.Update(copy(to, from, part));
        }
        return status;
      }));
  return CheckPeers();
}

RankGroup::Progress NcclGroup::progress() const {
  auto* const marks = marks_.data<uint64_t>();
  // Completed first: an operation is never seen completed and not begun.
  const uint64_t completed = std::atomic_ref<uint64_t>(marks[kCompleted]).load();
  return {.begun = std::atomic_ref<uint64_t>(marks[kBegun]).load(), .completed = completed};
}

absl::Status NcclGroup::Health() { return comm_.State().status(); }

void NcclGroup::Abort(const absl::Status& why) { End(why, true); }

void NcclGroup::End(const absl::Status& why, bool fails_the_queues) {
  comm_.Abort(why, [&] {
    // Before the work ends: who waits for it must not take its results.
    if (fails_the_queues) backend_.Fail(why);
    // First, since NCCL's calls may wait for a stream that waits for a peer.
    if (copies_ != nullptr) {
      const bool unfinished =
          fails_the_queues || (!ahead_.empty() && ahead_.back().number > progress().completed);
      copies_->Release(exchange_->issued(), unfinished);
    }
    (void)cudaSetDevice(backend_.device());
  });
}

absl::StatusOr<const NcclLibrary*> LibraryOf(const NcclLibrary* given) {
  if (given != nullptr) return given;
  return LoadNccl();
}

absl::StatusOr<int> VersionOf(const NcclLibrary& library) {
  int version = 0;
  NIBBLE_RETURN_IF_ERROR(NcclStatus(library, library.GetVersion(&version), "ncclGetVersion"));
  return version;
}

}  // namespace

absl::StatusOr<int> NcclVersion() {
  NIBBLE_ASSIGN_OR_RETURN(const NcclLibrary* const library, LoadNccl());
  return VersionOf(*library);
}

absl::StatusOr<NcclId> NewNcclId() {
  NIBBLE_ASSIGN_OR_RETURN(const NcclLibrary* const library, LoadNccl());
  ncclUniqueId made;
  NIBBLE_RETURN_IF_ERROR(NcclStatus(*library, library->GetUniqueId(&made), "ncclGetUniqueId",
                                    library->GetLastError(nullptr)));
  NcclId id;
  std::memcpy(id.data(), &made, sizeof(made));
  return id;
}

absl::StatusOr<std::unique_ptr<RankGroup>> ConnectNccl(Backend& backend, NcclOptions options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL: rank ", options.rank, " of ", options.world));
  }
  if (options.copies.streams != nullptr && options.sums != NcclSums::kRankOrder) {
    return absl::InvalidArgumentError("NCCL: its own sums are not moved by copy engines");
  }
  NIBBLE_ASSIGN_OR_RETURN(const NcclLibrary* const library, LibraryOf(options.library));
  NIBBLE_ASSIGN_OR_RETURN(const int version, VersionOf(*library));
  auto group =
      std::make_unique<NcclGroup>(static_cast<CudaBackend&>(backend), *library, options, version);
  NIBBLE_RETURN_IF_ERROR(group->Connect(options));
  return std::unique_ptr<RankGroup>(std::move(group));
}

}  // namespace nibble
