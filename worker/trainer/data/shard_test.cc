#include "worker/trainer/data/shard.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Offsets of the fields, from docs/formats/token-shards.md, not from the code under test.
constexpr size_t kVersion = 8, kTokenWidth = 12, kTokenCount = 16, kDocumentCount = 24;
constexpr size_t kVocabulary = 32, kEndOfDocument = 36, kChunkBytes = 40, kIndexCrc = 44;
constexpr size_t kChunkTableCrc = 48, kTokenizer = 52, kReserved = 84, kHeaderCrc = 124;
constexpr size_t kHeaderBytes = 128;

uint32_t CrcOf(const std::string& file, size_t begin, size_t size) {
  return Crc32c({reinterpret_cast<const std::byte*>(file.data()) + begin, size});
}

void SealHeader(std::string& file) { PutAt(file, kHeaderCrc, CrcOf(file, 0, kHeaderCrc)); }

// The bytes of a shard, and a directory for corrupted versions of it.
class ShardTest : public testing::Test {
 protected:
  ShardTest() : documents_(RandomDocuments(1, 20, 30, 1000)), tokens_(Concatenated(documents_)) {
    WriteShard(directory_.Path("shard"), documents_);
    file_ = Contents(directory_.Path("shard"));
    WriteFile(directory_.Path("forged"), "");
  }

  // Overwrites the file in place: replacing it takes milliseconds, for thousands of versions.
  std::string Forge(const std::string& file) {
    const std::string path = directory_.Path("forged");
    std::ofstream(path, std::ios::binary | std::ios::in | std::ios::out) << file;
    std::filesystem::resize_file(path, file.size());
    return path;
  }

  // The status of opening and reading `file`; checks that every token read is the original one.
  absl::Status OpenAndRead(const std::string& file) {
    const auto shard = TokenShard::Open(Forge(file));
    if (!shard.ok()) return shard.status();
    absl::Status first_error;
    for (int64_t i = 0; i < (*shard)->tokens(); ++i) {
      int32_t token = -1;
      const absl::Status status = (*shard)->Read(i, 1, &token);
      if (status.ok()) {
        EXPECT_EQ(token, tokens_.at(i)) << "position " << i;
      } else if (first_error.ok()) {
        first_error = status;
      }
    }
    EXPECT_EQ((*shard)->Verify().ok(), first_error.ok());
    return first_error;
  }

  absl::Status Open(const std::string& file) { return TokenShard::Open(Forge(file)).status(); }

  size_t data_bytes() const { return 2 * tokens_.size(); }
  size_t index_begin() const { return (kHeaderBytes + data_bytes() + 7) / 8 * 8; }
  size_t table_begin() const { return index_begin() + 8 * documents_.size(); }

  TempDirectory directory_;
  Documents documents_;
  std::vector<int32_t> tokens_;
  std::string file_;
};

