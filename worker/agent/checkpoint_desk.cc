#include "worker/agent/checkpoint_desk.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/staged_file.h"
#include "worker/agent/provenance.h"
#include "worker/agent/shard_report.h"
#include "worker/checkpoint/manifest_codec.h"

namespace nibble {
namespace {

std::string HeaderPath(const std::string& directory, int64_t step, int64_t attempt) {
  return absl::StrCat(directory, "/pending-", step, "-", attempt, ".header");
}

std::string StorePath(const std::string& directory, int64_t step, int64_t attempt) {
  return absl::StrCat(directory, "/ordered-by-", step, "-", attempt);
}

// Unset where it is not known, as of what is older than stores' identities.
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

std::string NameOf(const std::string& job, int64_t step, int64_t attempt) {
  return absl::StrCat("checkpoint of ", job, ", step ", step, ", attempt ", attempt);
}

absl::Status CheckOffer(const CheckpointHeader& header, const std::vector<ShardManifest>& shards) {
  for (const ShardManifest& shard : shards) {
    if (absl::Status status = CheckShard(shard); !status.ok()) return status;
    if (shard.step != header.step || shard.attempt != header.attempt ||
        shard.rank >= header.world) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard of rank ", shard.rank, ", step ", shard.step, ", attempt ",
                       shard.attempt, " is not of a checkpoint of step ", header.step, ", attempt ",
                       header.attempt, ", world ", header.world));
    }
  }
  // What cannot be a checkpoint is not offered as one, where that can be seen here.
  if (static_cast<int32_t>(shards.size()) != header.world) return absl::OkStatus();
  return MakeManifest(header, shards).status();
}

}  // namespace

bool CheckpointDesk::Entry::accepted() const {
  return std::all_of(shards.begin(), shards.end(),
                     [](const auto& shard) { return shard.second.accepted; });
}

CheckpointDesk::Key CheckpointDesk::KeyOf(const v1::CheckpointRef& ref) {
  return {ref.job(), ref.step(), ref.attempt()};
}

CheckpointDesk::CheckpointDesk(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { SettleAll(); });
}

