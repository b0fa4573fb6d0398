#include "server/store/disk_testing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/rocks/rocks.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"

namespace nibble::store_testing {
namespace {

using rocksdb::FileOptions;
using rocksdb::FSDirectory;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using Kind = FileEvent::Kind;

class RecordedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  RecordedFile(std::unique_ptr<FSWritableFile> file, std::shared_ptr<Recording> recording, int id)
      : FSWritableFileOwnerWrapper(std::move(file)), recording_(std::move(recording)), id_(id) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    Record(data);
    return FSWritableFileOwnerWrapper::Append(data, options, debug);
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    recording_->Add({.kind = Kind::kTruncate, .file = id_, .offset = size});
    size_ = size;
    return FSWritableFileOwnerWrapper::Truncate(size, options, debug);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    recording_->Add({.kind = Kind::kSyncFile, .file = id_});
    return IOStatus::OK();
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  void Record(const Slice& data) {
    recording_->Add({.kind = Kind::kWrite, .file = id_, .offset = size_, .bytes = data.ToString()});
    size_ += data.size();
  }

  const std::shared_ptr<Recording> recording_;
  const int id_;
  uint64_t size_ = 0;
};

class RecordedRandomFile : public rocksdb::FSRandomRWFileOwnerWrapper {
 public:
  RecordedRandomFile(std::unique_ptr<FSRandomRWFile> file, std::shared_ptr<Recording> recording,
                     int id)
      : FSRandomRWFileOwnerWrapper(std::move(file)), recording_(std::move(recording)), id_(id) {}

  IOStatus Write(uint64_t offset, const Slice& data, const IOOptions& options,
                 IODebugContext* debug) override {
    recording_->Add(
        {.kind = Kind::kWrite, .file = id_, .offset = offset, .bytes = data.ToString()});
    return FSRandomRWFileOwnerWrapper::Write(offset, data, options, debug);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    recording_->Add({.kind = Kind::kSyncFile, .file = id_});
    return IOStatus::OK();
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  const std::shared_ptr<Recording> recording_;
  const int id_;
};

class RecordedDirectory : public FSDirectory {
 public:
  RecordedDirectory(std::shared_ptr<Recording> recording, std::string path)
      : recording_(std::move(recording)), path_(std::move(path)) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    recording_->Add({.kind = Kind::kSyncDirectory, .path = path_});
    return IOStatus::OK();
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  const std::shared_ptr<Recording> recording_;
  const std::string path_;
};

class RecordingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit RecordingFileSystem(std::shared_ptr<Recording> recording)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), recording_(std::move(recording)) {}

  const char* Name() const override { return "nibble.Recording"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* debug) override {
    const IOStatus status = FileSystemWrapper::NewWritableFile(path, options, result, debug);
    if (status.ok()) {
      *result =
          std::make_unique<RecordedFile>(std::move(*result), recording_, recording_->Create(path));
    }
    return status;
  }
  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSRandomRWFile>* result,
                           IODebugContext* debug) override {
    const IOStatus status = FileSystemWrapper::NewRandomRWFile(path, options, result, debug);
    if (status.ok()) {
      *result = std::make_unique<RecordedRandomFile>(std::move(*result), recording_,
                                                     recording_->FileOf(path));
    }
    return status;
  }
  // Operations that a store does not use fail, because they would not be recorded.
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions&,
                              std::unique_ptr<FSWritableFile>*, IODebugContext*) override {
    return IOStatus::NotSupported("reopening is not recorded", path);
  }
  IOStatus ReuseWritableFile(const std::string& path, const std::string&, const FileOptions&,
                             std::unique_ptr<FSWritableFile>*, IODebugContext*) override {
    return IOStatus::NotSupported("reusing is not recorded", path);
  }
  IOStatus Truncate(const std::string& path, size_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("truncating by name is not recorded", path);
  }
  IOStatus NewDirectory(const std::string& path, const IOOptions&,
                        std::unique_ptr<FSDirectory>* result, IODebugContext*) override {
    *result = std::make_unique<RecordedDirectory>(recording_, recording_->Relative(path));
    return IOStatus::OK();
  }
  IOStatus CreateDir(const std::string& path, const IOOptions& options,
                     IODebugContext* debug) override {
    return Recorded(FileSystemWrapper::CreateDir(path, options, debug),
                    {.kind = Kind::kCreateDirectory, .path = recording_->Relative(path)});
  }
  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions& options,
                              IODebugContext* debug) override {
    return Recorded(FileSystemWrapper::CreateDirIfMissing(path, options, debug),
                    {.kind = Kind::kCreateDirectory, .path = recording_->Relative(path)});
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    return Recorded(FileSystemWrapper::RenameFile(from, to, options, debug),
                    {.kind = Kind::kRename,
                     .path = recording_->Relative(from),
                     .to = recording_->Relative(to)});
  }
  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions& options,
                    IODebugContext* debug) override {
    return Recorded(
        FileSystemWrapper::LinkFile(from, to, options, debug),
        {.kind = Kind::kLink, .path = recording_->Relative(from), .to = recording_->Relative(to)});
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* debug) override {
    return Recorded(FileSystemWrapper::DeleteFile(path, options, debug),
                    {.kind = Kind::kDelete, .path = recording_->Relative(path)});
  }

 private:
  IOStatus Recorded(IOStatus status, FileEvent event) {
    if (status.ok()) recording_->Add(std::move(event));
    return status;
  }

  const std::shared_ptr<Recording> recording_;
};

