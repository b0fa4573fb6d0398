#include "worker/trainer/loop/job_control.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "worker/link/link_messages.h"

namespace nibble {
namespace {

// The words of a boundary. All but the bits are set by rank 0 only.
enum Word { kBits, kRevision, kTimelineBytes, kCheckpointRequest, kWords };
constexpr size_t kReasonWords = 64;
constexpr uint64_t kStop = 1, kLast = 2, kPause = 4, kStoring = 8;

std::vector<FieldSetting> SettingsOf(
    const google::protobuf::RepeatedPtrField<v1::FieldSetting>& messages) {
  std::vector<FieldSetting> settings;
  for (const v1::FieldSetting& message : messages) {
    settings.push_back({message.field(), message.value()});
  }
  return settings;
}

// Errors as Timeline::FromRevisions.
absl::StatusOr<Timeline> TimelineOf(const link::v1::Command& command) {
  std::vector<Revision> revisions;
  for (const v1::RecipeRevision& message : command.revisions()) {
    Recipe recipe = {.preset = message.recipe().preset(),
                     .set = SettingsOf(message.recipe().set())};
    for (const v1::LayerRule& rule : message.recipe().layers()) {
      recipe.layers.push_back({rule.match(), SettingsOf(rule.set())});
    }
    revisions.push_back({.number = message.number(),
                         .first_step = message.first_step(),
                         .author = message.author(),
                         .time_unix_ms = message.time_unix_ms(),
                         .reason = message.reason(),
                         .recipe = std::move(recipe),
                         .refused = message.refused()});
  }
  return Timeline::FromRevisions(std::move(revisions));
}

}  // namespace

class JobControl::Observer : public CollectiveObserver {
 public:
  explicit Observer(WaitingPage& page) : page_(page) {}
  void Entered(const char* operation, uint64_t number) override { page_.Enter(operation, number); }
  void Left() override { page_.Leave(); }

 private:
  WaitingPage& page_;
};

JobControl::JobControl(Collective& collective, const std::atomic<bool>& stop, RankLink* link)
    : collective_(collective),
      stop_(stop),
      link_(link),
      observer_(link == nullptr ? nullptr : std::make_unique<Observer>(link->page())) {
  collective.set_observer(observer_.get());
}

JobControl::~JobControl() { collective_.set_observer(nullptr); }

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
  link::v1::Command command;  // of rank 0
  if (link_ != nullptr) {
    const bool waits = collective_.rank() == 0 && patience.count() > 0;
    NIBBLE_RETURN_IF_ERROR(waits ? link_->WaitForChange(patience) : link_->Poll());
    command = link_->command();
  }
  const int64_t newest = command.revisions().empty() ? 0 : command.revisions().rbegin()->number();
  std::string timeline;  // to be shared
  uint64_t mine[kWords] = {};
  if (stop_.load(std::memory_order_relaxed)) mine[kBits] |= kStop;
  if (storing) mine[kBits] |= kStoring;
  if (command.command() == v1::GANG_COMMAND_STOP) mine[kBits] |= kStop | kLast;
  if (command.command() == v1::GANG_COMMAND_PAUSE) mine[kBits] |= kPause;
  mine[kCheckpointRequest] = static_cast<uint64_t>(command.checkpoint_request());
  if (newest > revision_) {
    timeline = command.SerializeAsString();
    mine[kRevision] = static_cast<uint64_t>(newest);
    mine[kTimelineBytes] = timeline.size();
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
                          Share(timeline, static_cast<int64_t>(all[kTimelineBytes])));
  revision_ = revision;
  boundary.revision = revision;
  if (collective_.rank() != 0) {
    NIBBLE_RETURN_IF_ERROR(ParseLinkMessage(text, command));
  }
  boundary.timeline = TimelineOf(command);
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
