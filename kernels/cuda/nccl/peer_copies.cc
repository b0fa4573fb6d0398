#include "kernels/cuda/nccl/peer_copies.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl/copy_offer.h"

namespace nibble {
namespace {

// Each flag belongs to the rank that waits for it and has an index and one writer: arrived is
// written by the rank that sends, its index; taken by the rank that received, its index; turn by
// the sender before, its index is the receiver.
enum Flag : int { kArrived, kTaken, kTurn };
constexpr int kFlags = 3;
constexpr int64_t kFlagStride = 64;  // bytes
// How often a released rank's flags are set again: a peer's stream may still write them.
constexpr std::chrono::microseconds kReleaseBeat(200);

// Of cuStreamBatchMemOp, loaded: programs run without a driver, too.
using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

absl::StatusOr<BatchMemOp> LoadBatchMemOp() {
  constexpr unsigned kCuda12 = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, kCuda12, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError("the driver has no cuStreamBatchMemOp");
  }
  return reinterpret_cast<BatchMemOp>(function);
}

// Shared memory of the host, mapped for this process's card, too.
class FlagPage {
 public:
  static std::string NameOf(uint64_t name) { return absl::StrCat("/nibble-flags-", name); }

  FlagPage() = default;
  FlagPage(const FlagPage&) = delete;
  FlagPage& operator=(const FlagPage&) = delete;
  ~FlagPage() {
    if (data_ == nullptr) return;
    if (registered_) (void)cudaHostUnregister(data_);
    (void)munmap(data_, bytes_);
  }

  // `create`: with zeros, which no other process has.
  absl::Status Open(const std::string& name, int world, bool create) {
    const OwnedDescriptor file(
        shm_open(name.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600));
    if (file.get() < 0) return ErrnoError(errno, "opening shared memory", name);
    world_ = world;
    bytes_ = static_cast<size_t>(kFlagStride * world * (kFlags * world + 1));
    // Not only sized: a store into a page that is not there would end the process.
    if (create) {
      const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes_));
      if (error != 0) return ErrnoError(error, "allocating shared memory", name);
    }
    void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) return ErrnoError(errno, "mapping shared memory", name);
    data_ = static_cast<char*>(data);
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaHostRegister(data_, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped),
                 "cudaHostRegister"));
    registered_ = true;
    void* device = nullptr;
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaHostGetDevicePointer(&device, data_, 0), "cudaHostGetDevicePointer"));
    device_ = reinterpret_cast<CUdeviceptr>(device);
    return absl::OkStatus();
  }

  CUdeviceptr device(Flag flag, int owner, int index) const {
    return device_ + static_cast<CUdeviceptr>(Offset(flag, owner, index));
  }
  uint32_t* host(Flag flag, int owner, int index) const {
    return reinterpret_cast<uint32_t*>(data_ + Offset(flag, owner, index));
  }
  // Not 0: the rank was released before it had finished. Read and written by hosts only.
  uint32_t* gave_up(int rank) const {
    return reinterpret_cast<uint32_t*>(data_ +
                                       (int64_t{kFlags} * world_ * world_ + rank) * kFlagStride);
  }

 private:
  int64_t Offset(Flag flag, int owner, int index) const {
    return ((int64_t{owner} * kFlags + flag) * world_ + index) * kFlagStride;
  }

  int world_ = 0;
  size_t bytes_ = 0;
  char* data_ = nullptr;
  bool registered_ = false;
  CUdeviceptr device_ = 0;
};

class CudaCopyStreams final : public CopyStreams {
 public:
  CudaCopyStreams(CudaBackend& backend, int rank, int world)
      : backend_(backend),
        rank_(rank),
        world_(world),
        plan_(PlanCopySlots(world)),
        peer_slots_(static_cast<size_t>(world)) {}
  ~CudaCopyStreams() override;

  // Steps of the connection: what this rank offers; then its part of the others' offers.
  absl::Status MakeSlots(CopyOffer& offer);
  absl::Status MakeStreams();
  FlagPage& flags() { return flags_; }
  absl::Status MapPeers(std::span<const CopyOffer> offers);

