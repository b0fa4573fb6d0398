#include "worker/agent/trash.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "worker/agent/data_directory.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/shard_index.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

constexpr size_t kMaxReasonBytes = 1000;
constexpr char kRemovingPrefix[] = "removing-";

std::string EntryName(const v1::CheckpointRef& ref, int32_t rank, int64_t id) {
  return absl::StrFormat("step-%012d-attempt-%04d-rank-%05d-%08d", ref.step(), ref.attempt(), rank,
                         id);
}

// The ID; fills in step, attempt and rank. Nullopt for any name that EntryName does not give.
std::optional<int64_t> ParseEntryName(const std::string& name, v1::TrashedShard& shard) {
  int64_t step = 0, attempt = 0, id = 0;
  int32_t rank = 0;
  if (std::sscanf(name.c_str(), "step-%" SCNd64 "-attempt-%" SCNd64 "-rank-%" SCNd32 "-%" SCNd64,
                  &step, &attempt, &rank, &id) != 4) {
    return std::nullopt;
  }
  shard.mutable_ref()->set_step(step);
  shard.mutable_ref()->set_attempt(attempt);
  shard.set_rank(rank);
  if (EntryName(shard.ref(), rank, id) != name) return std::nullopt;
  return id;
}

std::string EncodeRecord(const v1::TrashedShard& record) {
  std::string bytes = record.SerializeAsString();
  AppendLittle(bytes, Crc32c(bytes));
  return bytes;
}

// The record in a directory, if it is intact and that of `shard`.
bool ReadRecordOf(const std::string& directory, const v1::TrashedShard& shard,
                  v1::TrashedShard& record) {
  std::string bytes = ReadRecord(directory + "/record").value_or("");
  if (bytes.size() < sizeof(uint32_t)) return false;
  const auto crc = LoadLittle<uint32_t>(bytes.data() + bytes.size() - sizeof(uint32_t));
  bytes.resize(bytes.size() - sizeof(uint32_t));
  return Crc32c(bytes) == crc && record.ParseFromString(bytes) &&
         nibble::KeyOf(record.ref()) == nibble::KeyOf(shard.ref()) && record.rank() == shard.rank();
}

absl::StatusOr<CheckpointHeader> ReadHeaderIn(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string record, ReadRecord(directory + "/header"));
  return DecodeHeader(record);
}

bool HasDatabase(const std::string& directory, int32_t rank) {
  return access(absl::StrCat(directory, "/", ShardDirectoryName(rank)).c_str(), F_OK) == 0;
}

// "rank 0 of the checkpoint of gpt-1, step 10, attempt 2 (surplus: enough copies)"
std::string DescribeTrashed(const v1::TrashedShard& shard) {
  const std::string name = v1::DeletionKind_Name(shard.kind());
  const std::string kind = absl::AsciiStrToLower(absl::StripPrefix(name, "DELETION_KIND_"));
  return absl::StrCat("rank ", shard.rank(), " of the ",
                      nibble::Describe(nibble::KeyOf(shard.ref())), " (", kind,
                      shard.reason().empty() ? "" : ": ", shard.reason(), ")");
}

std::string HoursText(int64_t ms) {
  return absl::StrFormat("%.1f hours", static_cast<double>(ms) / 3.6e6);
}

// Appends a line to the file, durably. When it is long it becomes FILE.1 first.
absl::Status AppendLine(const std::string& path, const std::string& line, int64_t most_bytes,
                        DiskFaults* faults) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && static_cast<int64_t>(size) >= most_bytes) {
    if (rename(path.c_str(), (path + ".1").c_str()) != 0) {
      return ErrnoError(errno, "renaming", path);
    }
  }
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoError(errno, "opening", path);
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  NIBBLE_RETURN_IF_ERROR(WriteAll(fd, AsBytes(line), path, faults));
  if (fsync(fd) != 0) return ErrnoError(errno, "syncing", path);
  return SyncParentDirectory(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trash>> Trash::Open(Options options) {
  std::unique_ptr<Trash> trash(new Trash(std::move(options)));
  NIBBLE_RETURN_IF_ERROR(trash->Load());
  return trash;
}

Trash::Trash(Options options) : options_(std::move(options)), began_ms_(options_.clock()) {}

Trash::~Trash() { (void)SaveClock(); }

int64_t Trash::NowMs() const { return clock_base_ms_ + options_.clock() - began_ms_; }

void Trash::Changed() const {
  if (options_.changed) options_.changed();
}

void Trash::Note(const std::string& line) {
  if (options_.log) options_.log(line);
  const MutexLock lock(&history_mutex_);
  const absl::Status written =
      AppendLine(options_.directory + "/history",
                 absl::StrCat(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()),
                              " ", line, "\n"),
                 kMaxHistoryBytes, options_.faults);
  if (!written.ok() && options_.log) options_.log(std::string(written.message()));
}

