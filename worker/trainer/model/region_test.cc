#include "worker/trainer/model/region.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace nibble {
namespace {

TEST(Region, BuffersMatchTheirMeasurementAfterOneAllocation) {
  HostMemory memory;
  Region region(memory);
  ASSERT_TRUE(region.Allocate(100).ok());
  ASSERT_TRUE(region.Allocate(1000).ok());
  ASSERT_TRUE(region.Commit().ok());
  absl::StatusOr<Buffer> a = region.Allocate(100);
  absl::StatusOr<Buffer> b = region.Allocate(1000);
  ASSERT_TRUE(a.ok() && b.ok());
  // Apart, and writable to their ends.
  EXPECT_GE(b->data<char>() - a->data<char>(), 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 64, 0u);
  std::memset(a->data(), 1, 100);
  std::memset(b->data(), 2, 1000);
}

TEST(Region, RewindingMeasuresThePeak) {
  HostMemory memory;
  Region region(memory);
  ASSERT_TRUE(region.Allocate(1 << 10).ok());
  region.Rewind();
  ASSERT_TRUE(region.Allocate(1 << 12).ok());
  region.Rewind();
  ASSERT_TRUE(region.Commit().ok());
  EXPECT_EQ(region.bytes(), size_t{1} << 12);
}

TEST(Region, AllocatingMoreThanMeasuredIsRefused) {
  HostMemory memory;
  Region region(memory);
  ASSERT_TRUE(region.Allocate(512).ok());
  ASSERT_TRUE(region.Commit().ok());
  ASSERT_TRUE(region.Allocate(512).ok());
  EXPECT_EQ(region.Allocate(1).status().code(), absl::StatusCode::kInternal);
}

TEST(Region, ClearStartsANewMeasurement) {
  HostMemory memory;
  Region region(memory);
  ASSERT_TRUE(region.Allocate(512).ok());
  ASSERT_TRUE(region.Commit().ok());
  region.Clear();
  EXPECT_EQ(region.bytes(), 0u);
  ASSERT_TRUE(region.Allocate(4096).ok());
  ASSERT_TRUE(region.Commit().ok());
  EXPECT_EQ(region.bytes(), 4096u);
}

}  // namespace
}  // namespace nibble
