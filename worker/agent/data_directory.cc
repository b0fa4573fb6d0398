#include "worker/agent/data_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "nibble-worker-";

// A note that was overwritten must not cause any other directory to be removed.
bool IsOurs(const std::string& path) {
  struct stat found;
  return absl::StartsWith(fs::path(path).filename().string(), kPrefix) &&
         lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

void RemoveNoted(const std::string& note) {
  const std::string left = FirstLine(note);
  std::error_code ignored;
  if (IsOurs(left)) fs::remove_all(left, ignored);
}

// The bytes followed by their checksum.
std::string Encode(const v1::Orphan& order) {
  std::string bytes = order.SerializeAsString();
  AppendLittle(bytes, Crc32c(bytes));
  return bytes;
}

std::optional<v1::Orphan> ReadOrder(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (bytes.size() < sizeof(uint32_t)) return std::nullopt;
  const auto crc = LoadLittle<uint32_t>(bytes.data() + bytes.size() - sizeof(uint32_t));
  bytes.resize(bytes.size() - sizeof(uint32_t));
  v1::Orphan order;
  if (Crc32c(bytes) != crc || !order.ParseFromString(bytes)) return std::nullopt;
  return order;
}

}  // namespace

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

absl::StatusOr<FileLock> LockDataDirectory(const std::string& data_directory) {
  return FileLock::TryAcquire(data_directory + "/LOCK");
}

absl::StatusOr<int64_t> ChooseIncarnation(const std::string& data_directory) {
  const std::string path = data_directory + "/incarnation";
  int64_t last = 0;
  (void)absl::SimpleAtoi(FirstLine(path), &last);
  // Greater than any on this disk, whatever the clock shows. After the disk was replaced the time
  // is usually greater too; otherwise the name is free again once the old life's lease has expired.
  const int64_t incarnation = std::max(last + 1, absl::ToUnixMillis(absl::Now()));
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(path, absl::StrCat(incarnation, "\n")));
  return incarnation;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Claim(
    const std::string& data_directory) {
  std::string note = data_directory + "/run-directory";
  RemoveNoted(note);
  std::error_code error;
  std::string path = fs::temp_directory_path(error) / absl::StrCat(kPrefix, "XXXXXX");
  if (error || mkdtemp(path.data()) == nullptr) {
    return ErrnoError(error ? error.value() : errno, "making", path);
  }
  std::unique_ptr<RunDirectory> claimed(new RunDirectory(std::move(path), std::move(note)));
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(claimed->note_, claimed->path_ + "\n"));
  return claimed;
}

RunDirectory::RunDirectory(std::string path, std::string note)
    : path_(std::move(path)), note_(std::move(note)) {}

RunDirectory::~RunDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  fs::remove(note_, ignored);
}

Provenance::Provenance(std::string data_directory, Clock clock, DiskFaults* faults)
    : directory_(std::move(data_directory)), clock_(std::move(clock)), faults_(faults) {
  LoadStores();
  LoadOrders();
}

// Whether the epoch follows the known one. One with the same number and another id does not: it is
// of another history. A worker from before epochs had ids has recorded none.
bool Provenance::Stores::Exceeds(const v1::StoreIdentity& store, const v1::StoreIdentity& known) {
  if (store.epoch() != known.epoch()) return store.epoch() > known.epoch();
  return known.epoch_id().empty() && !store.epoch_id().empty();
}

bool Provenance::Stores::IsOlder(const v1::StoreIdentity& store) const {
  const auto at = known.find(store.id());
  if (at == known.end() || Exceeds(store, at->second)) return false;
  return !SameEpoch(store, at->second) || store.sequence() < at->second.sequence();
}

bool Provenance::Stores::Follow(const v1::StoreIdentity& store) {
  // Reports name the newest known state of this store, from which it learns that it is older.
  followed = store.id();
  const bool older = IsOlder(store);
  if (!older) known[store.id()] = store;
  return older;
}

v1::StoreIdentity Provenance::Stores::Followed() const {
  const auto at = known.find(followed);
  return at == known.end() ? v1::StoreIdentity() : at->second;
}

std::string Provenance::OrderPath(const std::string& job) const {
  return absl::StrCat(directory_, "/jobs/", job, "/order");
}

