#include "server/scheduler/eligible.h"

#include <algorithm>
#include <string_view>
#include <tuple>

namespace nibble::scheduler {
namespace {

bool Has(const std::vector<std::string_view>& labels, const std::string& label) {
  return std::binary_search(labels.begin(), labels.end(), std::string_view(label));
}

int Contains(const std::vector<std::string>& labels, std::string_view label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

void AppendLabels(const std::vector<std::string>& labels, std::string& key) {
  for (const std::string& label : labels) {
    key.append(std::to_string(label.size())).append(1, ':').append(label);
  }
  key.append(1, ';');
}

}  // namespace

EligibleKinds FindEligibleKinds(const Cluster& cluster, const Job& job) {
  EligibleKinds eligible;
  for (size_t k = 0; k < cluster.kinds().size(); ++k) {
    const std::vector<std::string_view>& labels = cluster.kinds()[k].labels;
    const auto has = [&labels](const std::string& label) { return Has(labels, label); };
    if (!std::all_of(job.required.begin(), job.required.end(), has)) continue;
    EligibleKind kind{.kind = static_cast<int>(k)};
    kind.preferred =
        static_cast<int>(std::count_if(job.preferred.begin(), job.preferred.end(), has));
    kind.unasked = static_cast<int>(
        std::count_if(labels.begin(), labels.end(), [&job](std::string_view label) {
          return !Contains(job.required, label) && !Contains(job.preferred, label);
        }));
    eligible.push_back(kind);
  }
  std::sort(eligible.begin(), eligible.end(), [](const EligibleKind& a, const EligibleKind& b) {
    return std::tie(b.preferred, a.unasked, a.kind) < std::tie(a.preferred, b.unasked, b.kind);
  });
  return eligible;
}

int EligibleTable::IdOf(const Job& job) {
  key_.clear();
  AppendLabels(job.required, key_);
  AppendLabels(job.preferred, key_);
  const auto [at, added] = ids_.try_emplace(key_, static_cast<int>(kinds_.size()));
  if (added) kinds_.push_back(FindEligibleKinds(cluster_, job));
  return at->second;
}

}  // namespace nibble::scheduler
