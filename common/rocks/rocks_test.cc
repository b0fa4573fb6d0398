#include "common/rocks/rocks.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "rocksdb/io_status.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"

namespace nibble::rocks {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

TEST(ToStatusTest, DiskErrorsAreDividedIntoFullDamagedAndOther) {
  const struct {
    rocksdb::Status status;
    StatusCode code;
  } kCases[] = {
      {rocksdb::Status::OK(), StatusCode::kOk},
      {rocksdb::Status::NoSpace("/a/b"), StatusCode::kResourceExhausted},
      {rocksdb::Status::IOError("/a/b", std::strerror(EDQUOT)), StatusCode::kResourceExhausted},
      {rocksdb::Status::IOError("/a/b", std::strerror(EFBIG)), StatusCode::kResourceExhausted},
      {rocksdb::Status::IOError("/a/b", std::strerror(EIO)), StatusCode::kInternal},
      {rocksdb::Status::Corruption("/a/b"), StatusCode::kDataLoss},
      {rocksdb::Status::PathNotFound("/a/b"), StatusCode::kDataLoss},
  };
  for (const auto& [status, code] : kCases) {
    EXPECT_EQ(ToStatus(status, "reading x").code(), code) << status.ToString();
  }
  EXPECT_THAT(std::string(ToStatus(kCases[1].status, "reading x").message()),
              testing::AllOf(testing::StartsWith("reading x: "), HasSubstr("/a/b")));
}

TEST(ToStatusTest, AFullDiskBelowRocksDbIsAFullDiskAboveIt) {
  const auto through = [](const absl::Status& status) {
    return ToStatus(ToIoStatus(status), "writing").code();
  };
  EXPECT_EQ(through(absl::OkStatus()), StatusCode::kOk);
  EXPECT_EQ(through(absl::ResourceExhaustedError("full")), StatusCode::kResourceExhausted);
  EXPECT_EQ(through(absl::InternalError("broken")), StatusCode::kInternal);
}

// A table file in our format.
std::string Table() {
  const file_testing::TempDirectory directory;
  rocksdb::Options options = BaseOptions();
  SetTableFormat(options, {});
  options.create_if_missing = true;
  rocksdb::DB* db = nullptr;
  EXPECT_TRUE(rocksdb::DB::Open(options, directory.path(), &db).ok());
  const std::unique_ptr<rocksdb::DB> owned(db);
  EXPECT_TRUE(db->Put(rocksdb::WriteOptions(), "key", "value").ok());
  EXPECT_TRUE(db->Flush(rocksdb::FlushOptions()).ok());
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    if (entry.path().extension() != ".sst") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  ADD_FAILURE() << "no table";
  return std::string(kTableFooterBytes, '\0');
}

TEST(TableFooterTest, TheFooterOfAnIntactTableIsAccepted) {
  const std::string table = Table();
  const absl::Status status = CheckTableFooter(
      absl::string_view(table).substr(table.size() - kTableFooterBytes), table.size(), "t.sst");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(TableFooterTest, NoDamagedFooterMakesRocksDbAllocateMoreThanTheFile) {
  const std::string table = Table();
  const std::string good = table.substr(table.size() - kTableFooterBytes);
  int refused = 0;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string footer = good;
    footer[bit / 8] = static_cast<char>(footer[bit / 8] ^ (1 << bit % 8));
    const absl::Status status = CheckTableFooter(footer, table.size(), "t.sst");
    if (status.ok()) continue;  // a handle within the file: the block there has a checksum
    ++refused;
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("t.sst is damaged"));
  }
  EXPECT_GT(refused, 350);
}

TEST(TableFooterTest, AFileThatIsTooShortIsRefused) {
  const std::string table = Table();
  const std::string footer = table.substr(table.size() - kTableFooterBytes);
  EXPECT_FALSE(CheckTableFooter("", 0, "t.sst").ok());
  EXPECT_FALSE(CheckTableFooter(footer.substr(1), kTableFooterBytes - 1, "t.sst").ok());
  EXPECT_FALSE(CheckTableFooter(footer, kTableFooterBytes, "t.sst").ok());
}

}  // namespace
}  // namespace nibble::rocks
