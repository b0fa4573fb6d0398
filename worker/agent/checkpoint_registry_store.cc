// The stores of CheckpointRegistry on disk, and the thread that carries out answers on them.

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

std::string HeaderPath(const std::string& directory, int64_t step, int64_t attempt) {
  return absl::StrCat(directory, "/pending-", step, "-", attempt, ".header");
}

std::string StorePath(const std::string& directory, int64_t step, int64_t attempt) {
  return absl::StrCat(directory, "/ordered-by-", step, "-", attempt);
}

// Unset if unknown, as for checkpoints made before stores had identities.
v1::StoreIdentity ReadStore(const std::string& directory, int64_t step, int64_t attempt) {
  std::ifstream file(StorePath(directory, step, attempt));
  std::string id;
  int64_t epoch = 0;
  v1::StoreIdentity store;
  if (!(file >> id >> epoch)) return store;
  store.set_id(id);
  store.set_epoch(epoch);
  return store;
}

}  // namespace

void CheckpointRegistry::SayOnce(const Key& key, const char* what, const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    if (at != entries_.end() && std::exchange(at->second.complained, true)) return;
  }
  Say(absl::StrCat(NameOf(key), what, std::string(status.message())));
}

absl::Status CheckpointRegistry::Hold(const std::string& name, const Job& job) {
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoints, job.store->List());
  for (const CheckpointSummary& summary : checkpoints) {
    // An unreadable one is not reported: the coordinator looks for it elsewhere.
    if (!summary.status.ok()) continue;
    const auto reader = job.store->OpenCheckpoint(summary.step);
    if (!reader.ok()) continue;
    const Manifest& manifest = (*reader)->manifest();
    Entry& entry = entries_[{name, summary.step, summary.attempt}];
    entry.header = manifest.header;
    entry.committed = true;
    entry.store = ReadStore(job.directory, summary.step, summary.attempt);
    for (const ShardManifest& shard : manifest.shards) {
      if (!(*reader)->shard_status(shard.rank).ok()) continue;
      entry.shards[shard.rank] = {.report = ShardReportOf(name, shard, manifest.header.world),
                                  .accepted = true};
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::Recover(const std::string& name, Job& job) {
  std::set<Key> lost;
  for (const ShardManifest& shard : job.store->InDoubt()) {
    const Key key = {name, shard.step, shard.attempt};
    if (lost.contains(key)) continue;
    if (!entries_.contains(key)) {
      std::ifstream file(HeaderPath(job.directory, shard.step, shard.attempt), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>()};
      absl::StatusOr<CheckpointHeader> header = DecodeHeader(bytes);
      if (!header.ok()) {
        lost.insert(key);
        NIBBLE_RETURN_IF_ERROR(job.store->Discard(shard.step, shard.attempt));
        continue;
      }
      entries_[key].header = *std::move(header);
      entries_[key].store = ReadStore(job.directory, shard.step, shard.attempt);
    }
    Entry& entry = entries_[key];
    entry.shards[shard.rank] = {.report = ShardReportOf(name, shard, entry.header.world)};
  }
  return absl::OkStatus();
}

void CheckpointRegistry::MakeTakenOver(const Key& key, const v1::StoreIdentity& store) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  // If this cannot be written nothing changes, and the order is repeated.
  if (absl::Status status = WriteStore(key, store); !status.ok()) {
    return SayOnce(key, " is not taken over: ", status);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end()) return;
    at->second.complained = false;
    at->second.store = store;
    // Only answers to reports from here on are about this store's shards.
    for (auto& [rank, shard] : at->second.shards) shard.first_report = 0;
  }
  if (options_.changed) options_.changed();
}

absl::Status CheckpointRegistry::WriteStore(const Key& key, const v1::StoreIdentity& store) const {
  const auto& [job, step, attempt] = key;
  std::string directory;
  (void)FindStore(job, &directory);
  if (store.id().empty()) return absl::OkStatus();
  std::error_code error;  // it may have been removed underneath
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("making ", directory, ": ", error.message()));
  }
  return WriteStaged(StorePath(directory, step, attempt),
                     absl::StrCat(store.id(), " ", store.epoch(), "\n"));
}

