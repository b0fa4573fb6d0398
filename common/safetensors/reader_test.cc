#include "common/safetensors/reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/files/truncated_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A whole file: the prefix is computed, the payload counts 0, 1, 2, ...
std::string File(std::string_view header, size_t payload_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  file += header;
  for (size_t i = 0; i < payload_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  std::string entry = "\"";
  entry.append(name).append("\":{\"dtype\":\"").append(dtype);
  entry.append("\",\"shape\":[").append(shape);
  entry.append("],\"data_offsets\":[").append(offsets).append("]}");
  return entry;
}

std::string ReaderError(std::string_view bytes) {
  const auto file = SafetensorsFile::Parse(bytes);
  if (file.ok()) return "accepted";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

std::string_view Text(const TensorInfo& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

// Made by the reference implementation, the Python package safetensors 0.8.0 with numpy 2.4.6:
//   safetensors.numpy.save({
//       "w.bf": np.array([[1.0, -2.0, 0.5]], np.float16), "ids": np.array([7, -1], np.int64),
//       "mask": np.array([True, False, True], np.bool_), "empty": np.zeros((2, 0), np.float32),
//       "größe": np.array(3.25, np.float32)},
//       metadata={"format": "np", "made by": 'safetensors "0.8.0"'})
constexpr unsigned char kReferenceFile[] = {
    // clang-format off
    0x70, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7b, 0x22, 0x5f, 0x5f, 0x6d, 0x65, 0x74, 0x61,
    0x64, 0x61, 0x74, 0x61, 0x5f, 0x5f, 0x22, 0x3a, 0x7b, 0x22, 0x66, 0x6f, 0x72, 0x6d, 0x61, 0x74,
    0x22, 0x3a, 0x22, 0x6e, 0x70, 0x22, 0x2c, 0x22, 0x6d, 0x61, 0x64, 0x65, 0x20, 0x62, 0x79, 0x22,
    0x3a, 0x22, 0x73, 0x61, 0x66, 0x65, 0x74, 0x65, 0x6e, 0x73, 0x6f, 0x72, 0x73, 0x20, 0x5c, 0x22,
    0x30, 0x2e, 0x38, 0x2e, 0x30, 0x5c, 0x22, 0x22, 0x7d, 0x2c, 0x22, 0x69, 0x64, 0x73, 0x22, 0x3a,
    0x7b, 0x22, 0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x49, 0x36, 0x34, 0x22, 0x2c, 0x22,
    0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x32, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61,
    0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a, 0x5b, 0x30, 0x2c, 0x31, 0x36, 0x5d,
    0x7d, 0x2c, 0x22, 0x65, 0x6d, 0x70, 0x74, 0x79, 0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79, 0x70,
    0x65, 0x22, 0x3a, 0x22, 0x46, 0x33, 0x32, 0x22, 0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22,
    0x3a, 0x5b, 0x32, 0x2c, 0x30, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66,
    0x73, 0x65, 0x74, 0x73, 0x22, 0x3a, 0x5b, 0x31, 0x36, 0x2c, 0x31, 0x36, 0x5d, 0x7d, 0x2c, 0x22,
    0x67, 0x72, 0xc3, 0xb6, 0xc3, 0x9f, 0x65, 0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79, 0x70, 0x65,
    0x22, 0x3a, 0x22, 0x46, 0x33, 0x32, 0x22, 0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a,
    0x5b, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73,
    0x22, 0x3a, 0x5b, 0x31, 0x36, 0x2c, 0x32, 0x30, 0x5d, 0x7d, 0x2c, 0x22, 0x77, 0x2e, 0x62, 0x66,
    0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x46, 0x31, 0x36, 0x22,
    0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x31, 0x2c, 0x33, 0x5d, 0x2c, 0x22,
    0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a, 0x5b, 0x32,
    0x30, 0x2c, 0x32, 0x36, 0x5d, 0x7d, 0x2c, 0x22, 0x6d, 0x61, 0x73, 0x6b, 0x22, 0x3a, 0x7b, 0x22,
    0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x42, 0x4f, 0x4f, 0x4c, 0x22, 0x2c, 0x22, 0x73,
    0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x33, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f,
    0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a, 0x5b, 0x32, 0x36, 0x2c, 0x32, 0x39, 0x5d,
    0x7d, 0x7d, 0x20, 0x20, 0x20, 0x20, 0x20, 0x20, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x50, 0x40, 0x00, 0x3c, 0x00, 0xc0,
    0x00, 0x38, 0x01, 0x00, 0x01,
    // clang-format on
};

TEST(SafetensorsReader, FileOfTheReferenceImplementationIsRead) {
  const std::string_view bytes(reinterpret_cast<const char*>(kReferenceFile),
                               sizeof(kReferenceFile));
  const auto file = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().size(), 2u);
  EXPECT_EQ(file->metadata().at("format"), "np");
  EXPECT_EQ(file->metadata().at("made by"), "safetensors \"0.8.0\"");

  std::vector<std::string> names;
  for (const TensorInfo& tensor : file->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"ids", "empty", "größe", "w.bf", "mask"}));

  const TensorInfo* ids = file->Find("ids");
  ASSERT_NE(ids, nullptr);
  EXPECT_EQ(ids->dtype, FileDType::kI64);
  EXPECT_EQ(ids->shape, (std::vector<int64_t>{2}));
  int64_t values[2];
  ASSERT_EQ(ids->data.size(), sizeof(values));
  std::memcpy(values, ids->data.data(), sizeof(values));
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values[1], -1);

  const TensorInfo* scalar = file->Find("größe");
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(scalar->shape.empty());
  float value;
  ASSERT_EQ(scalar->data.size(), sizeof(value));
  std::memcpy(&value, scalar->data.data(), sizeof(value));
  EXPECT_EQ(value, 3.25f);

  EXPECT_EQ(file->Find("w.bf")->shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(Text(*file->Find("w.bf")), std::string_view("\x00\x3c\x00\xc0\x00\x38", 6));
  EXPECT_EQ(Text(*file->Find("mask")), std::string_view("\x01\x00\x01", 3));
  EXPECT_EQ(file->Find("empty")->shape, (std::vector<int64_t>{2, 0}));
  EXPECT_TRUE(file->Find("empty")->data.empty());
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST(SafetensorsReader, FileWithoutTensorsIsRead) {
  const auto file = SafetensorsFile::Parse(File("{}", 0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_EQ(file->Find(""), nullptr);
}

TEST(SafetensorsReader, TensorsComeInTheOrderOfTheirDataNotOfTheHeader) {
  const std::string bytes = File(
      absl::StrCat("{", Entry("a", "U8", "1", "2,3"), ",", Entry("b", "U8", "2", "0,2"), "}"), 3);
  const auto file = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors()[0].name, "b");
  EXPECT_EQ(file->tensors()[1].name, "a");
  EXPECT_EQ(Text(file->tensors()[1]), "\x02");
}

TEST(SafetensorsReader, EmptyTensorsMayLieBetweenOthersAndAtTheEnd) {
  const std::string bytes =
      File(absl::StrCat("{", Entry("a", "U8", "2", "0,2"), ",", Entry("e", "F32", "0,7", "2,2"),
                        ",", Entry("b", "U8", "1", "2,3"), ",", Entry("f", "F64", "0", "3,3"), "}"),
           3);
  const auto file = SafetensorsFile::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST(SafetensorsReader, FileShorterThanItsPrefixIsRefused) {
  EXPECT_THAT(ReaderError(""), HasSubstr("0 bytes, fewer than the 8"));
  EXPECT_THAT(ReaderError("1234567"), HasSubstr("7 bytes, fewer than the 8"));
}

TEST(SafetensorsReader, HeaderBeyondTheEndOfTheFileIsRefused) {
  std::string bytes = File("{}", 0);
  bytes[0] = 3;
  EXPECT_THAT(ReaderError(bytes), HasSubstr("claims 3 bytes, but only 2 follow"));
}

TEST(SafetensorsReader, HeaderAboveTheBoundIsRefused) {
  EXPECT_THAT(ReaderError("\xff\xff\xff\xff\xff\xff\xff\xff{}"),
              HasSubstr("claims 18446744073709551615 bytes, above the bound of 100000000"));
  // One above the bound, in a file that is large enough.
  std::string bytes(100'000'009, ' ');
  const std::string prefix = {0x01, '\xe1', '\xf5', 0x05, 0, 0, 0, 0, '{', '}'};
  bytes.replace(0, prefix.size(), prefix);
  EXPECT_THAT(ReaderError(bytes),
              HasSubstr("claims 100000001 bytes, above the bound of 100000000"));
  bytes[0] = 0x00;
  bytes.resize(100'000'008);
  EXPECT_EQ(ReaderError(bytes), "accepted");
}

TEST(SafetensorsReader, EmptyHeaderIsRefused) {
  EXPECT_THAT(ReaderError(File("", 4)), HasSubstr("must begin with '{'"));
}

TEST(SafetensorsReader, RangeThatEndsBeforeItBeginsIsRefused) {
  EXPECT_THAT(ReaderError(File("{" + Entry("w", "U8", "1", "2,1") + "}", 2)),
              HasSubstr("tensor \"w\": data_offsets [2,1] end before they begin"));
}

TEST(SafetensorsReader, RangeOutsideThePayloadIsRefused) {
  EXPECT_THAT(ReaderError(File("{" + Entry("w", "U8", "5", "0,5") + "}", 4)),
              HasSubstr("tensor \"w\": data_offsets [0,5] end after the payload's 4 bytes"));
  EXPECT_THAT(
      ReaderError(
          File("{" + Entry("w", "U8", "1", "18446744073709551614,18446744073709551615") + "}", 4)),
      HasSubstr("18446744073709551615] end after"));
}

TEST(SafetensorsReader, RangeOfTheWrongSizeIsRefusedNamingBothSizes) {
  EXPECT_THAT(ReaderError(File("{" + Entry("w", "BF16", "2,3", "0,11") + "}", 11)),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("hold 11 bytes"),
                    HasSubstr("shape [2,3] of BF16 needs 12")));
}

TEST(SafetensorsReader, ShapeWhoseProductOverflowsIsRefused) {
  for (const char* shape :
       {"4294967296,4294967296", "9223372036854775807,2", "4611686018427387904",
        "4611686018427387904,4611686018427387904,0", "0,9223372036854775807,3"}) {
    EXPECT_THAT(ReaderError(File("{" + Entry("w", "U16", shape, "0,0") + "}", 0)),
                AllOf(HasSubstr("tensor \"w\""), HasSubstr(shape),
                      HasSubstr("more than the bound of 9223372036854775807 bytes")))
        << shape;
  }
}

TEST(SafetensorsReader, OverlappingOffsetsAreRefusedNamingBothTensors) {
  const std::string header =
      absl::StrCat("{", Entry("a", "U8", "3", "0,3"), ",", Entry("b", "U8", "2", "2,4"), "}");
  EXPECT_THAT(ReaderError(File(header, 4)),
              HasSubstr("tensor \"b\": data_offsets [2,4] overlap those of tensor \"a\", [0,3]"));
}

TEST(SafetensorsReader, EmptyTensorInsideAnotherIsRefused) {
  const std::string header =
      absl::StrCat("{", Entry("a", "U8", "3", "0,3"), ",", Entry("b", "U8", "0", "2,2"), "}");
  EXPECT_THAT(ReaderError(File(header, 3)), HasSubstr("[2,2] overlap those of tensor \"a\""));
}

TEST(SafetensorsReader, HolesAreRefused) {
  const std::string header =
      absl::StrCat("{", Entry("a", "U8", "1", "0,1"), ",", Entry("b", "U8", "1", "3,4"), "}");
  EXPECT_THAT(ReaderError(File(header, 4)),
              HasSubstr("tensor \"b\": data_offsets [3,4] leave a hole of 2 bytes after offset 1"));
  EXPECT_THAT(ReaderError(File("{" + Entry("a", "U8", "1", "1,2") + "}", 2)),
              HasSubstr("leave a hole of 1 bytes after offset 0"));
  EXPECT_THAT(ReaderError(File("{" + Entry("a", "U8", "1", "0,1") + "}", 3)),
              HasSubstr("3 bytes, but the tensors end at offset 1 with tensor \"a\""));
  EXPECT_THAT(ReaderError(File("{}", 3)), HasSubstr("3 bytes, but the tensors end at offset 0"));
}

TEST(SafetensorsReader, RepeatedNamesAreRefused) {
  const std::string header =
      absl::StrCat("{", Entry("a", "U8", "1", "0,1"), ",", Entry("\\u0061", "U8", "1", "1,2"), "}");
  EXPECT_THAT(ReaderError(File(header, 2)),
              HasSubstr("tensor \"a\" occurs twice, with data_offsets [0,1] and [1,2]"));
}

TEST(SafetensorsReader, OpenedFileKeepsItsMappingThroughAMoveAndAnUnlink) {
  const std::string path = absl::StrCat(testing::TempDir(), "/reader_test.", getpid());
  std::ofstream(path, std::ios::binary) << File("{" + Entry("w", "U8", "4", "0,4") + "}", 4);
  auto file = SafetensorsFile::Open(path);
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo* tensor = file->Find("w");
  const SafetensorsFile moved = *std::move(file);
  EXPECT_EQ(moved.Find("w"), tensor);
  EXPECT_EQ(Text(*tensor), std::string_view("\0\1\2\3", 4));
}

TEST(SafetensorsReaderDeathTest, AFileThatIsTruncatedWhileItIsReadIsNamed) {
  const std::string path = absl::StrCat(testing::TempDir(), "/truncated_test.", getpid());
  std::ofstream(path, std::ios::binary)
      << File("{" + Entry("w", "U8", "1048576", "0,1048576") + "}", 1 << 20);
  EXPECT_EXIT(
      {
        ReportTruncatedFiles("program: ", 3);
        const auto file = SafetensorsFile::Open(path);
        std::exit(truncate(path.c_str(), 5000) == 0 && Text(*file->Find("w")).back() == 0);
      },
      testing::ExitedWithCode(3), "program: .*/truncated_test.*: truncated while it was read");
  ASSERT_EQ(unlink(path.c_str()), 0);
}

TEST(SafetensorsReader, OpenNamesThePathInEveryError) {
  const std::string path = absl::StrCat(testing::TempDir(), "/reader_test.", getpid());
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()), HasSubstr(path));

  std::ofstream(path, std::ios::binary) << "";
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()),
              AllOf(HasSubstr(path), HasSubstr("0 bytes, fewer than the 8")));
  ASSERT_EQ(unlink(path.c_str()), 0);

  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(unlink(path.c_str()), 0);

  const auto directory = SafetensorsFile::Open(testing::TempDir());
  EXPECT_EQ(directory.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nibble
