#include "worker/trainer/tensorboard/tensorboard_file.h"

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/tensorboard/tensorboard_event.pb.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

RunEvent ParsedEvent(const std::string& event, const std::string& time, const std::string& fields) {
  auto parsed = ParseRunEvent(
      absl::StrCat(R"({"schema":1,"event":")", event, R"(","time":")", time, "\",", fields, "}"));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : RunEvent();
}

// Reads a file of records; checks every length and checksum.
std::vector<tensorboard::Event> ReadRecords(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  const std::string bytes = all.str();
  std::vector<tensorboard::Event> events;
  size_t at = 0;
  while (at < bytes.size()) {
    EXPECT_GE(bytes.size() - at, 16u);
    if (bytes.size() - at < 16) break;
    const auto length = LoadLittle<uint64_t>(bytes.data() + at);
    EXPECT_EQ(LoadLittle<uint32_t>(bytes.data() + at + 8),
              MaskedCrc32c(std::string_view(bytes).substr(at, 8)));
    EXPECT_LE(length, bytes.size() - at - 16);
    if (length > bytes.size() - at - 16) break;
    const std::string_view content = std::string_view(bytes).substr(at + 12, length);
    EXPECT_EQ(LoadLittle<uint32_t>(bytes.data() + at + 12 + length), MaskedCrc32c(content));
    EXPECT_TRUE(
        events.emplace_back().ParseFromArray(content.data(), static_cast<int>(content.size())));
    at += 16 + length;
  }
  return events;
}

TEST(TensorboardFileTest, ARecordHasTheBytesThatTensorFlowWrites) {
  // Of the CRC-32C's test vector: 32 zero bytes have 0x8a9136aa (RFC 3720, B.4).
  EXPECT_EQ(MaskedCrc32c(std::string(32, '\0')),
            ((0x8a9136aau >> 15) | (0x8a9136aau << 17)) + 0xa282ead8u);
  const std::string record = TfRecord("abc");
  EXPECT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\3\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
}

TEST(TensorboardFileTest, FiguresBecomeScalarsAndTheSpecAText) {
  const TempDirectory directory;
  const RunEvent start =
      ParsedEvent("start", "2026-01-31T12:00:00.500Z", R"("first_step":0,"spec":"name: tiny\n")");
  auto file = TensorboardFile::Create(directory.Path("logs/tiny-1"), start.time);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), directory.Path("logs/tiny-1/events.out.tfevents.1769860800.nibble"));
  ASSERT_TRUE((*file)->Add(start).ok());
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(
        (*file)
            ->Add(ParsedEvent("step", absl::StrCat("2026-01-31T12:00:0", 1 + step, ".000Z"),
                              absl::StrCat(R"("step":)", step, R"(,"loss":)",
                                           step == 0 ? "4.5" : "\"nan\"", R"(,"updated":true)")))
            .ok());
  }
  ASSERT_TRUE((*file)
                  ->Add(ParsedEvent("validation", "2026-01-31T12:00:03.000Z",
                                    R"("step":2,"set":"news","loss":4.25)"))
                  .ok());
  ASSERT_TRUE(
      (*file)
          ->Add(ParsedEvent("precision", "2026-01-31T12:00:03.000Z",
                            R"("step":1,"layer":"head","operand":"fprop.weight","amax":2.0)"))
          .ok());
  ASSERT_TRUE((*file)
                  ->Add(ParsedEvent("notice", "2026-01-31T12:00:04.000Z", R"("step":2,"text":"x")"))
                  .ok());
  EXPECT_EQ((*file)->scalars(), 6);
  ASSERT_TRUE((*file)->Flush().ok());

  const std::vector<tensorboard::Event> events = ReadRecords((*file)->path());
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1769860800.5);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 0);
  EXPECT_EQ(events[2].summary().values(0).metadata().plugin().name(), "text");
  EXPECT_THAT(events[2].summary().values(0).tensor().texts(0), HasSubstr("name: tiny"));
  const tensorboard::Summary& first = events[3].summary();
  ASSERT_EQ(first.values_size(), 2);
  EXPECT_EQ(first.values(0).tag(), "train/loss");
  EXPECT_EQ(first.values(0).scalar(), 4.5f);
  EXPECT_EQ(first.values(0).metadata().description(),
            "mean loss over the step's tokens (nats per token)");
  EXPECT_EQ(first.values(0).metadata().plugin().name(), "scalars");
  EXPECT_EQ(first.values(1).tag(), "train/updated");
  EXPECT_EQ(first.values(1).scalar(), 1);
  EXPECT_EQ(events[4].step(), 1);
  EXPECT_TRUE(std::isnan(events[4].summary().values(0).scalar()));
  EXPECT_FALSE(events[4].summary().values(0).has_metadata());  // once a tag
  EXPECT_EQ(events[5].summary().values(0).tag(), "validation/news");
  EXPECT_EQ(events[5].step(), 1) << "the last step before it";
  EXPECT_EQ(events[5].summary().values(0).scalar(), 4.25f);
  EXPECT_EQ(events[6].summary().values(0).tag(), "precision_amax/head/fprop.weight");
}

TEST(TensorboardFileTest, AnotherExportOfTheRunReplacesTheFile) {
  const TempDirectory directory;
  const absl::Time began = absl::FromUnixSeconds(1700000000);
  for (int time = 0; time < 2; ++time) {
    auto file = TensorboardFile::Create(directory.path(), began);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Flush().ok());
    EXPECT_EQ(ReadRecords((*file)->path()).size(), 1u);
  }
  EXPECT_THAT(*ListDirectory(directory.path()),
              ElementsAre("events.out.tfevents.1700000000.nibble"));
}

TEST(TensorboardFileTest, ADirectoryThatCannotBeMadeIsNamed) {
  const TempDirectory directory;
  std::ofstream(directory.Path("file")) << "x";
  EXPECT_THAT(
      TensorboardFile::Create(directory.Path("file/logs"), absl::UnixEpoch()).status().message(),
      HasSubstr("file"));
}

}  // namespace
}  // namespace nibble
