#include "worker/agent/shard_fetcher.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/peer_server.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kDescribeTime(20);
// A slower transfer fails.
constexpr int64_t kLeastBytesPerSecond = int64_t{1} << 20;
constexpr std::chrono::seconds kReadTime(60);
constexpr int kMaxDescriptionBytes = 1 << 30;  // of one shard's manifest

v1::ShardRef RefOf(const v1::DesiredReplica& shard) {
  v1::ShardRef ref;
  *ref.mutable_checkpoint() = shard.ref();
  ref.set_rank(shard.rank());
  return ref;
}

std::string NameOf(const v1::DesiredReplica& shard) {
  return absl::StrCat("shard of rank ", shard.rank(), " of ", shard.ref().job(), ", step ",
                      shard.ref().step(), ", attempt ", shard.ref().attempt());
}

absl::Status Cancelled() { return absl::CancelledError("cancelled"); }

// The error is on this side, so that another source would not help.
bool IsOurs(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsCancelled(status) ||
         absl::IsFailedPrecondition(status) || absl::IsInternal(status);
}

// The name of the worker that answered; empty if not sent.
std::string HolderOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto at = metadata.find(kShardHolderKey);
  return at == metadata.end() ? "" : std::string(at->second.data(), at->second.size());
}

// Passes the bytes of a shard to a writer, slice after slice.
class ReplicaFeed {
 public:
  ReplicaFeed(ShardWriter& writer, const ShardManifest& manifest)
      : writer_(writer), manifest_(manifest) {}

  absl::Status Take(absl::Span<const std::byte> bytes) {
    while (!bytes.empty()) {
      NIBBLE_RETURN_IF_ERROR(NextSlice());
      if (left_ == 0) return absl::DataLossError("received more bytes than the shard has");
      const auto count = std::min(bytes.size(), static_cast<size_t>(left_));
      NIBBLE_RETURN_IF_ERROR(writer_.Append(bytes.first(count)));
      left_ -= static_cast<int64_t>(count);
      bytes.remove_prefix(count);
    }
    return absl::OkStatus();
  }
  // Also begins following slices without bytes.
  absl::Status NextSlice() {
    while (left_ == 0 && next_ < manifest_.slices.size()) {
      const TensorSlice& slice = manifest_.slices[next_++].slice;
      NIBBLE_RETURN_IF_ERROR(writer_.BeginSlice(slice));
      left_ = SliceBytes(slice);
    }
    return absl::OkStatus();
  }

 private:
  ShardWriter& writer_;
  const ShardManifest& manifest_;
  size_t next_ = 0;
  int64_t left_ = 0;  // of the slice
};

// Compares the bytes of a shard with the checksums of its chunks.
class ReplicaCheck {
 public:
  explicit ReplicaCheck(const ShardManifest& manifest) : manifest_(manifest) {}

  absl::Status Take(absl::Span<const std::byte> bytes) {
    while (!bytes.empty()) {
      NIBBLE_RETURN_IF_ERROR(NextChunk());
      const auto count = std::min(bytes.size(), static_cast<size_t>(left_));
      crc_ = ExtendCrc32c(crc_, bytes.first(count));
      left_ -= static_cast<int64_t>(count);
      bytes.remove_prefix(count);
      if (left_ > 0) continue;
      const StoredSlice& stored = manifest_.slices[slice_];
      if (crc_ != stored.chunk_crcs[chunk_]) {
        return absl::DataLossError(absl::StrCat(
            "tensor \"", stored.slice.name, "\", chunk ", chunk_, ": its checksum is 0x",
            absl::Hex(crc_), ", the manifest has 0x", absl::Hex(stored.chunk_crcs[chunk_])));
      }
      ++chunk_;
      crc_ = 0;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status NextChunk() {
    while (left_ == 0) {
      if (slice_ == manifest_.slices.size()) {
        return absl::DataLossError("received more bytes than the shard has");
      }
      const int64_t begin = static_cast<int64_t>(chunk_) * manifest_.chunk_bytes;
      left_ = std::min(manifest_.chunk_bytes, SliceBytes(manifest_.slices[slice_].slice) - begin);
      if (left_ > 0) continue;
      left_ = 0;
      chunk_ = 0;
      ++slice_;
    }
    return absl::OkStatus();
  }

  const ShardManifest& manifest_;
  size_t slice_ = 0;
  size_t chunk_ = 0;  // of the slice
  int64_t left_ = 0;  // bytes of the chunk
  uint32_t crc_ = 0;
};

}  // namespace

Cancellation::Scope::Scope(Cancellation& cancellation, std::function<void()> end)
    : cancellation_(cancellation) {
  const MutexLock lock(&cancellation_.mutex_);
  cancellation_.end_ = std::move(end);
  if (cancellation_.cancelled_) cancellation_.end_();
}

Cancellation::Scope::~Scope() {
  const MutexLock lock(&cancellation_.mutex_);
  cancellation_.end_ = nullptr;
}

void Cancellation::Cancel() {
  const MutexLock lock(&mutex_);
  cancelled_ = true;
  if (end_) end_();
  changed_.SignalAll();
}

bool Cancellation::cancelled() const {
  const MutexLock lock(&mutex_);
  return cancelled_;
}

bool Cancellation::Sleep(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  const MutexLock lock(&mutex_);
  while (!cancelled_ && !changed_.WaitUntil(&mutex_, until)) {
  }
  return !cancelled_;
}

// The turn of one transfer at a source.
class ShardFetcher::SourceTurn {
 public:
  // Waits for it; taken() is false if the work was cancelled before.
  SourceTurn(ShardFetcher& fetcher, const std::string& source, Cancellation& cancellation)
      : fetcher_(fetcher), source_(source) {
    bool cancelled = false;  // guarded by the fetcher's lock
    const Cancellation::Scope scope(cancellation, [&] {
      const MutexLock lock(&fetcher_.mutex_);
      cancelled = true;
      fetcher_.free_.SignalAll();
    });
    const MutexLock lock(&fetcher_.mutex_);
    while (fetcher_.busy_.contains(source) && !cancelled) fetcher_.free_.Wait(&fetcher_.mutex_);
    taken_ = !cancelled && fetcher_.busy_.insert(source).second;
  }
  ~SourceTurn() {
    if (!taken_) return;
    const MutexLock lock(&fetcher_.mutex_);
    fetcher_.busy_.erase(source_);
    fetcher_.free_.SignalAll();
  }
  SourceTurn(const SourceTurn&) = delete;
  SourceTurn& operator=(const SourceTurn&) = delete;
  bool taken() const { return taken_; }