CheckpointDesk::~CheckpointDesk() {
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

void CheckpointDesk::Say(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void CheckpointDesk::SayOnce(const Key& key, const char* what, const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    if (at != shelf_.end() && std::exchange(at->second.complained, true)) return;
  }
  const auto& [job, step, attempt] = key;
  Say(absl::StrCat(NameOf(job, step, attempt), what, std::string(status.message())));
}

absl::Status CheckpointDesk::OpenJob(const std::string& job, const std::string& directory,
                                     const StoreIdentity& identity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (jobs_.contains(job)) return absl::OkStatus();
  std::error_code error;
  const std::string path = directory + "/checkpoints";
  std::filesystem::create_directories(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("making ", path));
  Job opened = {.directory = directory};
  // What goes, the coordinator says.
  absl::StatusOr<std::unique_ptr<CheckpointStore>> store = CheckpointStore::Open(
      path, {.identity = identity,
             .decides = false,
             .retention = {.keep_last = std::numeric_limits<int32_t>::max()}});
  if (!store.ok()) return store.status();
  opened.store = *std::move(store);
  opened.generation = opened.store->generation();
  if (absl::Status status = Hold(job, opened); !status.ok()) return status;
  if (absl::Status status = Recover(job, opened); !status.ok()) return status;
  jobs_.emplace(job, std::move(opened));
  return absl::OkStatus();
}

absl::Status CheckpointDesk::Hold(const std::string& name, const Job& job) {
  const auto checkpoints = job.store->List();
  if (!checkpoints.ok()) return checkpoints.status();
  for (const CheckpointSummary& summary : *checkpoints) {
    // One that cannot be read is not held: the coordinator looks for it elsewhere.
    if (!summary.status.ok()) continue;
    const auto reader = job.store->OpenCheckpoint(summary.step);
    if (!reader.ok()) continue;
    const Manifest& manifest = (*reader)->manifest();
    Entry& entry = shelf_[{name, summary.step, summary.attempt}];
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

absl::Status CheckpointDesk::Recover(const std::string& name, Job& job) {
  std::set<Key> lost;
  for (const ShardManifest& shard : job.store->InDoubt()) {
    const Key key = {name, shard.step, shard.attempt};
    if (lost.contains(key)) continue;
    if (!shelf_.contains(key)) {
      std::ifstream file(HeaderPath(job.directory, shard.step, shard.attempt), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>()};
      absl::StatusOr<CheckpointHeader> header = DecodeHeader(bytes);
      if (!header.ok()) {
        lost.insert(key);
        if (absl::Status status = job.store->Discard(shard.step, shard.attempt); !status.ok()) {
          return status;
        }
        continue;
      }
      shelf_[key].header = *std::move(header);
      shelf_[key].store = ReadStore(job.directory, shard.step, shard.attempt);
    }
    Entry& entry = shelf_[key];
    entry.shards[shard.rank] = {.report = ShardReportOf(name, shard, entry.header.world)};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointDesk::OpenAttempt(const std::string& job, int64_t attempt,
                                                        int32_t first_rank, int32_t ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return absl::NotFoundError(absl::StrCat("job: '", job, "' is not open"));
  auto host = CheckpointHost::Start(
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
           }});
  if (!host.ok()) return host.status();
  const std::string address = (*host)->address();
  at->second.hosts[attempt] = *std::move(host);
  return address;
}

void CheckpointDesk::CloseAttempt(const std::string& job, int64_t attempt) {
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

std::string CheckpointDesk::TroubleOf(const std::string& job, int64_t attempt) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = troubles_.find({job, attempt});
  return at == troubles_.end() ? "" : at->second;
}

CheckpointDesk::CommitResult CheckpointDesk::Commit(const std::string& job,
                                                    const CheckpointHeader& header,
                                                    std::vector<ShardManifest> shards) {
  const Key key = {job, header.step, header.attempt};
  if (absl::Status status = CheckOffer(header, shards); !status.ok()) return status;
  v1::StoreIdentity store;
  if (options_.ordered_by) store = options_.ordered_by(job);
  if (absl::Status noted = WriteStore(key, store); !noted.ok()) return noted;
  if (absl::Status noted = WriteHeader(job, header); !noted.ok()) return noted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = shelf_[key];
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
  // The coordinator may have taken it, and may yet say so: it stays sealed and is reported. Those
  // to whom the host would say that it is stored are gone.
  if (const auto at = shelf_.find(key); at != shelf_.end()) at->second.awaited = false;
  return CheckpointStore::CommitReport();
}

bool CheckpointDesk::IsBeingDropped(const Key& key, int32_t rank) const {
  for (const auto* drops : {&to_drop_, &dropping_}) {
    const auto at = drops->find(key);
    if (at != drops->end() && at->second.contains(rank)) return true;
  }
  return false;
}

std::vector<v1::ShardReport> CheckpointDesk::Report(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  look_for_removed_ = true;
  todo_changed_.notify_all();
  std::vector<v1::ShardReport> all;
  for (auto& [key, entry] : shelf_) {
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

void CheckpointDesk::Answered(const v1::ConnectResponse& response) {
  std::vector<std::string> to_say;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const v1::DroppedShard& dropped : response.dropped()) {
      const Key key = KeyOf(dropped.ref());
      const auto at = shelf_.find(key);
      if (at == shelf_.end() || !at->second.shards.contains(dropped.rank())) continue;
      if (!SameEpoch(at->second.store, response.store())) {
        to_say.push_back(
            absl::StrCat(NameOf(dropped.ref().job(), dropped.ref().step(), dropped.ref().attempt()),
                         " stays: another store, or an earlier epoch, has ordered it"));
        continue;
      }
      to_drop_[key].insert(dropped.rank());
    }
    for (auto& [key, entry] : shelf_) {
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

void CheckpointDesk::TakeOver(const v1::DesiredReplica& known, const v1::StoreIdentity& store) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key key = KeyOf(known.ref());
    const auto at = shelf_.find(key);
    if (at == shelf_.end() || at->second.input || SameEpoch(at->second.store, store)) return;
    const auto shard = at->second.shards.find(known.rank());
    if (shard == at->second.shards.end() ||
        shard->second.report.manifest_crc32c() != known.manifest_crc32c()) {
      return;
    }
    to_take_over_[key] = store;
  }
  todo_changed_.notify_all();
}

void CheckpointDesk::MakeTakenOver(const Key& key, const v1::StoreIdentity& store) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  // Where this cannot be written it stays as it is, and is asked for again.
  if (absl::Status status = WriteStore(key, store); !status.ok()) {
    return SayOnce(key, " is not taken over: ", status);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    if (at == shelf_.end()) return;
    at->second.complained = false;
    at->second.store = store;
    // Only what is named from here on is answered as this store's.
    for (auto& [rank, shard] : at->second.shards) shard.first_report = 0;
  }
  if (options_.changed) options_.changed();
}

void CheckpointDesk::RemoveOrphans(const std::string& job, const std::string& store_id,
                                   int64_t kept) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, entry] : shelf_) {
      if (std::get<0>(key) != job || entry.input || entry.store.id() != store_id ||
          entry.store.epoch() == kept) {
        continue;
      }
      for (const auto& [rank, shard] : entry.shards) to_drop_[key].insert(rank);
    }
  }
  todo_changed_.notify_all();
}