absl::Status Trash::SaveClock() {
  const int64_t now = NowMs();
  NIBBLE_RETURN_IF_ERROR(
      ReplaceFile(options_.directory + "/clock", absl::StrCat(now, "\n"), options_.faults));
  const MutexLock lock(&mutex_);
  clock_saved_ms_ = now;
  return absl::OkStatus();
}

// --- Opening

absl::Status Trash::Load() {
  const std::string& path = options_.directory;
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(path));
  NIBBLE_RETURN_IF_ERROR(SyncParentDirectory(path));
  NIBBLE_RETURN_IF_ERROR(RemoveStagedLeftovers(path));
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path, error);
  if (error) return ErrnoError(error.value(), "examining the file system of", path);
  most_bytes_ = options_.most_bytes.value_or(static_cast<int64_t>(space.capacity / 10));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
  const MutexLock lock(&mutex_);  // nobody waits for it yet
  std::vector<Entry> foreign;
  for (const std::string& name : names) {
    if (!std::filesystem::is_directory(path + "/" + name, error)) continue;
    NIBBLE_RETURN_IF_ERROR(LoadJob(name, foreign));
    std::filesystem::remove(path + "/" + name, error);  // if it is empty
  }
  for (Entry& entry : foreign) entries_[next_id_++] = std::move(entry);
  (void)absl::SimpleAtoi(FirstLine(path + "/clock"), &clock_base_ms_);
  for (const auto& [id, entry] : entries_) {
    clock_base_ms_ = std::max(clock_base_ms_, entry.deleted_ms);
  }
  int64_t next_ms = clock_base_ms_;
  for (auto at = entries_.rbegin(); at != entries_.rend(); ++at) {
    Entry& entry = at->second;
    if (!entry.record.has_ref()) entry.deleted_ms = next_ms;
    next_ms = entry.deleted_ms;
  }
  clock_saved_ms_ = clock_base_ms_;
  return absl::OkStatus();
}

absl::Status Trash::LoadJob(const std::string& job, std::vector<Entry>& foreign) {
  const std::string path = options_.directory + "/" + job;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
  for (const std::string& name : names) {
    Entry entry;
    entry.directory = path + "/" + name;
    v1::TrashedShard named;
    named.mutable_ref()->set_job(job);
    const std::optional<int64_t> id = ParseEntryName(name, named);
    if (absl::StartsWith(name, kRemovingPrefix) ||
        (id.has_value() && !HasDatabase(entry.directory, named.rank()))) {
      NIBBLE_RETURN_IF_ERROR(RemoveTree(entry.directory));
      continue;
    }
    if (!id.has_value() || !ReadRecordOf(entry.directory, named, entry.record)) {
      entry.record.Clear();
      if (options_.log) {
        options_.log(absl::StrCat("the trash has ", entry.directory,
                                  ", whose record is not readable: it cannot be restored, and "
                                  "leaves by age or size"));
      }
    }
    entry.deleted_ms = entry.record.age_ms();
    entry.disk_bytes = TreeBytes(entry.directory);
    if (!id.has_value()) {
      foreign.push_back(std::move(entry));
      continue;
    }
    next_id_ = std::max(next_id_, *id + 1);
    entries_[*id] = std::move(entry);
  }
  return absl::OkStatus();
}

// --- Coming and going

