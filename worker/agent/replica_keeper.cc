#include "worker/agent/replica_keeper.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

std::string KeyOf(const v1::DesiredReplica& replica) {
  return absl::StrCat(replica.ref().job(), "/", replica.ref().step(), "/", replica.ref().attempt(),
                      "/", replica.rank());
}

}  // namespace

ReplicaKeeper::ReplicaKeeper(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

ReplicaKeeper::~ReplicaKeeper() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    if (cancellation_ != nullptr) cancellation_->Cancel();
  }
  changed_.notify_all();
  thread_.join();
}

void ReplicaKeeper::Want(const std::vector<v1::DesiredReplica>& replicas) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::set<std::string> asked;
    size_t place = 0;
    for (const v1::DesiredReplica& replica : replicas) {
      const std::string key = KeyOf(replica);
      asked.insert(key);
      const auto [at, is_new] = wishes_.try_emplace(
          key, Wish{.replica = replica, .not_before = {}, .backoff = Backoff(options_.backoff)});
      if (!is_new) at->second.replica = replica;
      at->second.place = place++;
    }
    std::erase_if(wishes_, [&](const auto& wish) { return !asked.contains(wish.first); });
    if (cancellation_ != nullptr && !asked.contains(under_way_)) cancellation_->Cancel();
  }
  changed_.notify_all();
}

ReplicaKeeper::Wish* ReplicaKeeper::Next() {
  const auto due = [now = Clock::now()](const Wish& wish) {
    return std::pair(std::max(wish.not_before, now), wish.place);
  };
  const auto first =
      std::min_element(wishes_.begin(), wishes_.end(),
                       [&](const auto& a, const auto& b) { return due(a.second) < due(b.second); });
  return first == wishes_.end() ? nullptr : &first->second;
}

void ReplicaKeeper::Run() {
  while (true) {
    v1::DesiredReplica replica;
    Cancellation* cancellation = nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const Wish* const next = closing_ ? nullptr : Next();
      if (closing_) return;
      if (next == nullptr) {
        changed_.wait(lock);
        continue;
      }
      if (next->not_before > Clock::now()) {
        changed_.wait_until(lock, next->not_before);
        continue;
      }
      replica = next->replica;
      under_way_ = KeyOf(replica);
      cancellation_ = std::make_unique<Cancellation>();
      cancellation = cancellation_.get();
    }
    const absl::StatusOr<uint32_t> held = options_.desk->CrcOf(replica.ref(), replica.rank());
    absl::Status status;
    if (!held.ok() || *held != replica.manifest_crc32c()) {
      status = options_.fetcher->Fetch(replica, /*input=*/false, *cancellation, [](int64_t) {});
    }
    if (!status.ok() && !absl::IsCancelled(status) && options_.log) {
      options_.log(absl::StrCat("no copy yet: ", std::string(status.message())));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    cancellation_ = nullptr;
    under_way_.clear();
    const auto at = wishes_.find(KeyOf(replica));
    if (at == wishes_.end()) continue;
    // What is held stays wished for until the coordinator has heard of it.
    at->second.not_before = Clock::now() + at->second.backoff.Next();
    if (status.ok()) at->second.backoff.Reset();
  }
}

}  // namespace nibble
