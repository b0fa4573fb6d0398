#include "worker/trainer/data/token_hints.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(TokenHints, WhatAFileDoesNotSayMustBeSaid) {
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
  EXPECT_THAT(error([](auto& h) { h.vocabulary = 0; }), HasSubstr("given, 0, is not in [1, "));
  EXPECT_THAT(error([](auto& h) { h.vocabulary = (int64_t{1} << 31) + 1; }),
              HasSubstr("2147483649"));
  EXPECT_THAT(error([](auto& h) { h.token_width = 1; }), HasSubstr("token_width is 1"));
  EXPECT_THAT(error([](auto& h) { h.token_width = -2; }), HasSubstr("token_width is -2"));
  EXPECT_THAT(error([](auto& h) { h.document_mark = DocumentMark{.token = 50257}; }),
              HasSubstr("document_mark is 50257, not in [0, 50257)"));
  EXPECT_THAT(error([](auto& h) { h.document_mark = DocumentMark{.token = -1}; }),
              HasSubstr("document_mark is -1"));
}

}  // namespace
}  // namespace nibble