  CopySlots slots() const override { return plan_; }
  absl::Status Begin() override;
  absl::Status End() override;
  absl::Status Await(int peer, const Waits& waits) override {
    operations_.clear();
    if (waits.taken.has_value()) operations_.push_back(Wait(kTaken, peer, *waits.taken));
    if (waits.turn.has_value()) operations_.push_back(Wait(kTurn, peer, *waits.turn));
    return operations_.empty() ? absl::OkStatus() : Enqueue(push_, operations_);
  }
  absl::Status Push(int peer, int64_t slot, const void* from, int64_t bytes) override {
    char* const to = peer_slots_[Index(peer)] + plan_.slot_offset(slot, world_) +
                     CopyLane(peer, rank_) * plan_.slot_bytes;
    return StatusOf(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, push_),
                    "cudaMemcpyAsync to another card");
  }
  absl::Status RaiseArrived(int peer, uint32_t piece, int next) override {
    operations_.clear();
    operations_.push_back(Write(kArrived, peer, rank_, piece));
    if (next != rank_) operations_.push_back(Write(kTurn, next, peer, piece));
    return Enqueue(push_, operations_);
  }
  absl::Status AwaitArrived(uint32_t piece) override {
    operations_.clear();
    ForPeers([&](int peer) { operations_.push_back(Wait(kArrived, peer, piece)); });
    return Enqueue(take_, operations_);
  }
  absl::Status RaiseTaken(uint32_t piece) override {
    operations_.clear();
    ForPeers([&](int peer) { operations_.push_back(Write(kTaken, peer, rank_, piece)); });
    return Enqueue(take_, operations_);
  }
  char* slot_memory() const override { return slots_.data<char>(); }
  void* take_stream() const override { return take_; }
  void Release(uint64_t issued, bool unfinished) override;
  absl::Status PeersStatus() const override;

 private:
  static size_t Index(int peer) { return static_cast<size_t>(peer); }
  template <class Run>
  void ForPeers(const Run& run) {
    for (int peer = 0; peer < world_; ++peer) {
      if (peer != rank_) run(peer);
    }
  }
  CUstreamBatchMemOpParams Wait(Flag flag, int index, uint32_t piece) const {
    CUstreamBatchMemOpParams wait = {};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address = flags_.device(flag, rank_, index);
    wait.waitValue.value = piece;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return wait;
  }
  CUstreamBatchMemOpParams Write(Flag flag, int owner, int index, uint32_t piece) const {
    CUstreamBatchMemOpParams write = {};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = flags_.device(flag, owner, index);
    write.writeValue.value = piece;
    write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    return write;
  }
  absl::Status Enqueue(cudaStream_t stream, std::span<CUstreamBatchMemOpParams> operations);
  // Sets this rank's flags again and again until the streams have ended.
  void KeepReleased(uint32_t value);

  CudaBackend& backend_;
  const int rank_, world_;
  const CopySlots plan_;
  BatchMemOp batch_ = nullptr;
  FlagPage flags_;
  Buffer slots_;                   // [plan_.slots, world - 1, plan_.slot_bytes]
  std::vector<char*> peer_slots_;  // by rank; mapped
  cudaStream_t push_ = nullptr, take_ = nullptr;
  cudaEvent_t begun_ = nullptr, pushed_ = nullptr, taken_ = nullptr;
  std::vector<CUstreamBatchMemOpParams> operations_;

  Mutex mutex_;
  CondVar closing_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread releaser_ ABSL_GUARDED_BY(mutex_);
};

