#include "worker/link/link_messages.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/figure.pb.h"
#include "worker/link/link_socket.h"
#include "worker/link/trainer_exit.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using link::v1::PrecisionSample;
using link::v1::RankReport;
using testing::HasSubstr;

std::string Refusal(const RankReport& report) { return std::string(CheckReport(report).message()); }

PrecisionSample Sample() {
  PrecisionSample sample;
  sample.set_step(7);
  sample.set_layer("blocks.3.mlp.up");
  sample.set_operand("fprop.activation");
  sample.set_format("nvfp4");
  sample.set_relative_error(0.09);
  sample.set_amax(448);
  sample.set_scale_spread_octaves(11);
  return sample;
}

TEST(LinkMessagesTest, FiguresThatAreNotFiniteArriveAsTheyAre) {
  RankReport report;
  report.mutable_sample()->set_loss(std::numeric_limits<double>::infinity());
  report.mutable_totals()->mutable_sums()->set_step_seconds(
      std::numeric_limits<double>::quiet_NaN());
  report.add_precision()->set_relative_error(-std::numeric_limits<double>::infinity());
  RankReport received;
  ASSERT_EQ(ParseLinkMessage(report.SerializeAsString(), received), absl::OkStatus());
  EXPECT_EQ(CheckReport(received), absl::OkStatus());
  EXPECT_EQ(received.sample().loss(), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(received.totals().sums().step_seconds()));
  EXPECT_EQ(received.precision(0).relative_error(), -std::numeric_limits<double>::infinity());
}

TEST(LinkMessagesTest, TextsOfAnyBytesArrive) {
  RankReport report;
  report.set_trouble("the disk is full: /\xff\xfe");
  report.add_refused()->set_reason("cut in a character: \xc3");
  RankReport received;
  ASSERT_EQ(ParseLinkMessage(report.SerializeAsString(), received), absl::OkStatus());
  EXPECT_EQ(received.trouble(), report.trouble());
  EXPECT_EQ(received.refused(0).reason(), report.refused(0).reason());
}

TEST(LinkMessagesTest, NamesThatBecomeLabelsAreBounded) {
  for (const char* const field : {"layer", "operand", "format"}) {
    RankReport report;
    *report.add_precision() = Sample();
    PrecisionSample& sample = *report.mutable_precision(0);
    const auto set = [&](size_t bytes) {
      sample.GetReflection()->SetString(&sample, sample.GetDescriptor()->FindFieldByName(field),
                                        std::string(bytes, 'x'));
    };
    set(kMaxLayerNameBytes);
    EXPECT_EQ(CheckReport(report), absl::OkStatus());
    set(kMaxLayerNameBytes + 1);
    EXPECT_EQ(Refusal(report),
              std::string("report.precision.") + field + ": 129 bytes are more than 128");
  }
}

TEST(LinkMessagesTest, ListsAreBounded) {
  RankReport report;
  for (int i = 0; i < kMaxPrecisionSamples; ++i) report.add_precision();
  for (int i = 0; i < kMaxRevisionsBegun; ++i) report.add_begun();
  for (int i = 0; i < kMaxRevisionsRefused; ++i) report.add_refused();
  EXPECT_EQ(CheckReport(report), absl::OkStatus());
  RankReport more = report;
  more.add_precision();
  EXPECT_EQ(Refusal(more), "report.precision: 8193 are more than 8192");
  more = report;
  more.add_begun();
  EXPECT_EQ(Refusal(more), "report.begun: 17 are more than 16");
  more = report;
  more.add_refused();
  EXPECT_EQ(Refusal(more), "report.refused: 9 are more than 8");
}

TEST(LinkMessagesTest, AnUnknownActivityIsNamed) {
  RankReport report;
  report.set_activity(static_cast<link::v1::RankActivity>(7));
  EXPECT_EQ(Refusal(report), "report.activity: 7 is not in [0, 2]");
}

TEST(LinkMessagesTest, TheLargestReportFitsIntoAMessage) {
  RankReport report;
  PrecisionSample sample = Sample();
  sample.set_layer(std::string(kMaxLayerNameBytes, 'x'));
  sample.set_operand("dgrad.output_gradient");
  for (int i = 0; i < kMaxPrecisionSamples; ++i) *report.add_precision() = sample;
  EXPECT_LT(static_cast<int64_t>(report.ByteSizeLong()), kMaxLinkMessageBytes);
}

TEST(LinkMessagesTest, BytesThatAreNoMessageAreRefused) {
  RankReport report;
  EXPECT_THAT(std::string(ParseLinkMessage("\xff\xff", report).message()),
              HasSubstr("not a nibble.link.v1.RankReport"));
}

TEST(LinkMessagesTest, OutcomesKeepCodeAndTextAndCutLongOnes) {
  EXPECT_EQ(StatusOf(OutcomeOf(absl::OkStatus())), absl::OkStatus());
  EXPECT_EQ(StatusOf(OutcomeOf(absl::AbortedError("stale"))), absl::AbortedError("stale"));
  EXPECT_EQ(OutcomeOf(absl::InternalError(std::string(5000, 'x'))).text().size(), 2048u);
}

TEST(FigureTest, ThoseWithATotalAreSummedAndTheOthersAreNot) {
  v1::StepSample sample, sums;
  sample.set_step(7);
  sample.set_loss(2.5);
  sample.set_step_seconds(2);
  sample.set_forward_seconds(0.5);
  AddFigures(sample, sums);
  AddFigures(sample, sums);
  EXPECT_EQ(sums.step_seconds(), 4);
  EXPECT_EQ(sums.forward_seconds(), 1);
  EXPECT_EQ(sums.step(), 0);
  EXPECT_EQ(sums.loss(), 0);
}

TEST(FigureTest, ThoseThatStayOnTheWorkerAreNotForwarded) {
  v1::StepSample sample;
  sample.set_loss(2.5);
  sample.set_step_seconds(2);
  sample.set_forward_seconds(0.5);
  sample.set_revision_first_step(4);
  const v1::StepSample forwarded = ForwardedSample(sample);
  EXPECT_EQ(forwarded.loss(), 2.5);
  EXPECT_EQ(forwarded.step_seconds(), 2);
  EXPECT_EQ(forwarded.forward_seconds(), 0.5);
  EXPECT_EQ(forwarded.revision_first_step(), 0);
}

TEST(FigureTest, EveryFieldOfAStepIsAFigureAndTotalsAreDoubles) {
  const google::protobuf::Descriptor& type = *v1::StepSample::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    EXPECT_TRUE(field.options().HasExtension(v1::figure)) << field.name();
    if (!field.options().GetExtension(v1::figure).has_total()) continue;
    EXPECT_EQ(field.cpp_type(), FieldDescriptor::CPPTYPE_DOUBLE) << field.name();
  }
}

TEST(TrainerExitTest, TheFirstExitCodeOfAnErrorStays) {
  const absl::Status status =
      WithExit(WithExit(absl::InternalError("full"), TrainerExit::kDisk), TrainerExit::kSpec);
  EXPECT_EQ(ExitOf(status), TrainerExit::kDisk);
  EXPECT_EQ(ExitOf(absl::InternalError("no code")), TrainerExit::kError);
  EXPECT_EQ(ExitOf(WithExit(absl::OkStatus(), TrainerExit::kDisk)), TrainerExit::kDone);
  EXPECT_EQ(TrainerExitFrom(101), TrainerExit::kStopped);
  EXPECT_EQ(TrainerExitFrom(42), std::nullopt);
}

}  // namespace
}  // namespace nibble
