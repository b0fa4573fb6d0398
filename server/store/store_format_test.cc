#include "server/store/store_format.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble::store_format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::string_view kHighest("\xff\xff\xff", 3);

TEST(StoreFormatTest, ASealedValueIsTheseBytes) {
  const std::string sealed = Seal(Table::kEntity, std::string("job\0a", 5), 0x0102, "v");
  EXPECT_EQ(sealed.size(), 13u);
  EXPECT_EQ(sealed.substr(4), std::string("\x02\x01\0\0\0\0\0\0v", 9));
  const auto opened = Unseal(Table::kEntity, std::string("job\0a", 5), sealed);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->sequence, 0x0102u);
  EXPECT_EQ(opened->payload, "v");
}

TEST(StoreFormatTest, EveryChangedBitOfASealedValueIsFound) {
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

TEST(StoreFormatTest, AGoodValueInAWrongPlaceIsRefusedNamingThePlace) {
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

TEST(StoreFormatTest, TheRangeOfATopicHasItsKeysAndNoOthers) {
  constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  EXPECT_GT(AfterTopic("job/1"), TopicKey("job/1", kLast));
  EXPECT_GE(TopicKey("job/12", 0), AfterTopic("job/1"));
  EXPECT_EQ(ParseTopicKey(TopicKey("job/1", 9)),
            std::make_pair(absl::string_view("job/1"), uint64_t{9}));
}

TEST(StoreFormatTest, ARecordHasItsTopicsAndItsBytes) {
  for (const std::string& bytes : {std::string(), std::string("\0\xff", 2)}) {
    const std::string payload = EncodeRecord({"a", "", "bc"}, bytes);
    const auto record = ParseRecord(payload);
    ASSERT_TRUE(record.has_value());
    EXPECT_THAT(record->topics, ElementsAre("a", "", "bc"));
    EXPECT_EQ(record->bytes, bytes);
    for (size_t size = 0; size < payload.size() - bytes.size(); ++size) {
      EXPECT_FALSE(ParseRecord(payload.substr(0, size)).has_value()) << size;
    }
  }
}

}  // namespace
}  // namespace nibble::store_format
