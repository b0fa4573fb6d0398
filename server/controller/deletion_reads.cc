// Deleted checkpoints: the record of each, and what workers still have of them.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "server/controller/reads.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

// Of one page, unless a single checkpoint has more: a response has to fit into a message.
constexpr int kMostShardsOfPage = 5000;

absl::Status CheckShown(const ReadContext& context, const std::string& job) {
  if (context.state.FindJob(job) != nullptr && context.view.Shows(context.state, job)) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("job: there is no '", job, "'"));
}

// Whether one checkpoint, by key, is listed before another: by job, newest first.
bool IsListedBefore(absl::string_view a, absl::string_view b) {
  const absl::string_view job_a = a.substr(0, a.find('/'));
  const absl::string_view job_b = b.substr(0, b.find('/'));
  return job_a == job_b ? a > b : job_a < job_b;
}

v1::TrashedCheckpoint Trashed(const ReadContext& context, TrashRegistry::ByWorker by_worker,
                              const std::vector<LooseShard>& loose) {
  v1::TrashedCheckpoint trashed;
  for (auto& [worker, shards] : by_worker) {
    v1::TrashHolding& holding = *trashed.add_holdings();
    holding.set_worker(worker);
    for (v1::TrashedShard& shard : shards) {
      *trashed.mutable_ref() = shard.ref();
      trashed.set_world(std::max(trashed.world(), shard.world()));
      trashed.set_bytes(trashed.bytes() + shard.bytes());
      *holding.add_shards() = std::move(shard);
    }
  }
  const std::string key = CheckpointKey(trashed.ref());
  std::set<int32_t> ranks;
  for (const LooseShard& one : loose) {
    if (CheckpointKey(one.shard.ref()) == key) ranks.insert(one.shard.rank());
  }
  trashed.set_present_shards(static_cast<int32_t>(ranks.size()));
  const v1::CheckpointDeletion* const deletion = context.state.FindDeletion(trashed.ref());
  trashed.set_restore_ordered(deletion != nullptr && deletion->restore_ordered());
  return trashed;
}

}  // namespace

absl::StatusOr<v1::ListTrashResponse> Answer(const ReadContext& context,
                                             const v1::ListTrashRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "trash"));
  if (!request.job().empty()) NIBBLE_RETURN_IF_ERROR(CheckShown(context, request.job()));
  v1::ListTrashResponse response;
  if (context.trash == nullptr) return response;
  auto all = context.trash->Trash(request.job());
  std::vector<std::string> keys;
  for (const auto& [key, by_worker] : all) {
    if (page.after.empty() || IsListedBefore(page.after, key)) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end(), IsListedBefore);
  std::string last;
  std::string job;
  std::vector<LooseShard> loose;  // of the job
  int shards = 0;
  for (const std::string& key : keys) {
    const std::string its_job = key.substr(0, key.find('/'));
    if (!context.view.Shows(context.state, its_job)) continue;
    if (response.checkpoints_size() == page.size || shards >= kMostShardsOfPage) {
      response.set_next_token(PageToken("trash", last));
      break;
    }
    if (job != its_job) loose = context.trash->Of(job = its_job);
    for (const auto& [worker, its] : all[key]) shards += static_cast<int>(its.size());
    *response.add_checkpoints() = Trashed(context, std::move(all[key]), loose);
    last = key;
  }
  return response;
}

absl::StatusOr<v1::ListDeletionsResponse> Answer(const ReadContext& context,
                                                 const v1::ListDeletionsRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page(), "deletions"));
  NIBBLE_RETURN_IF_ERROR(CheckShown(context, request.job()));
  const std::vector<const v1::CheckpointDeletion*> all = context.state.DeletionsOf(request.job());
  v1::ListDeletionsResponse response;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const std::string key = CheckpointKey((*it)->ref());
    if (!page.after.empty() && key >= page.after) continue;
    if (response.deletions_size() == page.size) {
      response.set_next_token(
          PageToken("deletions", CheckpointKey(response.deletions().rbegin()->ref())));
      break;
    }
    *response.add_deletions() = **it;
  }
  return response;
}

}  // namespace nibble
