#include "worker/agent/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/staged_file.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "nibble-worker-";

// A note that was overwritten must not cause any other directory to be removed.
bool IsOurs(const std::string& path) {
  struct stat facts;
  return absl::StartsWith(fs::path(path).filename().string(), kPrefix) &&
         lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
}

void RemoveNoted(const std::string& note) {
  std::string left;
  std::ifstream file(note);
  std::getline(file, left);
  std::error_code ignored;
  if (IsOurs(left)) fs::remove_all(left, ignored);
}

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

std::optional<v1::Orphan> ReadOrder(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint32_t crc = 0;
  if (bytes.size() < sizeof crc) return std::nullopt;
  for (size_t i = 0; i < sizeof crc; ++i) {
    crc |= uint32_t{static_cast<unsigned char>(bytes[bytes.size() - sizeof crc + i])} << (8 * i);
  }
  bytes.resize(bytes.size() - sizeof crc);
  v1::Orphan order;
  if (CrcOf(bytes) != crc || !order.ParseFromString(bytes)) return std::nullopt;
  return order;
}

}  // namespace

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

absl::StatusOr<int> LockDataDirectory(const std::string& data_directory) {
  const std::string path = data_directory + "/LOCK";
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
    absl::Status status = absl::UnavailableError(
        absl::StrCat("locking ", path, ", which another daemon may hold: ", std::strerror(errno)));
    if (lock >= 0) close(lock);
    return status;
  }
  return lock;
}

absl::StatusOr<int64_t> ChooseIncarnation(const std::string& data_directory) {
  const std::string path = data_directory + "/incarnation";
  int64_t last = 0;
  (void)absl::SimpleAtoi(FirstLine(path), &last);
  // Greater than any on this disk, whatever the clock shows. After the disk was replaced the time
  // is usually greater too; otherwise the name is free again once the old life's lease has expired.
  const int64_t incarnation = std::max(last + 1, absl::ToUnixMillis(absl::Now()));
  NIBBLE_RETURN_IF_ERROR(WriteStaged(path, absl::StrCat(incarnation, "\n")));
  return incarnation;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Claim(
    const std::string& data_directory) {
  std::string note = data_directory + "/run-directory";
  RemoveNoted(note);
  std::error_code error;
  std::string path = fs::temp_directory_path(error) / absl::StrCat(kPrefix, "XXXXXX");
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("making ", path, ": ", error ? error.message() : std::strerror(errno)));
  }
  std::unique_ptr<RunDirectory> claimed(new RunDirectory(std::move(path), std::move(note)));
  NIBBLE_RETURN_IF_ERROR(WriteStaged(claimed->note_, claimed->path_ + "\n"));
  return claimed;
}

RunDirectory::RunDirectory(std::string path, std::string note)
    : path_(std::move(path)), note_(std::move(note)) {}

RunDirectory::~RunDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  fs::remove(note_, ignored);
}

Provenance::Provenance(std::string data_directory, Clock clock)
    : directory_(std::move(data_directory)), clock_(std::move(clock)) {
  LoadStores();
  LoadOrders();
}

std::string Provenance::OrderPath(const std::string& job) const {
  return absl::StrCat(directory_, "/jobs/", job, "/order");
}

void Provenance::LoadStores() {
  std::ifstream file(directory_ + "/stores");
  v1::StoreIdentity store;
  std::string id;
  int64_t epoch = 0;
  int64_t sequence = 0;
  while (file >> id >> epoch >> sequence) {
    store.set_id(id);
    store.set_epoch(epoch);
    store.set_sequence(sequence);
    stores_[id] = store;
    followed_ = id;
  }
}

void Provenance::LoadOrders() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/jobs", error)) {
    const std::string job = entry.path().filename();
    std::optional<v1::Orphan> order = ReadOrder(OrderPath(job));
    if (order.has_value() && order->job() == job) orders_[job] = *std::move(order);
  }
}