 private:
  ShardFetcher& fetcher_;
  const std::string source_;
  bool taken_ = false;
};

// A source of one transfer.
struct ShardFetcher::Source {
  v1::ShardStore::Stub& stub;
  std::string holder;  // its worker's name, once it has answered with it
};

struct ShardFetcher::Described {
  ShardManifest manifest;
  CheckpointHeader header;
};

ShardFetcher::ShardFetcher(Options options) : options_(std::move(options)) {}

absl::Status ShardFetcher::TrySources(const v1::DesiredReplica& shard, Cancellation& cancellation,
                                      std::vector<std::string>& notes,
                                      absl::FunctionRef<absl::Status(Source& source)> attempt) {
  bool damaged = false;
  bool silent = false;
  std::vector<std::string> reasons;
  for (const std::string& address : shard.sources()) {
    const SourceTurn turn(*this, address, cancellation);
    if (!turn.taken()) return Cancelled();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxDescriptionBytes);
    const std::unique_ptr<v1::ShardStore::Stub> stub =
        v1::ShardStore::NewStub(grpc::CreateCustomChannel(
            address, ChannelCredentialsOf(options_.security, PeerKind::kWorker), arguments));
    Source source = {.stub = *stub};
    const absl::Status status = attempt(source);
    if (status.ok()) {
      notes.insert(notes.end(), reasons.begin(), reasons.end());
      return status;
    }
    if (cancellation.cancelled()) return Cancelled();
    if (IsOurs(status)) return status;
    damaged |= absl::IsDataLoss(status);
    silent |= !absl::IsDataLoss(status) && !absl::IsNotFound(status);
    reasons.push_back(absl::StrCat(source.holder, source.holder.empty() ? "" : " at ", address,
                                   ": ", std::string(status.message())));
    if (!absl::IsDataLoss(status)) continue;
    if (options_.log) options_.log(absl::StrCat(NameOf(shard), " is damaged at ", reasons.back()));
    if (options_.damage != nullptr && !source.holder.empty()) {
      options_.damage->Found(shard.ref(), shard.rank(), source.holder, status);
    }
  }
  const std::string text = absl::StrCat(
      NameOf(shard), ": ",
      reasons.empty() ? std::string("no connected worker has it") : absl::StrJoin(reasons, "; "));
  return damaged && !silent ? absl::DataLossError(text) : absl::UnavailableError(text);
}

absl::StatusOr<ShardFetcher::Described> ShardFetcher::Describe(Source& source,
                                                               const v1::DesiredReplica& shard,
                                                               Cancellation& cancellation) {
  v1::DescribeShardRequest request;
  *request.mutable_shard() = RefOf(shard);
  v1::DescribeShardResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDescribeTime);
  {
    const Cancellation::Scope scope(cancellation, [&context] { context.TryCancel(); });
    const grpc::Status status = source.stub.DescribeShard(&context, request, &response);
    source.holder = HolderOf(context);
    if (!status.ok()) return FromGrpc(status);
  }
  const uint32_t crc = Crc32c(AsBytes(response.manifest()));
  if (crc != shard.manifest_crc32c()) {
    return absl::DataLossError(absl::StrCat("manifest: its checksum is 0x", absl::Hex(crc),
                                            ", the coordinator knows 0x",
                                            absl::Hex(shard.manifest_crc32c())));
  }
  if (Crc32c(AsBytes(response.header())) != response.header_crc32c()) {
    return absl::DataLossError("header: fails its checksum");
  }
  Described described;
  NIBBLE_ASSIGN_OR_RETURN(described.manifest, ShardManifestFrom(response.manifest()));
  NIBBLE_ASSIGN_OR_RETURN(described.header, DecodeHeader(response.header()));
  if (described.manifest.step != shard.ref().step() ||
      described.manifest.attempt != shard.ref().attempt() ||
      described.manifest.rank != shard.rank()) {
    return absl::DataLossError("manifest: belongs to another shard");
  }
  return described;
}

