// The rules of store.h, checked for every implementation.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;
using store_testing::Content;
using store_testing::RandomBatch;
using store_testing::ReadAll;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Opened = absl::StatusOr<std::unique_ptr<Store>>;
constexpr size_t kAll = std::numeric_limits<size_t>::max();

// A place where a store can be opened repeatedly.
class Place {
 public:
  virtual ~Place() = default;
  virtual Opened Open(const StoreOptions& options) = 0;
};

class InMemory : public Place {
 public:
  Opened Open(const StoreOptions& options) override { return MemoryStore::Open(disk_, options); }

 private:
  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

class OnDisk : public Place {
 public:
  Opened Open(const StoreOptions& options) override {
    RocksStoreOptions rocks;
    static_cast<StoreOptions&>(rocks) = options;
    return RocksStore::Open(directory_.path() + "/store", rocks);
  }

 private:
  TempDirectory directory_;
};

template <class Behind>
class WithoutFaults : public Place {
 public:
  Opened Open(const StoreOptions& options) override {
    Opened behind = behind_.Open(options);
    if (!behind.ok()) return behind;
    return std::make_unique<FaultyStore>(*std::move(behind));
  }

 private:
  Behind behind_;
};

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;
};
void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}

StoreOptions Options(const std::string& cluster = "test") {
  StoreOptions options;
  options.cluster = cluster;
  return options;
}

StoreBatch Put(const std::string& kind, const std::string& key, const std::string& value) {
  return {.record = "put " + key, .changes = {{kind, key, value}}};
}

class StoreTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    place_ = GetParam().make();
    Reopen();
  }

  void Reopen() {
    store_.reset();
    Opened opened = place_->Open(Options());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  uint64_t Commit(StoreBatch batch) {
    const absl::StatusOr<uint64_t> sequence = store_->Commit(std::move(batch));
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.value_or(0);
  }

  std::vector<std::string> Entities(const std::string& kind) {
    std::vector<std::string> found;
    const absl::Status s = store_->ReadEntities(kind, [&](const StoredEntity& entity) {
      found.push_back(
          absl::StrCat(entity.kind, "/", entity.key, "=", entity.value, "@", entity.sequence));
      return absl::OkStatus();
    });
    EXPECT_TRUE(s.ok()) << s;
    return found;
  }

  absl::StatusOr<std::vector<std::string>> Journal(uint64_t from, size_t limit = kAll) {
    std::vector<std::string> found;
    NIBBLE_RETURN_IF_ERROR(store_->ReadJournal(from, limit, [&](const StoredRecord& record) {
      found.push_back(absl::StrCat(record.sequence, ":", record.record));
      return absl::OkStatus();
    }));
    return found;
  }

  std::unique_ptr<Place> place_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreTest, ANewStoreIsEmptyAndNamesItsCluster) {
  EXPECT_EQ(store_->Info().cluster, "test");
  EXPECT_EQ(store_->Info().last_sequence, 0u);
  EXPECT_EQ(store_->Info().first_sequence, 1u);
  EXPECT_THAT(Entities(""), IsEmpty());
  EXPECT_THAT(*Journal(1), IsEmpty());
  EXPECT_TRUE(store_->Health().ok());
  EXPECT_TRUE(store_->Verify().ok());
}

TEST_P(StoreTest, BatchesAreNumberedFromOneAcrossRestarts) {
  EXPECT_EQ(Commit({}), 1u);
  EXPECT_EQ(Commit({}), 2u);
  Reopen();
  EXPECT_EQ(store_->Info().last_sequence, 2u);
  EXPECT_EQ(Commit({}), 3u);
}

TEST_P(StoreTest, CommittedBatchesArePresentAfterARestart) {
  Content expected;
  for (uint64_t i = 1; i <= 100; ++i) {
    const StoreBatch batch = RandomBatch(i, 300);
    expected.Apply(Commit(batch), batch);
    if (i % 25 != 0) continue;
    Reopen();
    const absl::StatusOr<Content> content = ReadAll(*store_);
    ASSERT_TRUE(content.ok()) << content.status();
    ASSERT_EQ(*content, expected) << "after " << i;
  }
  EXPECT_TRUE(store_->Verify().ok()) << store_->Verify();
}

TEST_P(StoreTest, ChangesOfABatchAreAppliedInOrder) {
  Commit({.changes = {{"job", "a", "1"},
                      {"job", "a", std::nullopt},
                      {"job", "b", std::nullopt},
                      {"job", "b", "2"},
                      {"job", "b", "3"}}});
  EXPECT_THAT(Entities(""), ElementsAre("job/b=3@1"));
}

TEST_P(StoreTest, EntitiesAreSortedByKindAndKeyAndOneKindIsReadWithoutTheOthers) {
  Commit(Put("job", "b", "1"));
  Commit(Put("job", "a", "2"));
  Commit(Put("jobs", "c", "3"));
  Commit(Put("jo", "d", "4"));
  EXPECT_THAT(Entities(""), ElementsAre("jo/d=4@4", "job/a=2@2", "job/b=1@1", "jobs/c=3@3"));
  EXPECT_THAT(Entities("job"), ElementsAre("job/a=2@2", "job/b=1@1"));
  EXPECT_THAT(Entities("j"), IsEmpty());
}