absl::Status Provenance::SaveStores() {
  std::string lines;
  const auto add = [&lines](const v1::StoreIdentity& store) {
    absl::StrAppend(&lines, store.id(), " ", store.epoch(), " ", store.sequence(), "\n");
  };
  for (const auto& [id, store] : stores_) {
    if (id != followed_) add(store);
  }
  add(stores_.at(followed_));
  return WriteStaged(directory_ + "/stores", lines);
}

absl::Status Provenance::SaveOrder(const v1::Orphan& order) {
  std::string bytes = order.SerializeAsString();
  const uint32_t crc = CrcOf(bytes);
  for (size_t i = 0; i < sizeof crc; ++i) bytes.push_back(static_cast<char>(crc >> (8 * i)));
  const std::string path = OrderPath(order.job());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::UnavailableError(absl::StrCat("making ", path, ": ", error.message()));
  return WriteStaged(path, bytes);
}

absl::Status Provenance::Hear(const v1::StoreIdentity& store, bool& obey) {
  const std::lock_guard<std::mutex> lock(mutex_);
  obey = false;
  if (store.id().empty()) {
    // A coordinator without a store identity is obeyed only if no store was ever followed.
    obey = followed_.empty();
    return absl::OkStatus();
  }
  const auto known = stores_.find(store.id());
  const bool is_new = known == stores_.end();
  const bool later = is_new || store.epoch() > known->second.epoch();
  const bool older = !is_new && (store.epoch() < known->second.epoch() ||
                                 (!later && store.sequence() < known->second.sequence()));
  const bool changed = later || followed_ != store.id();
  // Reports carry the newest known state of this store, from which it learns that it is older.
  followed_ = store.id();
  if (older) return changed ? SaveStores() : absl::OkStatus();
  stores_[store.id()] = store;
  if (changed) {
    since_ms_.clear();
    NIBBLE_RETURN_IF_ERROR(SaveStores());
  }
  obey = true;
  return absl::OkStatus();
}

absl::Status Provenance::Remember() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return followed_.empty() ? absl::OkStatus() : SaveStores();
}

v1::StoreIdentity Provenance::FollowedLocked() const {
  const auto at = stores_.find(followed_);
  return at == stores_.end() ? v1::StoreIdentity() : at->second;
}

v1::StoreIdentity Provenance::followed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return FollowedLocked();
}

absl::Status Provenance::NoteOrder(const v1::DesiredGang& gang, const v1::StoreIdentity& store) {
  v1::Orphan order;
  order.set_job(gang.job());
  *order.mutable_store() = store;
  order.mutable_store()->clear_sequence();
  order.set_spec_yaml(gang.spec_yaml());
  *order.mutable_revisions() = gang.revisions();
  order.set_attempt(gang.attempt());
  order.set_owner(gang.owner());
  const std::lock_guard<std::mutex> lock(mutex_);
  v1::Orphan& known = orders_[gang.job()];
  if (known.SerializeAsString() == order.SerializeAsString()) return absl::OkStatus();
  known = order;
  return SaveOrder(order);
}

v1::StoreIdentity Provenance::StoreOf(const std::string& job) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = orders_.find(job);
  return at == orders_.end() ? v1::StoreIdentity() : at->second.store();
}

int64_t Provenance::AttemptOf(const std::string& job) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = orders_.find(job);
  return at == orders_.end() ? 0 : at->second.attempt();
}

void Provenance::Forget(const std::string& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.erase(job);
  since_ms_.erase(job);
  std::error_code ignored;
  std::filesystem::remove(OrderPath(job), ignored);
}

void Provenance::Describe(std::vector<v1::ShardReport> shards,
                          const std::map<std::string, int64_t>& running,
                          v1::ConnectRequest& report) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const v1::StoreIdentity followed = FollowedLocked();
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
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::string& job : std::exchange(settled_, {})) {
    const auto at = orders_.find(job);
    if (at == orders_.end()) continue;
    *at->second.mutable_store() = FollowedLocked();
    at->second.mutable_store()->clear_sequence();
    // If this cannot be written, the next life reports it again.
    (void)SaveOrder(at->second);
  }
}

}  // namespace nibble
