#include "common/s3/copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
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

}  // namespace

absl::StatusOr<std::vector<std::string>> ListCopies(ObjectStore& store, const Place& prefix) {
  const absl::StatusOr<std::string> text = store.Get(Below(prefix, kCopiesName), kMostCopiesBytes);
  if (absl::IsNotFound(text.status())) return std::vector<std::string>();
  if (!text.ok()) return text.status();
  const std::string shown = absl::StrCat("s3://", prefix.bucket, "/", prefix.key, "/", kCopiesName);
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
  std::vector<std::string> names;
  for (const json& name : list["copies"]) {
    if (!name.is_string() || !IsName(name.get<std::string>())) return damaged;
    names.push_back(name);
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> AddCopy(ObjectStore& store, const Place& prefix,
                                                 const std::string& name, size_t keep) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<std::string> names, ListCopies(store, prefix));
  std::erase(names, name);
  names.push_back(name);
  const size_t beyond = names.size() - std::min(names.size(), std::max<size_t>(keep, 1));
  const auto kept = names.begin() + static_cast<ptrdiff_t>(beyond);
  const std::vector<std::string> removed(names.begin(), kept);
  names.erase(names.begin(), kept);
  // First the list: it names complete copies only.
  NIBBLE_RETURN_IF_ERROR(
      store.Put(Below(prefix, kCopiesName),
                json({{"version", kCopiesVersion}, {"copies", names}}).dump(1) + "\n"));
  for (const std::string& old : removed) {
    NIBBLE_RETURN_IF_ERROR(RemoveDirectoryCopy(store, Below(prefix, old)));
  }
  return removed;
}

}  // namespace nibble::s3