TEST_P(StoreTest, KeysAndValuesMayBeAnyBytes) {
  const std::string bytes("\0\xff\n\1", 4);
  Commit(Put("job", bytes, bytes));
  Commit(Put("job", "empty", ""));
  Reopen();
  const absl::StatusOr<Content> content = ReadAll(*store_);
  ASSERT_TRUE(content.ok()) << content.status();
  const decltype(content->entities) expected = {{{"job", bytes}, bytes}, {{"job", "empty"}, ""}};
  EXPECT_EQ(content->entities, expected);
}

TEST_P(StoreTest, AnErrorOfTheCallerEndsTheRead) {
  for (int i = 0; i < 3; ++i) Commit(Put("job", absl::StrCat(i), "v"));
  int seen = 0;
  const auto refuse = [&](const auto&) {
    ++seen;
    return absl::AbortedError("enough");
  };
  EXPECT_EQ(store_->ReadJournal(1, kAll, refuse), absl::AbortedError("enough"));
  EXPECT_EQ(store_->ReadEntities("job", refuse), absl::AbortedError("enough"));
  EXPECT_EQ(seen, 2);
}

TEST_P(StoreTest, TheJournalIsReadFromAnySequenceNumberUpToTheLimit) {
  for (int i = 1; i <= 5; ++i) Commit({.record = absl::StrCat("r", i)});
  EXPECT_THAT(*Journal(1, 2), ElementsAre("1:r1", "2:r2"));
  EXPECT_THAT(*Journal(4), ElementsAre("4:r4", "5:r5"));
  EXPECT_THAT(*Journal(6), IsEmpty());
  EXPECT_THAT(*Journal(2, 0), IsEmpty());
}

TEST_P(StoreTest, AReadBeyondTheEndIsRefusedNamingTheEnd) {
  Commit({});
  const absl::Status status = Journal(3).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the last record is 1"));
}

TEST_P(StoreTest, TrimmingDropsOldRecordsAndKeepsEntities) {
  for (int i = 1; i <= 5; ++i) {
    Commit({.record = absl::StrCat("r", i), .changes = {{"job", absl::StrCat(i), "v"}}});
  }
  ASSERT_TRUE(store_->TrimJournal(3).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(store_->Info().first_sequence, 4u);
    EXPECT_THAT(*Journal(4), ElementsAre("4:r4", "5:r5"));
    EXPECT_EQ(Entities("job").size(), 5u);
    const absl::Status status = Journal(3).status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the oldest record kept is 4"));
    EXPECT_TRUE(store_->Verify().ok()) << store_->Verify();
    Reopen();
  }
}

TEST_P(StoreTest, TheWholeJournalCanBeTrimmedAndNumberingContinues) {
  for (int i = 0; i < 3; ++i) Commit({});
  ASSERT_TRUE(store_->TrimJournal(3).ok());
  ASSERT_TRUE(store_->TrimJournal(2).ok());  // trimmed already
  Reopen();
  EXPECT_EQ(store_->Info().first_sequence, 4u);
  EXPECT_THAT(*Journal(4), IsEmpty());
  EXPECT_EQ(Commit({.record = "next"}), 4u);
  EXPECT_THAT(*Journal(4), ElementsAre("4:next"));
}

TEST_P(StoreTest, TrimmingBeyondTheLastRecordIsRefused) {
  Commit({});
  EXPECT_TRUE(absl::IsOutOfRange(store_->TrimJournal(2)));
  EXPECT_EQ(store_->Info().first_sequence, 1u);
}

