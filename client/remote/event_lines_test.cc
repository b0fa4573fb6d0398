#include "client/remote/event_lines.h"

#include <fstream>
#include <string>
#include <vector>

#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;
using testing::ElementsAre;

// The lines of a stream that are new.
std::vector<std::string> NewLines(SeenLines& seen, const std::vector<std::string>& stream) {
  std::vector<std::string> fresh;
  seen.Begin();
  for (const std::string& line : stream) {
    if (seen.IsNew(line)) fresh.push_back(line);
  }
  return fresh;
}

TEST(EventLinesTest, ALogThatIsReadAgainYieldsOnlyItsNewLines) {
  SeenLines seen;
  EXPECT_THAT(NewLines(seen, {"a", "b"}), ElementsAre("a", "b"));
  EXPECT_THAT(NewLines(seen, {"a"}), ElementsAre());
  EXPECT_THAT(NewLines(seen, {"a", "b", "c"}), ElementsAre("c"));
  EXPECT_THAT(NewLines(seen, {"other", "b"}), ElementsAre("other", "b"));  // of another worker
  EXPECT_THAT(NewLines(seen, {"other", "b", "c"}), ElementsAre("c"));
}

TEST(EventLinesTest, AFileIsReadWithoutALineThatIsBeingWritten) {
  const TempDirectory directory;
  FileEventLines lines(directory.path());
  std::vector<std::string> got;
  int pauses = 0;
  const LineTaker taker = {.take =
                               [&got](std::string_view line) {
                                 got.emplace_back(line);
                                 return absl::OkStatus();
                               },
                           .pause =
                               [&pauses] {
                                 ++pauses;
                                 return absl::OkStatus();
                               }};
  EXPECT_TRUE(absl::IsNotFound(lines.Read(false, taker)));
  std::ofstream file(directory.Path("events.jsonl"));
  const std::string finish = R"({"schema":1,"event":"finish"})";
  file << std::string(200'000, 'y') << "\n" << finish << "\n{\"schema\"" << std::flush;
  EXPECT_TRUE(lines.Read(false, taker).ok());
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].size(), 200'000u);
  EXPECT_EQ(got[1], finish);
  EXPECT_EQ(pauses, 1);
  got.clear();
  EXPECT_TRUE(lines.Read(true, taker).ok());  // the run has ended
  EXPECT_EQ(got.size(), 2u);
}

TEST(EventLinesTest, AnErrorOfTheTakerEndsTheReading) {
  const TempDirectory directory;
  std::ofstream(directory.Path("events.jsonl")) << "one\ntwo\n";
  int taken = 0;
  const absl::Status status = FileEventLines(directory.path())
                                  .Read(false, {.take =
                                                    [&taken](std::string_view) {
                                                      ++taken;
                                                      return absl::DataLossError("no");
                                                    },
                                                .pause = [] { return absl::OkStatus(); }});
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(taken, 1);
}

}  // namespace
}  // namespace nibble
