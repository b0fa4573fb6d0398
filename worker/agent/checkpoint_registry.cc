#include "worker/agent/checkpoint_registry.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/staged_file.h"
#include "common/status_macros.h"
#include "worker/agent/data_directory.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

absl::Status CheckOffer(const CheckpointHeader& header, const std::vector<ShardManifest>& shards) {
  for (const ShardManifest& shard : shards) {
    NIBBLE_RETURN_IF_ERROR(CheckShard(shard));
    if (shard.step != header.step || shard.attempt != header.attempt ||
        shard.rank >= header.world) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard of rank ", shard.rank, ", step ", shard.step, ", attempt ",
                       shard.attempt, " is not of a checkpoint of step ", header.step, ", attempt ",
                       header.attempt, ", world ", header.world));
    }
  }
  // Only with all shards here can the whole manifest be checked.
  if (static_cast<int32_t>(shards.size()) != header.world) return absl::OkStatus();
  return MakeManifest(header, shards).status();
}

}  // namespace

bool CheckpointRegistry::Entry::accepted() const {
  return std::all_of(shards.begin(), shards.end(),
                     [](const auto& shard) { return shard.second.accepted; });
}

CheckpointRegistry::Key CheckpointRegistry::KeyOf(const v1::CheckpointRef& ref) {
  return {ref.job(), ref.step(), ref.attempt()};
}

std::string CheckpointRegistry::NameOf(const Key& key) {
  const auto& [job, step, attempt] = key;
  return absl::StrCat("checkpoint of ", job, ", step ", step, ", attempt ", attempt);
}

CheckpointRegistry::CheckpointRegistry(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { SettleAll(); });
}

CheckpointRegistry::~CheckpointRegistry() {
  std::vector<std::unique_ptr<CheckpointHost>> hosts;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    for (auto& [name, job] : jobs_) {
      for (auto& [attempt, host] : job.hosts) hosts.push_back(std::move(host));
    }
  }
  settled_changed_.notify_all();
  todo_changed_.notify_all();
  thread_.join();
  hosts.clear();  // joins the hosts' threads, which come back from Commit
}

void CheckpointRegistry::Say(const std::string& line) const {
  if (options_.log) options_.log(line);
}

absl::Status CheckpointRegistry::OpenJob(const std::string& job, const std::string& directory,
                                         const StoreIdentity& identity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (jobs_.contains(job)) return absl::OkStatus();
  std::error_code error;
  const std::string path = directory + "/checkpoints";
  std::filesystem::create_directories(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("making ", path));
  Job opened = {.directory = directory};
  // The coordinator decides about retention.
  NIBBLE_ASSIGN_OR_RETURN(
      opened.store, CheckpointStore::Open(
                        path, {.identity = identity,
                               .decides = false,
                               .retention = {.keep_last = std::numeric_limits<int32_t>::max()}}));
  opened.generation = opened.store->generation();
  NIBBLE_RETURN_IF_ERROR(Hold(job, opened));
  NIBBLE_RETURN_IF_ERROR(Recover(job, opened));
  jobs_.emplace(job, std::move(opened));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointRegistry::OpenAttempt(const std::string& job, int64_t attempt,
                                                            int32_t first_rank, int32_t ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return absl::NotFoundError(absl::StrCat("job: '", job, "' is not open"));
  NIBBLE_ASSIGN_OR_RETURN(
      auto host,
      CheckpointHost::Start(
          {.store = at->second.store.get(),
           .attempt = attempt,
           .first_rank = first_rank,
           .ranks = ranks,
           .run_directory = options_.run_directory,
           .clock = options_.clock,
           .commit =
               [this, job](const CheckpointHeader& header, std::vector<ShardManifest> shards) {
                 return Commit(job, header, std::move(shards));
               },
           .trouble =
               [this, job, attempt](const std::string& trouble) {
                 {
                   const std::lock_guard<std::mutex> lock(mutex_);
                   troubles_[{job, attempt}] = trouble;
                 }
                 Say(absl::StrCat(
                     job, " attempt ", attempt, ": ",
                     trouble.empty() ? "there is room for its checkpoint again" : trouble));
                 if (options_.changed) options_.changed();
               }}));
  const std::string address = host->address();
  at->second.hosts[attempt] = std::move(host);
  return address;
}

void CheckpointRegistry::CloseAttempt(const std::string& job, int64_t attempt) {
  std::unique_ptr<CheckpointHost> host;
  const std::lock_guard<std::mutex> closing(closing_mutex_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = jobs_.find(job);
    if (at == jobs_.end()) return;
    const auto found = at->second.hosts.find(attempt);
    if (found == at->second.hosts.end()) return;
    host = std::move(found->second);
    at->second.hosts.erase(found);
    closed_.insert({job, attempt});
  }
  settled_changed_.notify_all();
  host.reset();
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_.erase({job, attempt});
  troubles_.erase({job, attempt});
}

std::string CheckpointRegistry::TroubleOf(const std::string& job, int64_t attempt) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = troubles_.find({job, attempt});
  return at == troubles_.end() ? "" : at->second;
}