void Provenance::LoadStores() {
  const MutexLock lock(&mutex_);
  std::ifstream file(directory_ + "/stores");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string id;
    std::string epoch_id;
    std::string life;
    std::string mac;
    int64_t epoch = 0;
    int64_t sequence = 0;
    if (!(fields >> id >> epoch >> sequence)) continue;
    v1::StoreIdentity store;
    store.set_id(id);
    store.set_epoch(epoch);
    store.set_sequence(sequence);
    if (fields >> epoch_id >> life >> mac) {
      store.set_epoch_id(epoch_id);
      store.set_life(life);
      store.set_mac(absl::HexStringToBytes(mac));
    }
    stores_.known[id] = store;
    stores_.followed = id;
  }
}

void Provenance::LoadOrders() {
  const MutexLock lock(&mutex_);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/jobs", error)) {
    const std::string job = entry.path().filename();
    std::optional<v1::Orphan> order = ReadOrder(OrderPath(job));
    if (order.has_value() && order->job() == job) orders_[job] = *std::move(order);
  }
}

absl::Status Provenance::WriteStores(const Stores& stores) {
  std::string lines;
  const auto add = [&lines](const v1::StoreIdentity& store) {
    absl::StrAppend(&lines, store.id(), " ", store.epoch(), " ", store.sequence());
    if (!store.mac().empty()) {
      absl::StrAppend(&lines, " ", store.epoch_id(), " ", store.life(), " ",
                      absl::BytesToHexString(store.mac()));
    }
    lines += "\n";
  };
  for (const auto& [id, store] : stores.known) {
    if (id != stores.followed) add(store);
  }
  add(stores.known.at(stores.followed));
  return ReplaceFile(directory_ + "/stores", lines, faults_);
}

absl::Status Provenance::SaveOrder(const std::string& job) {
  const auto encoded = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> std::optional<std::string> {
    const auto at = orders_.find(job);
    return at == orders_.end() ? std::nullopt : std::optional(Encode(at->second));
  };
  const MutexLock disk(&disk_mutex_);
  std::optional<std::string> order;
  {
    const MutexLock lock(&mutex_);
    order = encoded();
  }
  const std::string path = OrderPath(job);
  if (order.has_value()) {
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path()));
    NIBBLE_RETURN_IF_ERROR(ReplaceFile(path, *order, faults_));
  } else {
    NIBBLE_RETURN_IF_ERROR(RemoveTree(path));
  }
  const MutexLock lock(&mutex_);
  if (encoded() == order) unsaved_.erase(job);  // else it has changed meanwhile
  return absl::OkStatus();
}

absl::Status Provenance::SaveChanges() {
  std::set<std::string> jobs;
  {
    const MutexLock lock(&mutex_);
    jobs = unsaved_;
  }
  absl::Status status;
  for (const std::string& job : jobs) status.Update(SaveOrder(job));
  return status;
}

Provenance::Verdict Provenance::Judge(const v1::StoreIdentity& store) {
  const MutexLock lock(&mutex_);
  if (store.id().empty()) {
    // A coordinator without a store identity is obeyed only if no store was ever followed.
    return stores_.followed.empty() ? Verdict::kObey : Verdict::kOlder;
  }
  const auto known = stores_.known.find(store.id());
  if (stores_.followed != store.id() || known == stores_.known.end() ||
      Stores::Exceeds(store, known->second)) {
    return Verdict::kNotFollowed;
  }
  return stores_.Follow(store) ? Verdict::kOlder : Verdict::kObey;
}

absl::Status Provenance::Follow(const v1::StoreIdentity& store) {
  const MutexLock disk(&disk_mutex_);
  Stores next;
  {
    const MutexLock lock(&mutex_);
    next = stores_;
  }
  (void)next.Follow(store);
  NIBBLE_RETURN_IF_ERROR(WriteStores(next));
  const MutexLock lock(&mutex_);
  if (!stores_.Follow(store)) since_ms_.clear();
  return absl::OkStatus();
}

absl::Status Provenance::Remember() {
  const MutexLock disk(&disk_mutex_);
  Stores stores;
  {
    const MutexLock lock(&mutex_);
    stores = stores_;
  }
  return stores.followed.empty() ? absl::OkStatus() : WriteStores(stores);
}

v1::StoreIdentity Provenance::followed() const {
  const MutexLock lock(&mutex_);
  return stores_.Followed();
}