void WriteInto(std::string& content, uint64_t offset, absl::string_view bytes) {
  content.resize(std::max<size_t>(content.size(), offset + bytes.size()));
  content.replace(offset, bytes.size(), bytes.data(), bytes.size());
}

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

constexpr size_t kSector = 512;

class QuickFiles : public rocksdb::FileSystemWrapper {
 public:
  QuickFiles() : FileSystemWrapper(rocks::UnsyncedFileSystem(nullptr)) {}
  const char* Name() const override { return "nibble.QuickFiles"; }
  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* debug) override {
    if (absl::StrContains(path, "/OPTIONS-")) return IOStatus::NotSupported(path);
    FileOptions quick = options;
    quick.allow_fallocate = false;
    return FileSystemWrapper::NewWritableFile(path, quick, result, debug);
  }
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> QuickFileSystem() { return std::make_shared<QuickFiles>(); }

Recording::Recording(std::string root) : root_(std::move(root)) {}

std::shared_ptr<rocksdb::FileSystem> Recording::FileSystem(std::shared_ptr<Recording> self) {
  return std::make_shared<RecordingFileSystem>(std::move(self));
}

std::string Recording::Relative(const std::string& path) const {
  const std::string relative =
      std::filesystem::path(path).lexically_normal().lexically_relative(root_).string();
  return std::string(absl::StripSuffix(relative, "/"));
}

DiskImage Recording::Begin(const DiskImage::Files& files) {
  MutexLock lock(&mutex_);
  DiskImage image;
  for (const auto& [path, content] : files) {
    if (absl::EndsWith(path, "/")) {
      names_[path.substr(0, path.size() - 1)] = 0;
    } else {
      names_[path] = ++files_;
      image.files_[files_] = {content, content, {}};
    }
  }
  image.synced_names_ = image.current_names_ = names_;
  return image;
}

void Recording::Note(uint64_t number) { Add({.kind = Kind::kNote, .number = number}); }

void Recording::Add(FileEvent event) {
  MutexLock lock(&mutex_);
  if (event.kind == Kind::kRename || event.kind == Kind::kLink) {
    names_[event.to] = names_[event.path];
  }
  if (event.kind == Kind::kRename || event.kind == Kind::kDelete) names_.erase(event.path);
  events_.push_back(std::move(event));
}

int Recording::Create(const std::string& path) {
  MutexLock lock(&mutex_);
  const std::string name = Relative(path);
  names_[name] = ++files_;
  events_.push_back({.kind = Kind::kCreateFile, .path = name, .file = files_});
  return files_;
}

int Recording::FileOf(const std::string& path) {
  MutexLock lock(&mutex_);
  return names_.at(Relative(path));
}