CheckpointRegistry::CommitResult CheckpointRegistry::Commit(const std::string& job,
                                                            const CheckpointHeader& header,
                                                            std::vector<ShardManifest> shards) {
  const Key key = {job, header.step, header.attempt};
  NIBBLE_RETURN_IF_ERROR(CheckOffer(header, shards));
  v1::StoreIdentity store;
  if (options_.ordered_by) store = options_.ordered_by(job);
  NIBBLE_RETURN_IF_ERROR(WriteStore(key, store));
  NIBBLE_RETURN_IF_ERROR(WriteHeader(job, header));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    entry.header = header;
    entry.awaited = true;
    entry.store = store;
    for (const ShardManifest& shard : shards) {
      entry.shards[shard.rank] = {.report = ShardReportOf(job, shard, header.world)};
    }
  }
  if (options_.changed) options_.changed();
  std::unique_lock<std::mutex> lock(mutex_);
  settled_changed_.wait(lock, [&] {
    return closing_ || settled_.contains(key) || closed_.contains({job, header.attempt});
  });
  const auto settled = settled_.find(key);
  if (settled != settled_.end()) {
    const auto node = settled_.extract(settled);
    return std::move(node.mapped());
  }
  // The coordinator may have accepted it without an answer so far, so it stays sealed and reported.
  // The ranks that the host would notify are gone.
  if (const auto at = entries_.find(key); at != entries_.end()) at->second.awaited = false;
  return CheckpointStore::CommitReport();
}

bool CheckpointRegistry::IsBeingDropped(const Key& key, int32_t rank) const {
  for (const auto* drops : {&to_drop_, &dropping_}) {
    const auto at = drops->find(key);
    if (at != drops->end() && at->second.contains(rank)) return true;
  }
  return false;
}

std::vector<v1::ShardReport> CheckpointRegistry::Report(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  look_for_removed_ = true;
  todo_changed_.notify_all();
  std::vector<v1::ShardReport> all;
  for (auto& [key, entry] : entries_) {
    if (entry.input) continue;
    for (auto& [rank, shard] : entry.shards) {
      if (IsBeingDropped(key, rank)) continue;
      if (shard.first_report == 0 || number == 1) shard.first_report = number;
      all.push_back(shard.report);
      if (!entry.store.id().empty()) *all.back().mutable_store() = entry.store;
    }
  }
  return all;
}

void CheckpointRegistry::Answered(const v1::ConnectResponse& response) {
  std::vector<std::string> to_say;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const v1::DroppedShard& dropped : response.dropped()) {
      const Key key = KeyOf(dropped.ref());
      const auto at = entries_.find(key);
      if (at == entries_.end() || !at->second.shards.contains(dropped.rank())) continue;
      if (!SameEpoch(at->second.store, response.store())) {
        to_say.push_back(absl::StrCat(
            NameOf(key), " stays: another store, or an earlier epoch, has ordered it"));
        continue;
      }
      to_drop_[key].insert(dropped.rank());
    }
    for (auto& [key, entry] : entries_) {
      bool news = false;
      if (!SameEpoch(entry.store, response.store())) continue;
      for (auto& [rank, shard] : entry.shards) {
        if (shard.accepted || shard.first_report == 0 || shard.first_report > response.answered() ||
            IsBeingDropped(key, rank)) {
          continue;
        }
        shard.accepted = news = true;
      }
      if (news) to_settle_.insert(key);
    }
  }
  todo_changed_.notify_all();
  for (const std::string& line : to_say) Say(line);
}

void CheckpointRegistry::TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key key = KeyOf(known.ref());
    const auto at = entries_.find(key);
    if (at == entries_.end() || at->second.input || SameEpoch(at->second.store, store)) return;
    const auto shard = at->second.shards.find(known.rank());
    if (shard == at->second.shards.end() ||
        shard->second.report.manifest_crc32c() != known.manifest_crc32c()) {
      return;
    }
    to_take_over_[key] = store;
  }
  todo_changed_.notify_all();
}

void CheckpointRegistry::RemoveOrphans(const std::string& job, const std::string& store_id,
                                       int64_t kept) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (std::get<0>(key) != job || entry.input || entry.store.id() != store_id ||
          entry.store.epoch() == kept) {
        continue;
      }
      for (const auto& [rank, shard] : entry.shards) to_drop_[key].insert(rank);
    }
  }
  todo_changed_.notify_all();
}

void CheckpointRegistry::AwaitSettled() {
  std::unique_lock<std::mutex> lock(mutex_);
  settled_changed_.wait(lock, [this] {
    return closing_ || (to_settle_.empty() && to_drop_.empty() && to_take_over_.empty() &&
                        !look_for_removed_ && !settling_);
  });
}

CheckpointStore* CheckpointRegistry::FindStore(const std::string& job,
                                               std::string* directory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return nullptr;
  if (directory != nullptr) *directory = at->second.directory;
  return at->second.store.get();
}

}  // namespace nibble