absl::Status CudaCopyStreams::MakeStreams() {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(backend_.device()), "cudaSetDevice"));
  NIBBLE_ASSIGN_OR_RETURN(batch_, LoadBatchMemOp());
  int lowest = 0, highest = 0;
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                                  "cudaDeviceGetStreamPriorityRange"));
  const auto stream = [&](cudaStream_t& made) {
    return StatusOf(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, highest),
                    "cudaStreamCreateWithPriority");
  };
  const auto event = [](cudaEvent_t& made) {
    return StatusOf(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
  };
  NIBBLE_RETURN_IF_ERROR(stream(push_));
  NIBBLE_RETURN_IF_ERROR(stream(take_));
  NIBBLE_RETURN_IF_ERROR(event(begun_));
  NIBBLE_RETURN_IF_ERROR(event(pushed_));
  return event(taken_);
}

absl::Status CudaCopyStreams::MakeSlots(CopyOffer& offer) {
  NIBBLE_ASSIGN_OR_RETURN(slots_,
                          backend_.memory().Allocate(static_cast<size_t>(plan_.bytes(world_))));
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(offer.slots));
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaIpcGetMemHandle(&handle, slots_.data()), "cudaIpcGetMemHandle"));
  std::memcpy(offer.slots.data(), &handle, sizeof(handle));
  return absl::OkStatus();
}

absl::Status CudaCopyStreams::MapPeers(std::span<const CopyOffer> offers) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, offers[Index(peer)].slots.data(), sizeof(handle));
    void* mapped = nullptr;
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess),
                 absl::StrCat("cudaIpcOpenMemHandle of rank ", peer)));
    peer_slots_[Index(peer)] = static_cast<char*>(mapped);
  }
  return absl::OkStatus();
}

absl::Status CudaCopyStreams::Enqueue(cudaStream_t stream,
                                      std::span<CUstreamBatchMemOpParams> operations) {
  const CUresult result = batch_(reinterpret_cast<CUstream>(stream),
                                 static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuStreamBatchMemOp: error ", static_cast<int>(result)));
}

absl::Status CudaCopyStreams::Begin() {
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaEventRecord(begun_, backend_.transfers().stream()), "cudaEventRecord"));
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(push_, begun_, 0), "cudaStreamWaitEvent"));
  return StatusOf(cudaStreamWaitEvent(take_, begun_, 0), "cudaStreamWaitEvent");
}

absl::Status CudaCopyStreams::End() {
  const cudaStream_t transfers = backend_.transfers().stream();
  absl::Status status;
  const auto join = [&](cudaStream_t stream, cudaEvent_t event) {
    status.Update(StatusOf(cudaEventRecord(event, stream), "cudaEventRecord"));
    status.Update(StatusOf(cudaStreamWaitEvent(transfers, event, 0), "cudaStreamWaitEvent"));
  };
  join(push_, pushed_);
  join(take_, taken_);
  return status;
}

absl::Status CudaCopyStreams::PeersStatus() const {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || std::atomic_ref<uint32_t>(*flags_.gave_up(peer)).load() == 0) continue;
    return absl::UnavailableError(absl::StrCat("rank ", peer, " gave up during an exchange"));
  }
  return absl::OkStatus();
}

void CudaCopyStreams::Release(uint64_t issued, bool unfinished) {
  const MutexLock lock(&mutex_);
  if (unfinished) std::atomic_ref<uint32_t>(*flags_.gave_up(rank_)).store(1);
  if (closed_ || releaser_.joinable()) return;
  releaser_ = std::thread([this, value = CopyFlagReleased(issued)] { KeepReleased(value); });
}

void CudaCopyStreams::KeepReleased(uint32_t value) {
  while (true) {
    ForPeers([&](int peer) {
      for (const Flag flag : {kArrived, kTaken, kTurn}) {
        std::atomic_ref<uint32_t>(*flags_.host(flag, rank_, peer)).store(value);
      }
    });
    const MutexLock lock(&mutex_);
    if (closed_) return;
    (void)closing_.WaitFor(&mutex_, kReleaseBeat);
  }
}

