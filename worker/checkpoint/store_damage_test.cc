// Thousands of damages to the files of a store, one at a time: each is found and named, or is
// harmless; no wrong byte is ever returned; and an intact checkpoint is used if there is one.
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::LoadsExactly;
using checkpoint_testing::RandomState;
using checkpoint_testing::Save;
using checkpoint_testing::State;
using checkpoint_testing::TestOptions;
using file_testing::kOneIn;
using file_testing::TempDirectory;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Files = std::map<std::string, std::string>;  // path → content

Files ReadFiles(const std::string& root) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().string()] = file_testing::ContentOf(entry.path());
  }
  return files;
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// Restores the store after a damage and an opening.
void Restore(const std::string& root, const Files& files) {
  const Files now = ReadFiles(root);
  for (const auto& [path, content] : now) {
    if (!files.contains(path)) std::filesystem::remove(path);
  }
  for (const auto& [path, content] : files) {
    const auto found = now.find(path);
    if (found == now.end() || found->second != content) Write(path, content);
  }
}

using Random = std::mt19937_64;

// Damages one file and says how.
std::string DamageFile(Random& random, const std::string& path, const Files& files) {
  std::string content = files.at(path);
  const size_t size = content.size();
  const size_t at = size == 0 ? 0 : random() % size;
  const size_t run = std::min(size - at, static_cast<size_t>(1 + random() % 64));
  std::string how;
  switch (size == 0 ? 9 + random() % 2 : random() % 11) {
    case 0:
    case 1:
    case 2: {
      const int bit = static_cast<int>(random() % 8);
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
      how = absl::StrCat("bit ", bit, " of byte ", at);
      break;
    }
    case 3:
      content.resize(at);
      how = absl::StrCat("cut to ", at);
      break;
    case 4:
      std::fill_n(content.begin() + at, run, '\0');
      how = absl::StrCat(run, " zeros at ", at);
      break;
    case 5:
      for (size_t i = 0; i < run; ++i) content[at + i] = static_cast<char>(random());
      how = absl::StrCat(run, " random bytes at ", at);
      break;
    case 6:
      content.erase(at, run);
      how = absl::StrCat(run, " bytes gone at ", at);
      break;
    case 7: {
      const std::string piece = content.substr(random() % size, run);
      content.replace(at, piece.size(), piece);
      how = absl::StrCat("other bytes of the file at ", at);
      break;
    }
    case 8: {
      // The file of the same kind of another checkpoint or shard.
      auto other = std::next(files.begin(), static_cast<int64_t>(random() % files.size()));
      content = other->second;
      how = absl::StrCat("content of ", other->first);
      break;
    }
    case 9:
      content += std::string(1 + random() % 64, static_cast<char>(random()));
      how = "longer";
      break;
    default:
      std::filesystem::remove(path);
      return "removed";
  }
  Write(path, content);
  return how;
}

class StoreDamageTest : public ::testing::Test {
 protected:
  StoreDamageTest() {
    auto store = CheckpointStore::Open(path_, TestOptions());
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(Save(**store, 10, 1, 1, states_.at(10)), absl::OkStatus());
    EXPECT_EQ(Save(**store, 20, 1, 1, states_.at(20)), absl::OkStatus());
    EXPECT_EQ(Save(**store, 30, 2, 2, states_.at(30)), absl::OkStatus());
    store->reset();
    files_ = ReadFiles(path_);
  }

  // Checks a damaged store: everything that it calls good equals what was saved, and everything
  // else is reported as bad, with a reason. Returns the bad steps.
  std::vector<int64_t> Check(const CheckpointStore& store) {
    std::vector<int64_t> bad;
    for (const auto& [step, state] : states_) {
      absl::Status status;
      const auto reader = store.OpenCheckpoint(step);
      if (reader.ok()) {
        status = (*reader)->Verify().ToStatus();
        const absl::Status loaded = LoadsExactly(**reader, state);
        EXPECT_FALSE(absl::IsInternal(loaded)) << loaded;
        // Verify also finds whatever does not load; whatever Verify passes loads.
        if (status.ok()) {
          EXPECT_EQ(loaded, absl::OkStatus());
        }
      } else {
        status = reader.status();
      }
      if (!status.ok()) {
        bad.push_back(step);
        EXPECT_THAT(std::string(status.message()), HasSubstr(path_)) << status;
      }
    }
    return bad;
  }