void DiskImage::Apply(const FileEvent& event) {
  switch (event.kind) {
    case Kind::kCreateFile:
      files_[event.file] = {};
      current_names_[event.path] = event.file;
      break;
    case Kind::kCreateDirectory:
      current_names_.emplace(event.path, 0);
      break;
    case Kind::kWrite:
      WriteInto(files_[event.file].current, event.offset, event.bytes);
      files_[event.file].unsynced.push_back({event.offset, event.bytes});
      break;
    case Kind::kTruncate:
      files_[event.file].current.resize(event.offset);
      files_[event.file].unsynced.push_back({event.offset, ""});
      break;
    case Kind::kSyncFile:
      files_[event.file].synced = files_[event.file].current;
      files_[event.file].unsynced.clear();
      break;
    case Kind::kSyncDirectory: {
      const std::string directory = event.path == "." ? "" : event.path;
      const auto inside = [&](const auto& name) { return ParentOf(name.first) == directory; };
      std::erase_if(synced_names_, inside);
      std::copy_if(current_names_.begin(), current_names_.end(),
                   std::inserter(synced_names_, synced_names_.end()), inside);
      break;
    }
    case Kind::kRename:
      current_names_[event.to] = current_names_.at(event.path);
      current_names_.erase(event.path);
      break;
    case Kind::kLink:
      current_names_[event.to] = current_names_.at(event.path);
      break;
    case Kind::kDelete:
      current_names_.erase(event.path);
      break;
    case Kind::kNote:
      break;
  }
}

template <class ContentOf>
DiskImage::Files DiskImage::Make(const Names& names, ContentOf content_of) const {
  Files made;
  for (const auto& [path, file] : names) {
    // If the name of a directory is lost, so is everything in it.
    const std::string parent = ParentOf(path);
    if (!parent.empty() && !made.contains(parent + "/")) continue;
    if (file == 0) {
      made[path + "/"] = "";
    } else {
      made[path] = content_of(path, files_.at(file));
    }
  }
  return made;
}

DiskImage::Files DiskImage::Synced() const {
  return Make(synced_names_, [](const std::string&, const File& file) { return file.synced; });
}

DiskImage::Files DiskImage::SyncedBytes() const {
  return Make(current_names_, [](const std::string&, const File& file) { return file.synced; });
}

DiskImage::Files DiskImage::Current() const {
  return Make(current_names_, [](const std::string&, const File& file) { return file.current; });
}

DiskImage::Files DiskImage::Torn(std::mt19937_64& random) const {
  // Each directory has either its synced names or its current ones: file systems journal names.
  std::map<std::string, bool> is_current;
  const auto current = [&](const std::string& path) {
    return is_current.try_emplace(ParentOf(path), random() % 2 == 0).first->second;
  };
  Names names;
  for (const auto& [path, file] : synced_names_) {
    if (!current(path)) names[path] = file;
  }
  for (const auto& [path, file] : current_names_) {
    if (current(path)) names[path] = file;
  }
  return Make(names, [&random](const std::string& path, const File& file) {
    std::string content = file.synced;
    size_t unsynced = 0;
    for (const Write& write : file.unsynced) unsynced += write.bytes.size();
    size_t left = unsynced == 0 ? 0 : random() % (unsynced + 1);
    for (const Write& write : file.unsynced) {
      if (write.bytes.empty()) {
        if (left > 0) content.resize(write.offset);
        continue;
      }
      const size_t kept = std::min(left, write.bytes.size());
      if (kept > 0) {
        WriteInto(content, write.offset, absl::string_view(write.bytes).substr(0, kept));
      }
      left -= kept;
    }
    if (absl::EndsWith(path, ".log") && content.size() > file.synced.size() && random() % 2 == 0) {
      // A lost sector before sectors that were written.
      const size_t sectors = (content.size() - file.synced.size()) / kSector + 1;
      const size_t begin = std::max(file.synced.size(),
                                    (file.synced.size() / kSector + random() % sectors) * kSector);
      const size_t end = std::min(content.size(), (begin / kSector + 1) * kSector);
      for (size_t i = begin; i < end; ++i) content[i] = '\0';
    }
    return content;
  });
}

}  // namespace nibble::store_testing
