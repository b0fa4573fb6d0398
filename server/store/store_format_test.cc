// The bytes on disk: keys and values, and the files STORE and ACKNOWLEDGED. Damage to any of them
// is detected.
#include "server/store/store_format.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/file_system.h"
#include "server/store/disk_testing.h"
#include "server/store/store_directory.h"

namespace nibble::store_format {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kHighest("\xff\xff\xff", 3);

TEST(StoreFormatTest, ASealedValueHasTheDocumentedBytes) {
  const std::string sealed = Seal(Table::kEntity, std::string("job\0a", 5), 0x0102, "v");
  EXPECT_EQ(sealed.size(), 13u);
  EXPECT_EQ(sealed.substr(4), std::string("\x02\x01\0\0\0\0\0\0v", 9));
  const auto opened = Unseal(Table::kEntity, std::string("job\0a", 5), sealed);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->sequence, 0x0102u);
  EXPECT_EQ(opened->payload, "v");
}

TEST(StoreFormatTest, EveryChangedBitOfASealedValueIsDetected) {
  const std::string sealed = Seal(Table::kJournal, "key", 7, "a payload");
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string damaged = sealed;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(Unseal(Table::kJournal, "key", damaged).status())) << bit;
  }
  for (size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_FALSE(Unseal(Table::kJournal, "key", sealed.substr(0, size)).ok()) << size;
  }
}

TEST(StoreFormatTest, AValueUnderAnotherKeyIsRefusedNamingTheKey) {
  const std::string sealed = Seal(Table::kEntity, "job", 7, "payload");
  const absl::Status status = Unseal(Table::kEntity, "jobs", sealed).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("entities key \"jobs\""));
  EXPECT_FALSE(Unseal(Table::kJournal, "job", sealed).ok());
}

TEST(StoreFormatTest, JournalKeysSortAsNumbers) {
  const std::vector<uint64_t> numbers = {
      0, 1, 255, 256, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()};
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(ParseJournalKey(JournalKey(numbers[i])), numbers[i]);
    EXPECT_TRUE(i == 0 || JournalKey(numbers[i - 1]) < JournalKey(numbers[i]));
  }
  EXPECT_FALSE(ParseJournalKey("1234567").has_value());
}

TEST(StoreFormatTest, TheRangeOfAKindHasItsKeysAndNoOthers) {
  for (const absl::string_view key : {absl::string_view(), absl::string_view("\0", 1), kHighest}) {
    EXPECT_LE(FirstOfKind("job"), EntityKey("job", key));
    EXPECT_GT(AfterKind("job"), EntityKey("job", key));
  }
  EXPECT_LT(EntityKey("jo", kHighest), FirstOfKind("job"));
  EXPECT_GE(EntityKey("job\1", ""), AfterKind("job"));
}

TEST(StoreFormatTest, ARecordIsParsedIntoItsBytesAndADamagedOneIsRefused) {
  for (const std::string& bytes : {std::string(), std::string("\0\xff", 2)}) {
    const std::string payload = EncodeRecord(bytes);
    EXPECT_EQ(ParseRecord(payload), bytes);
    for (size_t size = 0; size < payload.size() - bytes.size(); ++size) {
      EXPECT_FALSE(ParseRecord(payload.substr(0, size)).has_value()) << size;
    }
    std::string reserved = payload;
    reserved[3] = 1;
    EXPECT_FALSE(ParseRecord(reserved).has_value());
  }
}

}  // namespace
}  // namespace nibble::store_format

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(StoreMarkerTest, AMarkerNamesItsCluster) {
  for (const std::string& name :
       {std::string("a"), std::string(" \"two words\" "), std::string(128, 'x')}) {
    EXPECT_EQ(ParseStoreMarker(EncodeStoreMarker(name), "STORE").value(), name);
  }
}

TEST(StoreMarkerTest, EveryChangedBitIsRefusedNamingTheFile) {
  const std::string marker = EncodeStoreMarker("alpha");
  for (size_t bit = 0; bit < marker.size() * 8; ++bit) {
    std::string damaged = marker;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const absl::Status status = ParseStoreMarker(damaged, "/store/STORE").status();
    EXPECT_FALSE(status.ok()) << bit;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/store/STORE")) << bit;
  }
  for (size_t size = 0; size < marker.size(); ++size) {
    EXPECT_FALSE(ParseStoreMarker(marker.substr(0, size), "STORE").ok()) << size;
  }
}