absl::Status ShardFetcher::Read(Source& source, const v1::DesiredReplica& shard, int64_t bytes,
                                Cancellation& cancellation, TakeBytes take) {
  v1::ReadShardRequest request;
  *request.mutable_shard() = RefOf(shard);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kReadTime +
                       std::chrono::seconds(bytes / kLeastBytesPerSecond));
  const Cancellation::Scope scope(cancellation, [&context] { context.TryCancel(); });
  const auto reader = source.stub.ReadShard(&context, request);
  v1::ReadShardResponse piece;
  int64_t at = 0;
  absl::Status taken;
  while (taken.ok() && reader->Read(&piece)) {
    if (piece.offset_bytes() != at || Crc32c(AsBytes(piece.data())) != piece.crc32c()) {
      // Corrupted in transit, not on the source's disk.
      taken = absl::UnavailableError(absl::StrCat("the piece at ", piece.offset_bytes(), ", after ",
                                                  at, " bytes, fails its checksum"));
      break;
    }
    at += static_cast<int64_t>(piece.data().size());
    taken = take(piece.data());
  }
  if (!taken.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!taken.ok()) return taken;
  if (!status.ok()) return FromGrpc(status);
  if (at == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(at, " bytes were received, the manifest has ", bytes));
}

absl::Status ShardFetcher::Copy(Source& source, const v1::DesiredReplica& shard, bool input,
                                Cancellation& cancellation,
                                absl::FunctionRef<void(int64_t bytes)> progress) {
  NIBBLE_ASSIGN_OR_RETURN(const Described described, Describe(source, shard, cancellation));
  const std::string& job = shard.ref().job();
  bool full = false;  // this worker's disk
  const auto here = [&full](const absl::Status& status) {
    full |= absl::IsResourceExhausted(status);
    return status;
  };
  const auto store = [&]() -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(here(options_.open_job(job, described.header.identity)));
    const auto writer = options_.registry->BeginReplica(job, described.manifest);
    NIBBLE_RETURN_IF_ERROR(here(writer.status()));
    ReplicaFeed feed(**writer, described.manifest);
    NIBBLE_RETURN_IF_ERROR(Read(source, shard, described.manifest.bytes(), cancellation,
                                [&](const std::string& bytes) -> absl::Status {
                                  progress(static_cast<int64_t>(bytes.size()));
                                  return here(feed.Take(AsBytes(bytes)));
                                }));
    NIBBLE_RETURN_IF_ERROR(here(feed.NextSlice()));
    const absl::StatusOr<ShardManifest> sealed = (*writer)->Seal();
    NIBBLE_RETURN_IF_ERROR(here(sealed.status()));
    return here(options_.registry->AddReplica(job, described.header, *sealed, input));
  };
  absl::Status stored = store();
  while (std::exchange(full, false) && options_.registry->MakeRoom(described.manifest.bytes())) {
    stored = store();
  }
  return stored;
}

absl::Status ShardFetcher::Fetch(const v1::DesiredReplica& shard, bool input,
                                 Cancellation& cancellation,
                                 absl::FunctionRef<void(int64_t bytes)> progress) {
  const auto is_here = [&] {
    const absl::StatusOr<uint32_t> crc = options_.registry->CrcOf(shard.ref(), shard.rank());
    return crc.ok() && *crc == shard.manifest_crc32c();
  };
  const auto begin = std::chrono::steady_clock::now();
  int64_t came = 0;
  const auto count = [&](int64_t bytes) {
    came += bytes;
    progress(bytes);
  };
  std::vector<std::string> notes;
  const absl::Status status =
      TrySources(shard, cancellation, notes, [&](Source& source) -> absl::Status {
        if (is_here()) return absl::OkStatus();  // fetched by another thread meanwhile
        return Copy(source, shard, input, cancellation, count);
      });
  if (options_.fetched) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    options_.fetched(took.count(), came, status);
  }
  return status;
}

absl::Status ShardFetcher::Verify(const v1::DesiredReplica& shard, Cancellation& cancellation,
                                  std::vector<std::string>& notes) {
  return TrySources(shard, cancellation, notes, [&](Source& source) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const Described described, Describe(source, shard, cancellation));
    ReplicaCheck check(described.manifest);
    return Read(source, shard, described.manifest.bytes(), cancellation,
                [&check](const std::string& bytes) { return check.Take(AsBytes(bytes)); });
  });
}

}  // namespace nibble