absl::Status Trash::Add(v1::TrashedShard shard, const CheckpointHeader& header,
                        absl::FunctionRef<absl::Status(const std::string& directory)> move) {
  int64_t id = 0;
  {
    const MutexLock lock(&mutex_);
    id = next_id_++;
  }
  Entry entry;
  entry.deleted_ms = NowMs();
  shard.set_age_ms(entry.deleted_ms);
  // One line of the history.
  shard.set_reason(absl::StrReplaceAll(Printable(shard.reason(), kMaxReasonBytes), {{"\n", " "}}));
  const std::string job = options_.directory + "/" + shard.ref().job();
  entry.directory = job + "/" + EntryName(shard.ref(), shard.rank(), id);
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(entry.directory));
  const auto fill = [&]() -> absl::Status {
    DiskFaults* const faults = options_.faults;
    NIBBLE_RETURN_IF_ERROR(ReplaceFile(entry.directory + "/header", EncodeHeader(header), faults));
    NIBBLE_RETURN_IF_ERROR(ReplaceFile(entry.directory + "/record", EncodeRecord(shard), faults));
    NIBBLE_RETURN_IF_ERROR(SyncDirectory(job));
    NIBBLE_RETURN_IF_ERROR(SyncDirectory(options_.directory));
    return move(entry.directory);
  };
  absl::Status status = fill();
  if (!HasDatabase(entry.directory, shard.rank())) {
    (void)RemoveTree(entry.directory);
    return status;
  }
  entry.disk_bytes = TreeBytes(entry.directory);
  const std::string line = absl::StrCat("moved to the trash: ", DescribeTrashed(shard));
  entry.record = std::move(shard);
  {
    const MutexLock lock(&mutex_);
    entries_[id] = std::move(entry);
    ++version_;
  }
  Note(line);
  Changed();
  return status;
}

bool Trash::Claim(int64_t id) {
  const MutexLock lock(&mutex_);
  const auto at = entries_.find(id);
  return at != entries_.end() && !std::exchange(at->second.leaving, true);
}

void Trash::Forget(int64_t id) {
  const MutexLock lock(&mutex_);
  entries_.erase(id);
  ++version_;
}

std::vector<std::pair<int64_t, Trash::Entry>> Trash::CopiesOf(const v1::CheckpointRef& ref) const {
  std::vector<std::pair<int64_t, Entry>> copies;
  {
    const MutexLock lock(&mutex_);
    for (auto at = entries_.rbegin(); at != entries_.rend(); ++at) {
      if (KeyOf(at->second.record.ref()) == KeyOf(ref)) copies.emplace_back(*at);
    }
  }
  std::stable_partition(copies.begin(), copies.end(), [](const auto& copy) {
    return copy.second.record.kind() != v1::DELETION_KIND_DAMAGED;
  });
  return copies;
}

void Trash::TakeOut(
    const v1::CheckpointRef& ref,
    absl::FunctionRef<absl::Status(const v1::TrashedShard& shard, const CheckpointHeader& header,
                                   const std::string& directory)>
        restore) {
  for (const auto& [id, entry] : CopiesOf(ref)) {
    if (!Claim(id)) continue;
    const absl::StatusOr<CheckpointHeader> header = ReadHeaderIn(entry.directory);
    absl::Status status = header.status();
    if (status.ok()) status = restore(entry.record, *header, entry.directory);
    if (!HasDatabase(entry.directory, entry.record.rank())) {
      Note(absl::StrCat("restored from the trash: ", DescribeTrashed(entry.record)));
      (void)RemoveTree(entry.directory);
      Forget(id);
      Changed();
      continue;
    }
    bool log = false;
    {
      const MutexLock lock(&mutex_);
      Entry& kept = entries_.at(id);
      kept.leaving = false;
      log = !absl::IsAlreadyExists(status) && !std::exchange(kept.failure_logged, true);
    }
    if (log && options_.log) {
      options_.log(absl::StrCat("not restored from the trash: ", DescribeTrashed(entry.record),
                                ": ", std::string(status.message())));
    }
  }
}

void Trash::Remove(int64_t id, const Entry& entry, const std::string& why) {
  Note(absl::StrCat("removed from the trash after ", HoursText(NowMs() - entry.deleted_ms), ", ",
                    why, ": ",
                    entry.record.has_ref() ? DescribeTrashed(entry.record) : entry.directory));
  // Renamed first: an entry is never partly there.
  const std::string gone = absl::StrCat(
      std::string(std::filesystem::path(entry.directory).parent_path()), "/", kRemovingPrefix, id);
  const bool renamed = rename(entry.directory.c_str(), gone.c_str()) == 0;
  const absl::Status removed = RemoveTree(renamed ? gone : entry.directory);
  if (!removed.ok() && options_.log) options_.log(std::string(removed.message()));
  Forget(id);
  Changed();
}

