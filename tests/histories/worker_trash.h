// A simulated worker's trash, and what it does of an answer besides obeying orders about gangs and
// shards. The code of before workers had a trash (commit 523cc987) compiles without: there the same
// histories show what was lost.
//
// Ownership: owns the trash, which outlives the registry. Thread-safety: one thread.
#ifndef NIBBLE_TESTS_HISTORIES_WORKER_TRASH_H_
#define NIBBLE_TESTS_HISTORIES_WORKER_TRASH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/data_directory.h"

#if __has_include("worker/agent/trash.h")
#include "worker/agent/trash.h"

namespace nibble {

class WorkerTrash {
 public:
  // `most_bytes`: as in Trash::Options.
  WorkerTrash(const std::string& directory, int64_t most_bytes, std::function<int64_t()> clock) {
    auto opened =
        Trash::Open({.directory = directory, .most_bytes = most_bytes, .clock = std::move(clock)});
    EXPECT_TRUE(opened.ok()) << opened.status();
    trash_ = *std::move(opened);
  }
  void AddTo(CheckpointRegistry::Options& options) { options.trash = trash_.get(); }
  void Report(const CheckpointRegistry& registry, v1::ConnectRequest& report) {
    const auto newest = [&](const std::string& job) { return registry.NewestAccepted(job); };
    for (v1::TrashedShard& shard : trash_->List(newest)) *report.add_trash() = std::move(shard);
  }
  void Obey(const v1::ConnectResponse& desired, CheckpointRegistry& registry, Provenance& records) {
    trash_->Tidy([&](const std::string& job) { return registry.NewestAccepted(job); });
    for (const v1::JobOrder& job : desired.jobs()) (void)records.NoteJob(job, desired.store());
    EXPECT_TRUE(records.SaveChanges().ok());
    for (const v1::TrashOrder& order : desired.restores()) registry.Restore(order.ref());
  }

 private:
  std::unique_ptr<Trash> trash_;
};

}  // namespace nibble

#else

namespace nibble {

class WorkerTrash {
 public:
  WorkerTrash(const std::string&, int64_t, const std::function<int64_t()>&) {}
  void AddTo(CheckpointRegistry::Options&) {}
  void Report(const CheckpointRegistry&, v1::ConnectRequest&) {}
  void Obey(const v1::ConnectResponse&, CheckpointRegistry&, Provenance&) {}
};

}  // namespace nibble

#endif

#endif  // NIBBLE_TESTS_HISTORIES_WORKER_TRASH_H_
