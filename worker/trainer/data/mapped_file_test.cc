#include "worker/trainer/data/mapped_file.h"

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/files/files_testing.h"
#include "common/files/truncated_files.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

int SumOf(absl::Span<const std::byte> bytes) {
  int sum = 0;
  for (const std::byte byte : bytes) sum += std::to_integer<int>(byte);
  return sum;
}

TEST(MappedFileDeathTest, AFileThatIsTruncatedWhileItIsReadIsNamed) {
  const TempDirectory directory;
  const std::string path = directory.Path("tokens");
  WriteFile(path, std::string(1 << 20, 'a'));
  EXPECT_EXIT(
      {
        ReportTruncatedFiles("program: ", 3);
        const auto other = MappedFile::Open(path);  // its entry is not taken for the other one's
        const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
        std::filesystem::resize_file(path, 5000);
        std::exit(SumOf(file->bytes()) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(3), "program: .*/tokens: truncated while it was read");
}

TEST(MappedFileDeathTest, AFileThatIsNoLongerMappedIsForgotten) {
  const TempDirectory directory;
  const std::string path = directory.Path("tokens");
  WriteFile(path, "tokens");
  // More often than there are places.
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(MappedFile::Open(path).ok());
  WriteFile(path, std::string(1 << 20, 'a'));
  EXPECT_EXIT(
      {
        ReportTruncatedFiles("", 3);
        const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
        std::filesystem::resize_file(path, 5000);
        std::exit(SumOf(file->bytes()) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(3), "truncated");
}

}  // namespace
}  // namespace nibble
