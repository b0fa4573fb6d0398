#include "worker/agent/gang_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

int64_t NewestRevision(const v1::GangReport& report) {
  return report.revisions().empty() ? 0 : report.revisions().rbegin()->revision();
}

// Whether the coordinator or Reconcile has to learn of it at once.
bool Differ(const GangSnapshot& a, const GangSnapshot& b) {
  return a.present != b.present || a.refusals != b.refusals ||
         a.report.phase() != b.report.phase() ||
         NewestRevision(a.report) != NewestRevision(b.report);
}

}  // namespace

GangRunner::GangRunner(const v1::DesiredGang& desired, const v1::StoreIdentity& store,
                       const GangHome& home, const absl::Status& refusal)
    : home_(home),
      origin_{.job = desired.job(), .attempt = desired.attempt(), .store = store},
      gang_(std::make_unique<Gang>(desired, store, home)),
      sent_(WantedOf(desired, {}).order),
      spares_(home.keep_ranks.count() > 0 && desired.slots_size() != desired.world()),
      snapshot_(std::make_shared<const GangSnapshot>(gang_->TakeSnapshot())) {
  thread_.Post([this, refusal] {
    if (refusal.ok()) {
      gang_->Prepare();
    } else {
      gang_->Refuse(refusal);
    }
    Publish();
  });
}

GangRunner::~GangRunner() { thread_.Stop(); }

std::string GangRunner::Name() const {
  return absl::StrCat(origin_.job, " attempt ", origin_.attempt);
}

std::shared_ptr<const GangSnapshot> GangRunner::snapshot() const {
  const MutexLock lock(&mutex_);
  return snapshot_;
}

PresentGang GangRunner::present() const {
  PresentGang present = snapshot()->present;
  present.sent = sent_;
  present.closing = closing();
  present.spared |=
      spares_ && unwanted_since_ms_.has_value() && home_.clock() - *unwanted_since_ms_ < kSpareMs;
  for (PresentRank& rank : present.ranks) rank.killed |= killed_.contains(rank.rank);
  return present;
}

v1::GangReport GangRunner::TakeReport() {
  const MutexLock lock(&mutex_);
  v1::GangReport report = snapshot_->report;
  report.mutable_samples()->Swap(&samples_);
  samples_.Clear();
  return report;
}

void GangRunner::Publish() {
  GangSnapshot snapshot = gang_->TakeSnapshot();
  google::protobuf::RepeatedPtrField<v1::StepSample> samples;
  samples.Swap(snapshot.report.mutable_samples());
  const auto published = std::make_shared<const GangSnapshot>(std::move(snapshot));
  bool changed = false;
  {
    const MutexLock lock(&mutex_);
    changed = Differ(*snapshot_, *published);
    snapshot_ = published;
    samples_.MergeFrom(samples);
    if (samples_.size() > kMaxSamples) samples_.DeleteSubrange(0, samples_.size() - kMaxSamples);
  }
  if (changed && home_.changed) home_.changed();
}

void GangRunner::Refresh(const v1::DesiredGang* desired) {
  if (desired != nullptr) {
    unwanted_since_ms_.reset();
  } else if (!unwanted_since_ms_.has_value()) {
    unwanted_since_ms_ = home_.clock();
  }
  {
    const MutexLock lock(&mutex_);
    if (closing_) return;
    desired_ = desired == nullptr ? nullptr : std::make_shared<const v1::DesiredGang>(*desired);
    if (std::exchange(refreshing_, true)) return;
  }
  thread_.Post([this] {
    std::shared_ptr<const v1::DesiredGang> present;
    {
      const MutexLock lock(&mutex_);
      refreshing_ = false;
      present = desired_;
    }
    gang_->Advance(present.get());
    Publish();
  });
}

void GangRunner::Record(const v1::DesiredGang& desired) {
  thread_.Post([this, desired, store = origin_.store] {
    const absl::Status recorded = home_.provenance->RecordOrder(desired, store);
    if (!recorded.ok() && home_.log) home_.log(std::string(recorded.message()));
  });
}

void GangRunner::Send(const v1::DesiredGang& desired) {
  sent_ = WantedOf(desired, {}).order;
  thread_.Post([this, desired] {
    gang_->Send(desired);
    Publish();
  });
}

void GangRunner::DumpStacks(int32_t rank, const std::string& reason) {
  if (!dumped_.insert(rank).second) return;
  thread_.Post([this, rank, reason] {
    gang_->DumpStacks(rank, reason);
    Publish();
  });
}

void GangRunner::Kill(int32_t rank, const std::string& reason) {
  if (!killed_.insert(rank).second) return;
  thread_.Post([this, rank, reason] {
    gang_->Kill(rank, reason);
    Publish();
  });
}

void GangRunner::Trace(const link::v1::TraceCommand& trace) {
  thread_.Post([this, trace] { gang_->Trace(trace); });
}

void GangRunner::Close() {
  {
    const MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.Post([this] {
    gang_.reset();
    {
      const MutexLock lock(&mutex_);
      closed_ = true;
    }
    if (home_.changed) home_.changed();
  });
}

bool GangRunner::closing() const {
  const MutexLock lock(&mutex_);
  return closing_;
}

bool GangRunner::closed() const {
  const MutexLock lock(&mutex_);
  return closed_;
}

void GangRunner::Abandon() {
  thread_.Stop();
  if (gang_ != nullptr) gang_->Abandon();
}

}  // namespace nibble
