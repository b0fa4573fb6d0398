// Requests that the operations refuse.
#include "kernels/cpu/layers/cpu_mamba_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/layer_testing.h"

namespace nibble {
namespace {

using cpu::TestMatrix;
using testing::HasSubstr;

constexpr int64_t kLength = 6;

class MambaOpsTest : public testing::Test {
 protected:
  template <class Request>
  std::string Refusal(const Request& request) {
    absl::Status status = Run(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  absl::Status Run(const ConvForward& request) { return ops_.Forward(request); }
  absl::Status Run(const ConvBackward& request) { return ops_.Backward(request); }
  absl::Status Run(const ScanForward& request) { return ops_.Forward(request); }
  absl::Status Run(const ScanBackward& request) { return ops_.Backward(request); }

  ThreadPool pool_{1};
  CpuMambaOps ops_{pool_};
  TestMatrix in_{DType::kF32, kLength, 8}, in_bf16_{DType::kBf16, kLength, 8};
  TestMatrix out_{DType::kF32, kLength, 8};
  // Two heads of 4, one group of state 3.
  TestMatrix xbc_{DType::kF32, kLength, 14}, dxbc_{DType::kF32, kLength, 14};
  TestMatrix dt_{DType::kF32, kLength, 2}, ddt_{DType::kF32, kLength, 2};
  std::vector<float> params_ = std::vector<float>(64, 0.1f);

  const ConvForward conv_ = {{1, kLength}, 4, params_.data(), params_.data(), in_.in(), out_.out()};
  const ConvBackward conv_back_ = {{1, kLength},  4,        params_.data(), params_.data(),
                                   in_.in(),      in_.in(), out_.out(),     params_.data(),
                                   params_.data()};
  const ScanForward scan_ = {{2, 4, 1, 3, 16}, {params_.data(), params_.data(), params_.data()},
                             {1, kLength},     xbc_.in(),
                             dt_.in(),         out_.out()};
  const ScanBackward scan_back_ = {scan_.shape,    scan_.params,   scan_.layout,  xbc_.in(),
                                   dt_.in(),       in_.in(),       dxbc_.out(),   ddt_.out(),
                                   params_.data(), params_.data(), params_.data()};
};

TEST_F(MambaOpsTest, UnchangedRequestsAreAccepted) {
  EXPECT_EQ(Run(conv_), absl::OkStatus());
  EXPECT_EQ(Run(conv_back_), absl::OkStatus());
  EXPECT_EQ(Run(scan_), absl::OkStatus());
  EXPECT_EQ(Run(scan_back_), absl::OkStatus());
}

TEST_F(MambaOpsTest, ZeroTokensAreAccepted) {
  ConvBackward conv = conv_back_;
  conv.layout = {0, kLength};
  conv.in.rows = conv.dout.rows = conv.din.rows = 0;
  EXPECT_EQ(Run(conv), absl::OkStatus());
  ScanBackward scan = scan_back_;
  scan.layout = {3, 0};
  scan.xbc.rows = scan.dt.rows = scan.dy.rows = scan.dxbc.rows = scan.ddt.rows = 0;
  EXPECT_EQ(Run(scan), absl::OkStatus());
}

TEST_F(MambaOpsTest, WrongShapesAndTypesAreNamed) {
  ConvForward conv = conv_;
  conv.out.cols = 7;
  EXPECT_THAT(Refusal(conv), HasSubstr("convolution: out is [6, 7] f32 but in is [6, 8] f32"));
  conv = conv_;
  conv.in = in_bf16_.in();
  EXPECT_THAT(Refusal(conv), HasSubstr("out is [6, 8] f32 but in is [6, 8] bf16"));
  ConvBackward conv_back = conv_back_;
  conv_back.dout = in_bf16_.in();
  EXPECT_THAT(Refusal(conv_back), HasSubstr("dout is [6, 8] bf16"));

  ScanForward scan = scan_;
  scan.xbc.cols = 13;
  EXPECT_THAT(Refusal(scan), HasSubstr("scan: xbc is [6, 13] f32 but must be [6, 14]"));
  scan = scan_;
  scan.dt.cols = 1;
  EXPECT_THAT(Refusal(scan), HasSubstr("dt is [6, 1] f32 but must be [6, 2]"));
  scan = scan_;
  scan.dt.dtype = DType::kBf16;
  EXPECT_THAT(Refusal(scan), HasSubstr("dt is [6, 2] bf16 but xbc is [6, 14] f32"));
  scan = scan_;
  scan.y.cols = 9;
  EXPECT_THAT(Refusal(scan), HasSubstr("y is [6, 9] f32"));
  scan = scan_;
  scan.layout.length = 5;
  EXPECT_THAT(Refusal(scan), HasSubstr("must be [5, 14]"));
  ScanBackward back = scan_back_;
  back.dy.cols = 7;
  EXPECT_THAT(Refusal(back), HasSubstr("scan backward: dy is [6, 7] f32"));
  back = scan_back_;
  back.dxbc.dtype = DType::kBf16;
  EXPECT_THAT(Refusal(back), HasSubstr("dxbc is [6, 14] bf16 but xbc is [6, 14] f32"));
  back = scan_back_;
  back.ddt.rows = 5;
  EXPECT_THAT(Refusal(back), HasSubstr("ddt is [5, 2] f32 but dt is [6, 2] f32"));
}

TEST_F(MambaOpsTest, MissingParametersAreNamed) {
  ConvForward conv = conv_;
  conv.weight = nullptr;
  EXPECT_THAT(Refusal(conv), HasSubstr("weight is null"));
  ConvBackward conv_back = conv_back_;
  conv_back.dbias = nullptr;
  EXPECT_THAT(Refusal(conv_back), HasSubstr("dbias is null"));
  ScanForward scan = scan_;
  scan.params.a_log = nullptr;
  EXPECT_THAT(Refusal(scan), HasSubstr("a_log is null"));
  ScanBackward back = scan_back_;
  back.dd = nullptr;
  EXPECT_THAT(Refusal(back), HasSubstr("dd is null"));
}

TEST_F(MambaOpsTest, SizesOutOfBoundsAreRefusedWithTheBound) {
  ConvForward conv = conv_;
  conv.width = 17;
  EXPECT_THAT(Refusal(conv), HasSubstr("width is 17, outside 1 … 16"));
  conv.width = 0;
  EXPECT_THAT(Refusal(conv), HasSubstr("width is 0"));
  ScanForward scan = scan_;
  scan.shape.chunk = 1025;
  EXPECT_THAT(Refusal(scan), HasSubstr("chunk is 1025, outside 1 … 1024"));
  scan.shape.chunk = 0;
  EXPECT_THAT(Refusal(scan), HasSubstr("chunk is 0"));
  scan = scan_;
  scan.shape.groups = 0;
  EXPECT_THAT(Refusal(scan), HasSubstr("groups is 0"));
  scan = scan_;
  scan.shape.heads = 3;
  scan.shape.groups = 2;
  EXPECT_THAT(Refusal(scan), HasSubstr("groups 2 do not divide heads 3"));
}

TEST_F(MambaOpsTest, DocumentsMustBeginAtTheirFirstToken) {
  const std::vector<int32_t> early = {0, 0, 1, 1, 1, 1}, late = {0, 0, 3, 3, 3, 3},
                             first = {1, 1, 1, 1, 1, 1};
  ScanForward scan = scan_;
  scan.layout.doc_begin = early.data();
  EXPECT_THAT(Refusal(scan),
              HasSubstr("doc_begin of token 2 of sequence 0 is 1, must be 2 or, as before it, 0"));
  scan.layout.doc_begin = late.data();
  EXPECT_THAT(Refusal(scan), HasSubstr("doc_begin of token 2 of sequence 0 is 3"));
  ConvForward conv = conv_;
  conv.layout.doc_begin = first.data();
  EXPECT_THAT(Refusal(conv), HasSubstr("doc_begin of token 0 of sequence 0 is 1, must be 0"));
}

TEST_F(MambaOpsTest, ContinuationsNeedTheirStates) {
  const Continuation pieces[] = {{.row = 0, .rows = kLength}};
  float* const states[] = {params_.data()};
  ConvForward conv = conv_;
  ScanForward scan = scan_;
  conv.layout = scan.layout = {.continued = pieces};
  EXPECT_THAT(Refusal(conv), HasSubstr("convolution: windows: 0 for 1 continuations"));
  EXPECT_THAT(Refusal(scan), HasSubstr("scan: states: 0 for 1 continuations"));
  conv.windows = scan.states = states;
  EXPECT_EQ(Run(conv), absl::OkStatus());
  EXPECT_EQ(Run(scan), absl::OkStatus());
  float* const none[] = {nullptr};
  conv.windows = scan.states = none;
  EXPECT_THAT(Refusal(conv), HasSubstr("windows is null but must hold 24 elements"));
  EXPECT_THAT(Refusal(scan), HasSubstr("states is null but must hold 24 elements"));
  ConvBackward conv_back = conv_back_;
  ScanBackward scan_back = scan_back_;
  conv_back.layout = scan_back.layout = {.continued = pieces};
  EXPECT_THAT(Refusal(conv_back), HasSubstr("continued sequences have no backward pass"));
  EXPECT_THAT(Refusal(scan_back), HasSubstr("continued sequences have no backward pass"));
}

}  // namespace
}  // namespace nibble
