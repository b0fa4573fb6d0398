#include "worker/checkpoint/shard_db.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Different for every chunk.
std::string ChunkText(int32_t slice, int64_t chunk) {
  return std::string(100 + slice * 10 + static_cast<int64_t>(chunk),
                     static_cast<char>('a' + slice * 5 + chunk));
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Read(const ShardDb& db, int32_t slice, int64_t chunk) {
  std::string text;
  const absl::Status status = db.ReadChunk(slice, chunk, [&](absl::Span<const std::byte> bytes) {
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  });
  return status.ok() ? text : status.ToString();
}

class ShardDbTest : public ::testing::Test {
 protected:
  // Two slices of four chunks, a file for every `file_bytes`.
  size_t WriteShard(int64_t file_bytes) {
    ChunkFileWriter writer(directory_.path() + "/chunks-", file_bytes, nullptr);
    for (int32_t slice = 0; slice < 2; ++slice) {
      for (int64_t chunk = 0; chunk < 4; ++chunk) {
        EXPECT_EQ(writer.Put(slice, chunk, Bytes(ChunkText(slice, chunk))), absl::OkStatus());
      }
    }
    const auto files = writer.Finish();
    EXPECT_TRUE(files.ok()) << files.status();
    auto db = ShardDb::Create(path_, nullptr);
    EXPECT_TRUE(db.ok()) << db.status();
    EXPECT_EQ((*db)->Adopt(*files), absl::OkStatus());
    EXPECT_EQ((*db)->Close(), absl::OkStatus());
    for (const std::string& file : *files) EXPECT_FALSE(std::filesystem::exists(file));
    return files->size();
  }

  const file_testing::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/db";
};

TEST_F(ShardDbTest, ChunksAreReadBackFromAnyNumberOfFiles) {
  for (const int64_t file_bytes : {1, 250, 1'000'000}) {
    SCOPED_TRACE(file_bytes);
    std::filesystem::remove_all(path_);
    const size_t files = WriteShard(file_bytes);
    EXPECT_EQ(files, file_bytes == 1 ? 8u : file_bytes == 250 ? 3u : 1u);
    const auto db = ShardDb::OpenToRead(path_);
    ASSERT_TRUE(db.ok()) << db.status();
    for (int32_t slice = 0; slice < 2; ++slice) {
      for (int64_t chunk = 0; chunk < 4; ++chunk) {
        EXPECT_EQ(Read(**db, slice, chunk), ChunkText(slice, chunk));
      }
    }
  }
}

TEST_F(ShardDbTest, AMissingChunkIsDataLoss) {
  WriteShard(1'000'000);
  const auto db = ShardDb::OpenToRead(path_);
  ASSERT_TRUE(db.ok()) << db.status();
  const auto nothing = [](absl::Span<const std::byte>) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsDataLoss((*db)->ReadChunk(0, 4, nothing)));
  EXPECT_TRUE(absl::IsDataLoss((*db)->ReadChunk(2, 0, nothing)));
}

TEST_F(ShardDbTest, AnErrorOfTheCallerIsReturned) {
  WriteShard(1'000'000);
  const auto db = ShardDb::OpenToRead(path_);
  ASSERT_TRUE(db.ok()) << db.status();
  const auto refuse = [](absl::Span<const std::byte>) { return absl::AbortedError("no"); };
  EXPECT_EQ((*db)->ReadChunk(0, 0, refuse), absl::AbortedError("no"));
}

TEST_F(ShardDbTest, ADatabaseIsNotCreatedOverAnExistingOne) {
  WriteShard(1'000'000);
  EXPECT_FALSE(ShardDb::Create(path_, nullptr).ok());
  const auto db = ShardDb::OpenToRead(path_);
  ASSERT_TRUE(db.ok()) << db.status();
  EXPECT_EQ(Read(**db, 1, 1), ChunkText(1, 1));
}

TEST_F(ShardDbTest, ReadingAMissingDatabaseCreatesNothing) {
  EXPECT_FALSE(ShardDb::OpenToRead(path_).ok());
}

TEST_F(ShardDbTest, TheDescribedFilesAreThoseThatOpeningReads) {
  WriteShard(1'000'000);
  const auto files = DescribeShardFiles(path_, nullptr);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_THAT(*files, SizeIs(4));  // the log, one table, CURRENT, MANIFEST
  EXPECT_EQ(CheckShardFiles(path_, *files), absl::OkStatus());
  for (const StoredFile& file : *files) {
    SCOPED_TRACE(file.name);
    const std::string path = path_ + "/" + file.name;
    const std::string aside = directory_.path() + "/aside";
    std::filesystem::copy_file(path, aside, std::filesystem::copy_options::overwrite_existing);
    const auto expect_named = [&] {
      const absl::Status status = CheckShardFiles(path_, *files);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    };
    std::filesystem::remove(path);
    expect_named();
    std::ofstream(path) << std::string(static_cast<size_t>(file.bytes) + 1, 'x');
    expect_named();
    if (file.bytes > 0) {
      std::ofstream(path) << std::string(static_cast<size_t>(file.bytes), 'x');
      expect_named();
    }
    std::filesystem::copy_file(aside, path, std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_EQ(CheckShardFiles(path_, *files), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
