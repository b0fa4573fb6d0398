#include "worker/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/shard_files.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/checkpoint/write_session.h"

namespace nibble {
namespace {

std::optional<ShardManifest> WithoutFiles(ShardManifest manifest) {
  manifest.files.clear();
  return manifest;
}

}  // namespace

ShardWriter::ShardWriter(std::shared_ptr<WriteSession> session, int32_t rank, const Sizes& sizes)
    : session_(std::move(session)),
      sizes_(sizes),
      manifest_{.step = session_->directory().step,
                .attempt = session_->directory().attempt,
                .rank = rank,
                .chunk_bytes = sizes.chunk_bytes},
      chunks_(session_->ChunkFilePrefix(rank), sizes.file_bytes, session_->faults()) {}

ShardWriter::ShardWriter(std::shared_ptr<WriteSession> session, const ShardManifest& original,
                         int64_t file_bytes)
    : session_(std::move(session)),
      sizes_{.chunk_bytes = original.chunk_bytes, .file_bytes = file_bytes},
      manifest_{.step = original.step,
                .attempt = original.attempt,
                .rank = original.rank,
                .chunk_bytes = original.chunk_bytes},
      chunks_(session_->ChunkFilePrefix(original.rank), file_bytes, session_->faults()),
      original_(WithoutFiles(original)) {}

ShardWriter::~ShardWriter() {
  if (!sealed_) session_->Leave(manifest_.rank);
}

absl::Status ShardWriter::Put(const TensorSlice& slice, absl::Span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  if (absl::Status status = CheckSlice(slice); !status.ok()) return status;
  if (static_cast<int64_t>(bytes.size()) != SliceBytes(slice)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", slice.name, "\": ", bytes.size(),
                                                   " bytes are given for ", slice.count,
                                                   " elements of ", FileDTypeSize(slice.dtype),
                                                   " bytes"));
  }
  if (absl::Status status = BeginSlice(slice); !status.ok()) return status;
  return Append(bytes);
}

absl::Status ShardWriter::CheckSliceDone() const {
  if (left_ == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "tensor \"", manifest_.slices.back().slice.name, "\": ", left_, " bytes are still to come"));
}

absl::Status ShardWriter::BeginSlice(const TensorSlice& slice) {
  if (!status_.ok()) return status_;
  if (absl::Status status = CheckSlice(slice); !status.ok()) return status;
  if (absl::Status status = CheckSliceDone(); !status.ok()) return status;
  const size_t at = manifest_.slices.size();
  if (original_.has_value() &&
      (at >= original_->slices.size() || !(original_->slices[at].slice == slice))) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", slice.name, "\": is not slice ", at,
                                                   " of the shard that is copied"));
  }
  StoredSlice& stored = manifest_.slices.emplace_back();
  stored.slice = slice;
  left_ = SliceBytes(slice);
  stored.chunk_crcs.reserve(ChunksOf(left_, sizes_.chunk_bytes));
  return absl::OkStatus();
}

absl::Status ShardWriter::Append(absl::Span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  if (static_cast<int64_t>(bytes.size()) > left_) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes are given, and ", left_, " of the slice are to come"));
  }
  status_ = AppendChunks(bytes);
  return status_;
}

absl::Status ShardWriter::AppendChunks(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto whole = static_cast<size_t>(
        std::min<int64_t>(sizes_.chunk_bytes, static_cast<int64_t>(begun_.size()) + left_));
    const absl::Span<const std::byte> piece =
        bytes.subspan(0, std::min(bytes.size(), whole - begun_.size()));
    bytes.remove_prefix(piece.size());
    left_ -= static_cast<int64_t>(piece.size());
    if (piece.size() == whole) {
      if (absl::Status status = PutChunk(piece); !status.ok()) return status;
      continue;
    }
    begun_.insert(begun_.end(), piece.begin(), piece.end());
    if (begun_.size() < whole) continue;
    if (absl::Status status = PutChunk(begun_); !status.ok()) return status;
    begun_.clear();
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::CheckAgainstOriginal(const StoredSlice& stored, size_t chunk) const {
  const uint32_t wanted = original_->slices[manifest_.slices.size() - 1].chunk_crcs[chunk];
  if (stored.chunk_crcs[chunk] == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("tensor \"", stored.slice.name, "\", chunk ", chunk,
                                          " of rank ", manifest_.rank, ": its checksum is 0x",
                                          absl::Hex(stored.chunk_crcs[chunk]),
                                          ", the manifest says 0x", absl::Hex(wanted)));
}

absl::Status ShardWriter::PutChunk(absl::Span<const std::byte> bytes) {
  StoredSlice& stored = manifest_.slices.back();
  const size_t chunk = stored.chunk_crcs.size();
  stored.chunk_crcs.push_back(Crc32c(bytes));
  if (original_.has_value()) {
    if (absl::Status status = CheckAgainstOriginal(stored, chunk); !status.ok()) return status;
  }
  return chunks_.Put(static_cast<int32_t>(manifest_.slices.size() - 1),
                     static_cast<int64_t>(chunk), bytes);
}

absl::StatusOr<ShardManifest> ShardWriter::Seal() {
  if (sealed_) return absl::FailedPreconditionError("the shard is sealed already");
  if (!status_.ok()) return status_;
  if (absl::Status status = CheckSliceDone(); !status.ok()) return status;
  if (original_.has_value() && !(manifest_ == *original_)) {
    return absl::FailedPreconditionError(
        absl::StrCat(manifest_.slices.size(), " slices were copied of the shard's ",
                     original_->slices.size()));
  }
  status_ = FinishDatabase();
  if (!status_.ok()) return status_;
  status_ = session_->Seal(manifest_);
  if (!status_.ok()) return status_;
  sealed_ = true;
  return manifest_;
}

absl::Status ShardWriter::FinishDatabase() {
  const absl::StatusOr<std::vector<std::string>> chunk_files = chunks_.Finish();
  if (!chunk_files.ok()) return chunk_files.status();
  const std::string path = session_->ShardPath(manifest_.rank);
  absl::StatusOr<std::unique_ptr<ShardDb>> db = ShardDb::Create(path, session_->faults());
  if (!db.ok()) return db.status();
  if (absl::Status status = (*db)->Adopt(*chunk_files); !status.ok()) return status;
  if (absl::Status status = (*db)->Close(); !status.ok()) return status;
  absl::StatusOr<std::vector<StoredFile>> files = 
      DescribeShardFiles(path, session_->faults());
  if (!files.ok()) return files.status();
  manifest_.files = *std::move(files);
  return absl::OkStatus();
}

}  // namespace nibble
