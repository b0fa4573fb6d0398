// Megatron's indexed token files.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/foreign_tokens.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TokenHints kHints{.tokenizer = "gpt2", .vocabulary = 100};

// Offsets of the index, from docs/formats/token-files.md.
constexpr size_t kIndexVersion = 9, kType = 17, kSequences = 18, kDocuments = 26, kHeader = 34;

template <class T>
void Append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <class T>
void PutAt(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

struct Files {
  std::string index, tokens;
};

// documents[d][s]: the tokens of sequence s of document d.
using Nested = std::vector<std::vector<std::vector<int32_t>>>;

Files Write(const Nested& documents, uint8_t type, int width) {
  Files files;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers, boundaries = {0};
  for (const auto& document : documents) {
    for (const auto& sequence : document) {
      pointers.push_back(static_cast<int64_t>(files.tokens.size()));
      lengths.push_back(static_cast<int32_t>(sequence.size()));
      for (const int64_t token : sequence) {
        files.tokens.append(reinterpret_cast<const char*>(&token), static_cast<size_t>(width));
      }
    }
    boundaries.push_back(static_cast<int64_t>(lengths.size()));
  }
  files.index = std::string("MMIDIDX\0\0", 9);
  Append<uint64_t>(files.index, 1);
  Append<uint8_t>(files.index, type);
  Append<uint64_t>(files.index, lengths.size());
  Append<uint64_t>(files.index, boundaries.size());
  for (const int32_t length : lengths) Append(files.index, length);
  for (const int64_t pointer : pointers) Append(files.index, pointer);
  for (const int64_t boundary : boundaries) Append(files.index, boundary);
  return files;
}

MappedFile Borrow(const std::string& bytes) {
  return MappedFile::Borrow({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

absl::StatusOr<std::unique_ptr<MegatronTokens>> Open(const Files& files,
                                                     const TokenHints& hints = kHints) {
  return MegatronTokens::Open("some.idx", Borrow(files.index), Borrow(files.tokens), hints);
}

std::string ErrorOf(const Files& files, const TokenHints& hints = kHints) {
  const absl::Status status = Open(files, hints).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("some.idx"));
  return std::string(status.message());
}

// Six sequences, one of them empty, in three documents.
const Nested kSmall = {{{1, 2, 3}, {4}}, {{5, 6}}, {{7}, {}, {8, 9}}};

TEST(MegatronTokens, TokensAndDocumentsOfEveryTypeAreReadBack) {
  const struct {
    uint8_t code;
    int width;
  } kTokenTypes[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
  std::mt19937 random(1);
  for (const auto& type : kTokenTypes) {
    for (int i = 0; i < 50; ++i) {
      Nested nested(random() % 6);
      Documents documents;
      for (auto& document : nested) {
        document.resize(1 + random() % 4);
        document[0].push_back(0);
        documents.emplace_back();
        for (auto& sequence : document) {
          for (uint32_t n = random() % 5; n > 0; --n) {
            sequence.push_back(static_cast<int32_t>(random() % 100));
          }
          documents.back().insert(documents.back().end(), sequence.begin(), sequence.end());
        }
      }
      const Files files = Write(nested, type.code, type.width);
      const auto opened = Open(files);
      ASSERT_TRUE(opened.ok()) << opened.status();
      ASSERT_EQ((*opened)->token_width(), type.width);
      ASSERT_EQ(ReadAll(**opened), Concatenated(documents));
      ASSERT_EQ((*opened)->documents(), static_cast<int64_t>(documents.size()));
      int64_t begin = 0;
      for (size_t d = 0; d < documents.size(); ++d) {
        ASSERT_EQ((*opened)->DocumentBegin(static_cast<int64_t>(d)), begin);
        begin += static_cast<int64_t>(documents[d].size());
      }
      ASSERT_EQ((*opened)->DocumentBegin((*opened)->documents()), begin);
      EXPECT_TRUE((*opened)->Verify().ok());
    }
  }
}

TEST(MegatronTokens, EveryNumberOfTheIndexIsCheckedAndNamed) {
  const Files good = Write(kSmall, 8, 2);
  ASSERT_TRUE(Open(good).ok());
  const size_t lengths = kHeader, pointers = lengths + 4 * 6, documents = pointers + 8 * 6;
  const struct {
    const char* message;
    std::function<void(Files&)> forge;
  } kCases[] = {
      {"magic", [](Files& f) { f.index[0] = 'm'; }},
      {"magic", [](Files& f) { f.index[8] = 1; }},
      {"version is 2", [](Files& f) { PutAt<uint64_t>(f.index, kIndexVersion, 2); }},
      {"version is 0", [](Files& f) { PutAt<uint64_t>(f.index, kIndexVersion, 0); }},
      {"dtype code is 0", [](Files& f) { f.index[kType] = 0; }},
      {"dtype code is 9", [](Files& f) { f.index[kType] = 9; }},
      {"dtype code is 255", [](Files& f) { f.index[kType] = '\xff'; }},
      {"float64", [](Files& f) { f.index[kType] = 6; }},
      {"float32", [](Files& f) { f.index[kType] = 7; }},
      {"sequence pointer 1 is 6, not 3", [](Files& f) { f.index[kType] = 2; }},
      {"sequence count is 18446744073709551615",
       [](Files& f) { PutAt<uint64_t>(f.index, kSequences, UINT64_MAX); }},
      {"sequence count 7", [](Files& f) { PutAt<uint64_t>(f.index, kSequences, 7); }},
      {"sequence count 5", [](Files& f) { PutAt<uint64_t>(f.index, kSequences, 5); }},
      {"document count is 0", [](Files& f) { PutAt<uint64_t>(f.index, kDocuments, 0); }},
      {"document count is 8", [](Files& f) { PutAt<uint64_t>(f.index, kDocuments, 8); }},
      {"document count 5", [](Files& f) { PutAt<uint64_t>(f.index, kDocuments, 5); }},
      {"document count is 9223372036854775812",  // wraps to the same size
       [](Files& f) { PutAt<uint64_t>(f.index, kDocuments, 4 + (uint64_t{1} << 63)); }},
      {"mode", [](Files& f) { f.index += std::string(6, '\0'); }},
      {"index has", [](Files& f) { f.index += '\0'; }},
      {"index has", [](Files& f) { f.index.pop_back(); }},
      {"sequence pointer 0 is 2", [&](Files& f) { PutAt<int64_t>(f.index, pointers, 2); }},
      {"sequence pointer 3 is -1", [&](Files& f) { PutAt<int64_t>(f.index, pointers + 24, -1); }},
      {"sequence length 0 is -1", [&](Files& f) { PutAt<int32_t>(f.index, lengths, -1); }},
      {"sequence length 0 is 10", [&](Files& f) { PutAt<int32_t>(f.index, lengths, 10); }},
      {"sequence pointer 1 is 6, not 4", [&](Files& f) { PutAt<int32_t>(f.index, lengths, 2); }},
      {"sequence length 5 is 3", [&](Files& f) { PutAt<int32_t>(f.index, lengths + 20, 3); }},
      {"end at byte 16", [&](Files& f) { PutAt<int32_t>(f.index, lengths + 20, 1); }},
      {"document index 0 is 1", [&](Files& f) { PutAt<int64_t>(f.index, documents, 1); }},
      {"document index 1 is 0", [&](Files& f) { PutAt<int64_t>(f.index, documents + 8, 0); }},
      {"document index 1 is -2", [&](Files& f) { PutAt<int64_t>(f.index, documents + 8, -2); }},
      {"document index 2 is 7", [&](Files& f) { PutAt<int64_t>(f.index, documents + 16, 7); }},
      {"document indices end at 5", [&](Files& f) { PutAt<int64_t>(f.index, documents + 24, 5); }},
      {"document index 3 is 7", [&](Files& f) { PutAt<int64_t>(f.index, documents + 24, 7); }},
      {"18 bytes", [](Files& f) { f.tokens.resize(20); }},
      {"not a multiple of dtype uint16", [](Files& f) { f.tokens.push_back('\0'); }},
      {"sequence length 5 is 2", [](Files& f) { f.tokens.resize(16); }},
  };
  for (const auto& one : kCases) {
    Files forged = good;
    one.forge(forged);
    if (std::string(one.message) == "18 bytes") {
      EXPECT_THAT(ErrorOf(forged), HasSubstr("end at byte 18, but the .bin file has 20"));
    } else {
      EXPECT_THAT(ErrorOf(forged), HasSubstr(one.message));
    }
  }
}

TEST(MegatronTokens, EveryTruncationOfTheIndexIsRefused) {
  const Files good = Write(kSmall, 8, 2);
  for (size_t size = 0; size < good.index.size(); ++size) {
    ASSERT_FALSE(Open({good.index.substr(0, size), good.tokens}).ok()) << size;
  }
}

TEST(MegatronTokens, NoFlippedBitOfTheIndexMovesADocumentOutOfTheTokens) {
  const Files good = Write(kSmall, 8, 2);
  int accepted = 0;
  for (size_t bit = 0; bit < 8 * good.index.size(); ++bit) {
    Files forged = good;
    forged.index[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const auto opened = Open(forged);
    if (!opened.ok()) continue;
    ++accepted;  // another boundary between documents, or int16 for uint16
    for (int64_t d = 0; d < (*opened)->documents(); ++d) {
      ASSERT_LT((*opened)->DocumentBegin(d), (*opened)->DocumentBegin(d + 1));
    }
    EXPECT_EQ((*opened)->DocumentBegin(0), 0);
    EXPECT_EQ((*opened)->DocumentBegin((*opened)->documents()), (*opened)->tokens());
  }
  EXPECT_LT(accepted, 10);
}

TEST(MegatronTokens, ADocumentWithoutATokenIsRefused) {
  EXPECT_THAT(ErrorOf(Write({{{1}}, {{}, {}}, {{2}}}, 8, 2)),
              HasSubstr("document 1, of sequences 1 to 2, has no token"));
}

TEST(MegatronTokens, AnEmptyDataSetHasNoDocument) {
  const Files files = Write({}, 8, 2);
  const auto opened = Open(files);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->tokens(), 0);
  EXPECT_EQ((*opened)->documents(), 0);
  EXPECT_EQ((*opened)->DocumentBegin(0), 0);
}

TEST(MegatronTokens, TokensOutsideTheVocabularyAreRefused) {
  for (const auto& [token, code, width] :
       {std::tuple{100, 8, 2}, std::tuple{-1, 4, 4}, std::tuple{-1, 5, 8}, std::tuple{200, 1, 1}}) {
    const Files files = Write({{{1, token}}}, static_cast<uint8_t>(code), width);
    const auto opened = Open(files);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const absl::Status status = (*opened)->Verify();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("some.idx"), HasSubstr("position 1")));
  }
}

TEST(MegatronTokens, HintsAreRequiredForWhatTheIndexDoesNotRecordAndOnlyForThat) {
  const Files files = Write(kSmall, 8, 2);
  EXPECT_THAT(ErrorOf(files, {}), HasSubstr("tokenizer"));
  TokenHints width = kHints, mark = kHints;
  width.token_width = 2;
  mark.document_mark = DocumentMark{.token = 7};
  EXPECT_THAT(ErrorOf(files, width), HasSubstr("token_width is 2"));
  EXPECT_THAT(ErrorOf(files, mark), HasSubstr("document_mark is 7"));
}

}  // namespace
}  // namespace nibble
