// Observations of a gang's ranks, reported to the coordinator and as metrics.

#include "worker/agent/gang.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/precision_summary.h"
#include "worker/link/link_host.h"

namespace nibble {
namespace {

constexpr size_t kMaxDetailBytes = 1900;
// The coordinator has long stored those before them.
constexpr size_t kMaxRevisionsReported = 128;
// How long to wait for the end of a peer that a rank has lost: the peer's end decides the cause.
constexpr int64_t kPeerPatienceMs = 5000;
// How long a rank may take to answer that it gives up. One that waits looks 20 times a second.
constexpr int64_t kAnswerMs = 1000;
// How long one that has answered may take to free what it has and to stand by. Less than
// kPeerPatienceMs, so that the rank that hangs is the cause.
constexpr int64_t kGivingUpMs = 4000;
// Time to read the last report of a rank that has ended. It is in the socket already.
constexpr int64_t kLastReportMs = 1000;

// How a state is reported, and its word in metrics.
struct StateName {
  v1::RankPhase phase;
  const char* word;
};

// By RankState.
constexpr StateName kStateNames[] = {
    {v1::RANK_PHASE_ASSIGNED, "preparing"},  {v1::RANK_PHASE_RUNNING, "running"},
    {v1::RANK_PHASE_PAUSED, "paused"},       {v1::RANK_PHASE_STOPPED, "stopped"},
    {v1::RANK_PHASE_SUCCEEDED, "succeeded"}, {v1::RANK_PHASE_FAILED, "failed"},
};
static_assert(std::size(kStateNames) == static_cast<size_t>(RankState::kFailed) + 1);

const StateName& NameOfState(RankState state) { return kStateNames[static_cast<size_t>(state)]; }

double Seconds(int64_t ms) { return static_cast<double>(ms) / 1000; }

}  // namespace

// Keeps the first cause, except that the end of a lost peer replaces FAILURE_CAUSE_PEER.
void Gang::Fail(const std::string& detail, v1::FailureCause cause) {
  const bool replaced = cause_ == v1::FAILURE_CAUSE_PEER && cause != v1::FAILURE_CAUSE_PEER;
  if (!detail_.empty() && !replaced) return;
  detail_ = Printable(detail, kMaxDetailBytes);
  cause_ = cause;
}

// The cause when a rank makes no step or has to be killed. If it waits and the gang spans other
// workers, the rank that it waits for may be there.
v1::FailureCause Gang::CauseOfHang(bool waits) const {
  const bool whole = desired_.slots_size() == desired_.world();
  return waits && !whole ? v1::FAILURE_CAUSE_PEER : v1::FAILURE_CAUSE_MACHINE;
}

std::optional<RankEnd> Gang::EndOfRank(const Rank& rank,
                                       const std::map<int32_t, LinkHost::Rank>& linked) const {
  const auto exit = home_.supervisor->ExitOf(rank.process);
  if (!exit.ok()) return std::nullopt;
  if (exit->has_value()) {
    const bool asked = sent_.has_value() && sent_->command == v1::GANG_COMMAND_STOP;
    return EndOf(rank.rank, **exit, asked);
  }
  const auto at = linked.find(rank.rank);
  if (at == linked.end() || !at->second.standing_by.has_value()) return std::nullopt;
  return RankEnd{.cause = v1::FAILURE_CAUSE_PEER,
                 .detail = absl::StrCat("rank ", rank.rank, ": ",
                                        Printable(*at->second.standing_by, kMaxDetailBytes))};
}

bool Gang::AwaitsPeers(const std::map<int32_t, LinkHost::Rank>& linked) {
  bool lost_peer = false;
  bool others_run = false;
  for (const Rank& rank : ranks_) {
    if (rank.process.empty() || rank.killed) continue;
    const std::optional<RankEnd> end = EndOfRank(rank, linked);
    if (!end.has_value()) {
      others_run = true;
      continue;
    }
    if (end->state != RankState::kFailed) continue;
    if (end->cause != v1::FAILURE_CAUSE_PEER) return false;
    lost_peer = true;
  }
  if (!lost_peer || !others_run) return false;
  if (!peer_lost_at_ms_.has_value()) peer_lost_at_ms_ = home_.clock();
  return home_.clock() - *peer_lost_at_ms_ < kPeerPatienceMs;
}

bool Gang::MayGiveUp(const Rank& rank, bool answered) const {
  return rank.asked_at_ms.has_value() &&
         home_.clock() - *rank.asked_at_ms < (answered ? kGivingUpMs : kAnswerMs);
}

void Gang::AwaitGivingUp(const std::map<int32_t, LinkHost::Rank>& linked,
                         std::vector<HungRank>& hung) {
  // A rank without peers waits for nobody.
  if (home_.keep_ranks.count() == 0 || desired_.world() == 1) return;
  std::erase_if(hung, [&](HungRank& one) {
    Rank& rank = ranks_[static_cast<size_t>(one.rank - desired_.first_rank())];
    if (!rank.asked_at_ms.has_value()) {
      rank.asked_at_ms = home_.clock();
      link_->AskToGiveUp(one.rank);
      Log(absl::StrCat(", ", one.detail, "; it is asked to give up"));
    }
    if (MayGiveUp(rank, linked.at(one.rank).gives_up)) return true;
    // Whatever it is in, it is the one that blocks the others.
    one.waits = false;
    absl::StrAppend(&one.detail, "; asked to give up, it does not");
    return false;
  });
}

bool Gang::Spares(const PresentGang& present, const std::map<int32_t, LinkHost::Rank>& linked) {
  if (home_.keep_ranks.count() == 0) return false;
  bool failed = false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const PresentRank& rank = present.ranks[i];
    failed |= rank.state == RankState::kFailed || rank.hangs;
    if (HasEnded(rank.state)) continue;
    // A debugger holds it.
    if (rank.hangs && ranks_[i].dumping && !rank.dumped) return true;
    const auto at = linked.find(rank.rank);
    if (!rank.hangs && MayGiveUp(ranks_[i], at != linked.end() && at->second.gives_up)) return true;
  }
  if (!failed) return false;
  if (!spared_since_ms_.has_value()) spared_since_ms_ = home_.clock();
  return home_.clock() - *spared_since_ms_ < kSpareMs;
}

