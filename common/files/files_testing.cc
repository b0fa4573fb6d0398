#include "common/files/files_testing.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "gtest/gtest.h"

namespace nibble::file_testing {

namespace {

constexpr char kMemory[] = "/dev/shm";

std::string ParentIn(TempDirectory::Place place) {
  const bool memory = place == TempDirectory::Place::kMemory && access(kMemory, W_OK) == 0;
  return memory ? kMemory : testing::TempDir();
}

}  // namespace

TempDirectory::TempDirectory(Place place) : path_(ParentIn(place) + "/nibble-XXXXXX") {
  EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_ << ": " << errno;
}

TempDirectory::~TempDirectory() { (void)RemoveTree(path_); }

std::string ContentOf(const std::string& path) {
  absl::StatusOr<std::string> content = ReadWholeFile(path, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(content.ok()) << content.status();
  return content.ok() ? *std::move(content) : "";
}

}  // namespace nibble::file_testing