  void Try(Random& random, const std::string& path, bool read_only) {
    const std::string how = DamageFile(random, path, files_);
    SCOPED_TRACE(absl::StrCat(path.substr(path_.size()), ": ", how));
    CheckpointStore::Options options = TestOptions();
    options.read_only = read_only;
    {
      const auto store = CheckpointStore::Open(path_, options);
      ASSERT_TRUE(store.ok()) << store.status();
      const std::vector<int64_t> bad = Check(**store);
      // A file belongs to at most one checkpoint, and only that one may be bad.
      ASSERT_LE(bad.size(), 1u);
      if (!bad.empty()) {
        ++found_;
        ASSERT_TRUE(absl::StrContains(path, absl::StrCat("/step-0000000000", bad[0], "-")));
      } else if (!(*store)->open_report().problems.empty()) {
        ++found_;
        ASSERT_TRUE(absl::EndsWith(path, "/STORE"));
      } else {
        ++harmless_;
      }
      const auto good = (*store)->LatestGood();
      ASSERT_TRUE(good.ok()) << good.status();
      const int64_t expected = bad == std::vector<int64_t>{30} ? 20 : 30;
      ASSERT_EQ(good->reader->manifest().header.step, expected);
      ASSERT_EQ(LoadsExactly(*good->reader, states_.at(expected)), absl::OkStatus());
      ASSERT_EQ(good->skipped.size(), expected == 20 ? 1u : 0u);
    }
    Restore(path_, files_);
  }

  // Tests of one seed each, so that they can run side by side.
  void TryMany(uint64_t seed, int count) {
    Random random(seed);
    std::vector<std::string> all, tables;
    for (const auto& [path, content] : files_) {
      all.push_back(path);
      if (absl::EndsWith(path, ".sst")) tables.push_back(path);
    }
    ASSERT_GE(tables.size(), 6u);
    for (int i = 0; i < count && !HasFailure(); ++i) {
      const std::vector<std::string>& from = i % 4 == 0 ? tables : all;
      Try(random, from[random() % from.size()], i % 2 == 0);
    }
    std::printf("%d damages were found, %d did no harm\n", found_, harmless_);
    EXPECT_GT(found_, count / 4);
    EXPECT_GT(harmless_, 0);
  }

  const TempDirectory directory_{TempDirectory::Place::kMemory};
  const std::string path_ = directory_.path() + "/store";
  const std::map<int64_t, State> states_ = {{10, RandomState(10, 3, 1500)},
                                            {20, RandomState(20, 4, 1500)},
                                            {30, RandomState(30, 5, 1500)}};
  Files files_;
  int found_ = 0;
  int harmless_ = 0;
};

TEST_F(StoreDamageTest, DamageIsDetectedOrHarmlessInTheFirstThousand) { TryMany(1, 1000 / kOneIn); }
TEST_F(StoreDamageTest, DamageIsDetectedOrHarmlessInTheSecondThousand) {
  TryMany(2, 1000 / kOneIn);
}
TEST_F(StoreDamageTest, DamageIsDetectedOrHarmlessInTheThirdThousand) { TryMany(3, 1000 / kOneIn); }
TEST_F(StoreDamageTest, DamageIsDetectedOrHarmlessInTheFourthThousand) {
  TryMany(4, 1000 / kOneIn);
}

