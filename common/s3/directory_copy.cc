#include "common/s3/directory_copy.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"

namespace nibble::s3 {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kListName[] = "nibble-files.json";
constexpr size_t kMostListBytes = size_t{64} << 20;
constexpr int kVersion = 1;

struct File {
  std::string name;  // relative, with slashes
  int64_t bytes = 0;
  std::string sha256;
};

Place Inside(const Place& place, const std::string& name) {
  return {place.bucket, absl::StrCat(place.key, "/", name)};
}

std::string Shown(const Place& place) {
  return absl::StrCat("s3://", place.bucket, "/", place.key);
}

// Whether JSON and XML can have the text as it is.
bool IsUtf8(const std::string& text) {
  const std::string dumped = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(dumped) == text;
}

// The names of the regular files, sorted.
absl::StatusOr<std::vector<File>> FilesOf(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat("there is no directory ", directory));
  }
  std::vector<File> files;
  fs::recursive_directory_iterator at(directory, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const fs::file_status status = at->symlink_status(error);
    if (error) break;
    if (fs::is_directory(status)) continue;
    const std::string name = at->path().lexically_relative(directory).string();
    if (!IsUtf8(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(absl::CHexEscape(at->path().string()),
                       ": the name is not UTF-8, as names of objects are"));
    }
    if (!fs::is_regular_file(status) || name == kListName) {
      return absl::FailedPreconditionError(absl::StrCat(
          at->path().string(), name == kListName ? " has the name of the list of a copy"
                                                 : " is neither a file nor a directory"));
    }
    files.push_back({.name = name});
  }
  if (error) {
    return absl::InternalError(absl::StrCat("reading ", directory, ": ", error.message()));
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.name < b.name; });
  return files;
}

// Whether a name stays inside of its directory: a list is not trusted.
bool IsInside(const std::string& name) {
  if (name.empty() || absl::StartsWith(name, "/") || absl::StrContains(name, '\0')) return false;
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  return std::none_of(parts.begin(), parts.end(), [](const std::string& part) {
    return part.empty() || part == "." || part == "..";
  });
}

absl::StatusOr<std::vector<File>> ReadList(const std::string& text, const Place& place) {
  const json list = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status damaged =
      absl::DataLossError(absl::StrCat(Shown(Inside(place, kListName)), " is not a list of files"));
  if (!list.is_object() || !list.contains("version") || !list["version"].is_number_integer()) {
    return damaged;
  }
  if (list["version"] > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(Shown(place), " has version ",
                                                      list["version"].get<int64_t>(),
                                                      ", this program knows up to ", kVersion));
  }
  if (!list.contains("files") || !list["files"].is_array()) return damaged;
  std::vector<File> files;
  for (const json& one : list["files"]) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string() ||
        !one.contains("bytes") || !one["bytes"].is_number_unsigned() || !one.contains("sha256") ||
        !one["sha256"].is_string()) {
      return damaged;
    }
    files.push_back({one["name"], one["bytes"], one["sha256"]});
    if (!IsInside(files.back().name)) return damaged;
  }
  return files;
}

// DataLoss, naming the object, unless the store lists each with the bytes that were sent, and with
// the ETag of its answer: a store may have answered well and kept less.
absl::Status CheckStored(ObjectStore& store, const Place& place,
                         const std::map<std::string, Sent>& sent) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Listed> listed, store.List(Inside(place, "")));
  std::map<std::string, const Listed*> by_key;
  for (const Listed& one : listed) by_key[one.key] = &one;
  for (const auto& [key, one] : sent) {
    const std::string name = Shown({place.bucket, key});
    const auto at = by_key.find(key);
    if (at == by_key.end()) {
      return absl::DataLossError(absl::StrCat(name, " was sent, and the store does not list it"));
    }
    if (at->second->bytes != one.bytes) {
      return absl::DataLossError(absl::StrCat(name, ": ", one.bytes, " bytes were sent; the store ",
                                              "has ", at->second->bytes));
    }
    const auto bare = [](absl::string_view etag) {
      return absl::StripSuffix(absl::StripPrefix(etag, "\""), "\"");
    };
    if (!one.etag.empty() && !at->second->etag.empty() &&
        bare(one.etag) != bare(at->second->etag)) {
      return absl::DataLossError(absl::StrCat(name, ": the store has ETag ", at->second->etag,
                                              "; it answered with ", one.etag));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Copied> PushDirectory(ObjectStore& store, const std::string& directory,
                                     const Place& place, bool overwrite) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<File> files, FilesOf(directory));
  const absl::Status existing = store.Get(Inside(place, kListName), kMostListBytes).status();
  if (existing.ok() && !overwrite) {
    return absl::AlreadyExistsError(
        absl::StrCat(Shown(place), " has a complete copy already; --overwrite replaces it"));
  }
  if (!existing.ok() && !absl::IsNotFound(existing)) return existing;
  // Until the new list is there, the prefix has no complete copy.
  if (existing.ok()) NIBBLE_RETURN_IF_ERROR(store.Delete(Inside(place, kListName)));
  Copied copied;
  json list = {{"version", kVersion}, {"files", json::array()}};
  std::map<std::string, Sent> sent;  // by key
  for (const File& file : files) {
    const Place object = Inside(place, file.name);
    NIBBLE_ASSIGN_OR_RETURN(Sent one, store.PutFile(object, directory + "/" + file.name));
    list["files"].push_back({{"name", file.name}, {"bytes", one.bytes}, {"sha256", one.sha256}});
    ++copied.files;
    copied.bytes += one.bytes;
    sent[object.key] = std::move(one);
  }
  NIBBLE_RETURN_IF_ERROR(CheckStored(store, place, sent));
  NIBBLE_RETURN_IF_ERROR(store.Put(Inside(place, kListName), list.dump(1) + "\n").status());
  return copied;
}

absl::StatusOr<Copied> PullDirectory(ObjectStore& store, const Place& place,
                                     const std::string& directory) {
  absl::StatusOr<std::string> text = store.Get(Inside(place, kListName), kMostListBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat("there is no complete copy at ", Shown(place), ": ", text.status().message()));
  }
  if (!text.ok()) return text.status();
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<File> files, ReadList(*text, place));
  if (const fs::path parent = fs::path(directory).parent_path(); !parent.empty()) {
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(parent.string(), store.faults()));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<StagedDirectory> staged,
                          StagedDirectory::Create(directory, StagedDirectory::Existing::kRefuse,
                                                  kListName, store.faults()));
  Copied copied;
  for (const File& file : files) {
    const std::string path = staged->PathOf(file.name);
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path().string(), store.faults()));
    NIBBLE_ASSIGN_OR_RETURN(const std::string hash,
                            store.GetFile(Inside(place, file.name), file.bytes, path));
    if (hash != file.sha256) {
      return absl::DataLossError(absl::StrCat(Shown(Inside(place, file.name)), " has SHA-256 ",
                                              hash, ", uploaded was ", file.sha256));
    }
    NIBBLE_RETURN_IF_ERROR(SyncParentDirectory(path, store.faults()));
    ++copied.files;
    copied.bytes += file.bytes;
  }
  NIBBLE_RETURN_IF_ERROR(staged->Commit());
  return copied;
}

absl::Status RemoveDirectoryCopy(ObjectStore& store, const Place& place) {
  NIBBLE_RETURN_IF_ERROR(store.Delete(Inside(place, kListName)));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Listed> objects, store.List(Inside(place, "")));
  for (const Listed& object : objects) {
    NIBBLE_RETURN_IF_ERROR(store.Delete({place.bucket, object.key}));
  }
  return absl::OkStatus();
}

}  // namespace nibble::s3
