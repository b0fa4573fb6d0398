#include "worker/checkpoint/snapshot_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::EvenSlices;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using ::testing::HasSubstr;

TEST(SnapshotAreaTest, BothSidesSeeTheSameBytes) {
  const State state = RandomState(9, 5, 200);
  auto mine = SnapshotArea::Create(EvenSlices(state, 0, 1));
  ASSERT_TRUE(mine.ok()) << mine.status();
  const auto theirs = SnapshotArea::Adopt(dup((*mine)->descriptor()));
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_EQ((*theirs)->slices(), (*mine)->slices());
  ASSERT_EQ((*mine)->SetNote("a header"), absl::OkStatus());
  EXPECT_EQ((*theirs)->Note(8), "a header");
  for (size_t i = 0; i < (*mine)->buffers().size(); ++i) {
    const auto& buffer = (*mine)->buffers()[i];
    if (buffer.empty()) continue;
    buffer[buffer.size() - 1] = std::byte{0x5a};
    EXPECT_EQ((*theirs)->buffers()[i][buffer.size() - 1], std::byte{0x5a});
  }
}

TEST(SnapshotAreaTest, FileThatCouldShrinkIsRefused) {
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 1 << 20), 0);
  const auto area = SnapshotArea::Adopt(file);
  EXPECT_TRUE(absl::IsInvalidArgument(area.status())) << area.status();
  EXPECT_THAT(std::string(area.status().message()), HasSubstr("not sealed"));
}

TEST(SnapshotAreaTest, FileOfGarbageIsRefused) {
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 1 << 20), 0);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SnapshotArea::Adopt(file).status()));
}

}  // namespace
}  // namespace nibble
