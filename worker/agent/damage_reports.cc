#include "worker/agent/damage_reports.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr size_t kMaxDetailBytes = 1500;

std::string KeyOf(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat(ref.job(), "/", ref.step(), "/", ref.attempt(), "/", rank);
}

}  // namespace

void DamageReports::Found(const v1::CheckpointRef& ref, int32_t rank, const std::string& holder,
                          const absl::Status& damage) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string key = KeyOf(ref, rank);
    found_.insert(key);
    const auto [at, is_new] = waiting_.try_emplace({key, holder});
    if (!is_new) return;
    v1::DamagedShard& shard = at->second.shard;
    *shard.mutable_ref() = ref;
    shard.set_rank(rank);
    shard.set_holder(holder);
    std::string detail(damage.message().substr(0, kMaxDetailBytes));
    // Names of files may be anything; a message is UTF-8.
    for (char& c : detail) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
    }
    shard.set_detail(detail);
  }
  if (changed_) changed_();
}

bool DamageReports::AnyOf(const v1::CheckpointRef& ref, int32_t rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return found_.contains(KeyOf(ref, rank));
}

std::vector<v1::DamagedShard> DamageReports::Report(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<v1::DamagedShard> report;
  for (auto& [key, waiting] : waiting_) {
    if (number == 1) waiting.first_report = 0;
    if (report.size() == kMostInAReport) continue;
    if (waiting.first_report == 0) waiting.first_report = number;
    report.push_back(waiting.shard);
  }
  return report;
}

void DamageReports::Answered(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(waiting_, [number](const auto& entry) {
    return entry.second.first_report > 0 && entry.second.first_report <= number;
  });
}

}  // namespace nibble
