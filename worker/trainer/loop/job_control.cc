#include "worker/trainer/loop/job_control.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "recipe/recipe_json.h"
#include "worker/trainer/link/daemon_link.h"

namespace nibble {
namespace {

constexpr std::chrono::milliseconds kFirstWord = std::chrono::seconds(30);

constexpr size_t kLongHistory = 64;  // revisions that have begun, or were refused

// The words of a boundary. All but the bits are set by rank 0 only.
enum Word { kBits, kRevision, kTimelineBytes, kCheckpointRequest, kWords };
constexpr size_t kReasonWords = 64;
constexpr uint64_t kStop = 1, kLast = 2, kPause = 4, kStoring = 8;

}  // namespace

absl::StatusOr<Timeline> AdoptTimeline(const Timeline& run, const Timeline& offered,
                                       int64_t next_step) {
  std::map<int64_t, Revision> adopted;  // by number
  int64_t known = 0;                    // the latest that has begun
  int64_t before = 0;                   // the one before it
  for (const Revision& revision : run.revisions()) {
    const bool begun = revision.refused.empty() && revision.first_step < next_step;
    if (begun) before = std::exchange(known, revision.number);
    if (begun || !revision.refused.empty()) adopted.emplace(revision.number, revision);
  }
  if (adopted.size() > kLongHistory && before > 0) {
    adopted.erase(adopted.begin(), adopted.find(before));
    adopted.begin()->second.first_step = 0;
  }
  int64_t earliest = next_step;
  for (const Revision& revision : offered.revisions()) {
    if (revision.number <= known) continue;
    const auto [at, added] = adopted.emplace(revision.number, revision);
    if (!added || !revision.refused.empty()) continue;
    earliest = std::max(earliest, revision.first_step);
    at->second.first_step = earliest;
  }
  std::vector<Revision> revisions;
  for (auto& [number, revision] : adopted) revisions.push_back(std::move(revision));
  return Timeline::FromRevisions(std::move(revisions));
}

// Shows the daemon which collective this rank is in.
class JobControl::Whereabouts : public CollectiveObserver {
 public:
  explicit Whereabouts(std::unique_ptr<WaitingPage> page) : page_(std::move(page)) {}
  void Entered(const char* operation, uint64_t number) override { page_->Enter(operation, number); }
  void Left() override { page_->Leave(); }

 private:
  const std::unique_ptr<WaitingPage> page_;
};

JobControl::JobControl(Collective& collective, const std::atomic<bool>& stop)
    : collective_(collective), stop_(stop) {}

JobControl::~JobControl() { collective_.set_observer(nullptr); }

absl::StatusOr<std::unique_ptr<JobControl>> JobControl::Create(Collective& collective,
                                                               const std::atomic<bool>& stop,
                                                               const std::string& daemon,
                                                               int64_t attempt) {
  std::unique_ptr<JobControl> control(new JobControl(collective, stop));
  if (daemon.empty()) return control;
  // The page must exist before the daemon is contacted.
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<WaitingPage> page,
                          WaitingPage::Create(WaitingPage::PathOf(daemon, collective.rank())));
  control->whereabouts_ = std::make_unique<Whereabouts>(std::move(page));
  collective.set_observer(control->whereabouts_.get());
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<DaemonLink> link,
      DaemonLink::Connect({.address = daemon, .rank = collective.rank(), .attempt = attempt}));
  control->link_ = std::move(link);
  if (collective.rank() == 0) {
    NIBBLE_RETURN_IF_ERROR(control->link_->AwaitWord(kFirstWord));
  }
  return control;
}

absl::StatusOr<std::string> JobControl::Share(const std::string& text, int64_t bytes) {
  std::string shared(static_cast<size_t>(bytes), '\0');
  constexpr int64_t kPiece = Collective::kMaxExchangeWords * int64_t{sizeof(uint64_t)};
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const auto size = static_cast<size_t>(std::min(kPiece, bytes - at));
    std::vector<uint64_t> words((size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    if (collective_.rank() == 0) std::memcpy(words.data(), text.data() + at, size);
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, collective_.ExchangeSmall(words));
    std::memcpy(shared.data() + at, all.data(), size);
  }
  return shared;
}

absl::StatusOr<JobControl::Boundary> JobControl::Agree(bool storing,
                                                       std::chrono::milliseconds patience) {
  ControlWord word;
  if (link_ != nullptr) {
    const bool waits = collective_.rank() == 0 && patience.count() > 0;
    NIBBLE_ASSIGN_OR_RETURN(ControlWord heard,
                            waits ? link_->WaitForChange(patience) : link_->Poll());
    if (collective_.rank() == 0) word = std::move(heard);
  }
  uint64_t mine[kWords] = {};
  if (stop_.load(std::memory_order_relaxed)) mine[kBits] |= kStop;
  if (storing) mine[kBits] |= kStoring;
  if (word.command == ControlWord::Command::kStop) mine[kBits] |= kStop | kLast;
  if (word.command == ControlWord::Command::kPause) mine[kBits] |= kPause;
  mine[kCheckpointRequest] = static_cast<uint64_t>(word.checkpoint_request);
  if (word.timeline_revision > revision_) {
    mine[kRevision] = static_cast<uint64_t>(word.timeline_revision);
    mine[kTimelineBytes] = word.timeline.size();
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, collective_.ExchangeSmall(mine));
  uint64_t bits = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(collective_.world()); ++rank) {
    bits |= all[rank * kWords + kBits];
  }
  Boundary boundary = {.stop = (bits & kStop) != 0,
                       .last_checkpoint = (bits & kLast) != 0,
                       .pause = (bits & kPause) != 0,
                       .storing = (bits & kStoring) != 0,
                       .checkpoint_request = static_cast<int64_t>(all[kCheckpointRequest])};
  const auto revision = static_cast<int64_t>(all[kRevision]);
  if (revision == 0) return boundary;
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          Share(word.timeline, static_cast<int64_t>(all[kTimelineBytes])));
  revision_ = revision;
  boundary.revision = revision;
  boundary.timeline = TimelineFromJson(text);
  return boundary;
}

absl::StatusOr<std::string> JobControl::AgreeOn(const absl::Status& outcome) {
  const uint64_t failed[] = {outcome.ok() ? uint64_t{0} : uint64_t{1}};
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, collective_.ExchangeSmall(failed));
  const auto first = std::find(all.begin(), all.end(), uint64_t{1});
  if (first == all.end()) return "";
  const size_t rank = static_cast<size_t>(first - all.begin());
  // Every rank sends the same number of words; those of the first failed rank count.
  std::array<uint64_t, kReasonWords> mine = {};
  const absl::string_view why = outcome.message();
  std::memcpy(mine.data(), why.data(), std::min(why.size(), sizeof mine - 1));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> reasons, collective_.ExchangeSmall(mine));
  return absl::StrCat("rank ", rank, ": ",
                      reinterpret_cast<const char*>(reasons.data() + rank * kReasonWords));
}

}  // namespace nibble
