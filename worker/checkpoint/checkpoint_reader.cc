#include "worker/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/safetensors/dtype.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

constexpr size_t kThreads = 4;
constexpr size_t kChunksPerThread = 4;  // fewer are not worth a thread

absl::StatusOr<Manifest> ReadManifest(const StoreIdentity& identity, const std::string& store,
                                      const StoredDirectory& directory) {
  const std::string path =
      absl::StrCat(store, "/", DirectoryName(directory), "/", kManifestFileName);
  const auto fail = [&path](absl::StatusCode code, const auto&... why) {
    return absl::Status(code, absl::StrCat(path, ": ", why...));
  };
  const absl::StatusOr<std::string> record = ReadRecord(path);
  if (!record.ok()) return absl::DataLossError(record.status().message());
  absl::StatusOr<Manifest> manifest = DecodeManifest(*record);
  if (!manifest.ok()) return fail(manifest.status().code(), manifest.status().message());
  const CheckpointHeader& header = manifest->header;
  if (header.identity != identity) {
    return fail(absl::StatusCode::kFailedPrecondition, "the checkpoint is of ",
                ToString(header.identity), ", not of ", ToString(identity));
  }
  if (header.step != directory.step || header.attempt != directory.attempt) {
    return fail(absl::StatusCode::kDataLoss, "the manifest is of step ", header.step, ", attempt ",
                header.attempt);
  }
  return manifest;
}

}  // namespace

std::string ToString(const Damage& damage) {
  return damage.tensor.empty()
             ? absl::StrCat("shard of rank ", damage.rank, ": ", damage.reason)
             : absl::StrCat("tensor \"", damage.tensor, "\", chunk ", damage.chunk, " of rank ",
                            damage.rank, ": ", damage.reason);
}

absl::Status Verification::ToStatus() const {
  if (ok()) return absl::OkStatus();
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min<size_t>(3, damage.size()); ++i) {
    named.push_back(ToString(damage[i]));
  }
  if (damage.size() > 3) named.push_back(absl::StrCat(damage.size() - 3, " more"));
  return absl::DataLossError(absl::StrJoin(named, "; "));
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointReader::Open(
    const StoreIdentity& identity, const std::string& store, const StoredDirectory& directory) {
  NIBBLE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(identity, store, directory));
  NIBBLE_ASSIGN_OR_RETURN(auto tensors, IndexTensors(manifest.shards));
  std::shared_ptr<CheckpointReader> reader(
      new CheckpointReader(std::move(manifest), std::move(tensors)));
  const std::string path = absl::StrCat(store, "/", DirectoryName(directory));
  for (int32_t rank = 0; rank < reader->manifest_.header.world; ++rank) {
    reader->shards_.push_back(reader->OpenShard(rank, path));
  }
  return reader;
}

CheckpointReader::Shard CheckpointReader::OpenShard(int32_t rank,
                                                    const std::string& directory) const {
  const std::string path = absl::StrCat(directory, "/", ShardDirectoryName(rank));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return {absl::DataLossError(absl::StrCat("it is not in ", directory)), nullptr};
  }
  absl::Status status = CheckShardFiles(path, manifest_.shards[rank].files);
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<ShardDb>> db = ShardDb::OpenToRead(path);
    if (db.ok()) return {absl::OkStatus(), *std::move(db)};
    status = db.status();
  }
  return {absl::DataLossError(status.message()), nullptr};
}

absl::Status CheckpointReader::ReadChunk(const Want& want) const {
  const ShardManifest& manifest = manifest_.shards[want.rank];
  const StoredSlice& stored = manifest.slices[want.slice];
  const int64_t expected =
      std::min(manifest.chunk_bytes, SliceBytes(stored.slice) - want.chunk * manifest.chunk_bytes);
  const auto use = [&](absl::Span<const std::byte> bytes) -> absl::Status {
    if (static_cast<int64_t>(bytes.size()) != expected) {
      return absl::DataLossError(
          absl::StrCat("it has ", bytes.size(), " bytes and should have ", expected));
    }
    NIBBLE_RETURN_IF_ERROR(CheckChunkCrc(stored, want.chunk, bytes));
    if (want.to != nullptr) {
      std::memcpy(want.to, bytes.data() + want.from, want.until - want.from);
    }
    return absl::OkStatus();
  };
  return shards_[want.rank].db->ReadChunk(want.slice, want.chunk, use);
}