absl::Status CheckpointRegistry::WriteHeader(const std::string& job,
                                             const CheckpointHeader& header) const {
  std::string directory;
  (void)FindStore(job, &directory);
  std::error_code error;  // it may have been removed underneath
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("making ", directory, ": ", error.message()));
  }
  return WriteStaged(HeaderPath(directory, header.step, header.attempt), EncodeHeader(header));
}

void CheckpointRegistry::SettleAll() {
  while (true) {
    std::set<Key> to_settle;
    std::map<Key, std::set<int32_t>> to_drop;
    std::map<Key, v1::StoreIdentity> to_take_over;
    bool look = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      settling_ = false;
      dropping_.clear();
      settled_changed_.notify_all();
      todo_changed_.wait(lock, [this] {
        return closing_ || look_for_removed_ || !to_settle_.empty() || !to_drop_.empty() ||
               !to_take_over_.empty();
      });
      if (closing_) return;
      to_settle.swap(to_settle_);
      to_drop.swap(to_drop_);
      to_take_over.swap(to_take_over_);
      dropping_ = to_drop;
      look = std::exchange(look_for_removed_, false);
      settling_ = true;
    }
    if (look) LookForRemoved();
    for (const auto& [key, store] : to_take_over) MakeTakenOver(key, store);
    for (const auto& [key, ranks] : to_drop) Drop(key, ranks);
    for (const Key& key : to_settle) Settle(key);
  }
}

void CheckpointRegistry::LookForRemoved() {
  std::vector<std::pair<std::string, CheckpointStore*>> stores;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, job] : jobs_) stores.emplace_back(name, job.store.get());
  }
  for (const auto& [name, store] : stores) {
    absl::Status status = store->MakeAgainIfRemoved();
    absl::StatusOr<size_t> lost = size_t{0};
    bool removed = false;
    {
      const std::lock_guard<std::mutex> surgery(surgery_mutex_);
      const std::lock_guard<std::mutex> lock(mutex_);
      Job& job = jobs_.at(name);
      removed = store->generation() != job.generation;
      if (removed) lost = LookUpAgain(name, job);
    }
    if (status.ok()) status = lost.status();
    if (!status.ok()) {
      Say(absl::StrCat("the checkpoints of job ", name,
                       " cannot be stored: ", std::string(status.message())));
    }
    if (!removed) continue;
    settled_changed_.notify_all();
    if (lost.ok()) {
      Say(absl::StrCat("the directory ", store->path(),
                       " was removed or replaced; it is made "
                       "again, and of its shards ",
                       *lost, " are reported as lost"));
    }
    if (options_.changed) options_.changed();
  }
}

absl::StatusOr<size_t> CheckpointRegistry::LookUpAgain(const std::string& name, Job& job) {
  size_t before = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (std::get<0>(at->first) != name) {
      ++at;
      continue;
    }
    before += at->second.shards.size();
    if (at->second.awaited) {
      settled_.insert_or_assign(
          at->first, CommitResult(absl::UnavailableError(
                         absl::StrCat("the directory ", job.store->path(), " was removed"))));
    }
    at = entries_.erase(at);
  }
  job.generation = job.store->generation();
  NIBBLE_RETURN_IF_ERROR(Hold(name, job));
  NIBBLE_RETURN_IF_ERROR(Recover(name, job));
  size_t after = 0;
  for (const auto& [key, entry] : entries_) {
    if (std::get<0>(key) == name) after += entry.shards.size();
  }
  return before - std::min(before, after);
}

void CheckpointRegistry::Settle(const Key& key) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  bool commit = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end() || !at->second.accepted()) return;
    commit = at->second.complete() && !at->second.committed;
  }
  if (options_.accepted) {
    // It stays sealed and reported; a later answer accepts it again.
    if (absl::Status status = options_.accepted(); !status.ok()) {
      Say(absl::StrCat(NameOf(key), " is not accepted yet: ", std::string(status.message())));
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto at = entries_.find(key);
      if (at == entries_.end()) return;
      for (auto& [rank, shard] : at->second.shards) shard.accepted = false;
      return;
    }
  }
  if (commit) {
    // The checkpoint exists for the cluster even if this disk fails: MakeLoadable tries again.
    if (absl::Status status = CommitHere(key); !status.ok()) {
      Say(absl::StrCat(NameOf(key), " is not committed here: ", std::string(status.message())));
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end() || !std::exchange(at->second.awaited, false)) return;
    settled_.insert_or_assign(key, CommitResult(CheckpointStore::CommitReport()));
  }
  settled_changed_.notify_all();
}

