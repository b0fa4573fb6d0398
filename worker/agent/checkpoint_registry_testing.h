// For tests: a checkpoint registry with ranks that take snapshots, and a coordinator that answers
// its reports.
//
// Ownership: tests own it. Thread-safety: none; the registry's own threads signal changes.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_TESTING_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_TESTING_H_

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/stuck_disk_testing.h"
#include "worker/agent/trash.h"
#include "worker/checkpoint/store_testing.h"
#include "worker/link/checkpoint_client.h"
#include "worker/link/link_host.h"
#include "worker/link/rank_link.h"

namespace nibble::agent_testing {

inline constexpr std::chrono::seconds kReportPatience(30);
inline constexpr char kRegistryJob[] = "gpt-1";

inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A rank with its link, and the daemon's end of that link.
struct TestRank {
  std::unique_ptr<LinkHost> host;
  std::unique_ptr<RankLink> link;
  std::unique_ptr<CheckpointClient> client;
};

class CheckpointRegistryTest : public testing::Test {
 protected:
  CheckpointRegistryTest() { EXPECT_NE(mkdtemp(sockets_.data()), nullptr); }
  ~CheckpointRegistryTest() override { std::filesystem::remove_all(sockets_); }
  void Open() {
    registry_.reset();
    OpenTrash();
    registry_ = std::make_unique<CheckpointRegistry>(
        CheckpointRegistry::Options{.clock = SteadySeconds,
                                    .ordered_by = [this](const std::string&) { return store_; },
                                    .followed = [this] { return store_; },
                                    .trash = trash_.get(),
                                    .changed =
                                        [this] {
                                          const MutexLock lock(&mutex_);
                                          changed_.SignalAll();
                                        },
                                    .faults = faults_});
    ASSERT_TRUE(
        registry_->OpenJob(kRegistryJob, directory_.path(), checkpoint_testing::TestIdentity())
            .ok());
  }
  void OpenTrash() {
    trash_.reset();  // saves its clock
    auto trash = Trash::Open({.directory = directory_.path() + "/trash",
                              .clock = [this] { return now_ms_.load(); },
                              .log =
                                  [this](const std::string& line) {
                                    const MutexLock lock(&log_mutex_);
                                    log_ += line + "\n";
                                  },
                              .faults = faults_});
    ASSERT_TRUE(trash.ok()) << trash.status();
    trash_ = *std::move(trash);
  }
  std::string Log() {
    const MutexLock lock(&log_mutex_);
    return log_;
  }
  std::vector<v1::TrashedShard> Trashed() {
    return trash_->List([this](const std::string& job) { return registry_->NewestAccepted(job); });
  }
  // Connects a rank of a gang with `world` ranks.
  std::unique_ptr<TestRank> Connect(int64_t attempt, int32_t rank = 0, int32_t world = 1,
                                    const std::string& job = kRegistryJob) {
    world_ = world;
    const auto sink = registry_->OpenAttempt(job, attempt, 1);
    EXPECT_TRUE(sink.ok()) << sink.status();
    auto one = std::make_unique<TestRank>();
    auto host =
        LinkHost::Start({.address = absl::StrCat(sockets_, "/", ++links_),
                         .attempt = attempt,
                         .first_rank = rank,
                         .ranks = 1,
                         .clock = [] { return static_cast<int64_t>(SteadySeconds() * 1e3); },
                         .snapshots = *sink});
    EXPECT_TRUE(host.ok()) << host.status();
    one->host = *std::move(host);
    auto link =
        RankLink::Connect({.address = one->host->address(), .rank = rank, .attempt = attempt});
    EXPECT_TRUE(link.ok()) << link.status();
    one->link = *std::move(link);
    auto client = CheckpointClient::Create(*one->link,
                                           {{.name = "w",
                                             .dtype = FileDType::kF32,
                                             .shape = {4 * world},
                                             .first = 4 * rank,
                                             .count = 4}},
                                           SteadySeconds);
    EXPECT_TRUE(client.ok()) << client.status();
    one->client = *std::move(client);
    return one;
  }
  void Snapshot(TestRank& rank, int64_t step, int64_t attempt) {
    const size_t before = registry_->Report(number_).size();
    const absl::Status taken =
        rank.client->Snapshot(checkpoint_testing::TestHeader(step, attempt, world_),
                              [](absl::Span<const absl::Span<std::byte>> buffers) {
                                std::memset(buffers[0].data(), 7, buffers[0].size());
                                return absl::OkStatus();
                              });
    ASSERT_TRUE(taken.ok()) << taken;
    ASSERT_TRUE(Await([&] { return registry_->Report(number_).size() == before + 1; }));
  }
  // Waits until done() is true; calls it again after each change.
  template <class Done>
  bool Await(const Done& done) {
    const auto until = std::chrono::steady_clock::now() + kReportPatience;
    const MutexLock lock(&mutex_);
    while (!done()) {
      if (changed_.WaitUntil(&mutex_, until)) return false;
    }
    return true;
  }
  std::vector<v1::ShardReport> Report() { return registry_->Report(++number_); }
  // Answers all reports so far, unless `answered` is given.
  void Answer(const std::vector<v1::ShardReport>& dropped = {}, int64_t answered = -1,
              v1::DeletionKind kind = v1::DELETION_KIND_UNSPECIFIED) {
    v1::ConnectResponse response;
    *response.mutable_store() = answering_;
    response.set_answered(answered < 0 ? number_ : answered);
    for (const v1::ShardReport& shard : dropped) {
      v1::DroppedShard& one = *response.add_dropped();
      *one.mutable_ref() = shard.ref();
      one.set_rank(shard.rank());
      one.set_kind(kind);
    }
    registry_->Answered(response);
    registry_->AwaitSettled();
  }
  bool IsThere(const v1::CheckpointRef& ref) { return registry_->Open(ref).ok(); }

  StuckDisk disk_;
  std::unique_ptr<DiskFaults> own_faults_;  // of a test
  DiskFaults* faults_ = &disk_;
  file_testing::TempDirectory directory_;
  Mutex log_mutex_;
  std::string log_ ABSL_GUARDED_BY(log_mutex_);  // of the trash
  std::atomic<int64_t> now_ms_ = 1000;           // of the trash
  std::unique_ptr<Trash> trash_;
  std::string sockets_ = "/tmp/nibble-registry-XXXXXX";  // sockets have short names
  int links_ = 0;
  v1::StoreIdentity store_;      // ordered the shards that are made here
  v1::StoreIdentity answering_;  // of the coordinator
  int64_t number_ = 1;           // of the latest report
  int32_t world_ = 1;
  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<CheckpointRegistry> registry_;
};

}  // namespace nibble::agent_testing

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_REGISTRY_TESTING_H_
