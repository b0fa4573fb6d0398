#include "worker/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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
ShardWriter::ShardWriter(std::shared_ptr<WriteSession> session, int32_t rank, const Sizes& sizes)
    : session_(std::move(session)),
      sizes_(sizes),
      manifest_{.step = session_->directory().step,
                .attempt = session_->directory().attempt,
                .rank = rank,
                .chunk_bytes = sizes.chunk_bytes},
      chunks_(session_->ChunkFilePrefix(rank), sizes.file_bytes, session_->faults()) {}

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
  StoredSlice& stored = manifest_.slices.emplace_back();
  stored.slice = slice;
  status_ = PutChunks(static_cast<int32_t>(manifest_.slices.size() - 1), bytes,
                      stored.chunk_crcs);
  return status_;
}

absl::Status ShardWriter::PutChunks(int32_t slice, absl::Span<const std::byte> bytes,
                                    std::vector<uint32_t>& crcs) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  crcs.resize(ChunksOf(size, sizes_.chunk_bytes));
  for (int64_t chunk = 0, begin = 0; begin < size; ++chunk, begin += sizes_.chunk_bytes) {
    const absl::Span<const std::byte> piece =
        bytes.subspan(begin, std::min(sizes_.chunk_bytes, size - begin));
    crcs[chunk] = Crc32c(piece);
    if (absl::Status status = chunks_.Put(slice, chunk, piece); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardManifest> ShardWriter::Seal() {
  if (sealed_) return absl::FailedPreconditionError("the shard is sealed already");
  if (!status_.ok()) return status_;
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