std::vector<std::pair<size_t, absl::Status>> CheckpointReader::ReadChunks(
    const std::vector<Want>& wants, bool stop_early) const {
  Mutex mutex;
  std::vector<std::pair<size_t, absl::Status>> errors;  // guarded by mutex while threads run
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  const auto work = [&] {
    while (!stop) {
      const size_t i = next++;
      if (i >= wants.size()) return;
      absl::Status status = ReadChunk(wants[i]);
      if (status.ok()) continue;
      MutexLock lock(&mutex);
      errors.emplace_back(i, std::move(status));
      stop = stop_early;
    }
  };
  // A disk is fast only with several reads in flight.
  std::vector<std::thread> others;
  for (size_t t = 1; t < kThreads && t * kChunksPerThread < wants.size(); ++t) {
    others.emplace_back(work);
  }
  work();
  for (std::thread& thread : others) thread.join();
  std::sort(errors.begin(), errors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return errors;
}

absl::Status CheckpointReader::Load(const std::string& tensor, int64_t first, int64_t count,
                                    absl::Span<std::byte> out) const {
  const std::string where =
      absl::StrCat("step ", manifest_.header.step, ", tensor \"", tensor, "\"");
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(where, " is not in the checkpoint"));
  }
  const TensorEntry& entry = found->second;
  if (first < 0 || count < 0 || first > entry.elements || count > entry.elements - first) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": elements [", first, ", ", first, " + ",
                                                   count, ") are not inside [0, ", entry.elements,
                                                   ")"));
  }
  const int64_t element = FileDTypeSize(entry.dtype);
  if (static_cast<int64_t>(out.size()) != count * element) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", out.size(), " bytes are given for ",
                                                   count, " elements of ", element, " bytes"));
  }
  std::vector<Want> wants;
  auto piece = std::partition_point(
      entry.pieces.begin(), entry.pieces.end(),
      [first](const TensorEntry::Piece& p) { return p.first + p.count <= first; });
  for (; piece != entry.pieces.end() && piece->first < first + count; ++piece) {
    const Shard& shard = shards_[piece->rank];
    if (!shard.status.ok()) {
      return absl::DataLossError(absl::StrCat(where, " is in the shard of rank ", piece->rank, ": ",
                                              shard.status.message()));
    }
    // Bytes [begin, end) of the slice are wanted; its byte 0 would be at `origin` of `out`.
    const int64_t begin = (std::max(first, piece->first) - piece->first) * element;
    const int64_t end =
        (std::min(first + count, piece->first + piece->count) - piece->first) * element;
    const int64_t origin = (piece->first - first) * element;
    const int64_t chunk_bytes = manifest_.shards[piece->rank].chunk_bytes;
    for (int64_t chunk = begin / chunk_bytes; chunk * chunk_bytes < end; ++chunk) {
      const int64_t from = std::max(begin, chunk * chunk_bytes);
      const int64_t until = std::min(end, (chunk + 1) * chunk_bytes);
      wants.push_back({piece->rank, piece->slice, chunk, from - chunk * chunk_bytes,
                       until - chunk * chunk_bytes, out.data() + (origin + from)});
    }
  }
  const auto errors = ReadChunks(wants, true);
  if (errors.empty()) return absl::OkStatus();
  const auto& [at, status] = errors.front();
  return absl::Status(status.code(), absl::StrCat(where, ", chunk ", wants[at].chunk, " of rank ",
                                                  wants[at].rank, ": ", status.message()));
}

Verification CheckpointReader::Verify() const {
  Verification result;
  std::vector<Want> wants;
  for (int32_t rank = 0; rank < manifest_.header.world; ++rank) {
    if (!shards_[rank].status.ok()) {
      result.damage.push_back({rank, "", 0, std::string(shards_[rank].status.message())});
      continue;
    }
    const ShardManifest& shard = manifest_.shards[rank];
    for (size_t slice = 0; slice < shard.slices.size(); ++slice) {
      for (size_t chunk = 0; chunk < shard.slices[slice].chunk_crcs.size(); ++chunk) {
        wants.push_back({rank, static_cast<int32_t>(slice), static_cast<int64_t>(chunk)});
      }
    }
  }
  for (const auto& [at, status] : ReadChunks(wants, false)) {
    const Want& want = wants[at];
    result.damage.push_back({want.rank, manifest_.shards[want.rank].slices[want.slice].slice.name,
                             want.chunk, std::string(status.message())});
  }
  result.chunks = static_cast<int64_t>(wants.size());
  return result;
}

}  // namespace nibble
