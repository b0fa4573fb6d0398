#include "worker/corpus/text_sample.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HoldOut, FractionsOutsideTheirBoundsAreRefused) {
  for (const double fraction :
       {-0.1, 1.0, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const absl::Status status = HoldOut::Create(1, fraction).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fraction;
    EXPECT_THAT(std::string(status.message()), HasSubstr("validation_fraction"));
  }
}

TEST(HoldOut, TheShareHeldOutIsTheFraction) {
  constexpr int64_t kDocuments = 200'000;
  for (const double fraction : {0.0, 0.001, 0.05, 0.5, 0.999}) {
    const auto hold_out = HoldOut::Create(7, fraction);
    int64_t held = 0;
    for (int64_t d = 0; d < kDocuments; ++d) held += hold_out->Contains(d);
    // Five standard deviations of the binomial.
    EXPECT_NEAR(held, fraction * kDocuments, 5 * std::sqrt(kDocuments * fraction * (1 - fraction)))
        << fraction;
  }
}

TEST(HoldOut, ALargerFractionHoldsOutTheSameDocumentsAndMore) {
  const auto small = HoldOut::Create(7, 0.01), large = HoldOut::Create(7, 0.1);
  for (int64_t d = 0; d < 10'000; ++d) {
    EXPECT_LE(small->Contains(d), large->Contains(d)) << d;
  }
}

TEST(HoldOut, AnotherSeedHoldsOutOtherDocuments) {
  const auto a = HoldOut::Create(1, 0.5), b = HoldOut::Create(2, 0.5);
  int64_t both = 0;
  for (int64_t d = 0; d < 40'000; ++d) both += a->Contains(d) && b->Contains(d);
  EXPECT_NEAR(both, 10'000, 500);
}

// The choice is not stored: if it changed, shards made before and after would mix training and
// validation texts.
TEST(HoldOut, TheChoiceIsThatOfEarlierVersions) {
  const auto hold_out = HoldOut::Create(1, 0.05);
  std::vector<int64_t> held;
  for (int64_t d = 0; d < 100; ++d) {
    if (hold_out->Contains(d)) held.push_back(d);
  }
  EXPECT_EQ(held, (std::vector<int64_t>{14, 36, 58, 94}));
}

class TextSampleTest : public testing::Test {
 protected:
  // Two files of 50 documents of 20 different lines, "%" between documents.
  TextSampleTest() {
    for (int file = 0; file < 2; ++file) {
      std::string text;
      for (int document = 0; document < 50; ++document) {
        for (int line = 0; line < 20; ++line) {
          lines_.push_back(absl::StrCat("line ", 1'000'000 + lines_.size(), " of all"));
          absl::StrAppend(&text, lines_.back(), "\n");
        }
        text += "%\n";
      }
      files_.push_back(directory_.Path(absl::StrCat(file, ".txt")));
      WriteFile(files_.back(), text);
      bytes_ += static_cast<int64_t>(text.size());
    }
    options_.split = {.rule = SplitRule::kLine, .delimiter = "%"};
  }

  std::vector<std::string> Sample(double held_out = 0) const {
    const auto sample = SampleText(files_, *HoldOut::Create(1, held_out), options_);
    EXPECT_TRUE(sample.ok()) << sample.status();
    std::vector<std::string> lines = absl::StrSplit(*sample, '\n');
    EXPECT_EQ(lines.back(), "");
    lines.pop_back();
    return lines;
  }

  TempDirectory directory_;
  std::vector<std::string> lines_, files_;
  int64_t bytes_ = 0;
  TextSampleOptions options_;
};

TEST_F(TextSampleTest, ASmallCorpusIsTakenCompletely) {
  EXPECT_EQ(Sample(), lines_);
  options_.max_bytes = bytes_;
  EXPECT_EQ(Sample(), lines_);
  WriteFile(files_[0], "no line feed");
  options_.max_bytes = 12;
  EXPECT_EQ(*SampleText({files_[0]}, *HoldOut::Create(1, 0), options_), "no line feed\n");
}

TEST_F(TextSampleTest, LinesOfALargeCorpusAreDrawnFromAllOfItWithinTheBound) {
  for (const int64_t max_bytes : {int64_t{1}, int64_t{300}, bytes_ / 10, bytes_ / 2, bytes_ - 1}) {
    options_.max_bytes = max_bytes;
    const std::vector<std::string> sample = Sample();
    int64_t bytes = 0;
    size_t at = 0;  // drawn lines are lines of the corpus, in its order
    for (const std::string& line : sample) {
      bytes += static_cast<int64_t>(line.size()) + 1;
      while (at < lines_.size() && lines_[at] != line) ++at;
      ASSERT_LT(at, lines_.size());
    }
    EXPECT_LE(bytes, max_bytes);
    if (max_bytes < bytes_ / 10) continue;
    EXPECT_GT(bytes, max_bytes * 8 / 10);
    EXPECT_GT(at, lines_.size() * 9 / 10) << "lines near the end are drawn too";
  }
}

TEST_F(TextSampleTest, EqualFilesAndOptionsGiveEqualSamplesAndAnotherSeedDifferentOnes) {
  options_.max_bytes = bytes_ / 5;
  const std::vector<std::string> sample = Sample();
  EXPECT_EQ(Sample(), sample);
  options_.seed = 1;
  EXPECT_NE(Sample(), sample);
}

TEST_F(TextSampleTest, NoLineOfAHeldOutDocumentIsInTheSample) {
  const auto hold_out = HoldOut::Create(1, 0.3);
  std::vector<std::string> expected;
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (!hold_out->Contains(static_cast<int64_t>(i / 20))) expected.push_back(lines_[i]);
  }
  ASSERT_LT(expected.size(), lines_.size());
  EXPECT_EQ(Sample(0.3), expected);
  options_.max_bytes = bytes_ / 3;
  const std::set<std::string> allowed(expected.begin(), expected.end());
  for (const std::string& line : Sample(0.3)) EXPECT_TRUE(allowed.contains(line)) << line;
}

TEST_F(TextSampleTest, InvalidUtf8IsRefusedByFileAndByte) {
  WriteFile(files_[1], "one\n%\ntwo \xe9t\xe9\n");
  const absl::Status status = SampleText(files_, *HoldOut::Create(1, 0), options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(files_[1]), HasSubstr("byte 10"), HasSubstr("0xe9")));
}

TEST_F(TextSampleTest, ABoundOfZeroIsRefused) {
  options_.max_bytes = 0;
  const absl::Status status = SampleText(files_, *HoldOut::Create(1, 0), options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_bytes is 0"));
}

}  // namespace
}  // namespace nibble
