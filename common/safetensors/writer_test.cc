#include "common/safetensors/writer.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/safetensors/reader.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(std::string_view text) { return AsBytes(text); }

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Gives each test an empty directory of its own and lists the files in it.
class SafetensorsWriterTest : public testing::Test {
 protected:
  SafetensorsWriterTest() : directory_(absl::StrCat(testing::TempDir(), "/writer_test.XXXXXX")) {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  ~SafetensorsWriterTest() override {
    for (const std::string& name : Files()) {
      (void)remove(absl::StrCat(directory_, "/", name).c_str());
    }
    (void)rmdir(directory_.c_str());
  }

  std::string Path(std::string_view name) const {
    return absl::StrCat(directory_, "/", std::string(name));
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    DIR* dir = opendir(directory_.c_str());
    while (const dirent* entry = readdir(dir)) {
      if (entry->d_name[0] != '.') names.push_back(entry->d_name);
    }
    closedir(dir);
    return names;
  }

  std::string directory_;
};

TEST_F(SafetensorsWriterTest, WhatIsWrittenIsReadBack) {
  SafetensorsWriter writer;
  ASSERT_TRUE(
      writer.AddTensor("layer.0/w \"\n\u20ac", FileDType::kBF16, {2, 1}, Bytes("abcd")).ok());
  ASSERT_TRUE(writer.AddTensor("", FileDType::kF64, {}, Bytes("12345678")).ok());
  ASSERT_TRUE(writer.AddTensor("none", FileDType::kF32, {4, 0}, {}).ok());
  ASSERT_TRUE(writer.AddMetadata("format", "pt").ok());
  ASSERT_TRUE(writer.AddMetadata("quote\"", std::string_view("a\0b", 3)).ok());
  ASSERT_TRUE(writer.Write(Path("m")).ok());
  EXPECT_EQ(Files(), std::vector<std::string>{"m"});

  const auto file = SafetensorsFile::Open(Path("m"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 3u);
  const TensorInfo* w = file->Find("layer.0/w \"\n\u20ac");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, FileDType::kBF16);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(w->data, Bytes("abcd"));
  EXPECT_EQ(file->Find("")->data, Bytes("12345678"));
  EXPECT_EQ(file->Find("none")->shape, (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->metadata().at("quote\""), std::string("a\0b", 3));
}

TEST_F(SafetensorsWriterTest, EveryDTypeSurvivesTheRoundTripNaturallyAligned) {
  const std::string data(3 * 8, 'x');
  SafetensorsWriter writer;
  for (int i = 0; i < kFileDTypeCount; ++i) {
    const FileDType dtype = static_cast<FileDType>(i);
    const std::string_view bytes = std::string_view(data).substr(0, 3 * FileDTypeSize(dtype));
    ASSERT_TRUE(writer.AddTensor(FileDTypeName(dtype), dtype, {3}, Bytes(bytes)).ok());
  }
  ASSERT_TRUE(writer.Write(Path("m")).ok());
  const auto file = SafetensorsFile::Open(Path("m"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), static_cast<size_t>(kFileDTypeCount));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->tensors()[0].data.data()) % 64, 0u);
  for (const TensorInfo& tensor : file->tensors()) {
    EXPECT_EQ(tensor.name, FileDTypeName(tensor.dtype));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % FileDTypeSize(tensor.dtype), 0u);
  }
}

TEST_F(SafetensorsWriterTest, BytesAreExactlyTheFormatsAndIndependentOfTheOrderOfAdding) {
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddTensor("b", FileDType::kU8, {1}, Bytes("b")).ok());
  ASSERT_TRUE(writer.AddTensor("a", FileDType::kU8, {1}, Bytes("a")).ok());
  ASSERT_TRUE(writer.AddTensor("z", FileDType::kU16, {1}, Bytes("zz")).ok());
  ASSERT_TRUE(writer.AddMetadata("k", "v").ok());
  ASSERT_TRUE(writer.Write(Path("m")).ok());
  std::string header =
      R"({"__metadata__":{"k":"v"},"z":{"dtype":"U16","shape":[1],"data_offsets":[0,2]},)"
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})";
  header.resize(184, ' ');  // 8 + 184 = 3 * 64
  EXPECT_EQ(Contents(Path("m")), std::string("\xb8\0\0\0\0\0\0\0", 8) + header + "zzab");
}