TEST_P(StoreTest, ABatchBeyondTheBoundsIsRefusedNamingTheFieldAndTheStoreContinues) {
  const std::pair<StoreBatch, const char*> cases[] = {
      {Put("", "k", "v"), "kind has 0 bytes, allowed are 1 to 64"},
      {Put(std::string("a\0b", 3), "k", "v"), "kind has a zero byte at 1"},
      {Put("job", "", "v"), "key of a job has 0 bytes"},
      {Put("job", std::string(1025, 'k'), "v"), "1025 bytes, allowed are 1 to 1024"},
      {{.record = std::string(kMaxStoreBatchBytes + 1, 'r')}, "16777217 bytes, allowed are 167772"},
  };
  for (const auto& [batch, message] : cases) {
    const absl::Status status = store_->Commit(batch).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(store_->Health().ok());
  EXPECT_EQ(Commit(Put(std::string(64, 'k'), std::string(1024, 'k'), "v")), 1u);
  EXPECT_EQ(store_->Metrics().refused, 5u);
}

TEST_P(StoreTest, CallbacksRunInOrderAndAfterTheirBatchCanBeRead) {
  Store* const store = store_.get();
  Mutex mutex;
  std::vector<uint64_t> numbers, called;
  for (int i = 0; i < 200; ++i) {
    const std::string key = absl::StrCat(i);
    MutexLock lock(&mutex);
    const auto sequence = store_->Append(Put("job", key, "v"), [&, key, i](absl::Status status) {
      EXPECT_TRUE(status.ok()) << status;
      bool found = false;
      const absl::Status read = store->ReadEntities("job", [&](const StoredEntity& entity) {
        found |= entity.key == key;
        return absl::OkStatus();
      });
      EXPECT_TRUE(read.ok() && found) << key << ": " << read;
      EXPECT_GE(store->Info().last_sequence, static_cast<uint64_t>(i) + 1);
      MutexLock lock(&mutex);
      called.push_back(static_cast<uint64_t>(i) + 1);
    });
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    numbers.push_back(*sequence);
  }
  Reopen();  // waits for all batches
  EXPECT_EQ(called, numbers);
  EXPECT_EQ(called.size(), 200u);
  EXPECT_EQ(Entities("job").size(), 200u);
}

TEST_P(StoreTest, ManyThreadsCommitAndNothingIsLostOrMixed) {
  constexpr int kThreads = 8, kEach = 25;
  Mutex mutex;
  std::vector<std::pair<uint64_t, StoreBatch>> committed;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const StoreBatch batch = RandomBatch(static_cast<uint64_t>(t * kEach + i), 100);
        const absl::StatusOr<uint64_t> sequence = store_->Commit(batch);
        EXPECT_TRUE(sequence.ok()) << sequence.status();
        MutexLock lock(&mutex);
        committed.emplace_back(sequence.value_or(0), batch);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(committed.begin(), committed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  Content expected;
  for (size_t i = 0; i < committed.size(); ++i) {
    ASSERT_EQ(committed[i].first, i + 1);
    expected.Apply(committed[i].first, committed[i].second);
  }
  Reopen();
  EXPECT_EQ(*ReadAll(*store_), expected);
}

TEST_P(StoreTest, ReadsDuringCommitsAndTrimsSeeWholeBatches) {
  // Each batch sets both entities to the same value: a reader never sees them apart.
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      const std::string value = absl::StrCat(i);
      Commit({.record = value, .changes = {{"a", "x", value}, {"b", "x", value}}});
      if (i % 50 == 49) {
        EXPECT_TRUE(store_->TrimJournal(store_->Info().last_sequence - 5).ok());
      }
    }
  });
  for (int i = 0; i < 100; ++i) {
    std::vector<std::string> values;
    EXPECT_TRUE(store_
                    ->ReadEntities("",
                                   [&](const StoredEntity& entity) {
                                     values.emplace_back(entity.value);
                                     return absl::OkStatus();
                                   })
                    .ok());
    EXPECT_TRUE(values.empty() || values.front() == values.back());
    const auto journal = Journal(store_->Info().first_sequence);
    EXPECT_TRUE(journal.ok() || absl::IsOutOfRange(journal.status())) << journal.status();
  }
  writer.join();
}

TEST_P(StoreTest, AnotherClustersStoreIsRefusedNamingBoth) {
  store_.reset();
  const absl::Status status = place_->Open(Options("other")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cluster \"test\", not to \"other\""));
  Reopen();
}

TEST_P(StoreTest, AnInvalidClusterNameIsRefused) {
  store_.reset();
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string(129, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GetParam().make()->Open(Options(name)).status()));
  }
}

TEST_P(StoreTest, AStoreIsOpenOnlyOnce) {
  const absl::Status status = place_->Open(Options()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  Reopen();
}

TEST_P(StoreTest, NoStoreIsCreatedUnlessAskedFor) {
  const std::unique_ptr<Place> place = GetParam().make();
  StoreOptions options = Options();
  options.create_if_missing = false;
  EXPECT_TRUE(absl::IsNotFound(place->Open(options).status()));
  options.create_if_missing = true;
  EXPECT_TRUE(place->Open(options).ok());
  options.create_if_missing = false;
  EXPECT_TRUE(place->Open(options).ok());
}

TEST_P(StoreTest, MetricsCountCommitsFailuresAndRefusals) {
  for (int i = 0; i < 10; ++i) Commit({.record = "1234", .changes = {{"j", "6", std::nullopt}}});
  const StoreMetrics metrics = store_->Metrics();
  EXPECT_EQ(metrics.commits, 10u);
  EXPECT_EQ(metrics.failed, 0u);
  EXPECT_EQ(metrics.committed_bytes, 60u);
  EXPECT_EQ(metrics.waiting, 0u);
  EXPECT_EQ(metrics.waiting_bytes, 0u);
  EXPECT_EQ(metrics.batches_per_write.sum, 10);
  EXPECT_EQ(metrics.write_seconds.count, metrics.batches_per_write.count);
}

INSTANTIATE_TEST_SUITE_P(
    AllStores, StoreTest,
    ::testing::Values(
        Implementation{"Memory", [] { return std::make_unique<InMemory>(); }},
        Implementation{"Rocks", [] { return std::make_unique<OnDisk>(); }},
        Implementation{"FaultyMemory", [] { return std::make_unique<WithoutFaults<InMemory>>(); }},
        Implementation{"FaultyRocks", [] { return std::make_unique<WithoutFaults<OnDisk>>(); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nibble
