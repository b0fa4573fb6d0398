#include "server/store/store_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace nibble {

absl::Status StoreGone(const std::string& directory, const std::string& path,
                       const std::string& how) {
  return absl::NotFoundError(absl::StrCat(
      "the store directory ", directory, " was removed or replaced while it was open: ", path, " ",
      how,
      "; changes are refused. Put the directory back, or a backup of it, and start the "
      "coordinator again (with --restored where it is a backup)"));
}

absl::StatusOr<std::unique_ptr<StorePlace>> StorePlace::Watch(
    const std::string& directory, const std::vector<std::string>& names) {
  std::unique_ptr<StorePlace> place(new StorePlace(directory));
  std::vector<std::string> paths = {directory};
  for (const std::string& name : names) paths.push_back(absl::StrCat(directory, "/", name));
  for (const std::string& path : paths) {
    const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) {
      return absl::UnavailableError(
          absl::ErrnoToStatus(errno, absl::StrCat("opening ", path)).message());
    }
    place->watched_.emplace_back(path, fd);
  }
  return place;
}

StorePlace::~StorePlace() {
  for (const auto& [path, fd] : watched_) (void)close(fd);
}

absl::Status StorePlace::Check() const {
  for (const auto& [path, fd] : watched_) {
    struct stat opened = {};
    struct stat named = {};
    if (fstat(fd, &opened) == 0 && opened.st_nlink == 0) {
      return StoreGone(directory_, path, "is removed");
    }
    if (stat(path.c_str(), &named) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return StoreGone(directory_, path, "is missing");
      continue;
    }
    if (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
      return StoreGone(directory_, path, "is another file now");
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
