#include "server/scheduler/place.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduler/random_snapshot_testing.h"

namespace nibble::scheduler {
namespace {

using ::testing::IsEmpty;

FreeIndex RandomIndex(const Cluster& cluster, uint64_t seed) {
  std::mt19937_64 random(seed);
  FreeIndex index(cluster);
  for (size_t n = 0; n < cluster.nodes().size(); ++n) {
    index.Set(static_cast<int>(n), static_cast<int>(random() % (cluster.nodes()[n].capacity + 1)));
  }
  return index;
}

TEST(Place, TakesExactlyTheCountFromFreeSlotsOfTheKinds) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Snapshot snapshot = testing::RandomSnapshot(seed, {.workers = 12, .jobs = 1});
    const Cluster cluster(snapshot.workers);
    const FreeIndex index = RandomIndex(cluster, seed);
    const Job job{.required = {seed % 2 == 0 ? "device=cuda" : "device=cpu"},
                  .preferred = {"fp4=yes"}};
    const EligibleKinds kinds = FindEligibleKinds(cluster, job);
    const int64_t free = FreeOn(index, kinds);
    for (int count = 1; count <= free; ++count) {
      int taken = 0;
      for (const NodeSlots& on : Place(index, kinds, count)) {
        ASSERT_GT(on.count, 0);
        ASSERT_LE(on.count, index.free(on.node));
        ASSERT_TRUE(std::any_of(kinds.begin(), kinds.end(), [&](const EligibleKind& kind) {
          return kind.kind == cluster.nodes()[on.node].kind;
        }));
        taken += on.count;
      }
      ASSERT_EQ(taken, count) << "seed " << seed;
    }
    ASSERT_THAT(Place(index, kinds, static_cast<int>(free) + 1), IsEmpty());
  }
}

TEST(Place, UsesTheFewestWorkersOfOneKind) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Snapshot snapshot = testing::RandomSnapshot(seed, {.workers = 12, .jobs = 1});
    for (Worker& worker : snapshot.workers) worker.labels.clear();
    const Cluster cluster(snapshot.workers);
    const FreeIndex index = RandomIndex(cluster, seed);
    const EligibleKinds kinds = FindEligibleKinds(cluster, {});
    std::vector<int> fullest;
    for (size_t n = 0; n < cluster.nodes().size(); ++n) {
      fullest.push_back(index.free(static_cast<int>(n)));
    }
    std::sort(fullest.rbegin(), fullest.rend());
    for (int count = 1; count <= FreeOn(index, kinds); ++count) {
      size_t nodes = 0;
      for (int left = count; left > 0; ++nodes) left -= fullest[nodes];
      ASSERT_EQ(Place(index, kinds, count).size(), nodes) << "seed " << seed << " count " << count;
    }
  }
}

TEST(Place, ALesserKindAloneIsPreferredToAMixture) {
  const std::vector<Worker> workers = {
      {.name = "best", .labels = {"fp4=yes"}, .slots = 2},
      {.name = "plain1", .slots = 4},
  };
  const Cluster cluster(workers);
  FreeIndex index(cluster);
  for (size_t n = 0; n < workers.size(); ++n) {
    index.Set(static_cast<int>(n), cluster.nodes()[n].capacity);
  }
  const EligibleKinds kinds = FindEligibleKinds(cluster, {.preferred = {"fp4=yes"}});
  EXPECT_EQ(cluster.Named(Place(index, kinds, 2)), (Placement{{"best", 2}}));
  EXPECT_EQ(cluster.Named(Place(index, kinds, 4)), (Placement{{"plain1", 4}}));
  EXPECT_EQ(cluster.Named(Place(index, kinds, 5)), (Placement{{"best", 1}, {"plain1", 4}}));
}

TEST(FreeIndex, FindsTheSameNodesAsALinearScan) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Snapshot snapshot = testing::RandomSnapshot(seed, {.workers = 200, .jobs = 1});
    const Cluster cluster(snapshot.workers);
    const FreeIndex index = RandomIndex(cluster, seed);
    const int nodes = static_cast<int>(cluster.nodes().size());
    for (int begin = 0; begin <= nodes; begin += 7) {
      for (int f = 1; f <= index.max_free(); ++f) {
        const int end = std::min(nodes, begin + 60);
        int first = -1;
        for (int n = begin; n < end && first < 0; ++n) first = index.free(n) == f ? n : -1;
        ASSERT_EQ(index.Find(begin, end, f), first);
      }
    }
  }
}

TEST(FreeIndex, ScopedChangesAreUndone) {
  const Snapshot snapshot = testing::RandomSnapshot(3, {.workers = 9, .jobs = 1});
  const Cluster cluster(snapshot.workers);
  FreeIndex index = RandomIndex(cluster, 3);
  const int before = index.free(0);
  {
    ChangedForNow changed(index);
    changed.Set(0, 0);
    changed.Set(0, 1);
    EXPECT_EQ(index.free(0), 1);
  }
  EXPECT_EQ(index.free(0), before);
}

}  // namespace
}  // namespace nibble::scheduler