void CheckpointRegistry::Drop(const Key& key, const std::set<int32_t>& ranks) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  const auto& [job, step, attempt] = key;
  CheckpointStore* const store = FindStore(job, nullptr);
  bool all = false;
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    // A leased checkpoint is dropped later: the coordinator repeats the order with every answer.
    if (store == nullptr || at == entries_.end() || leases_.contains(key)) return;
    committed = at->second.committed;
    all = std::all_of(at->second.shards.begin(), at->second.shards.end(),
                      [&ranks](const auto& shard) { return ranks.contains(shard.first); });
    if (at->second.awaited) {
      settled_.insert_or_assign(key, CommitResult(absl::AbortedError(absl::StrCat(
                                         "the coordinator does not want the ", NameOf(key)))));
      all = true;
    }
  }
  absl::Status status;
  if (committed) status = ReopenHere(key);
  if (status.ok() && all) status = store->Discard(step, attempt);
  for (const int32_t rank : ranks) {
    if (!status.ok() || all) break;
    status = store->DiscardShard(step, attempt, rank);
    if (absl::IsNotFound(status)) status = absl::OkStatus();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) entries_[key].shards.erase(rank);
  }
  if (!status.ok()) {
    SayOnce(key, " is not freed: ", status);
  } else if (all) {
    Forget(key);
  }
  settled_changed_.notify_all();
}

void CheckpointRegistry::Forget(const Key& key) {
  const auto& [job, step, attempt] = key;
  std::string directory;
  (void)FindStore(job, &directory);
  std::error_code ignored;
  std::filesystem::remove(HeaderPath(directory, step, attempt), ignored);
  std::filesystem::remove(StorePath(directory, step, attempt), ignored);
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(key);
}

absl::Status CheckpointRegistry::CommitHere(const Key& key) {
  const auto& [job, step, attempt] = key;
  std::string directory;
  CheckpointStore* const store = FindStore(job, &directory);
  std::vector<ShardManifest> shards = store->InDoubt();
  std::erase_if(shards, [step = step, attempt = attempt](const ShardManifest& shard) {
    return shard.step != step || shard.attempt != attempt;
  });
  CheckpointHeader header;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    header = entries_.at(key).header;
  }
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest,
                          MakeManifest(std::move(header), std::move(shards)));
  NIBBLE_RETURN_IF_ERROR(store->Commit(manifest).status());
  std::error_code ignored;
  std::filesystem::remove(HeaderPath(directory, step, attempt), ignored);
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.at(key).committed = true;
  // The store has released the checkpoint that this one replaces.
  std::erase_if(entries_, [&](const auto& other) {
    const bool replaced = other.second.committed && other.first != key &&
                          std::get<0>(other.first) == job && std::get<1>(other.first) == step;
    if (replaced) {
      std::filesystem::remove(StorePath(directory, step, std::get<2>(other.first)), ignored);
    }
    return replaced;
  });
  return absl::OkStatus();
}

absl::Status CheckpointRegistry::ReopenHere(const Key& key) {
  const auto& [job, step, attempt] = key;
  CheckpointStore* const store = FindStore(job, nullptr);
  CheckpointHeader header;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    header = entries_.at(key).header;
  }
  absl::Status status = WriteHeader(job, header);
  if (status.ok()) status = store->Reopen(step, attempt);
  if (!status.ok()) return status;
  std::set<int32_t> sealed;
  for (const ShardManifest& shard : store->InDoubt()) {
    if (shard.step == step && shard.attempt == attempt) sealed.insert(shard.rank);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_.at(key);
  entry.committed = false;
  std::erase_if(entry.shards, [&](const auto& shard) { return !sealed.contains(shard.first); });
  return absl::OkStatus();
}

}  // namespace nibble