CudaCopyStreams::~CudaCopyStreams() {
  (void)cudaSetDevice(backend_.device());
  for (const cudaStream_t stream : {push_, take_}) {
    if (stream != nullptr) (void)cudaStreamSynchronize(stream);
  }
  std::thread releaser;
  {
    const MutexLock lock(&mutex_);
    closed_ = true;
    releaser = std::move(releaser_);
  }
  closing_.Signal();
  if (releaser.joinable()) releaser.join();
  for (char* const slots : peer_slots_) {
    if (slots != nullptr) (void)cudaIpcCloseMemHandle(slots);
  }
  for (const cudaEvent_t event : {begun_, pushed_, taken_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  for (const cudaStream_t stream : {push_, take_}) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
}

std::array<uint64_t, 2> BootOfHost() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  // FNV-1a of each half.
  std::array<uint64_t, 2> words = {14695981039346656037u, 14695981039346656037u};
  for (size_t i = 0; i < id.size(); ++i) {
    uint64_t& word = words[i * 2 / id.size()];
    word = (word ^ static_cast<unsigned char>(id[i])) * 1099511628211u;
  }
  return words;
}

// The ranks' obstacles after a step, this one's first; "" if there is none.
absl::StatusOr<std::string> Agree(const WordExchange& exchange, CopyObstacle mine, int rank,
                                  const absl::Status& own) {
  const uint64_t word[] = {static_cast<uint64_t>(mine)};
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, exchange(word));
  for (size_t r = 0; r < all.size(); ++r) {
    const auto obstacle = static_cast<CopyObstacle>(all[r]);
    if (obstacle == CopyObstacle::kNone) continue;
    std::string why = DescribeObstacle(r, obstacle);
    if (static_cast<int>(r) == rank) absl::StrAppend(&why, " (", own.message(), ")");
    return why;
  }
  return "";
}

}  // namespace

absl::StatusOr<PeerCopies> ConnectCopies(Backend& backend, int rank, int world,
                                         const WordExchange& exchange) {
  auto streams = std::make_unique<CudaCopyStreams>(static_cast<CudaBackend&>(backend), rank, world);
  CopyOffer mine = {.host = BootOfHost()};
  CopyObstacle obstacle = CopyObstacle::kNone;
  absl::Status own;
  const auto step = [&](CopyObstacle if_it_fails, absl::FunctionRef<absl::Status()> run) {
    if (!own.ok()) return;
    own = run();
    if (!own.ok()) obstacle = if_it_fails;
  };
  std::string name;
  step(CopyObstacle::kStreamOperations, [&] { return streams->MakeStreams(); });
  step(CopyObstacle::kSlots, [&] { return streams->MakeSlots(mine); });
  step(CopyObstacle::kFlags, [&]() -> absl::Status {
    if (rank != 0) return absl::OkStatus();
    std::random_device random;
    mine.flags = uint64_t{random()} << 32 | random();
    name = FlagPage::NameOf(mine.flags);
    return streams->flags().Open(name, world, true);
  });
  mine.obstacle = obstacle;
  const absl::StatusOr<std::vector<uint64_t>> words = exchange(mine.ToWords());
  std::string why;
  absl::Status exchanged = words.status();
  if (words.ok()) {
    std::vector<CopyOffer> offers;
    for (size_t at = 0; at < words->size(); at += CopyOffer::kWords) {
      offers.push_back(CopyOffer::FromWords({words->data() + at, CopyOffer::kWords}));
    }
    why = WhyNoCopies(offers);
    if (why.empty()) {
      step(CopyObstacle::kFlags, [&] {
        if (rank == 0) return absl::OkStatus();
        return streams->flags().Open(FlagPage::NameOf(offers[0].flags), world, false);
      });
      step(CopyObstacle::kPeers, [&] { return streams->MapPeers(offers); });
      const absl::StatusOr<std::string> agreed = Agree(exchange, obstacle, rank, own);
      exchanged = agreed.status();
      if (agreed.ok()) why = *agreed;
    }
  }
  // Everybody has it open, or does without.
  if (!name.empty()) (void)shm_unlink(name.c_str());
  NIBBLE_RETURN_IF_ERROR(exchanged);
  if (!why.empty()) return PeerCopies{.streams = nullptr, .why_not = why};
  return PeerCopies{.streams = std::move(streams), .why_not = ""};
}

}  // namespace nibble