TEST_F(ShardTest, BytesAreExactlyThoseOfTheFormat) {
  const TempDirectory directory;
  ShardOptions options{
      .tokenizer = "bytes", .vocabulary = 257, .end_of_document = 256, .chunk_bytes = 64};
  WriteShard(directory.Path("s"), {{1, 2}, {}, {255}}, options);

  std::string expected(kHeaderBytes, '\0');
  expected.replace(0, 8, "NBTOKENS");
  PutAt<uint32_t>(expected, kVersion, 1);
  PutAt<uint32_t>(expected, kTokenWidth, 2);
  PutAt<uint64_t>(expected, kTokenCount, 6);
  PutAt<uint64_t>(expected, kDocumentCount, 3);
  PutAt<uint32_t>(expected, kVocabulary, 257);
  PutAt<uint32_t>(expected, kEndOfDocument, 256);
  PutAt<uint32_t>(expected, kChunkBytes, 64);
  expected.replace(kTokenizer, 5, "bytes");
  expected += std::string("\1\0\2\0\0\1\0\1\xff\0\0\1", 12);  // data
  expected += std::string(4, '\0');                           // padding
  expected += std::string("\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 24);
  expected += std::string(4, '\0');
  PutAt(expected, 168, CrcOf(expected, 128, 12));
  PutAt(expected, kIndexCrc, CrcOf(expected, 144, 24));
  PutAt(expected, kChunkTableCrc, CrcOf(expected, 168, 4));
  SealHeader(expected);
  EXPECT_EQ(Contents(directory.Path("s")), expected);
}

TEST_F(ShardTest, TokensAreReadBackAtEveryWidthAndAroundChunkBounds) {
  for (const int width : {2, 4}) {
    for (const int count : {1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100}) {
      ShardOptions options = TestOptions(width == 2 ? 65536 : int64_t{1} << 31);
      options.token_width = width;
      Documents documents = RandomDocuments(count, count, 1, 65536);
      documents.back().back() = static_cast<int32_t>(options.vocabulary - 1);
      const auto shard = MakeShard(documents, options);
      ASSERT_NE(shard, nullptr);
      EXPECT_EQ(shard->token_width(), width);
      EXPECT_EQ(shard->vocabulary(), options.vocabulary);
      EXPECT_EQ(ReadAll(*shard), Concatenated(documents)) << width << " " << count;
      EXPECT_TRUE(shard->Verify().ok());
    }
  }
}

TEST_F(ShardTest, EveryRangeEqualsThatRangeOfAllTokens) {
  const auto shard = MakeShard(documents_);
  const auto count = static_cast<int64_t>(tokens_.size());
  for (int64_t first = 0; first <= count; ++first) {
    for (int64_t n = 0; n <= count - first; n += 1 + n / 3) {
      std::vector<int32_t> got(n + 1, -7);
      ASSERT_TRUE(shard->Read(first, n, got.data()).ok());
      ASSERT_TRUE(std::equal(got.begin(), got.end() - 1, tokens_.begin() + first));
      ASSERT_EQ(got.back(), -7);  // nothing past the end is written
    }
  }
}

TEST_F(ShardTest, RangesOutsideTheTokensAreRefused) {
  const auto shard = MakeShard(documents_);
  const int64_t count = shard->tokens();
  int32_t out[4];
  const struct {
    int64_t first, count;
  } kRanges[] = {{-1, 1},        {0, -1},        {0, count + 1},
                 {count, 1},     {count + 1, 0}, {INT64_MAX, 1},
                 {1, INT64_MAX}, {INT64_MIN, 1}, {INT64_MAX, INT64_MAX}};
  for (const auto& range : kRanges) {
    EXPECT_EQ(shard->Read(range.first, range.count, out).code(), absl::StatusCode::kOutOfRange)
        << range.first << " " << range.count;
  }
  EXPECT_TRUE(shard->Read(count, 0, out).ok());
}

TEST_F(ShardTest, DocumentsAreFoundFromAnyOfTheirTokens) {
  const auto shard = MakeShard(documents_);
  ASSERT_EQ(shard->documents(), static_cast<int64_t>(documents_.size()));
  int64_t position = 0;
  for (int64_t d = 0; d < shard->documents(); ++d) {
    EXPECT_EQ(shard->DocumentBegin(d), position);
    for (size_t i = 0; i < documents_[d].size(); ++i, ++position) {
      ASSERT_EQ(shard->DocumentOf(position), d) << position;
    }
  }
  EXPECT_EQ(shard->DocumentBegin(shard->documents()), position);
}

TEST_F(ShardTest, AShardWithoutDocumentsIsValid) {
  const auto shard = MakeShard({});
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(shard->tokens(), 0);
  EXPECT_EQ(shard->documents(), 0);
  EXPECT_EQ(shard->DocumentBegin(0), 0);
  EXPECT_TRUE(shard->Verify().ok());
}

TEST_F(ShardTest, EveryFlippedBitIsDetectedAndNoWrongTokenIsRead) {
  for (size_t bit = 0; bit < 8 * file_.size(); ++bit) {
    std::string forged = file_;
    forged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const absl::Status status = OpenAndRead(forged);
    ASSERT_FALSE(status.ok()) << "byte " << bit / 8 << " bit " << bit % 8;
    ASSERT_THAT(std::string(status.message()), HasSubstr(directory_.Path("forged")));
  }
}

TEST_F(ShardTest, RandomDamageOfSeveralBytesIsDetectedAndNoWrongTokenIsRead) {
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::string forged = file_;
    const size_t begin = random() % forged.size();
    const size_t end = std::min<size_t>(forged.size(), begin + 1 + random() % 40);
    for (size_t b = begin; b < end; ++b) forged[b] = static_cast<char>(random());
    if (forged == file_) continue;
    ASSERT_FALSE(OpenAndRead(forged).ok()) << i << ": [" << begin << ", " << end << ")";
  }
}

