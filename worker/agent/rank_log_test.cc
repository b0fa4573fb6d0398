#include "worker/agent/rank_log.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

class RankLogTest : public testing::Test {
 protected:
  RankLogTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~RankLogTest() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<RankLog> Make(int64_t file_bytes, int64_t tail_bytes) {
    auto log =
        RankLog::Create(directory_ + "/log", {.file_bytes = file_bytes, .tail_bytes = tail_bytes});
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  std::string directory_ = testing::TempDir() + "/rank-log-XXXXXX";
};

std::string ReadAll(const RankLog& log, int64_t& offset) {
  std::string all;
  while (true) {
    const auto piece = log.Read(offset, 7);
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (!piece.ok() || piece->bytes.empty()) return all;
    offset = piece->offset + static_cast<int64_t>(piece->bytes.size());
    all += piece->bytes;
  }
}

TEST_F(RankLogTest, TheDiskHoldsTwoFilesAtMostAndTheNewestBytes) {
  const auto log = Make(100, 10);
  std::string written;
  for (int i = 0; i < 200; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    log->Append(line);
    written += line;
  }
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(bytes, 200);
  EXPECT_EQ(log->end(), static_cast<int64_t>(written.size()));
  int64_t offset = 0;
  const std::string kept = ReadAll(*log, offset);
  EXPECT_GE(kept.size(), 100u);
  EXPECT_EQ(kept, written.substr(written.size() - kept.size()));
  EXPECT_EQ(offset, log->end());
}

TEST_F(RankLogTest, AReaderGoesOnWhereItWas) {
  const auto log = Make(50, 10);
  int64_t offset = 0;
  std::string read;
  for (int i = 0; i < 40; ++i) {
    log->Append(absl::StrCat("line ", i, "\n"));
    read += ReadAll(*log, offset);
  }
  EXPECT_EQ(read.substr(0, 14), "line 0\nline 1\n");
  EXPECT_EQ(static_cast<int64_t>(read.size()), log->end());
}

TEST_F(RankLogTest, TheTailBeginsWithALine) {
  const auto log = Make(1000, 16);
  log->Append("short\n");
  EXPECT_EQ(log->Tail(), "short\n");
  log->Append("0123456789\nlast words\n");
  EXPECT_EQ(log->Tail(), "last words\n");
  log->Append(std::string(40, 'x'));
  EXPECT_EQ(log->Tail(), std::string(16, 'x'));
}

TEST_F(RankLogTest, BeyondTheEndIsOutOfRange) {
  const auto log = Make(1000, 16);
  log->Append("ab");
  EXPECT_EQ(log->Read(3, 1).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(RankLogTest, AFullDiskIsKeptAsTheErrorAndTheTailGoesOn) {
  const auto log = RankLog::Create("/dev/full", {.file_bytes = 100, .tail_bytes = 100});
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append("words\n");
  EXPECT_EQ((*log)->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*log)->Tail(), "words\n");
}

}  // namespace
}  // namespace nibble
