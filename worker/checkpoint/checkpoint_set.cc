#include "worker/checkpoint/checkpoint_set.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {

absl::StatusOr<CheckpointSet> CheckpointSet::Create(std::vector<const CheckpointStore*> stores) {
  if (stores.empty()) return absl::InvalidArgumentError("a set needs at least one store");
  for (const CheckpointStore* store : stores) {
    if (store->identity() != stores.front()->identity()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "store ", store->path(), " is of ", ToString(store->identity()), ", store ",
          stores.front()->path(), " of ", ToString(stores.front()->identity())));
    }
  }
  return CheckpointSet(std::move(stores));
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointSet::Open(
    const StoredDirectory& directory) const {
  std::vector<CheckpointReader::Place> places;
  for (const CheckpointStore* store : stores_) {
    const auto more = store->Places(directory.step, directory.attempt);
    if (!more.ok()) return more.status();
    places.insert(places.end(), more->begin(), more->end());
  }
  return CheckpointReader::Open(stores_.front()->identity(), places);
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointSet::OpenCheckpoint(
    int64_t step) const {
  const auto committed = stores_.front()->Committed();
  if (!committed.ok()) return committed.status();
  for (auto directory = committed->rbegin(); directory != committed->rend(); ++directory) {
    if (directory->step == step) return Open(*directory);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no checkpoint of step ", step, " in ", stores_.front()->path()));
}

absl::StatusOr<GoodCheckpoint> CheckpointSet::LatestGood() const {
  const auto committed = stores_.front()->Committed();
  if (!committed.ok()) return committed.status();
  return FindLatestGood(stores_.front()->path(), *committed,
                        [this](const StoredDirectory& directory) { return Open(directory); });
}

}  // namespace nibble