void Gang::ObserveDump(Rank& rank) {
  if (!rank.dumping || rank.dumped) return;
  const auto ended = home_.supervisor->ExitOf(rank.process + ".stacks");
  rank.dumped = !ended.ok() || ended->has_value();
}

PresentRank Gang::ObserveRank(Rank& rank, const std::map<int32_t, LinkHost::Rank>& linked,
                              const std::vector<HungRank>& hung, bool awaits_peers) {
  PresentRank present = {.rank = rank.rank, .killed = rank.killed};
  if (rank.process.empty()) {
    present.state =
        preparing() ? RankState::kPreparing : ended_before_start_.value_or(RankState::kFailed);
    return present;
  }
  const auto at = linked.find(rank.rank);
  if (const std::optional<RankEnd> end = EndOfRank(rank, linked); end.has_value()) {
    if (!rank.ended_at_ms.has_value()) rank.ended_at_ms = home_.clock();
    const bool may_have_reported_more =
        at != linked.end() && at->second.connected && !at->second.standing_by.has_value();
    if (may_have_reported_more && home_.clock() - *rank.ended_at_ms < kLastReportMs) {
      present.state = RankState::kRunning;
      return present;
    }
    present.state = end->state;
    if (end->state != RankState::kFailed || rank.killed) return present;
    if (awaits_peers && end->cause == v1::FAILURE_CAUSE_PEER) {
      present.state = RankState::kRunning;
      return present;
    }
    Fail(end->detail, end->cause);
    return present;
  }
  if (at != linked.end() && at->second.report.activity() == link::v1::RANK_ACTIVITY_PAUSED &&
      sent_.has_value() && sent_->command == v1::GANG_COMMAND_PAUSE) {
    present.state = RankState::kPaused;
  }
  for (const HungRank& one : hung) {
    if (one.rank != rank.rank) continue;
    present.hangs = true;
    Fail(one.detail, CauseOfHang(one.waits));
  }
  present.hangs |= rank.dumping;
  ObserveDump(rank);
  present.dumped = rank.dumped;
  return present;
}

PresentGang Gang::Observe(const std::map<int32_t, LinkHost::Rank>& linked) {
  PresentGang present = {.job = job_, .attempt = attempt_, .slots = slots_, .sent = sent_};
  if (const auto zero = linked.find(0); zero != linked.end()) {
    for (const v1::RevisionStart& begun : zero->second.report.begun()) {
      if (begun.revision() > 0) revisions_.emplace(begun.revision(), begun.first_step());
    }
    while (revisions_.size() > kMaxRevisionsReported) revisions_.erase(revisions_.begin());
    for (const link::v1::RevisionRefused& refused : zero->second.report.refused()) {
      AddRefusal(refused.revision(), refused.reason());
    }
    const auto& decided = zero->second.report.decided();
    decided_.assign(decided.begin(), decided.end());
    for (v1::GuardDecision& decision : decided_) {
      decision.set_detail(Printable(decision.detail(), kMaxDetailBytes));
    }
  }
  std::vector<HungRank> hung = FindHung(linked, home_.watchdog, home_.clock());
  AwaitGivingUp(linked, hung);
  // The report names the rank that blocks the others, which is first.
  if (!hung.empty()) Fail(hung.front().detail, CauseOfHang(hung.front().waits));
  const bool awaits_peers = AwaitsPeers(linked);
  for (Rank& rank : ranks_) {
    present.ranks.push_back(ObserveRank(rank, linked, hung, awaits_peers));
  }
  present.spared = Spares(present, linked);
  return present;
}

