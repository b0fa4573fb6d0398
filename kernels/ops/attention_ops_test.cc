#include "kernels/ops/attention_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace nibble {
namespace {

using testing::HasSubstr;

// A request that is accepted, for each test to spoil.
struct Valid {
  std::vector<float> qkv = std::vector<float>(6 * 32), dqkv = qkv, out = std::vector<float>(6 * 16),
                     dout = out, lse = std::vector<float>(12);
  std::vector<uint16_t> bf16 = std::vector<uint16_t>(6 * 32);
  std::vector<int32_t> documents = {0, 0, 2, 0, 1, 1};
  AttentionShape shape = {2, 1, 8, 0.5f};
  SequenceLayout layout = {2, 3, documents.data()};
  Rope rope = {.shape = shape, .layout = layout, .qkv = MutableMatrix::Of(qkv.data(), 6, 32)};
  AttentionForward forward = {.shape = shape,
                              .layout = layout,
                              .qkv = ConstMatrix::Of(qkv.data(), 6, 32),
                              .out = MutableMatrix::Of(out.data(), 6, 16),
                              .lse = lse.data()};
  AttentionBackward backward = {.shape = shape,
                                .layout = layout,
                                .qkv = ConstMatrix::Of(qkv.data(), 6, 32),
                                .out = ConstMatrix::Of(out.data(), 6, 16),
                                .dout = ConstMatrix::Of(dout.data(), 6, 16),
                                .lse = lse.data(),
                                .dqkv = MutableMatrix::Of(dqkv.data(), 6, 32)};
};

template <class Request>
void ExpectRefused(const Request& request, const std::string& operation, const std::string& why) {
  const absl::Status status = Validate(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(std::string(status.message()), HasSubstr(operation + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}
// The same field spoiled in every request.
template <class Spoil>
void ExpectAllRefused(const Spoil& spoil, const std::string& why) {
  Valid v;
  spoil(v.rope);
  spoil(v.forward);
  spoil(v.backward);
  ExpectRefused(v.rope, "rope", why);
  ExpectRefused(v.forward, "attention forward", why);
  ExpectRefused(v.backward, "attention backward", why);
}

TEST(AttentionRequestTest, UnchangedRequestsAreAccepted) {
  const Valid v;
  EXPECT_TRUE(Validate(v.rope).ok()) << Validate(v.rope);
  EXPECT_TRUE(Validate(v.forward).ok()) << Validate(v.forward);
  EXPECT_TRUE(Validate(v.backward).ok()) << Validate(v.backward);
}

TEST(AttentionRequestTest, HeadsThatDoNotDivideAreRefused) {
  ExpectAllRefused([](auto& r) { r.shape.kv_heads = 3; },
                   "2 heads must be a positive multiple of 3 kv_heads");
  ExpectAllRefused([](auto& r) { r.shape.kv_heads = 0; }, "multiple of 0 kv_heads");
  ExpectAllRefused([](auto& r) { r.shape.head_dim = 0; }, "head_dim 0 must be at least 1");
}

TEST(AttentionRequestTest, WrongSizesAreRefusedWithBothSizes) {
  ExpectAllRefused([](auto& r) { r.layout.length = 4, r.layout.doc_begin = nullptr; },
                   "qkv is [6, 32] f32 but must be [8, 32]");
  ExpectAllRefused([](auto& r) { r.layout.length = -1; }, "sequences of length -1");
  ExpectAllRefused([](auto& r) { r.qkv.stride = 31; }, "row stride 31");
  ExpectAllRefused([](auto& r) { r.qkv.data = nullptr; }, "qkv is [6, 32] f32 and has no data");
  Valid v;
  v.forward.out.cols = 15;
  ExpectRefused(v.forward, "attention forward", "out is [6, 15] f32 but must be [6, 16]");
  v.backward.dqkv.rows = 5;
  ExpectRefused(v.backward, "attention backward", "dqkv is [5, 32] f32");
}

TEST(AttentionRequestTest, MixedTypesAreRefused) {
  Valid v;
  v.forward.qkv = ConstMatrix::OfBf16(v.bf16.data(), 6, 32);
  ExpectRefused(v.forward, "attention forward", "out is [6, 16] f32 but qkv is [6, 32] bf16");
  v.backward.dout = ConstMatrix::OfBf16(v.bf16.data(), 6, 16);
  ExpectRefused(v.backward, "attention backward", "dout is [6, 16] bf16 but out is [6, 16] f32");
}

TEST(AttentionRequestTest, NonPositiveScaleOrThetaIsRefused) {
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    Valid v;
    v.forward.shape.scale = v.backward.shape.scale = scale;
    ExpectRefused(v.forward, "attention forward", "must be positive and finite");
    ExpectRefused(v.backward, "attention backward", "must be positive and finite");
    v.rope.theta = scale;
    ExpectRefused(v.rope, "rope", "must be positive and finite");
  }
}

TEST(AttentionRequestTest, MissingLseAndOddHeadDimAreRefused) {
  Valid v;
  v.forward.lse = nullptr;
  ExpectRefused(v.forward, "attention forward", "lse is null but must hold 12 elements");
  v.backward.lse = nullptr;
  ExpectRefused(v.backward, "attention backward", "lse is null but must hold 12 elements");
  v.rope.shape = {4, 2, 1};
  v.rope.shape.head_dim = 1;
  v.rope.qkv.cols = 8;
  ExpectRefused(v.rope, "rope", "head_dim 1 must be even");
}

TEST(AttentionRequestTest, ContinuationsMustCoverTheRowsAndFitTheirCaches) {
  Valid v;
  std::vector<float> keys(8 * 8), values(8 * 8);
  std::vector<Continuation> pieces = {{.row = 0, .rows = 2, .position = 3}, {.row = 2, .rows = 4}};
  std::vector<KvCache> caches(2, {keys.data(), values.data(), 8});
  AttentionForward request = v.forward;
  request.layout = {.continued = pieces};
  request.caches = caches;
  request.lse = nullptr;
  EXPECT_TRUE(Validate(request).ok()) << Validate(request);
  caches[0].capacity = 4;
  ExpectRefused(request, "attention forward", "capacity of 4 tokens, below the 5 of its sequence");
  caches[0] = {nullptr, values.data(), 8};
  ExpectRefused(request, "attention forward", "cache 0 has no memory");
  caches[0] = caches[1];
  pieces[1].row = 3;
  ExpectRefused(request, "attention forward", "continuation 1 has 4 rows from row 3 on; it must");
  pieces[1] = {.row = 2, .rows = 4, .position = -1};
  ExpectRefused(request, "attention forward", "continuation 1 is at position -1, not in [0, ");
  pieces[1] = {.row = 2, .rows = 3};
  ExpectRefused(request, "attention forward", "qkv is [6, 32] f32 but must be [5, 32]");
  pieces[1].rows = 4;
  request.caches = {caches.data(), 1};
  ExpectRefused(request, "attention forward", "caches: 1 for 2 continuations");
  request.caches = {};
  request.layout.sequences = 2;
  ExpectRefused(request, "attention forward", "whole sequences beside 2 continuations");
  v.backward.layout = {.continued = pieces};
  ExpectRefused(v.backward, "attention backward", "continued sequences have no backward pass");
}

}  // namespace
}  // namespace nibble