TEST_F(SafetensorsWriterTest, ProducersStreamInPiecesOfAnySize) {
  const std::string large(3'000'000, 'L');
  SafetensorsWriter writer;
  const auto producer = [&](SafetensorsWriter::Sink sink) {
    for (const std::string_view piece : {std::string_view("a"), {}, {large}, {"yz"}}) {
      NIBBLE_RETURN_IF_ERROR(sink(Bytes(piece)));
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(writer.AddStreamedTensor("w", FileDType::kU8, {3'000'003}, producer).ok());
  for (const char* name : {"first", "again"}) {  // a producer serves every Write()
    ASSERT_TRUE(writer.Write(Path(name)).ok());
    const auto file = SafetensorsFile::Open(Path(name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->Find("w")->data == Bytes("a" + large + "yz"));
  }
}

TEST_F(SafetensorsWriterTest, ProducerOfTheWrongCountFailsTheWriteAndLeavesNothing) {
  for (const int fed : {3, 5}) {
    SafetensorsWriter writer;
    const auto producer = [fed](SafetensorsWriter::Sink sink) {
      for (int i = 0; i < fed; ++i) (void)sink(Bytes("x"));  // hides the sink's error
      return absl::OkStatus();
    };
    ASSERT_TRUE(writer.AddStreamedTensor("w", FileDType::kU8, {4}, producer).ok());
    const absl::Status status = writer.Write(Path("m"));
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(Message(status),
                HasSubstr(absl::StrCat("\"w\": the producer fed ", fed, " bytes of 4")));
    EXPECT_TRUE(Files().empty());
  }
}

TEST_F(SafetensorsWriterTest, FailingProducerLeavesTheEarlierFileAsItWas) {
  std::ofstream(Path("m")) << "earlier";
  SafetensorsWriter writer;
  const auto producer = [](SafetensorsWriter::Sink sink) {
    (void)sink(Bytes("xx"));
    return absl::DataLossError("shard 3 is gone");
  };
  ASSERT_TRUE(writer.AddStreamedTensor("w", FileDType::kU8, {4}, producer).ok());
  EXPECT_EQ(writer.Write(Path("m")), absl::DataLossError("shard 3 is gone"));
  EXPECT_EQ(Files(), std::vector<std::string>{"m"});
  EXPECT_EQ(Contents(Path("m")), "earlier");
}

TEST_F(SafetensorsWriterTest, EarlierFileIsReplacedWhileItsReaderKeepsTheOldOne) {
  SafetensorsWriter one;
  SafetensorsWriter two;
  ASSERT_TRUE(one.AddTensor("w", FileDType::kU8, {1}, Bytes("1")).ok());
  ASSERT_TRUE(two.AddTensor("w", FileDType::kU8, {1}, Bytes("2")).ok());
  ASSERT_TRUE(one.Write(Path("m")).ok());
  const auto old_file = SafetensorsFile::Open(Path("m"));
  ASSERT_TRUE(two.Write(Path("m")).ok());
  const auto new_file = SafetensorsFile::Open(Path("m"));
  ASSERT_TRUE(old_file.ok() && new_file.ok());
  EXPECT_EQ(old_file->Find("w")->data, Bytes("1"));
  EXPECT_EQ(new_file->Find("w")->data, Bytes("2"));
}

TEST_F(SafetensorsWriterTest, RefusedAdditionsNameTheTensorAndTheNumbers) {
  SafetensorsWriter writer;
  EXPECT_THAT(Message(writer.AddTensor("__metadata__", FileDType::kU8, {1}, Bytes("x"))),
              HasSubstr("cannot be called __metadata__"));
  EXPECT_THAT(Message(writer.AddTensor("\xff", FileDType::kU8, {1}, Bytes("x"))),
              HasSubstr("cannot be written as JSON"));
  EXPECT_THAT(Message(writer.AddTensor("w", FileDType::kBF16, {2, 3}, Bytes("x"))),
              HasSubstr("tensor \"w\": 1 bytes were given, but shape [2,3] of BF16 needs 12"));
  EXPECT_THAT(Message(writer.AddTensor("w", FileDType::kU8, {-1}, Bytes("x"))),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("-1"), HasSubstr("the least is 0")));
  EXPECT_THAT(
      Message(writer.AddTensor("w", FileDType::kU8, std::vector<int64_t>(33, 1), Bytes("x"))),
      HasSubstr("rank 33 is above the bound of 32"));
  EXPECT_THAT(
      Message(writer.AddStreamedTensor("w", FileDType::kU8, {1}, SafetensorsWriter::Producer())),
      HasSubstr("tensor \"w\": the producer is null"));
  EXPECT_THAT(Message(writer.AddTensor("w", static_cast<FileDType>(99), {1}, Bytes("x"))),
              HasSubstr("dtype value 99 is not known"));

  // None of those left a trace, so the name is still free, but only once.
  EXPECT_TRUE(writer.AddTensor("w", FileDType::kU8, {1}, Bytes("x")).ok());
  const absl::Status again = writer.AddTensor("w", FileDType::kF64, {1}, Bytes("12345678"));
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(again), HasSubstr("tensor \"w\" was added before"));

  EXPECT_TRUE(writer.AddMetadata("k", "v").ok());
  EXPECT_EQ(writer.AddMetadata("k", "v").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(writer.AddMetadata("x", "\xff").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsWriterTest, PayloadAboveTheBoundIsRefusedBeforeAnyFileIsMade) {
  const auto producer = [](SafetensorsWriter::Sink) { return absl::OkStatus(); };
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddStreamedTensor("a", FileDType::kU8, {int64_t{1} << 62}, producer).ok());
  ASSERT_TRUE(writer.AddStreamedTensor("b", FileDType::kU8, {int64_t{1} << 62}, producer).ok());
  EXPECT_THAT(Message(writer.Write(Path("m"))),
              AllOf(HasSubstr("tensor \"b\""), HasSubstr("9223372036854775807")));
  EXPECT_TRUE(Files().empty());
}

TEST_F(SafetensorsWriterTest, HeaderAboveTheBoundIsRefusedBeforeAnyFileIsMade) {
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddMetadata("k", std::string(100'000'000, 'v')).ok());
  EXPECT_THAT(Message(writer.Write(Path("m"))), HasSubstr("above the bound of 100000000"));
  EXPECT_TRUE(Files().empty());
}

TEST_F(SafetensorsWriterTest, MissingDirectoryIsNamed) {
  const absl::Status status = SafetensorsWriter().Write(Path("absent/m"));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), HasSubstr(Path("absent/m")));
}

