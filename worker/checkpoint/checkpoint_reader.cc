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
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
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

using Place = CheckpointReader::Place;

std::string PathOf(const Place& place) {
  return absl::StrCat(place.store, "/", DirectoryName(place.directory));
}

absl::StatusOr<Manifest> ReadManifest(const StoreIdentity& identity, const Place& place) {
  const std::string path = absl::StrCat(PathOf(place), "/", kManifestFileName);
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
  if (header.step != place.directory.step || header.attempt != place.directory.attempt) {
    return fail(absl::StatusCode::kDataLoss, "the manifest is of step ", header.step, ", attempt ",
                header.attempt);
  }
  return manifest;
}

}  // namespace

std::string ToString(const Damage& damage) {
  if (damage.rank == Damage::kNoRank) return damage.reason;
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
    const StoreIdentity& identity, const std::vector<Place>& places) {
  absl::StatusOr<Manifest> manifest =
      absl::NotFoundError("the checkpoint is not committed in any of its directories");
  std::vector<Damage> damage;
  for (const Place& place : places) {
    if (place.directory.stage != Stage::kCommitted) continue;
    absl::StatusOr<Manifest> read = ReadManifest(identity, place);
    if (absl::IsFailedPrecondition(read.status())) return read.status();
    if (!read.ok()) {
      damage.push_back({.reason = std::string(read.status().message())});
    } else if (!manifest.ok()) {
      manifest = std::move(read);
    } else if (*read != *manifest) {
      damage.push_back(
          {.reason = absl::StrCat(PathOf(place), ": the manifest differs from the others")});
    }
  }
  if (!manifest.ok()) {
    return damage.empty() ? manifest.status()
                          : Verification{.damage = std::move(damage)}.ToStatus();
  }
  NIBBLE_ASSIGN_OR_RETURN(auto tensors, IndexTensors(manifest->shards));
  std::shared_ptr<CheckpointReader> reader(
      new CheckpointReader(*std::move(manifest), std::move(tensors)));
  reader->manifest_damage_ = std::move(damage);
  for (int32_t rank = 0; rank < reader->manifest_.header.world; ++rank) {
    reader->shards_.push_back(reader->FindShard(rank, places));
  }
  return reader;
}

CheckpointReader::Shard CheckpointReader::FindShard(int32_t rank,
                                                    const std::vector<Place>& places) const {
  std::vector<std::string> reasons;
  for (const Place& place : places) {
    const std::string path = absl::StrCat(PathOf(place), "/", ShardDirectoryName(rank));
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    absl::Status status = CheckShardFiles(path, manifest_.shards[rank].files);
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<ShardDb>> db = ShardDb::OpenToRead(path);
      if (db.ok()) return {absl::OkStatus(), *std::move(db)};
      status = db.status();
    }
    reasons.emplace_back(status.message());
  }
  if (reasons.empty()) {
    reasons.push_back(absl::StrCat("it is not in ", PathOf(places.front()),
                                   places.size() > 1 ? " nor elsewhere" : ""));
  }
  return {absl::DataLossError(absl::StrJoin(reasons, "; ")), nullptr};
}

absl::Status CheckpointReader::ReadChunk(const Want& want) const {
  const ShardManifest& manifest = manifest_.shards[want.rank];
  const StoredSlice& stored = manifest.slices[want.slice];
  const int64_t expected =
      std::min(manifest.chunk_bytes, SliceBytes(stored.slice) - want.chunk * manifest.chunk_bytes);
  const auto use = [&](absl::Span<const std::byte> bytes) {
    if (static_cast<int64_t>(bytes.size()) != expected) {
      return absl::DataLossError(
          absl::StrCat("it has ", bytes.size(), " bytes and should have ", expected));
    }
    const uint32_t crc = Crc32c(bytes);
    if (crc != stored.chunk_crcs[want.chunk]) {
      return absl::DataLossError(absl::StrCat("its checksum is 0x", absl::Hex(crc),
                                              ", the manifest has 0x",
                                              absl::Hex(stored.chunk_crcs[want.chunk])));
    }
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
  result.damage = manifest_damage_;
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

absl::StatusOr<GoodCheckpoint> FindLatestGood(
    const std::string& store, const std::vector<StoredDirectory>& directories,
    absl::FunctionRef<
        absl::StatusOr<std::shared_ptr<const CheckpointReader>>(const StoredDirectory&)>
        open) {
  if (directories.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", store));
  }
  GoodCheckpoint good;
  for (auto directory = directories.rbegin(); directory != directories.rend(); ++directory) {
    absl::StatusOr<std::shared_ptr<const CheckpointReader>> reader = open(*directory);
    absl::Status status = reader.ok() ? (*reader)->Verify().ToStatus() : reader.status();
    if (status.ok()) {
      good.reader = *std::move(reader);
      return good;
    }
    good.skipped.push_back({directory->step, directory->attempt, std::move(status)});
  }
  std::vector<std::string> reasons;
  for (const SkippedCheckpoint& skipped : good.skipped) {
    reasons.push_back(absl::StrCat("step ", skipped.step, ": ", skipped.status.message()));
  }
  return absl::DataLossError(absl::StrCat("no checkpoint in ", store,
                                          " passes its checksums: ", absl::StrJoin(reasons, "; ")));
}

}  // namespace nibble
