#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(TokenHints, PropertiesThatTheFileDoesNotRecordAreRequired) {
  EXPECT_TRUE(Validate(TokenHints{.tokenizer = "gpt2", .vocabulary = 50257}).ok());
  EXPECT_TRUE(Validate(TokenHints{.tokenizer = "gpt2",
                                  .vocabulary = int64_t{1} << 31,
                                  .token_width = 4,
                                  .document_mark = DocumentMark{.token = INT32_MAX}})
                  .ok());
}

TEST(TokenHints, HintsOutOfBoundsAreRefusedByName) {
  const TokenHints good{.tokenizer = "gpt2", .vocabulary = 50257};
  const auto error = [&](auto change) {
    TokenHints hints = good;
    change(hints);
    const absl::Status status = Validate(hints);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](auto& h) { h.tokenizer = ""; }), HasSubstr("tokenizer"));
  EXPECT_THAT(error([](auto& h) { h.tokenizer = std::string(33, 'x'); }), HasSubstr("tokenizer"));
  EXPECT_THAT(error([](auto& h) { h.tokenizer = "a\nb"; }), HasSubstr("\"a\\nb\""));
  EXPECT_THAT(error([](auto& h) { h.vocabulary = 0; }), HasSubstr("given 0 is not in [1, "));
  EXPECT_THAT(error([](auto& h) { h.vocabulary = (int64_t{1} << 31) + 1; }),
              HasSubstr("2147483649"));
  EXPECT_THAT(error([](auto& h) { h.token_width = 1; }), HasSubstr("token_width is 1"));
  EXPECT_THAT(error([](auto& h) { h.token_width = -2; }), HasSubstr("token_width is -2"));
  EXPECT_THAT(error([](auto& h) { h.document_mark = DocumentMark{.token = 50257}; }),
              HasSubstr("document_mark is 50257, not in [0, 50257)"));
  EXPECT_THAT(error([](auto& h) { h.document_mark = DocumentMark{.token = -1}; }),
              HasSubstr("document_mark is -1"));
}

using ::testing::AllOf;
using ::testing::ElementsAre;

class OpenTokensTest : public testing::Test {
 protected:
  OpenTokensTest() {
    WriteShard(directory_.Path("shard"), {{1, 2}, {3}});
    int32_t header[256] = {20240520, 1, 3};
    const std::string tokens("\1\0\2\0\3\0", 6);
    WriteFile(directory_.Path("llmc.bin"),
              std::string(reinterpret_cast<const char*>(header), sizeof(header)) + tokens);
    WriteFile(directory_.Path("bare.bin"), tokens);
    WriteFile(directory_.Path("set.bin"), tokens);
    std::string index("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);
    index += std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16);  // counts
    index += std::string("\3\0\0\0\0\0\0\0\0\0\0\0", 12);          // length, pointer
    index += std::string("\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16);  // documents
    WriteFile(directory_.Path("set.idx"), index);
  }

  std::vector<int32_t> Read(const std::string& name, const TokenHints& hints) const {
    const auto source = OpenTokens(directory_.Path(name), hints);
    EXPECT_TRUE(source.ok()) << source.status();
    if (!source.ok()) return {};
    EXPECT_EQ((*source)->name(), directory_.Path(name));
    return ReadAll(**source);
  }

  std::string ErrorOf(const std::string& name, const TokenHints& hints,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const absl::Status status = OpenTokens(directory_.Path(name), hints).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory_.Path(name)));
    return std::string(status.message());
  }

  TempDirectory directory_;
  const TokenHints gpt2_{.tokenizer = "gpt2", .vocabulary = 50257};
  const TokenHints bare_{.tokenizer = "gpt2", .vocabulary = 50257, .token_width = 2};
};

TEST_F(OpenTokensTest, EveryKindIsRecognisedByItsContent) {
  const auto kind = [&](const char* name) { return *RecogniseTokens(directory_.Path(name)); };
  EXPECT_EQ(kind("shard"), TokenFileKind::kShard);
  EXPECT_EQ(kind("llmc.bin"), TokenFileKind::kRaw);
  EXPECT_EQ(kind("set.idx"), TokenFileKind::kMegatronIndex);
  EXPECT_EQ(kind("bare.bin"), TokenFileKind::kNone);
  WriteFile(directory_.Path("empty"), "");
  EXPECT_EQ(kind("empty"), TokenFileKind::kNone);
}

TEST_F(OpenTokensTest, EveryKindOpens) {
  EXPECT_THAT(Read("shard", {}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Read("shard", {.tokenizer = "test", .vocabulary = 1000}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Read("llmc.bin", gpt2_), ElementsAre(1, 2, 3));
  EXPECT_THAT(Read("bare.bin", bare_), ElementsAre(1, 2, 3));
  EXPECT_THAT(Read("set.idx", gpt2_), ElementsAre(1, 2, 3));
}

TEST_F(OpenTokensTest, AFileIsReadOnlyAsAKindThatItOrTheHintsName) {
  EXPECT_THAT(ErrorOf("bare.bin", gpt2_), AllOf(HasSubstr(".idx"), HasSubstr("2 or 4")));
  EXPECT_THAT(ErrorOf("set.bin", gpt2_), HasSubstr(".idx"));
  EXPECT_THAT(ErrorOf("llmc.bin", bare_), HasSubstr("token_width"));
  EXPECT_THAT(ErrorOf("set.idx", bare_), HasSubstr("token_width"));
  EXPECT_THAT(ErrorOf("llmc.bin", {}), HasSubstr("tokenizer"));
  EXPECT_THAT(ErrorOf("set.idx", {}), HasSubstr("tokenizer"));
}

TEST_F(OpenTokensTest, AShardThatContradictsTheHintsIsRefused) {
  EXPECT_THAT(ErrorOf("shard", {.tokenizer = "gpt2"}),
              HasSubstr("\"test\", not the requested \"gpt2\""));
  EXPECT_THAT(ErrorOf("shard", {.vocabulary = 7}), HasSubstr("1000, not the requested 7"));
  EXPECT_THAT(ErrorOf("shard", {.token_width = 2}), HasSubstr("token_width"));
  EXPECT_THAT(ErrorOf("shard", {.document_mark = DocumentMark{.token = 1}}),
              HasSubstr("document_mark"));
}

TEST_F(OpenTokensTest, AnIndexNeedsTheSuffixIdxAndItsBinFile) {
  const std::string index = Contents(directory_.Path("set.idx"));
  WriteFile(directory_.Path("index"), index);
  EXPECT_THAT(ErrorOf("index", gpt2_), HasSubstr("does not end with .idx"));
  WriteFile(directory_.Path("lone.idx"), index);
  EXPECT_THAT(ErrorOf("lone.idx", gpt2_, absl::StatusCode::kNotFound), HasSubstr("lone.bin"));
}

TEST_F(OpenTokensTest, UnsupportedKindsAreNamed) {
  const int32_t evaluation[3] = {20240522, 1, 3};
  WriteFile(directory_.Path("eval.bin"),
            std::string(reinterpret_cast<const char*>(evaluation), sizeof(evaluation)));
  EXPECT_THAT(ErrorOf("eval.bin", bare_), HasSubstr("evaluation"));
  WriteFile(directory_.Path("old.idx"), std::string("TNTIDX\0\0\1\0\0\0", 12));
  EXPECT_THAT(ErrorOf("old.idx", gpt2_), HasSubstr("old format"));
}

TEST_F(OpenTokensTest, AMissingFileIsTheSystemsError) {
  ErrorOf("absent", gpt2_, absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenTokens(directory_.path(), gpt2_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RecogniseTokens(directory_.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace nibble
