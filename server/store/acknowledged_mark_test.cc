#include "server/store/acknowledged_mark.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class AcknowledgedMarkTest : public ::testing::Test {
 protected:
  rocksdb::FileSystem& fs() { return *rocksdb::FileSystem::Default(); }
  absl::StatusOr<uint64_t> Read() { return AcknowledgedMark::Read(fs(), directory_.path()); }
  std::string path() const { return directory_.path() + "/" + kMarkName; }
  std::string Content() {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Overwrite(const std::string& content) {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << content;
  }

  store_testing::TempDirectory directory_;
};

TEST_F(AcknowledgedMarkTest, AMarkThatIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(AcknowledgedMarkTest, ItSaysWhatItWasAdvancedToAlsoWithoutASync) {
  ASSERT_TRUE(AcknowledgedMark::Create(fs(), directory_.path(), 5).ok());
  EXPECT_EQ(Read().value(), 5u);
  auto mark = AcknowledgedMark::Open(fs(), directory_.path(), 7);
  ASSERT_TRUE(mark.ok()) << mark.status();
  for (uint64_t i = 8; i < 8 + 3 * kMarksPerSync; ++i) {
    ASSERT_TRUE((*mark)->Advance(i).ok());
    ASSERT_EQ(Read().value(), i);
  }
}

TEST_F(AcknowledgedMarkTest, DamageOfOneSlotLeavesTheOther) {
  ASSERT_TRUE(AcknowledgedMark::Create(fs(), directory_.path(), 1).ok());
  auto mark = AcknowledgedMark::Open(fs(), directory_.path(), 1);
  ASSERT_TRUE(mark.ok()) << mark.status();
  for (uint64_t i = 2; i <= 2 * kMarksPerSync; ++i) ASSERT_TRUE((*mark)->Advance(i).ok());
  const std::string good = Content();
  for (size_t i = 0; i < good.size(); i += i % 4096 < 16 ? 1 : 64) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(~damaged[i]);
    Overwrite(damaged);
    const absl::StatusOr<uint64_t> read = Read();
    ASSERT_TRUE(read.ok()) << i;
    EXPECT_LE(*read, uint64_t{2 * kMarksPerSync});
    EXPECT_GE(*read, uint64_t{kMarksPerSync});
  }
}

TEST_F(AcknowledgedMarkTest, AfterItIsFinishedOneDamageCostsNothing) {
  ASSERT_TRUE(AcknowledgedMark::Create(fs(), directory_.path(), 1).ok());
  auto mark = AcknowledgedMark::Open(fs(), directory_.path(), 1);
  ASSERT_TRUE((*mark)->Finish(99).ok());
  const std::string good = Content();
  for (const size_t at : {size_t{3}, size_t{4099}}) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(~damaged[at]);
    Overwrite(damaged);
    EXPECT_EQ(Read().value(), 99u);
  }
}

TEST_F(AcknowledgedMarkTest, DamageOfBothSlotsIsRefusedNamingTheFile) {
  Overwrite(std::string(8192, '\0'));
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  EXPECT_THAT(std::string(Read().status().message()), HasSubstr(path()));
  Overwrite("");
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
}

}  // namespace
}  // namespace nibble