void CheckpointDesk::AwaitSettled() {
  std::unique_lock<std::mutex> lock(mutex_);
  settled_changed_.wait(lock, [this] {
    return closing_ || (to_settle_.empty() && to_drop_.empty() && to_take_over_.empty() &&
                        !look_for_removed_ && !settling_);
  });
}

CheckpointStore* CheckpointDesk::FindStore(const std::string& job, std::string* directory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return nullptr;
  if (directory != nullptr) *directory = at->second.directory;
  return at->second.store.get();
}

absl::Status CheckpointDesk::WriteStore(const Key& key, const v1::StoreIdentity& store) const {
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

absl::Status CheckpointDesk::WriteHeader(const std::string& job,
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

void CheckpointDesk::SettleAll() {
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

void CheckpointDesk::LookForRemoved() {
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

absl::StatusOr<size_t> CheckpointDesk::LookUpAgain(const std::string& name, Job& job) {
  size_t before = 0;
  for (auto at = shelf_.begin(); at != shelf_.end();) {
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
    at = shelf_.erase(at);
  }
  job.generation = job.store->generation();
  if (absl::Status status = Hold(name, job); !status.ok()) return status;
  if (absl::Status status = Recover(name, job); !status.ok()) return status;
  size_t after = 0;
  for (const auto& [key, entry] : shelf_) {
    if (std::get<0>(key) == name) after += entry.shards.size();
  }
  return before - std::min(before, after);
}

void CheckpointDesk::Settle(const Key& key) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  const auto& [job, step, attempt] = key;
  bool commit = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    if (at == shelf_.end() || !at->second.accepted()) return;
    commit = at->second.complete() && !at->second.committed;
  }
  if (options_.accepted) {
    // Sealed it stays, and reported; a later answer accepts it again.
    if (absl::Status status = options_.accepted(); !status.ok()) {
      Say(absl::StrCat(NameOf(job, step, attempt),
                       " is not accepted yet: ", std::string(status.message())));
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto at = shelf_.find(key);
      if (at == shelf_.end()) return;
      for (auto& [rank, shard] : at->second.shards) shard.accepted = false;
      return;
    }
  }
  if (commit) {
    // It exists for the cluster, whatever this disk says: MakeLoadable tries again.
    if (absl::Status status = CommitHere(key); !status.ok()) {
      Say(absl::StrCat(NameOf(job, step, attempt),
                       " is not committed here: ", std::string(status.message())));
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    if (at == shelf_.end() || !std::exchange(at->second.awaited, false)) return;
    settled_.insert_or_assign(key, CommitResult(CheckpointStore::CommitReport()));
  }
  settled_changed_.notify_all();
}

void CheckpointDesk::Drop(const Key& key, const std::set<int32_t>& ranks) {
  const std::lock_guard<std::mutex> surgery(surgery_mutex_);
  const auto& [job, step, attempt] = key;
  CheckpointStore* const store = FindStore(job, nullptr);
  bool all = false;
  bool committed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = shelf_.find(key);
    // What is kept for somebody is dropped later: the coordinator says it with every answer.
    if (store == nullptr || at == shelf_.end() || leases_.contains(key)) return;
    committed = at->second.committed;
    all = std::all_of(at->second.shards.begin(), at->second.shards.end(),
                      [&ranks](const auto& shard) { return ranks.contains(shard.first); });
    if (at->second.awaited) {
      settled_.insert_or_assign(
          key, CommitResult(absl::AbortedError(absl::StrCat("the coordinator does not want the ",
                                                            NameOf(job, step, attempt)))));
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
    if (status.ok()) shelf_[key].shards.erase(rank);
  }
  if (!status.ok()) {
    SayOnce(key, " is not freed: ", status);
  } else if (all) {
    Forget(key);
  }
  settled_changed_.notify_all();
}

void CheckpointDesk::Forget(const Key& key) {
  const auto& [job, step, attempt] = key;
  std::string directory;
  (void)FindStore(job, &directory);
  std::error_code ignored;
  std::filesystem::remove(HeaderPath(directory, step, attempt), ignored);
  std::filesystem::remove(StorePath(directory, step, attempt), ignored);
  const std::lock_guard<std::mutex> lock(mutex_);
  shelf_.erase(key);
}

absl::Status CheckpointDesk::CommitHere(const Key& key) {
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
    header = shelf_.at(key).header;
  }
  const absl::StatusOr<Manifest> manifest = MakeManifest(std::move(header), std::move(shards));
  if (!manifest.ok()) return manifest.status();
  const auto committed = store->Commit(*manifest);
  if (!committed.ok()) return committed.status();
  std::error_code ignored;
  std::filesystem::remove(HeaderPath(directory, step, attempt), ignored);
  const std::lock_guard<std::mutex> lock(mutex_);
  shelf_.at(key).committed = true;
  // The store has let go what this one replaces.
  std::erase_if(shelf_, [&](const auto& other) {
    const bool replaced = other.second.committed && other.first != key &&
                          std::get<0>(other.first) == job && std::get<1>(other.first) == step;
    if (replaced) {
      std::filesystem::remove(StorePath(directory, step, std::get<2>(other.first)), ignored);
    }
    return replaced;
  });
  return absl::OkStatus();
}

absl::Status CheckpointDesk::ReopenHere(const Key& key) {
  const auto& [job, step, attempt] = key;
  CheckpointStore* const store = FindStore(job, nullptr);
  CheckpointHeader header;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    header = shelf_.at(key).header;
  }
  absl::Status status = WriteHeader(job, header);
  if (status.ok()) status = store->Reopen(step, attempt);
  if (!status.ok()) return status;
  std::set<int32_t> sealed;
  for (const ShardManifest& shard : store->InDoubt()) {
    if (shard.step == step && shard.attempt == attempt) sealed.insert(shard.rank);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = shelf_.at(key);
  entry.committed = false;
  std::erase_if(entry.shards, [&](const auto& shard) { return !sealed.contains(shard.first); });
  return absl::OkStatus();
}

}  // namespace nibble
