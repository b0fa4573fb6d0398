#include "worker/trainer/comm/device_collective.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

DeviceCollective::DeviceCollective(Backend& backend, std::unique_ptr<RankGroup> group,
                                   std::unique_ptr<Collective> hosts,
                                   std::unique_ptr<RankWatch> watch, std::shared_ptr<Beside> beside)
    : Collective(group->rank(), group->world()),
      backend_(backend),
      hosts_(std::move(hosts)),
      group_(std::move(group)),
      watch_(std::move(watch)),
      beside_(std::move(beside)) {
  watch_->Watch(group_.get());
}

DeviceCollective::~DeviceCollective() { watch_->Leave(); }

std::string DeviceCollective::Name() const {
  return absl::StrCat(group_->Name(), ", rank ", rank(), " of ", world());
}

absl::Status DeviceCollective::Enqueued(const char* name, const Operation& operation) {
  if (beside_ != nullptr) *beside_ = operation.beside;
  return watch_->Enqueued(name, operation.number);
}

absl::Status DeviceCollective::DoAllGather(const Operation& operation, const void* in, void* out,
                                           int64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(Enqueued("AllGather", operation));
  return group_->AllGather(operation.number, in, out, bytes);
}

absl::Status DeviceCollective::DoReduceScatter(const Operation& operation, const float* in,
                                               float* out, int64_t count) {
  NIBBLE_RETURN_IF_ERROR(Enqueued("ReduceScatter", operation));
  return group_->ReduceScatter(operation.number, in, out, count);
}

absl::Status DeviceCollective::DoAllReduce(const Operation& operation, void* data, int64_t count,
                                           ReduceElement element, Reduction reduction) {
  NIBBLE_RETURN_IF_ERROR(Enqueued("AllReduce", operation));
  return group_->AllReduce(operation.number, data, count, element, reduction);
}

absl::Status DeviceCollective::DoBroadcast(const Operation& operation, void* data, int64_t bytes,
                                           int root) {
  NIBBLE_RETURN_IF_ERROR(Enqueued("Broadcast", operation));
  return group_->Broadcast(operation.number, data, bytes, root);
}

absl::Status DeviceCollective::DoBarrier(const Operation& operation) {
  NIBBLE_RETURN_IF_ERROR(watch_->status());
  watch_->HostEntered("Barrier", operation.number);
  const absl::Status status = hosts_->Barrier();
  watch_->HostLeft();
  return status;
}

absl::Status DeviceCollective::DoExchange(const Operation& operation, uint64_t* words,
                                          int64_t count) {
  NIBBLE_RETURN_IF_ERROR(watch_->status());
  watch_->HostEntered("ExchangeSmall", operation.number);
  const absl::StatusOr<std::vector<uint64_t>> all =
      hosts_->ExchangeSmall({words + rank() * count, static_cast<size_t>(count)});
  watch_->HostLeft();
  if (!all.ok()) return all.status();
  std::copy(all->begin(), all->end(), words);
  return absl::OkStatus();
}

}  // namespace nibble
