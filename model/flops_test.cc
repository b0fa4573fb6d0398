#include <string>

#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "model/outline_testing.h"

namespace nibble {
namespace {

TEST(FlopsTest, OneBlockOfEachMixerIsTheSumByHand) {
  const FlopsPerToken flops = CountFlops(MakeOutline(HandModel()).value(), 6);
  // in_proj, out_proj; qkv, out; up, down.
  EXPECT_DOUBLE_EQ(flops.linears,
                   2 * (24 * 8 + 8 * 6) + 2 * (16 * 8 + 8 * 8) + 2 * (16 * 8 + 8 * 16));
  // Two products of width 8 over 1, 2, … 6 keys.
  EXPECT_DOUBLE_EQ(flops.attention, 2 * 2 * 8 * (1 + 2 + 3 + 4 + 5 + 6) / 6.0);
  // Chunks of 4 and 2: tokens see 1, 2, 3, 4 and 1, 2 of their own chunk.
  const double seen = (1 + 2 + 3 + 4 + 1 + 2) / 6.0;
  const double carried = 2 * 3 * 5;
  EXPECT_DOUBLE_EQ(flops.scan, 2 * 16 * 4                       // convolution
                                   + 2 * 5 * seen               // C·B
                                   + 2 * 6 * seen               // inside the chunk
                                   + 2 * carried + 2 * carried  // out of the state, into it
                                   + 2 * 6                      // D x
                                   + 2 * carried * 2 / 6.0);    // two chunks hand it on
  EXPECT_DOUBLE_EQ(flops.head, 2 * 8 * 10);
  EXPECT_DOUBLE_EQ(flops.forward(), 1376 + 112 + (280 + 22 * seen) + 160);
  EXPECT_DOUBLE_EQ(flops.training(), 3 * flops.forward());
}

TEST(FlopsTest, SwigluProjectsUpTwice) {
  ModelSpec spec = HandModel("-");
  spec.activation = Activation::kSwiglu;
  EXPECT_DOUBLE_EQ(CountFlops(MakeOutline(spec).value(), 1).linears, 2 * (32 * 8 + 16 * 8));
}

TEST(FlopsTest, ATiedHeadCostsAsMuch) {
  ModelSpec spec = HandModel();
  spec.tied_head = true;
  EXPECT_DOUBLE_EQ(CountFlops(MakeOutline(spec).value(), 1).head, 2 * 8 * 10);
}

TEST(FlopsTest, LongerSequencesCostAttentionMoreAndTheScanNoMore) {
  const Outline outline = MakeOutline(ModelPreset("nemotron-h-8b").value()).value();
  const FlopsPerToken shorter = CountFlops(outline, 4096);
  const FlopsPerToken longer = CountFlops(outline, 8192);
  EXPECT_DOUBLE_EQ(longer.attention / shorter.attention, 8193.0 / 4097.0);
  EXPECT_DOUBLE_EQ(longer.scan, shorter.scan);
  EXPECT_DOUBLE_EQ(longer.linears, shorter.linears);
}

TEST(FlopsTest, ASequenceOfOneTokenSeesOnlyItself) {
  const FlopsPerToken flops = CountFlops(MakeOutline(HandModel()).value(), 1);
  EXPECT_DOUBLE_EQ(flops.attention, 2 * 2 * 8);
  EXPECT_DOUBLE_EQ(flops.scan, 128 + 10 + 12 + 60 + 60 + 12 + 60);
}

}  // namespace
}  // namespace nibble
