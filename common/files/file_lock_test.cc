#include "common/files/file_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class FileLockTest : public ::testing::Test {
 protected:
  const file_testing::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/LOCK";
};

TEST_F(FileLockTest, ASecondHolderIsRefusedNamingTheFileAndTheProcess) {
  std::optional<FileLock> lock = *FileLock::TryAcquire(path_);
  const absl::Status second = FileLock::TryAcquire(path_).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(absl::StrCat(path_, " is locked by process ", getpid())));
  lock.reset();
  EXPECT_TRUE(FileLock::TryAcquire(path_).ok());
}

TEST_F(FileLockTest, WhetherALockIsTakenIsSeenWithoutTakingIt) {
  EXPECT_EQ(FileLock::IsTaken(path_).value(), false);
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::optional<FileLock> lock = *FileLock::TryAcquire(path_);
  EXPECT_EQ(FileLock::IsTaken(path_).value(), true);
  EXPECT_EQ(FileLock::IsTaken(path_).value(), true);
  lock.reset();
  EXPECT_EQ(FileLock::IsTaken(path_).value(), false);
  EXPECT_FALSE(FileLock::IsTaken(path_ + "/below").ok());
}

TEST_F(FileLockTest, AMovedLockIsHeldByItsNewOwnerOnly) {
  auto first = FileLock::TryAcquire(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  {
    const FileLock moved = *std::move(first);
    EXPECT_TRUE(absl::IsUnavailable(FileLock::TryAcquire(path_).status()));
  }
  EXPECT_TRUE(FileLock::TryAcquire(path_).ok());
}

TEST_F(FileLockTest, ALockEndsWithItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = FileLock::TryAcquire(path_);
    _exit(lock.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(FileLock::TryAcquire(path_).ok());
}

TEST_F(FileLockTest, AcquireWaitsUntilTheLockIsFree) {
  std::optional<FileLock> lock = *FileLock::TryAcquire(path_);
  absl::Status waited = absl::UnknownError("not yet");
  std::thread other([&] { waited = FileLock::Acquire(path_).status(); });
  lock.reset();
  other.join();
  EXPECT_EQ(waited, absl::OkStatus());
}

TEST_F(FileLockTest, ARemovedOrReplacedFileIsNotInPlace) {
  const auto lock = FileLock::TryAcquire(path_);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE(lock->IsInPlace());
  std::filesystem::remove(path_);
  EXPECT_FALSE(lock->IsInPlace());
  const auto other = FileLock::TryAcquire(path_);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(lock->IsInPlace());
  EXPECT_TRUE(other->IsInPlace());
}

TEST_F(FileLockTest, AMissingDirectoryIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(FileLock::TryAcquire(directory_.path() + "/no/LOCK").status()));
}

}  // namespace
}  // namespace nibble
