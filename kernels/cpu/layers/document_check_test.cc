#include "kernels/cpu/layers/document_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"

namespace nibble::cpu {
namespace {

using testing::HasSubstr;

using Documents = std::vector<int32_t>;

// Two sequences of three tokens.
SequenceLayout LayoutOf(const Documents& documents) { return {2, 3, documents.data()}; }

TEST(DocumentCheckTest, DocumentsThatRiseWithinTheirSequencePass) {
  for (const Documents& documents : {Documents{0, 0, 2, 0, 1, 1}, Documents{0, 1, 2, 0, 0, 0}}) {
    EXPECT_TRUE(CheckDocuments("op", LayoutOf(documents)).ok());
    EXPECT_TRUE(CheckDocumentStarts("op", LayoutOf(documents)).ok());
  }
  EXPECT_TRUE(CheckDocuments("op", {2, 3}).ok());
}

TEST(DocumentCheckTest, DocumentThatBeginsAfterItsTokenIsRefused) {
  const auto refusal = [](const Documents& documents) {
    return std::string(CheckDocuments("op", LayoutOf(documents)).message());
  };
  EXPECT_EQ(refusal({0, 0, 3, 0, 0, 0}),
            "op: doc_begin of token 2 of sequence 0 is 3, must be at least 0 and at most 2");
  EXPECT_THAT(refusal({0, 0, 0, 0, 1, 0}),
              HasSubstr("doc_begin of token 2 of sequence 1 is 0, must be at least 1"));
  EXPECT_THAT(refusal({-1, 0, 0, 0, 0, 0}), HasSubstr("doc_begin of token 0 of sequence 0 is -1"));
}

TEST(DocumentCheckTest, DocumentThatSkipsItsFirstTokenHasNoStart) {
  const Documents documents = {0, 0, 1, 0, 0, 0};
  EXPECT_TRUE(CheckDocuments("op", LayoutOf(documents)).ok());
  EXPECT_EQ(CheckDocumentStarts("op", LayoutOf(documents)).message(),
            "op: doc_begin of token 2 of sequence 0 is 1, must be 2 or, as before it, 0");
}

TEST(DocumentCheckTest, RefusedOperationWritesNothing) {
  const Documents documents = {0, 0, 3, 0, 0, 0};
  const std::vector<float> qkv(6 * 32);
  std::vector<float> out(6 * 16, -3.0f), lse(12, -3.0f);
  ThreadPool pool(1);
  CpuAttentionOps ops(pool);
  const absl::Status status = ops.Forward({.shape = {2, 1, 8, 0.5f},
                                           .layout = LayoutOf(documents),
                                           .qkv = ConstMatrix::Of(qkv.data(), 6, 32),
                                           .out = MutableMatrix::Of(out.data(), 6, 16),
                                           .lse = lse.data()});
  EXPECT_THAT(std::string(status.message()), HasSubstr("attention forward: doc_begin of token 2"));
  EXPECT_EQ(out, std::vector<float>(6 * 16, -3.0f));
  EXPECT_EQ(lse, std::vector<float>(12, -3.0f));
}

}  // namespace
}  // namespace nibble::cpu
