#include "server/store/store_files.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"
#include "server/store/rocks_glue.h"

namespace nibble::store_files {

using rocksdb::FileOptions;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

absl::StatusOr<std::string> Read(rocksdb::FileSystem& fs, const std::string& path) {
  std::unique_ptr<rocksdb::FSSequentialFile> file;
  const IOStatus opened = fs.NewSequentialFile(path, FileOptions(), &file, nullptr);
  if (opened.IsNotFound() || opened.IsPathNotFound()) {
    return absl::NotFoundError(absl::StrCat("no file ", path));
  }
  if (!opened.ok()) return rocks::ToStatus(opened, absl::StrCat("opening ", path));
  std::string content;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    rocksdb::Slice got;
    const IOStatus read = file->Read(buffer.size(), IOOptions(), &got, buffer.data(), nullptr);
    if (!read.ok()) return rocks::ToStatus(read, absl::StrCat("reading ", path));
    if (got.empty()) return content;
    content.append(got.data(), got.size());
    if (content.size() > kMaxWholeFileBytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has more than ", kMaxWholeFileBytes, " bytes"));
    }
  }
}

absl::Status Replace(rocksdb::FileSystem& fs, const std::string& directory, const std::string& name,
                     absl::string_view content) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string temporary = absl::StrCat(path, ".tmp");
  std::unique_ptr<rocksdb::FSWritableFile> file;
  IOStatus status = fs.NewWritableFile(temporary, FileOptions(), &file, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating ", temporary));
  status = file->Append(rocksdb::Slice(content.data(), content.size()), IOOptions(), nullptr);
  if (status.ok()) status = file->Fsync(IOOptions(), nullptr);
  if (status.ok()) status = file->Close(IOOptions(), nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("writing ", temporary));
  status = fs.RenameFile(temporary, path, IOOptions(), nullptr);
  if (!status.ok()) {
    return rocks::ToStatus(status, absl::StrCat("renaming ", temporary, " to ", path));
  }
  return SyncDirectory(fs, directory);
}

absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& path) {
  std::unique_ptr<rocksdb::FSDirectory> directory;
  IOStatus status = fs.NewDirectory(path, IOOptions(), &directory, nullptr);
  if (status.ok()) status = directory->Fsync(IOOptions(), nullptr);
  return rocks::ToStatus(status, absl::StrCat("syncing directory ", path));
}

absl::Status CreateDirectory(rocksdb::FileSystem& fs, const std::string& path) {
  const IOStatus status = fs.CreateDirIfMissing(path, IOOptions(), nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating directory ", path));
  const std::string above = std::filesystem::path(path).lexically_normal().parent_path().string();
  return SyncDirectory(fs, above.empty() ? "." : above);
}

absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs, const std::string& path) {
  std::vector<std::string> names;
  const IOStatus status = fs.GetChildren(path, IOOptions(), &names, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading directory ", path));
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace nibble::store_files
