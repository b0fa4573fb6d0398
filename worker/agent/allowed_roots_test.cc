#include "worker/agent/allowed_roots.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_fields.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class AllowedRootsTest : public testing::Test {
 protected:
  AllowedRootsTest() {
    fs::create_directories(directory_.Path("data/corpus"));
    fs::create_directories(directory_.Path("data-2"));
    std::ofstream(directory_.Path("secret.txt")) << "x";
    auto made = AllowedRoots::Make({directory_.Path("data")});
    EXPECT_EQ(made.status(), absl::OkStatus());
    if (made.ok()) roots_ = *std::move(made);
  }
  bool Allows(const std::string& path) const { return roots_.Check("path", path).ok(); }

  const file_testing::TempDirectory directory_;
  AllowedRoots roots_;
};

TEST_F(AllowedRootsTest, PathsBelowARootAreAllowedWhetherTheyExistOrNot) {
  EXPECT_TRUE(Allows(directory_.Path("data")));
  EXPECT_TRUE(Allows(directory_.Path("data/corpus/new.bin")));
  EXPECT_TRUE(Allows(directory_.Path("data/./corpus/../x")));
}

TEST_F(AllowedRootsTest, PathsThatLeaveTheRootAreRefused) {
  for (const char* name : {"data/../secret.txt", "data-2", "data-2/x", "secret.txt",
                           "data/corpus/../../secret.txt", "data/absent/../../secret.txt"}) {
    EXPECT_FALSE(Allows(directory_.Path(name))) << name;
  }
  EXPECT_FALSE(Allows("/etc/passwd"));
  EXPECT_FALSE(Allows("data"));  // relative to the daemon's directory
}

TEST_F(AllowedRootsTest, LinksAreFollowed) {
  fs::create_symlink(directory_.Path("secret.txt"), directory_.Path("data/link"));
  fs::create_directory_symlink("/etc", directory_.Path("data/etc"));
  fs::create_directory_symlink(directory_.Path("data"), directory_.Path("other"));
  EXPECT_FALSE(Allows(directory_.Path("data/link")));
  EXPECT_FALSE(Allows(directory_.Path("data/etc/passwd")));
  EXPECT_TRUE(Allows(directory_.Path("other/corpus")));
  EXPECT_THAT(
      std::string(roots_.Check("data.train[0].path", directory_.Path("data/link")).message()),
      HasSubstr("secret.txt on this worker; allowed: below "));
}

TEST_F(AllowedRootsTest, EachPathOfASpecIsChecked) {
  JobSpec spec;
  spec.data.train.push_back({.path = directory_.Path("data/corpus")});
  EXPECT_EQ(roots_.CheckSpec(spec), absl::OkStatus());
  const auto refused = [&](JobSpec changed) {
    return std::string(roots_.CheckSpec(changed).message());
  };
  JobSpec other = spec;
  other.data.train.push_back({.path = "/etc/passwd"});
  EXPECT_THAT(refused(other), HasSubstr("data.train[1].path: '/etc/passwd'"));
  other = spec;
  other.data.validation.push_back({.path = "/etc/passwd"});
  EXPECT_THAT(refused(other), HasSubstr("data.validation[0].path"));
  other = spec;
  other.data.tokenizer_model = "/etc/passwd";
  EXPECT_THAT(refused(other), HasSubstr("data.tokenizer_model"));
  other = spec;
  other.init_from.path = "/etc";
  EXPECT_THAT(refused(other), HasSubstr("init_from.path"));
}

TEST_F(AllowedRootsTest, EachFileOfASourceNamedByTheirCommonBeginningIsChecked) {
  for (const char* const suffix : {"", ".bin", ".idx"}) {
    const std::string source = directory_.Path(absl::StrCat("data/pair", suffix, "-of"));
    fs::create_symlink(directory_.Path("secret.txt"), source + suffix);
    JobSpec train, validation;
    train.data.train.push_back({.path = source});
    validation.data.validation.push_back({.path = source});
    for (const JobSpec& spec : {train, validation}) {
      const absl::Status refused = roots_.CheckSpec(spec);
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << source << suffix;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("secret.txt"));
    }
  }
}

// A new field with a path fails here until it is checked.
TEST_F(AllowedRootsTest, NoPathFieldOfASpecLeadsOutOfTheRoots) {
  using Set = std::function<void(JobSpec&, const std::string&)>;
  const std::map<std::string, Set> fields = {
      {"data.train[].path",
       [](JobSpec& spec, const std::string& path) { spec.data.train.push_back({.path = path}); }},
      {"data.validation[].path",
       [](JobSpec& spec, const std::string& path) {
         spec.data.validation.push_back({.path = path});
       }},
      {"data.tokenizer_model",
       [](JobSpec& spec, const std::string& path) { spec.data.tokenizer_model = path; }},
      {"init_from.path",
       [](JobSpec& spec, const std::string& path) { spec.init_from.path = path; }},
      {"output.tensorboard",
       [](JobSpec& spec, const std::string& path) { spec.output.tensorboard = path; }},
      {"output.directory", nullptr},  // the daemon replaces it
  };
  std::set<std::string> known, found;
  for (const auto& [name, set] : fields) known.insert(name);
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.allowed == "a path" || doc.allowed == "a path or nothing") found.insert(doc.path);
  }
  EXPECT_EQ(found, known);
  for (const auto& [name, set] : fields) {
    if (set == nullptr) continue;
    for (const std::string& path :
         {std::string("/etc/passwd"), std::string("../../etc/passwd"), std::string("x/../../y"),
          directory_.Path("data/../secret.txt"), directory_.Path("data-2/x")}) {
      JobSpec spec;
      set(spec, path);
      const absl::Status refused = roots_.CheckSpec(spec);
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name << " " << path;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(name.substr(0, name.find('['))))
          << path;
    }
    JobSpec spec;
    set(spec, directory_.Path("data/corpus"));
    EXPECT_EQ(roots_.CheckSpec(spec), absl::OkStatus()) << name;
  }
}

TEST_F(AllowedRootsTest, FilesOfTensorBoardMayBeInTheJobsDirectory) {
  JobSpec spec;
  for (const char* inside : {"", "board", "a/../board", "./board"}) {
    spec.output.tensorboard = inside;
    EXPECT_EQ(roots_.CheckSpec(spec), absl::OkStatus()) << inside;
  }
}

TEST_F(AllowedRootsTest, VariablesNameNoFiles) {
  JobSpec spec;
  spec.env = {{"OMP_NUM_THREADS", "4"}, {"NCCL_DEBUG_FILE", "/tmp/out"}};
  const absl::Status refused = roots_.CheckSpec(spec);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("env.NCCL_DEBUG_FILE: '/tmp/out'"));
  EXPECT_EQ(AllowedRoots().CheckSpec(spec), absl::OkStatus());
  spec.env.pop_back();
  EXPECT_EQ(roots_.CheckSpec(spec), absl::OkStatus());
}

TEST_F(AllowedRootsTest, WithoutRootsEverythingIsAllowed) {
  EXPECT_EQ(AllowedRoots().Check("path", "/etc/passwd"), absl::OkStatus());
  EXPECT_FALSE(AllowedRoots().any());
  EXPECT_FALSE(AllowedRoots::Make({directory_.Path("absent")}).ok());
  EXPECT_FALSE(AllowedRoots::Make({directory_.Path("secret.txt")}).ok());
}

}  // namespace
}  // namespace nibble
