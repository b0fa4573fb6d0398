// The daemon's trash: opening, removal by age and size, and what the coordinator has restored.

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "worker/agent/daemon.h"

namespace nibble {
namespace {

constexpr int64_t kTidyEveryMs = 60'000;

}  // namespace

absl::Status Daemon::OpenTrash(std::function<int64_t()> clock) {
  NIBBLE_ASSIGN_OR_RETURN(trash_,
                          Trash::Open({.directory = options_.data_directory + "/trash",
                                       .most_age_ms = options_.trash_hours * 3'600'000,
                                       .most_bytes = options_.trash_bytes,
                                       .clock = std::move(clock),
                                       .changed =
                                           [this] {
                                             report_due_ = true;
                                             Wake();
                                           },
                                       .log = [this](const std::string& line) { Log(line); },
                                       .faults = options_.faults}));
  tidier_ = std::make_unique<TaskThread>();
  auto& hardware = *options_.identity.mutable_hardware();
  if (hardware.store_bytes() > 0) {
    hardware.set_store_bytes(hardware.store_bytes() + trash_->bytes());
  }
  return absl::OkStatus();
}

void Daemon::TendTrash(int64_t now_ms) {
  metrics_->PublishTrash(trash_->bytes());
  const int64_t version = trash_->version();
  if (version == tidied_version_ && now_ms < tidied_ms_ + kTidyEveryMs) return;
  if (tidying_.exchange(true)) return;
  tidied_version_ = version;
  tidied_ms_ = now_ms;
  tidier_->Post([this] {
    trash_->Tidy([this](const std::string& job) { return registry_->NewestAccepted(job); });
    tidying_ = false;
  });
}

void Daemon::RestoreFromTrash(const v1::ConnectResponse& response) {
  std::vector<v1::CheckpointRef> wanted;
  for (const v1::TrashOrder& order : response.restores()) {
    if (trash_->Has(order.ref())) wanted.push_back(order.ref());
  }
  if (wanted.empty() || restoring_.exchange(true)) return;
  tidier_->Post([this, wanted = std::move(wanted)] {
    for (const v1::CheckpointRef& ref : wanted) {
      if (const auto identity = trash_->IdentityOf(ref); identity.has_value()) {
        const absl::Status opened = OpenJobFor(ref.job(), *identity);
        if (!opened.ok()) Log(std::string(opened.message()));
      }
      registry_->Restore(ref);
    }
    restoring_ = false;
  });
}

}  // namespace nibble
