#include "worker/trainer/comm/file_store.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/rank_processes.h"

namespace nibble {
namespace {

using testing::HasSubstr;

Deadline Later() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

std::unique_ptr<FileStore> Open(const RendezvousDirectory& directory) {
  auto store = FileStore::Open(directory.path());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

TEST(FileStoreTest, ValueSetByOneIsReadByAnother) {
  const RendezvousDirectory directory;
  const auto a = Open(directory), b = Open(directory);
  const std::string binary("\0\xff\n", 3);
  ASSERT_TRUE(a->Set("key", binary, Later()).ok());
  ASSERT_TRUE(a->Set("empty", "", Later()).ok());
  EXPECT_EQ(*b->Get("key", Later()), binary);
  EXPECT_EQ(*b->Get("empty", Later()), "");
}

TEST(FileStoreTest, ReaderWaitsForTheWriter) {
  const RendezvousDirectory directory;
  const auto reader = Open(directory), writer = Open(directory);
  absl::StatusOr<std::string> value;
  std::thread waiting([&] { value = reader->Get("key", Later()); });
  ASSERT_TRUE(writer->Set("key", "value", Later()).ok());
  waiting.join();
  EXPECT_EQ(*value, "value");
}

TEST(FileStoreTest, KeyThatDoesNotComeEndsTheWait) {
  const RendezvousDirectory directory;
  const absl::Status status = Open(directory)->Get("key", Deadline::min()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(std::string(status.message()),
            "rendezvous key key did not come to " + directory.path());
}

TEST(FileStoreTest, KeyIsWrittenOnce) {
  const RendezvousDirectory directory;
  const auto a = Open(directory), b = Open(directory);
  ASSERT_TRUE(a->Set("key", "first", Later()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(b->Set("key", "second", Later())));
  EXPECT_EQ(*b->Get("key", Later()), "first");
}

TEST(FileStoreTest, KeysThatLookLikePathsStayApartAndInTheDirectory) {
  const RendezvousDirectory directory;
  const auto store = Open(directory);
  const std::string keys[] = {"a/b", "a_2fb", "a.b", "../up", ".", "A/B"};
  for (const std::string& key : keys) ASSERT_TRUE(store->Set(key, key, Later()).ok()) << key;
  for (const std::string& key : keys) EXPECT_EQ(*store->Get(key, Later()), key);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    EXPECT_TRUE(entry.is_regular_file());
    ++files;
  }
  EXPECT_EQ(files, static_cast<int>(std::size(keys)));
}

TEST(FileStoreTest, DoneTakesBackWhatThisOneWrote) {
  const RendezvousDirectory directory;
  const auto a = Open(directory), b = Open(directory);
  ASSERT_TRUE(a->Set("a", "1", Later()).ok());
  ASSERT_TRUE(b->Set("b", "2", Later()).ok());
  a->Done();
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->Get("a", Deadline::min()).status()));
  EXPECT_EQ(*a->Get("b", Later()), "2");
  EXPECT_TRUE(a->Set("a", "3", Later()).ok());
}

TEST(FileStoreTest, SizesBeyondTheLimitsAreRefused) {
  const RendezvousDirectory directory;
  const auto store = Open(directory);
  const std::string big(RendezvousStore::kMaxValueBytes + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set("key", big, Later())));
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set("", "x", Later())));
  const absl::Status status = store->Set(std::string(200, '/'), "x", Later());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("file name above 240 bytes"));
  std::ofstream(directory.path() + "/planted") << big;
  EXPECT_TRUE(absl::IsInvalidArgument(store->Get("planted", Later()).status()));
}

TEST(FileStoreTest, DirectoryMustBeThere) {
  const RendezvousDirectory directory;
  EXPECT_TRUE(absl::IsNotFound(FileStore::Open(directory.path() + "/none").status()));
  std::ofstream(directory.path() + "/file") << "x";
  EXPECT_TRUE(absl::IsFailedPrecondition(FileStore::Open(directory.path() + "/file").status()));
}

}  // namespace
}  // namespace nibble
