#include "common/files/files_testing.h"

#include <stdlib.h>

#include <cerrno>
#include <string>

#include "gtest/gtest.h"

namespace nibble::file_testing {

TempDirectory::TempDirectory() : path_(testing::TempDir() + "/nibble-XXXXXX") {
  EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_ << ": " << errno;
}

TempDirectory::~TempDirectory() { (void)RemoveTree(path_); }

}  // namespace nibble::file_testing