TEST_F(StoreDamageTest, EveryRemovedOrEmptiedFileIsDetectedOrHarmless) {
  for (const bool remove : {true, false}) {
    for (const auto& [path, content] : files_) {
      SCOPED_TRACE(absl::StrCat(path, remove ? " removed" : " emptied"));
      if (remove) {
        std::filesystem::remove(path);
      } else {
        Write(path, "");
      }
      {
        const auto store = CheckpointStore::Open(path_, TestOptions());
        ASSERT_TRUE(store.ok()) << store.status();
        const std::vector<int64_t> bad = Check(**store);
        const bool needed = absl::EndsWith(path, ".sst") || absl::StrContains(path, "/MANIFEST") ||
                            absl::EndsWith(path, "/CURRENT") ||
                            (remove && absl::EndsWith(path, ".log"));
        ASSERT_EQ(bad.size(), needed ? 1u : 0u);
      }
      Restore(path_, files_);
    }
  }
}

TEST_F(StoreDamageTest, APipeInPlaceOfAFileIsDamageAndKeepsNobodyWaiting) {
  for (const auto& [path, content] : files_) {
    if (!absl::EndsWith(path, ".sst") && !absl::EndsWith(path, "/CURRENT")) continue;
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  }
  const auto store = CheckpointStore::Open(path_, TestOptions());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = (*store)->LatestGood().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a regular file"));
}

TEST_F(StoreDamageTest, ReadingADamagedStoreChangesNothingInIt) {
  for (const auto& [path, content] : files_) {
    if (!absl::EndsWith(path, ".sst")) continue;
    std::string damaged = content;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    Write(path, damaged);
  }
  const Files before = ReadFiles(path_);
  CheckpointStore::Options options = TestOptions();
  options.read_only = true;
  const auto store = CheckpointStore::Open(path_, options);
  ASSERT_TRUE(store.ok()) << store.status();
  Check(**store);
  EXPECT_EQ(ReadFiles(path_), before);
}

TEST_F(StoreDamageTest, IfEveryCheckpointIsDamagedTheErrorNamesEach) {
  for (const auto& [path, content] : files_) {
    if (absl::EndsWith(path, "/MANIFEST")) std::filesystem::remove(path);
  }
  const auto store = CheckpointStore::Open(path_, TestOptions());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = (*store)->LatestGood().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  for (const char* step : {"step 10:", "step 20:", "step 30:"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(step));
  }
  const auto list = (*store)->List();
  ASSERT_TRUE(list.ok());
  ASSERT_THAT(*list, SizeIs(3));
  for (const CheckpointSummary& summary : *list) {
    EXPECT_TRUE(absl::IsDataLoss(summary.status)) << summary.status;
  }
}

TEST_F(StoreDamageTest, DamageIsNamedByTensorChunkAndReason) {
  // Find a chunk's bytes in the tables of step 20 and flip one of them.
  const State& state = states_.at(20);
  const auto largest = std::max_element(
      state.begin(), state.end(),
      [](const auto& a, const auto& b) { return a.bytes.size() < b.bytes.size(); });
  ASSERT_GT(largest->bytes.size(), 2100u);
  const std::string needle(reinterpret_cast<const char*>(largest->bytes.data()) + 2048, 20);
  bool found = false;
  for (const auto& [path, content] : files_) {
    const size_t at = content.find(needle);
    if (at == std::string::npos) continue;
    found = true;
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    Write(path, damaged);
  }
  ASSERT_TRUE(found);
  const auto store = CheckpointStore::Open(path_, TestOptions());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto verification = (*store)->Verify(20);
  ASSERT_TRUE(verification.ok()) << verification.status();
  ASSERT_THAT(verification->damage, SizeIs(1));
  EXPECT_EQ(verification->damage[0].tensor, largest->whole.name);
  EXPECT_EQ(verification->damage[0].chunk, 2);
  EXPECT_THAT(verification->damage[0].reason, HasSubstr("checksum"));
  EXPECT_TRUE((*store)->Verify(30)->ok());
}

}  // namespace
}  // namespace nibble