TEST_F(ShardTest, TruncatedAndExtendedFilesAreRefusedAtOpen) {
  for (size_t size = 0; size < file_.size(); ++size) {
    ASSERT_FALSE(Open(file_.substr(0, size)).ok()) << size;
  }
  for (const size_t tail : {1, 2, 4, 8, 64, 4096}) {
    EXPECT_FALSE(Open(file_ + std::string(tail, '\0')).ok()) << tail;
  }
}

TEST_F(ShardTest, DamageInOneChunkLeavesTheOthersReadable) {
  file_[kHeaderBytes + 64 + 5] ^= 1;  // in chunk 1: tokens 32 to 63
  const auto shard = TokenShard::Open(Forge(file_));
  ASSERT_TRUE(shard.ok());
  std::vector<int32_t> out(tokens_.size());
  EXPECT_TRUE((*shard)->Read(0, 32, out.data()).ok());
  EXPECT_TRUE((*shard)->Read(64, 20, out.data()).ok());
  for (int again = 0; again < 2; ++again) {
    const absl::Status status = (*shard)->Read(31, 2, out.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(directory_.Path("forged")), HasSubstr("chunk_crc[1]")));
  }
}

// Wrong headers with a correct checksum.
TEST_F(ShardTest, EveryRuleOfTheHeaderIsCheckedAndNamed) {
  const uint64_t count = tokens_.size();
  const struct {
    const char* field;
    std::function<void(std::string&)> forge;
  } kCases[] = {
      {"magic", [](std::string& f) { f[0] = 'n'; }},
      {"version is 2", [](std::string& f) { PutAt<uint32_t>(f, kVersion, 2); }},
      {"version is 0", [](std::string& f) { PutAt<uint32_t>(f, kVersion, 0); }},
      {"token_width is 0", [](std::string& f) { PutAt<uint32_t>(f, kTokenWidth, 0); }},
      {"token_width is 1", [](std::string& f) { PutAt<uint32_t>(f, kTokenWidth, 1); }},
      {"token_width is 8", [](std::string& f) { PutAt<uint32_t>(f, kTokenWidth, 8); }},
      {"token_width 4", [](std::string& f) { PutAt<uint32_t>(f, kTokenWidth, 4); }},
      {"token_count", [&](std::string& f) { PutAt<uint64_t>(f, kTokenCount, count + 1); }},
      {"token_count", [&](std::string& f) { PutAt<uint64_t>(f, kTokenCount, count - 4); }},
      {"token_count", [](std::string& f) { PutAt<uint64_t>(f, kTokenCount, UINT64_MAX); }},
      {"token_count", [](std::string& f) { PutAt<uint64_t>(f, kTokenCount, uint64_t{1} << 63); }},
      {"token_count",  // wraps to the same size of data
       [&](std::string& f) { PutAt<uint64_t>(f, kTokenCount, count + (uint64_t{1} << 63)); }},
      {"document_count", [](std::string& f) { PutAt<uint64_t>(f, kTokenCount, 0); }},
      {"document_count", [](std::string& f) { PutAt<uint64_t>(f, kDocumentCount, 0); }},
      {"document_count", [&](std::string& f) { PutAt<uint64_t>(f, kDocumentCount, count + 1); }},
      {"document_count", [](std::string& f) { PutAt<uint64_t>(f, kDocumentCount, 21); }},
      {"document_count",  // wraps to the same size of index
       [](std::string& f) { PutAt<uint64_t>(f, kDocumentCount, 20 + (uint64_t{1} << 61)); }},
      {"vocabulary is 0", [](std::string& f) { PutAt<uint32_t>(f, kVocabulary, 0); }},
      {"vocabulary is 65537", [](std::string& f) { PutAt<uint32_t>(f, kVocabulary, 65537); }},
      {"end_of_document", [](std::string& f) { PutAt<uint32_t>(f, kEndOfDocument, 1000); }},
      {"end_of_document", [](std::string& f) { PutAt<uint32_t>(f, kEndOfDocument, 0xfffffffe); }},
      {"chunk_bytes is 0", [](std::string& f) { PutAt<uint32_t>(f, kChunkBytes, 0); }},
      {"chunk_bytes is 32", [](std::string& f) { PutAt<uint32_t>(f, kChunkBytes, 32); }},
      {"chunk_bytes is 96", [](std::string& f) { PutAt<uint32_t>(f, kChunkBytes, 96); }},
      {"chunk_bytes", [](std::string& f) { PutAt<uint32_t>(f, kChunkBytes, uint32_t{1} << 31); }},
      {"chunk_bytes 128", [](std::string& f) { PutAt<uint32_t>(f, kChunkBytes, 128); }},
      {"index_crc", [](std::string& f) { PutAt<uint32_t>(f, kIndexCrc, 0); }},
      {"chunk_table_crc", [](std::string& f) { PutAt<uint32_t>(f, kChunkTableCrc, 0); }},
      {"tokenizer", [](std::string& f) { f.replace(kTokenizer, 4, 4, '\0'); }},
      {"tokenizer", [](std::string& f) { f[kTokenizer + 1] = '\0'; }},
      {"tokenizer", [](std::string& f) { f[kTokenizer + 1] = '\n'; }},
      {"tokenizer", [](std::string& f) { f[kTokenizer + 31] = '\xff'; }},
      {"reserved byte 84", [](std::string& f) { f[kReserved] = 1; }},
      {"reserved byte 123", [](std::string& f) { f[kHeaderCrc - 1] = 1; }},
  };
  for (const auto& one : kCases) {
    std::string forged = file_;
    one.forge(forged);
    SealHeader(forged);
    const absl::Status status = Open(forged);
    EXPECT_FALSE(status.ok()) << one.field;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(one.field), HasSubstr(directory_.Path("forged"))));
  }
  std::string same = file_;
  SealHeader(same);
  EXPECT_EQ(same, file_);
}