// --- What is there

bool Trash::Has(const v1::CheckpointRef& ref) const {
  const MutexLock lock(&mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return KeyOf(entry.second.record.ref()) == KeyOf(ref);
  });
}

std::optional<StoreIdentity> Trash::IdentityOf(const v1::CheckpointRef& ref) const {
  for (const auto& [id, entry] : CopiesOf(ref)) {
    const absl::StatusOr<CheckpointHeader> header = ReadHeaderIn(entry.directory);
    if (header.ok() && header->world > 0) return header->identity;
  }
  return std::nullopt;
}

int64_t Trash::version() const {
  const MutexLock lock(&mutex_);
  return version_;
}

int64_t Trash::bytes() const {
  const MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const auto& [id, entry] : entries_) bytes += entry.disk_bytes;
  return bytes;
}

std::vector<std::pair<int64_t, Trash::Entry>> Trash::Removable(NewestStored newest) const {
  std::vector<std::pair<int64_t, Entry>> all;
  {
    const MutexLock lock(&mutex_);
    all.assign(entries_.begin(), entries_.end());
  }
  const auto counts = [](const Entry& entry) {
    const v1::TrashedShard& record = entry.record;
    return record.kept() && record.kind() != v1::DELETION_KIND_REQUESTED &&
           record.kind() != v1::DELETION_KIND_ORPHAN && record.kind() != v1::DELETION_KIND_DAMAGED;
  };
  std::map<std::string, CheckpointKey> kept;  // by job
  for (const auto& [id, entry] : all) {
    if (!counts(entry)) continue;
    const CheckpointKey key = KeyOf(entry.record.ref());
    CheckpointKey& best = kept.try_emplace(key.job, key).first->second;
    best = std::max(best, key);
  }
  std::erase_if(kept, [&](const auto& one) { return newest(one.first) >= one.second.step; });
  std::erase_if(all, [&](const auto& one) {
    const auto at = kept.find(one.second.record.ref().job());
    return counts(one.second) && at != kept.end() && at->second == KeyOf(one.second.record.ref());
  });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.deleted_ms, a.first) < std::pair(b.second.deleted_ms, b.first);
  });
  return all;
}

std::vector<v1::TrashedShard> Trash::List(NewestStored newest) const {
  Entries entries;
  {
    const MutexLock lock(&mutex_);
    entries = entries_;
  }
  std::set<int64_t> removable;
  for (const auto& [id, entry] : Removable(newest)) removable.insert(id);
  std::vector<v1::TrashedShard> list;
  for (const auto& [id, entry] : entries) {
    if (!entry.record.has_ref()) continue;
    list.push_back(entry.record);
    list.back().set_age_ms(NowMs() - entry.deleted_ms);
    list.back().set_kept(!removable.contains(id));
  }
  return list;
}

// --- Removal

void Trash::Tidy(NewestStored newest) {
  bool save = false;
  {
    const MutexLock lock(&mutex_);
    save = NowMs() - clock_saved_ms_ >= kSaveClockEveryMs;
  }
  if (save) {
    const absl::Status saved = SaveClock();
    if (!saved.ok() && options_.log) options_.log(std::string(saved.message()));
  }
  for (const auto& [id, entry] : Removable(newest)) {
    const bool old = NowMs() - entry.deleted_ms >= options_.most_age_ms;
    if (!old && bytes() <= most_bytes_) return;  // the others are younger
    if (!Claim(id)) continue;
    Remove(id, entry,
           old ? absl::StrCat("as --trash-hours allows ", HoursText(options_.most_age_ms))
               : absl::StrCat("as --trash-bytes allows ", most_bytes_, " bytes and ", bytes(),
                              " were in it"));
  }
}

bool Trash::Free(int64_t bytes, NewestStored newest) {
  int64_t freed = 0;
  for (const auto& [id, entry] : Removable(newest)) {
    if (freed >= bytes) break;
    if (!Claim(id)) continue;
    freed += std::max<int64_t>(entry.disk_bytes, 1);
    Remove(id, entry, "as the disk is full and a checkpoint is to be written");
  }
  return freed > 0;
}

}  // namespace nibble
