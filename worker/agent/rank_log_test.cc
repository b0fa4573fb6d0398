#include "worker/agent/rank_log.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
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

TEST_F(RankLogTest, TheDiskHasAtMostTwoFilesWithTheNewestBytes) {
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

TEST_F(RankLogTest, AReaderContinuesAtItsOffset) {
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

TEST_F(RankLogTest, AFullDiskIsKeptAsTheErrorAndTheTailStaysCurrent) {
  const auto log = Make(100, 100);
  (void)signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  log->Append("words\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(log->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(log->Tail(), "words\n");
}

TEST_F(RankLogTest, ALogThatIsALinkDoesNotChangeItsTarget) {
  const std::string precious = directory_ + "/precious";
  std::ofstream(precious) << "kept";
  for (const char* const name : {"/log", "/log.1", "/log.begin"}) {
    std::filesystem::create_symlink(precious, directory_ + name);
  }
  const auto log = Make(10, 10);
  for (int i = 0; i < 10; ++i) log->Append("0123456789\n");
  EXPECT_EQ(log->status(), absl::OkStatus());
  std::string text;
  std::ifstream(precious) >> text;
  EXPECT_EQ(text, "kept");
  int64_t offset = 0;
  EXPECT_GE(ReadAll(*log, offset).size(), 10u);
}

TEST_F(RankLogTest, OnlyRegularFilesOfTheDirectoryAreRead) {
  const std::string log = directory_ + "/log";
  std::ofstream(directory_ + "/secret") << "secret";
  std::filesystem::create_symlink("secret", log);
  EXPECT_EQ(RankLog::OpenEnded(log).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(log);
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  EXPECT_EQ(RankLog::OpenEnded(log).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(log);
  EXPECT_EQ(RankLog::OpenEnded(log).status().code(), absl::StatusCode::kNotFound);
  // A predecessor that is a link counts as absent.
  std::ofstream(log) << "new\n";
  std::filesystem::create_symlink("secret", log + ".1");
  const auto ended = RankLog::OpenEnded(log);
  ASSERT_EQ(ended.status(), absl::OkStatus());
  int64_t offset = 0;
  EXPECT_EQ(ReadAll(**ended, offset), "new\n");
}

TEST_F(RankLogTest, ADirectoryThatIsALinkIsNeitherWrittenNorRead) {
  std::filesystem::create_directories(directory_ + "/elsewhere/attempt-1");
  std::filesystem::create_directory(directory_ + "/job-1");
  std::filesystem::create_symlink("elsewhere", directory_ + "/job-2");
  std::filesystem::create_symlink("../elsewhere/attempt-1", directory_ + "/job-1/attempt-1");
  for (const char* const job : {"/job-1", "/job-2"}) {
    const std::string log = directory_ + job + "/attempt-1/rank-0.log";
    EXPECT_EQ(RankLog::Create(log, {}).status().code(), absl::StatusCode::kFailedPrecondition)
        << job;
    EXPECT_EQ(RankLog::OpenEnded(log).status().code(), absl::StatusCode::kFailedPrecondition)
        << job;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/elsewhere/attempt-1"));
}

}  // namespace
}  // namespace nibble