void Gang::AddRefusal(int64_t revision, const std::string& reason) {
  if (revision <= 0 || reason.empty()) return;
  std::string text = Printable(reason.substr(0, kMaxDetailBytes), kMaxDetailBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  refused_.emplace(revision, std::move(text));
  while (refused_.size() > kMaxRevisionsReported) refused_.erase(refused_.begin());
}

std::string Gang::Trouble(const std::map<int32_t, LinkHost::Rank>& linked) const {
  std::vector<std::string> troubles;
  if (std::string registry = home_.registry->TroubleOf(job_, attempt_); !registry.empty()) {
    troubles.push_back(std::move(registry));
  }
  for (const auto& [number, rank] : linked) {
    if (!rank.report.trouble().empty()) troubles.push_back(rank.report.trouble());
  }
  return Printable(absl::StrJoin(troubles, "; "), kMaxDetailBytes);
}

GangSnapshot Gang::TakeSnapshot() {
  std::map<int32_t, LinkHost::Rank> linked;
  if (link_ != nullptr) linked = link_->TakeRanks();
  GangSnapshot snapshot = {.present = Observe(linked)};
  snapshot.report = Report(snapshot.present, linked);
  snapshot.figures = Figures(snapshot.present, linked);
  snapshot.refusals = refused_.size();
  return snapshot;
}

v1::GangReport Gang::Report(const PresentGang& present,
                            const std::map<int32_t, LinkHost::Rank>& linked) const {
  const RankState state = StateOfGang(present);
  v1::GangReport report;
  report.set_job(job_);
  report.set_attempt(attempt_);
  report.set_phase(NameOfState(failed_to_start_ ? RankState::kFailed : state).phase);
  report.set_next_step(first_step_);
  if (report.phase() == v1::RANK_PHASE_FAILED) {
    report.set_detail(detail_);
    report.set_cause(cause_);
  }
  if (refused_to_start_) report.set_cause(v1::FAILURE_CAUSE_PEER);
  if (report.phase() == v1::RANK_PHASE_ASSIGNED && preparation_ != nullptr) {
    report.set_detail(Printable(preparation_->progress(), kMaxDetailBytes));
  }
  if (started_ && !HasEnded(state)) report.set_trouble(Trouble(linked));
  const int64_t now = home_.clock();
  for (const auto& [number, rank] : linked) {
    const link::v1::RankReport& own = rank.report;
    v1::RankHealth& health = *report.add_ranks();
    health.set_rank(number);
    health.set_next_step(own.next_step());
    // A rank that waits between two steps, or after the last, is not measured by its step time.
    const bool steps = own.activity() == link::v1::RANK_ACTIVITY_STEPS;
    health.set_since_step_ms(steps ? std::max<int64_t>(0, now - rank.step_at_ms) : 0);
    health.set_median_step_ms(rank.median_step_ms);
    health.set_waiting_in(Printable(rank.waiting_in, kMaxJobIdBytes));
    health.set_memory_bytes(own.memory_bytes());
    health.set_work_seconds(
        std::max(0.0, own.sample().step_seconds() - own.sample().reduce_seconds()));
    if (number != 0) continue;
    report.set_next_step(std::max(first_step_, own.next_step()));
    report.set_checkpoint_request(own.checkpoint_request());
    for (const v1::StepSample& sample : rank.samples) *report.add_samples() = sample;
    if (rank.precision != nullptr) *report.mutable_precision() = SummaryOf(*rank.precision);
  }
  for (const auto& [revision, step] : revisions_) {
    v1::RevisionStart& start = *report.add_revisions();
    start.set_revision(revision);
    start.set_first_step(step);
  }
  for (const auto& [revision, reason] : refused_) {
    v1::RefusedRevision& refused = *report.add_refused();
    refused.set_revision(revision);
    refused.set_reason(reason);
  }
  report.mutable_decided()->Assign(decided_.begin(), decided_.end());
  return report;
}

void Gang::NoteModel(const JobSpec& spec) {
  planned_steps_ = EndStep(spec);
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  if (outline.ok()) flops_per_token_ = CountFlops(*outline, spec.data.sequence).training();
}

GangFigures Gang::Figures(const PresentGang& present,
                          const std::map<int32_t, LinkHost::Rank>& linked) const {
  GangFigures figures = {.job = job_,
                         .attempt = attempt_,
                         .world = desired_.world(),
                         .planned_steps = planned_steps_,
                         .flops_per_token = flops_per_token_};
  const int64_t now = home_.clock();
  for (const PresentRank& rank : present.ranks) {
    RankFigures& own = figures.ranks.emplace_back();
    own.rank = rank.rank;
    own.phase = NameOfState(rank.state).word;
    own.ended = HasEnded(rank.state);
    own.hung = rank.hangs;
    const auto log = home_.supervisor->LogOf(ProcessName(job_, attempt_, rank.rank));
    if (log != nullptr) own.log_bytes = log->end();
    const auto at = linked.find(rank.rank);
    if (at == linked.end()) continue;
    own.report = at->second.report;
    own.precision = at->second.precision;
    own.since_step_seconds = Seconds(std::max<int64_t>(0, now - at->second.step_at_ms));
    own.median_step_seconds = Seconds(at->second.median_step_ms);
  }
  return figures;
}

}  // namespace nibble