TEST_F(SafetensorsWriterTest, TargetThatIsNotARegularFileIsNotReplaced) {
  EXPECT_EQ(SafetensorsWriter().Write("/dev/full").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SafetensorsWriter().Write(directory_).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(symlink("/dev/null", Path("link").c_str()), 0);
  EXPECT_EQ(SafetensorsWriter().Write(Path("link")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Files(), std::vector<std::string>{"link"});
}

TEST_F(SafetensorsWriterTest, FailedWriteLeavesNoPartialOutput) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const std::string data(1 << 20, 'x');
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddTensor("w", FileDType::kU8, {1 << 20}, Bytes(data)).ok());

  // The limit makes write() fail in the middle of the payload, as a full disk would.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = writer.Write(Path("m"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), HasSubstr("writing " + Path("m")));
  EXPECT_TRUE(Files().empty());
}

TEST_F(SafetensorsWriterTest, FullDiskIsResourceExhaustedAndLeavesNoPartialOutput) {
  const std::string data(1 << 20, 'x');
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddTensor("w", FileDType::kU8, {1 << 20}, Bytes(data)).ok());
  bool mounted = false;
  absl::Status status;
  std::vector<std::string> left;
  // A tiny file system in a mount namespace of this thread alone; both go away with it.
  std::thread([&] {
    mounted = unshare(CLONE_NEWNS) == 0 &&
              mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              mount("none", directory_.c_str(), "tmpfs", 0, "size=64k") == 0;
    if (!mounted) return;
    status = writer.Write(Path("m"));
    left = Files();
  }).join();
  if (!mounted) GTEST_SKIP() << "mounting needs root; the file size limit's test covers the rest";
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(left.empty());
}

}  // namespace
}  // namespace nibble
