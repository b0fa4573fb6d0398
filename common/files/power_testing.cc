#include "common/files/power_testing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/files/files_testing.h"
#include "gtest/gtest.h"

namespace nibble::file_testing {
namespace {

std::string ByDescriptor(int descriptor) { return absl::StrCat("/proc/self/fd/", descriptor); }

}  // namespace

void MakeDisk(const std::string& root, const DiskFiles& files) {
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  for (const auto& [path, content] : files) {
    const std::string full = absl::StrCat(root, "/", path);
    if (absl::EndsWith(path, "/")) {
      std::filesystem::create_directories(full);
    } else {
      std::ofstream file(full, std::ios::binary);
      file.write(content.data(), static_cast<std::streamsize>(content.size()));
      if (!file.good()) ADD_FAILURE() << "cannot write " << full;
    }
  }
}

PowerCuts::PowerCuts(const std::string& root) : root_(root) {
  MutexLock lock(&mutex_);
  root_inode_ = Know(root_);
  Settle(root_inode_);
  Look("nothing");
}

PowerCuts::~PowerCuts() {
  MutexLock lock(&mutex_);
  for (const auto& [inode, node] : nodes_) (void)close(node.descriptor);
}

ino_t PowerCuts::Know(const std::string& path) {
  const int descriptor = open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) {
    EXPECT_EQ(errno, ENOENT) << path;
    return 0;
  }
  struct stat info = {};
  EXPECT_EQ(fstat(descriptor, &info), 0) << path;
  const bool is_new =
      nodes_.try_emplace(info.st_ino, Node{descriptor, S_ISDIR(info.st_mode), "", {}}).second;
  if (!is_new) (void)close(descriptor);
  return info.st_ino;
}

std::map<std::string, ino_t> PowerCuts::NamesNow(const Node& directory) {
  std::map<std::string, ino_t> names;
  const std::string path = ByDescriptor(directory.descriptor);
  // A removed directory has no names.
  const auto listed = ListDirectory(path);
  for (const std::string& name : listed.ok() ? *listed : std::vector<std::string>()) {
    if (const ino_t inode = Know(absl::StrCat(path, "/", name)); inode != 0) names[name] = inode;
  }
  return names;
}

void PowerCuts::Settle(ino_t inode) {
  Node& node = nodes_.at(inode);
  if (!node.is_directory) {
    node.content = ContentOf(ByDescriptor(node.descriptor));
    return;
  }
  node.names = NamesNow(node);
  for (const auto& [name, inside] : std::map(node.names)) Settle(inside);
}

void PowerCuts::Collect(ino_t inode, const std::string& prefix, int turn, bool current,
                        DiskFiles& files) {
  const Node& directory = nodes_.at(inode);
  const auto survivors = (turn > 0) == current ? NamesNow(directory) : directory.names;
  for (const auto& [name, inside] : survivors) {
    const Node& node = nodes_.at(inside);
    if (node.is_directory) {
      files[absl::StrCat(prefix, name, "/")] = "";
      Collect(inside, absl::StrCat(prefix, name, "/"), turn - 1, current, files);
    } else {
      files[absl::StrCat(prefix, name)] = node.content;
    }
  }
}

void PowerCuts::Look(const std::string& after) {
  constexpr int kDeepest = 3;
  for (int turn = 0; turn <= kDeepest; ++turn) {
    for (const bool current : {false, true}) {
      DiskFiles files;
      Collect(root_inode_, "", turn, current, files);
      cuts_[noted_].try_emplace(std::move(files), after);
    }
  }
}

void PowerCuts::Add(absl::string_view what, absl::string_view path) {
  (void)absl::ConsumePrefix(&path, root_);
  (void)absl::ConsumePrefix(&path, "/");
  const std::string operation = absl::StrCat(what, " ", path);
  if (operations_.empty() || operations_.back() != operation) operations_.push_back(operation);
  Look(operation);
}

void PowerCuts::Note(int64_t number) {
  MutexLock lock(&mutex_);
  noted_ = number;
  Look(absl::StrCat("note ", number));
}

int64_t PowerCuts::ForEach(const std::string& disk, const std::function<void(int64_t)>& check) {
  MutexLock lock(&mutex_);
  int64_t states = 0;
  for (const auto& [noted, cuts] : cuts_) {
    for (const auto& [files, after] : cuts) {
      if (states++ % kOneIn != 0) continue;
      SCOPED_TRACE(absl::StrCat("power lost after: ", after, "; noted: ", noted));
      MakeDisk(disk, files);
      check(noted);
      if (testing::Test::HasFatalFailure()) return states;
    }
  }
  return states;
}

std::vector<std::string> PowerCuts::operations() {
  MutexLock lock(&mutex_);
  return operations_;
}

int PowerCuts::BeforeWrite(const std::string& path, int64_t) {
  MutexLock lock(&mutex_);
  Add("write", path);
  return 0;
}

void PowerCuts::AfterSync(const std::string& path) {
  MutexLock lock(&mutex_);
  Look(absl::StrCat("what preceded the sync of ", path));
  if (const ino_t inode = Know(path); inode != 0) nodes_.at(inode).content = ContentOf(path);
  Add("sync", path);
}

void PowerCuts::AfterRename(const std::string&, const std::string& to) {
  MutexLock lock(&mutex_);
  Add("rename", to);
}

void PowerCuts::AfterSyncDirectory(const std::string& path) {
  MutexLock lock(&mutex_);
  Look(absl::StrCat("what preceded the sync of directory ", path));
  if (const ino_t inode = Know(path); inode != 0) {
    nodes_.at(inode).names = NamesNow(nodes_.at(inode));
  }
  Add("sync directory", path);
}

}  // namespace nibble::file_testing