TEST(StoreMarkerTest, ANewerVersionIsRefusedNamingBothWhateverFollows) {
  const absl::Status status =
      ParseStoreMarker("nibble coordinator store\nversion 2\nsomething else", "STORE").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2, this program knows up to 1"));
}

class AcknowledgedMarkTest : public ::testing::Test {
 protected:
  rocksdb::FileSystem& fs() { return *rocksdb::FileSystem::Default(); }
  absl::StatusOr<uint64_t> Read() { return AcknowledgedMark::Read(fs(), directory_.path()); }
  std::string path() const { return directory_.path() + "/" + kMarkName; }
  std::string Content() { return file_testing::ContentOf(path()); }
  void Overwrite(const std::string& content) {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << content;
  }

  file_testing::TempDirectory directory_;
};

TEST_F(AcknowledgedMarkTest, AMissingMarkIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(AcknowledgedMarkTest, AnAdvancedMarkIsReadBackEvenBeforeASync) {
  ASSERT_TRUE(AcknowledgedMark::Create(fs(), directory_.path(), 5).ok());
  EXPECT_EQ(Read().value(), 5u);
  auto mark = AcknowledgedMark::Open(fs(), directory_.path(), 7);
  ASSERT_TRUE(mark.ok()) << mark.status();
  for (uint64_t i = 8; i < 8 + 3 * kMarksPerSync; ++i) {
    ASSERT_TRUE((*mark)->Advance(i).ok());
    ASSERT_EQ(Read().value(), i);
  }
}

TEST_F(AcknowledgedMarkTest, DamageToOneSlotLeavesTheOther) {
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

TEST_F(AcknowledgedMarkTest, AfterFinishDamageToOneSlotLosesNothing) {
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

TEST_F(AcknowledgedMarkTest, DamageToBothSlotsIsRefusedNamingTheFile) {
  Overwrite(std::string(8192, '\0'));
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  EXPECT_THAT(std::string(Read().status().message()), HasSubstr(path()));
  Overwrite("");
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
}

// Its number is never ahead, and fewer than kMarksPerSync behind.
TEST_F(AcknowledgedMarkTest, AfterAPowerFailureItIsFewerThanOneSyncBehind) {
  const auto recording = std::make_shared<store_testing::Recording>(directory_.path());
  const auto recorded = recording->FileSystem(recording);
  uint64_t last = 0;
  for (const int marks : {3 * kMarksPerSync, 5 * kMarksPerSync - 1}) {
    if (last == 0) {
      ASSERT_TRUE(AcknowledgedMark::Create(*recorded, directory_.path(), 0).ok());
    }
    auto mark = AcknowledgedMark::Open(*recorded, directory_.path(), last);
    ASSERT_TRUE(mark.ok()) << mark.status();
    recording->Note(last);
    while (last < static_cast<uint64_t>(marks)) {
      ASSERT_TRUE((*mark)->Advance(++last).ok());
      recording->Note(last);
    }
  }
  const file_testing::TempDirectory disk(file_testing::TempDirectory::Place::kMemory);
  std::mt19937_64 random(1);
  store_testing::DiskImage image;
  uint64_t noted = 0;
  bool opened = false;
  for (const store_testing::FileEvent& event : recording->events()) {
    image.Apply(event);
    if (event.kind == store_testing::FileEvent::Kind::kNote) {
      opened = true;
      noted = event.number;
    }
    if (!opened) continue;
    for (int i = 0; i < 8; ++i) {
      file_testing::MakeDisk(disk.path(), i == 0 ? image.Synced() : image.Torn(random));
      const absl::StatusOr<uint64_t> read = AcknowledgedMark::Read(fs(), disk.path());
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_LE(*read, noted + 1);  // the next number is written before it is noted
      ASSERT_GT(*read + kMarksPerSync, noted);
    }
  }
}

}  // namespace
}  // namespace nibble