absl::Status Provenance::RecordOrder(const v1::DesiredGang& gang, const v1::StoreIdentity& store) {
  v1::Orphan order;
  order.set_job(gang.job());
  *order.mutable_store() = EpochOf(store);
  order.set_spec_yaml(gang.spec_yaml());
  *order.mutable_revisions() = gang.revisions();
  order.set_attempt(gang.attempt());
  order.set_owner(gang.owner());
  order.set_running(true);
  {
    const MutexLock lock(&mutex_);
    if (!Note(std::move(order)) && !unsaved_.contains(gang.job())) return absl::OkStatus();
  }
  // Before shards of the attempt exist: whoever continues an older copy of the store learns of it.
  NIBBLE_RETURN_IF_ERROR(Remember());
  return SaveOrder(gang.job());
}

bool Provenance::Note(v1::Orphan order) {
  v1::Orphan& known = orders_[order.job()];
  if (known.SerializeAsString() == order.SerializeAsString()) return false;
  known = std::move(order);
  unsaved_.insert(known.job());
  return true;
}

bool Provenance::NoteJob(const v1::JobOrder& job, const v1::StoreIdentity& store) {
  v1::Orphan order;
  order.set_job(job.job());
  *order.mutable_store() = EpochOf(store);
  order.set_spec_yaml(job.spec_yaml());
  *order.mutable_revisions() = job.revisions();
  order.set_attempt(job.attempt());
  order.set_owner(job.owner());
  const MutexLock lock(&mutex_);
  const auto known = orders_.find(job.job());
  // An order of another epoch or store is reported until that store has taken it in.
  if (known != orders_.end() &&
      ((known->second.running() && known->second.attempt() >= job.attempt()) ||
       !SameEpoch(known->second.store(), store))) {
    return unsaved_.contains(job.job());
  }
  return Note(std::move(order)) || unsaved_.contains(job.job());
}

v1::StoreIdentity Provenance::StoreOf(const std::string& job) const {
  const MutexLock lock(&mutex_);
  const auto at = orders_.find(job);
  return at == orders_.end() ? v1::StoreIdentity() : at->second.store();
}

int64_t Provenance::AttemptOf(const std::string& job) const {
  const MutexLock lock(&mutex_);
  const auto at = orders_.find(job);
  return at != orders_.end() && at->second.running() ? at->second.attempt() : 0;
}

void Provenance::Forget(const std::string& job) {
  const MutexLock lock(&mutex_);
  orders_.erase(job);
  since_ms_.erase(job);
  unsaved_.insert(job);
}

void Provenance::Describe(std::vector<v1::ShardReport> shards,
                          const std::map<std::string, int64_t>& running,
                          v1::ConnectRequest& report) {
  const MutexLock lock(&mutex_);
  const v1::StoreIdentity followed = stores_.Followed();
  std::map<std::string, v1::Orphan> orphans;
  std::set<std::string> with_shards;  // jobs with shards of another epoch or store
  for (v1::ShardReport& shard : shards) {
    const std::string job = shard.ref().job();
    const bool foreign = !shard.store().id().empty() && shard.store().id() != followed.id();
    if (!SameEpoch(shard.store(), followed)) with_shards.insert(job);
    if (!foreign) {
      *report.add_shards() = std::move(shard);
      continue;
    }
    v1::Orphan& orphan = orphans[job];
    orphan.set_job(job);
    if (orphan.store().id().empty()) *orphan.mutable_store() = shard.store();
    *orphan.add_shards() = std::move(shard);
  }
  settled_.clear();
  for (const auto& [job, order] : orders_) {
    if (SameEpoch(order.store(), followed)) continue;
    const auto ranks = running.find(job);
    const bool runs = ranks != running.end() && ranks->second == order.attempt();
    const bool own = order.store().id() == followed.id();
    const bool anything = runs || with_shards.contains(job);
    if (!anything && own) settled_.insert(job);
    // Another store's job without ranks or shards here is not reported.
    if (!anything && !own) continue;
    v1::Orphan& orphan = orphans[job];
    v1::Orphan whole = order;
    *whole.mutable_shards() = std::move(*orphan.mutable_shards());
    orphan = std::move(whole);
    orphan.set_running(runs);
  }
  const int64_t now_ms = clock_();
  for (auto& [job, orphan] : orphans) {
    orphan.set_since_ms(now_ms - since_ms_.try_emplace(job, now_ms).first->second);
    *report.add_orphans() = std::move(orphan);
  }
}

void Provenance::Answered() {
  const MutexLock lock(&mutex_);
  for (const std::string& job : std::exchange(settled_, {})) {
    const auto at = orders_.find(job);
    if (at == orders_.end()) continue;
    *at->second.mutable_store() = EpochOf(stores_.Followed());
    // Until it is saved, the next life would report the job again.
    unsaved_.insert(job);
  }
}

}  // namespace nibble
