#include "common/s3/copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/s3/directory_copy.h"
#include "common/status_macros.h"

namespace nibble::s3 {
namespace {

using nlohmann::json;

constexpr char kCopiesName[] = "nibble-copies.json";
constexpr size_t kMostCopiesBytes = size_t{1} << 20;
constexpr int kCopiesVersion = 1;

Place Below(const Place& prefix, const std::string& name) {
  return {prefix.bucket, absl::StrCat(prefix.key, "/", name)};
}

// A name, not a path: the list is not trusted.
bool IsName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

// As of CopyName: other directories below the prefix are not ours.
bool IsCopyName(const std::string& name) {
  int64_t step = 0;
  int64_t attempt = 0;
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  return parts.size() == 4 && absl::SimpleAtoi(parts[1], &step) &&
         absl::SimpleAtoi(parts[3], &attempt) && CopyName(step, attempt) == name;
}

// "a" of the key PREFIX/a/b; empty for the key of no directory.
std::string DirectoryBelow(const Place& prefix, const std::string& key) {
  absl::string_view rest = key;
  if (!absl::ConsumePrefix(&rest, absl::StrCat(prefix.key, "/"))) return "";
  const size_t slash = rest.find('/');
  return slash == absl::string_view::npos ? "" : std::string(rest.substr(0, slash));
}

struct CopyList {
  std::vector<std::string> names;
  std::string store;  // the owner's id; empty: unknown
};

std::string ListText(const Place& prefix) {
  return absl::StrCat("s3://", prefix.bucket, "/", prefix.key, "/", kCopiesName);
}

absl::Status PutCopies(ObjectStore& store, const Place& prefix, const CopyList& copies) {
  json list = {{"version", kCopiesVersion}, {"copies", copies.names}};
  if (!copies.store.empty()) list["store"] = copies.store;
  return store.Put(Below(prefix, kCopiesName), list.dump(1) + "\n").status();
}

// Empty if there is no list; errors as ListCopies.
absl::StatusOr<CopyList> ReadCopies(ObjectStore& store, const Place& prefix) {
  const absl::StatusOr<std::string> text = store.Get(Below(prefix, kCopiesName), kMostCopiesBytes);
  if (absl::IsNotFound(text.status())) return CopyList();
  if (!text.ok()) return text.status();
  const std::string shown = ListText(prefix);
  const json list = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const absl::Status damaged = absl::DataLossError(absl::StrCat(shown, " is not a list of copies"));
  if (!list.is_object() || !list.contains("version") || !list["version"].is_number_integer()) {
    return damaged;
  }
  if (list["version"] > kCopiesVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " has version ", list["version"].get<int64_t>(),
                     ", this program knows up to ", kCopiesVersion));
  }
  if (!list.contains("copies") || !list["copies"].is_array()) return damaged;
  CopyList copies;
  for (const json& name : list["copies"]) {
    if (!name.is_string() || !IsName(name.get<std::string>())) return damaged;
    copies.names.push_back(name);
  }
  if (!list.contains("store")) return copies;
  if (!list["store"].is_string()) return damaged;
  copies.store = list["store"];
  return copies;
}

absl::Status OfAnother(const Place& prefix, const CopyList& copies, const std::string& owner) {
  return absl::FailedPreconditionError(
      absl::StrCat(ListText(prefix), ": the copies there are those of a job of ",
                   copies.store.empty() ? "an unknown store" : absl::StrCat("store ", copies.store),
                   ", this job's store is ", owner,
                   "; give each cluster a PREFIX of its own (--object-store of the coordinator)"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListCopies(ObjectStore& store, const Place& prefix) {
  NIBBLE_ASSIGN_OR_RETURN(CopyList copies, ReadCopies(store, prefix));
  return std::move(copies.names);
}

std::string CopyName(int64_t step, int64_t attempt) {
  return absl::StrFormat("step-%012d-attempt-%04d", step, attempt);
}

absl::Status BeginCopy(ObjectStore& store, const Place& prefix, const std::string& name,
                       const CopyOwner& owner) {
  NIBBLE_ASSIGN_OR_RETURN(CopyList copies, ReadCopies(store, prefix));
  bool changed = false;
  if (!owner.store.empty() && copies.store != owner.store) {
    const bool own = copies.store.empty() && (copies.names.empty() || owner.continues);
    if (!own && !owner.takes_over) return OfAnother(prefix, copies, owner.store);
    copies.store = owner.store;
    changed = true;
  }
  changed |= std::erase(copies.names, name) > 0;
  if (changed) NIBBLE_RETURN_IF_ERROR(PutCopies(store, prefix, copies));
  NIBBLE_RETURN_IF_ERROR(RemoveDirectoryCopy(store, Below(prefix, name)));
  return store.AbortUploads(prefix);
}

absl::StatusOr<std::vector<std::string>> AddCopy(ObjectStore& store, const Place& prefix,
                                                 const std::string& name, size_t keep,
                                                 const std::string& owner) {
  NIBBLE_ASSIGN_OR_RETURN(CopyList copies, ReadCopies(store, prefix));
  if (!owner.empty() && copies.store != owner) return OfAnother(prefix, copies, owner);
  std::vector<std::string>& names = copies.names;
  std::erase(names, name);
  names.push_back(name);
  const size_t beyond = names.size() - std::min(names.size(), std::max<size_t>(keep, 1));
  names.erase(names.begin(), names.begin() + static_cast<ptrdiff_t>(beyond));
  // First the list: it names complete copies only.
  NIBBLE_RETURN_IF_ERROR(PutCopies(store, prefix, copies));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Listed> objects, store.List(Below(prefix, "")));
  std::set<std::string> removed;
  for (const Listed& object : objects) {
    const std::string directory = DirectoryBelow(prefix, object.key);
    if (IsCopyName(directory) && std::find(names.begin(), names.end(), directory) == names.end()) {
      removed.insert(directory);
    }
  }
  for (const std::string& old : removed) {
    NIBBLE_RETURN_IF_ERROR(RemoveDirectoryCopy(store, Below(prefix, old)));
  }
  return std::vector<std::string>(removed.begin(), removed.end());
}

}  // namespace nibble::s3