TEST_F(ShardTest, EveryRuleOfTheIndexIsCheckedAndNamed) {
  const auto ends = [&](std::string& f, size_t d, uint64_t end) {
    PutAt(f, index_begin() + 8 * d, end);
  };
  const uint64_t count = tokens_.size();
  const size_t last = documents_.size() - 1;
  const struct {
    const char* message;
    std::function<void(std::string&)> forge;
  } kCases[] = {
      {"document 0 ends at 0", [&](std::string& f) { ends(f, 0, 0); }},
      {"document 1", [&](std::string& f) { ends(f, 1, documents_[0].size()); }},
      {"document 2", [&](std::string& f) { ends(f, 1, count); }},
      {"document 5", [&](std::string& f) { ends(f, 5, count + 1); }},
      {"document 5", [&](std::string& f) { ends(f, 5, UINT64_MAX); }},
      {"documents end at", [&](std::string& f) { ends(f, last, count - 1); }},
      {"document 19", [&](std::string& f) { ends(f, last, count + 1); }},
  };
  for (const auto& one : kCases) {
    std::string forged = file_;
    one.forge(forged);
    PutAt(forged, kIndexCrc, CrcOf(forged, index_begin(), 8 * documents_.size()));
    SealHeader(forged);
    const absl::Status status = Open(forged);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(one.message), HasSubstr("index")));
  }
}

TEST_F(ShardTest, TokensOutsideTheVocabularyAreRefusedEvenWithCorrectChecksums) {
  std::string forged = file_;
  PutAt<uint16_t>(forged, kHeaderBytes + 2 * 40, 1000);  // in chunk 1; the vocabulary is 1000
  PutAt(forged, table_begin() + 4, CrcOf(forged, kHeaderBytes + 64, 64));
  PutAt(forged, kChunkTableCrc, CrcOf(forged, table_begin(), forged.size() - table_begin()));
  SealHeader(forged);
  const absl::Status status = OpenAndRead(forged);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 1 contains token 1000"));
}

TEST_F(ShardTest, OtherFilesAreRefused) {
  EXPECT_EQ(Open("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Open("hello").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Open(std::string(1000, 'x')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TokenShard::Open(directory_.path()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TokenShard::Open(directory_.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ShardTest, ThreadsThatReadAChunkFirstGetTheSameTokens) {
  const auto shard = MakeShard(documents_);
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& out : got) {
    threads.emplace_back([&] { out = ReadAll(*shard); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& out : got) EXPECT_EQ(out, tokens_);
}

}  // namespace
}  // namespace nibble
