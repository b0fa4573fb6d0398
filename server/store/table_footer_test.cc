#include "server/store/table_footer.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "server/store/rocks_glue.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// A table that RocksDB wrote with the store's options.
std::string Table() {
  const store_testing::TempDirectory directory;
  rocksdb::Options options = rocks::StoreOptions(rocksdb::Env::Default(), size_t{1} << 20);
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
}  // namespace nibble
