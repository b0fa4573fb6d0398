#include "server/store/table_footer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"
#include "server/store/little_endian.h"

namespace nibble {
namespace {

using rocksdb::IOStatus;

constexpr uint64_t kBlockBasedMagic = 0x88e241b785f4cff7;
constexpr uint32_t kFormatVersion = 5;
constexpr unsigned char kXxh3 = 4;
constexpr uint64_t kBlockTrailerBytes = 5;

std::optional<uint64_t> TakeVarint(absl::string_view& from) {
  uint64_t number = 0;
  for (int shift = 0; shift <= 63 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    number |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

// [1] checksum type; [40] offset and size of the metaindex and of the index, varints, then zeros;
// [4] format version; [8] magic number.
bool IsWhole(absl::string_view footer, uint64_t file_bytes) {
  if (footer.size() != kTableFooterBytes || file_bytes < kTableFooterBytes) return false;
  if (LoadLittle<uint64_t>(footer.substr(45)) != kBlockBasedMagic) return false;
  if (LoadLittle<uint32_t>(footer.substr(41)) != kFormatVersion) return false;
  if (static_cast<unsigned char>(footer[0]) != kXxh3) return false;
  absl::string_view handles = footer.substr(1, 40);
  for (int i = 0; i < 2; ++i) {
    const std::optional<uint64_t> offset = TakeVarint(handles);
    const std::optional<uint64_t> size = TakeVarint(handles);
    if (!offset.has_value() || !size.has_value()) return false;
    const uint64_t room = file_bytes - kTableFooterBytes;
    if (*offset > room || *size > room || *offset + *size + kBlockTrailerBytes > room) return false;
  }
  return handles.find_first_not_of('\0') == absl::string_view::npos;
}

class FooterChecked : public rocksdb::FileSystemWrapper {
 public:
  explicit FooterChecked(std::shared_ptr<rocksdb::FileSystem> base)
      : FileSystemWrapper(std::move(base)) {}

  const char* Name() const override { return "nibble.FooterChecked"; }
  IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               rocksdb::IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, result, debug);
    if (!absl::EndsWith(path, ".sst")) return status;
    // RocksDB would look for an older name next, and its error would then name that.
    if (status.IsNotFound() || status.IsPathNotFound()) {
      return IOStatus::Corruption(absl::StrCat(path, " is missing"));
    }
    if (!status.ok()) return status;
    uint64_t size = 0;
    status = GetFileSize(path, options.io_options, &size, debug);
    if (!status.ok()) return status;
    char buffer[kTableFooterBytes];
    rocksdb::Slice footer;
    if (size >= kTableFooterBytes) {
      status = (*result)->Read(size - kTableFooterBytes, kTableFooterBytes, options.io_options,
                               &footer, buffer, debug);
      if (!status.ok()) return status;
    }
    const absl::Status checked = CheckTableFooter({footer.data(), footer.size()}, size, path);
    return checked.ok() ? status : IOStatus::Corruption(std::string(checked.message()));
  }
};

}  // namespace

absl::Status CheckTableFooter(absl::string_view footer, uint64_t file_bytes,
                              absl::string_view path) {
  if (IsWhole(footer, file_bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is damaged: its end, of ", file_bytes,
                                          " bytes in all, is not that of a table"));
}

std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base) {
  return std::make_shared<FooterChecked>(std::move(base));
}

}  // namespace nibble
