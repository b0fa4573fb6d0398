#include "server/store/faulty_store.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_store.h"
#include "server/store/store.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using Fault = FaultyStore::Fault;

class FaultyStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<FaultyStore> Open() {
    StoreOptions options;
    options.cluster = "test";
    auto behind = MemoryStore::Open(disk_, options);
    EXPECT_TRUE(behind.ok()) << behind.status();
    return std::make_unique<FaultyStore>(*std::move(behind));
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

TEST_F(FaultyStoreTest, ALostBatchIsNotThereAfterARestart) {
  auto store = Open();
  store->FailAppend(3, Fault::kLost);
  EXPECT_EQ(store->Commit({}).value(), 1u);
  EXPECT_EQ(store->Commit({}).value(), 2u);
  const absl::Status failed = store->Commit({}).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_EQ(store->Commit({}).status(), failed);
  EXPECT_EQ(store->TrimJournal(1), failed);
  EXPECT_EQ(store->Health(), failed);
  store.reset();
  EXPECT_EQ(Open()->Info().last_sequence, 2u);
}

TEST_F(FaultyStoreTest, AWrittenBatchIsReportedAsFailedAndThereAfterARestart) {
  auto store = Open();
  store->FailAppend(1, Fault::kWritten);
  EXPECT_TRUE(absl::IsUnavailable(store->Commit({.record = "r"}).status()));
  EXPECT_TRUE(absl::IsUnavailable(store->Commit({}).status()));
  store.reset();
  store = Open();
  EXPECT_EQ(store->Info().last_sequence, 1u);
  EXPECT_EQ(store->Commit({}).value(), 2u);
}

TEST_F(FaultyStoreTest, AFullDiskIsResourceExhausted) {
  auto store = Open();
  store->FailAppend(1, Fault::kDiskFull);
  EXPECT_TRUE(absl::IsResourceExhausted(store->Commit({}).status()));
  store.reset();
  EXPECT_EQ(Open()->Info().last_sequence, 0u);
}

TEST_F(FaultyStoreTest, HeldBatchesWaitInOrderUntilTheyAreReleased) {
  auto store = Open();
  store->Hold();
  std::vector<int> called;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store
                  ->Append({},
                           [&called, i](const absl::Status& status) {
                             EXPECT_TRUE(status.ok()) << status;
                             called.push_back(i);
                           })
                  .value(),
              static_cast<uint64_t>(i) + 1);
  }
  EXPECT_EQ(store->Metrics().waiting, 3u);
  EXPECT_EQ(store->Info().last_sequence, 0u);
  store->Release();
  EXPECT_EQ(store->Commit({}).value(), 4u);
  EXPECT_THAT(called, ElementsAre(0, 1, 2));
}

TEST_F(FaultyStoreTest, HeldBatchesAreLetThroughWhenTheStoreIsDestroyed) {
  auto store = Open();
  store->Hold();
  bool called = false;
  ASSERT_TRUE(
      store->Append({}, [&called](const absl::Status& status) { called = status.ok(); }).ok());
  store.reset();
  EXPECT_TRUE(called);
  EXPECT_EQ(Open()->Info().last_sequence, 1u);
}

}  // namespace
}  // namespace nibble
