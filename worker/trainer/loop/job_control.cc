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
enum Word { kBits, kRevision, kTimelineBytes, kCheckpointRequest };
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
                         .refused = message.refused(),
                         .lr_scale = message.lr_scale() == 0 ? 1 : message.lr_scale()});
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

absl::StatusOr<HostWords> JobControl::Say(bool storing, std::chrono::milliseconds patience) {
  HostWords words = {};
  if (stop_.load(std::memory_order_relaxed)) words[kBits] |= kStop;
  if (storing) words[kBits] |= kStoring;
  if (link_ == nullptr) return words;
  const bool waits = collective_.rank() == 0 && patience.count() > 0;
  NIBBLE_RETURN_IF_ERROR(waits ? link_->WaitForChange(patience) : link_->Poll());
  const link::v1::Command& command = link_->command();
  if (command.command() == v1::GANG_COMMAND_STOP) words[kBits] |= kStop | kLast;
  if (command.command() == v1::GANG_COMMAND_PAUSE) words[kBits] |= kPause;
  words[kCheckpointRequest] = static_cast<uint64_t>(command.checkpoint_request());
  const int64_t newest = command.revisions().empty() ? 0 : command.revisions().rbegin()->number();
  if (newest > revision_) {
    timeline_ = command.SerializeAsString();
    words[kRevision] = static_cast<uint64_t>(newest);
    words[kTimelineBytes] = timeline_.size();
  }
  return words;
}

HostWords JobControl::Ask(bool storing) {
  const absl::StatusOr<HostWords> words = Say(storing, {});
  asked_ = words.status();
  return words.ok() ? *words : HostWords();
}

absl::StatusOr<JobControl::Boundary> JobControl::Agree(bool storing,
                                                       std::chrono::milliseconds patience) {
  NIBBLE_RETURN_IF_ERROR(std::exchange(asked_, absl::OkStatus()));
  std::vector<HostWords> said = std::exchange(heard_, {});
  if (said.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const HostWords mine, Say(storing, patience));
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, collective_.ExchangeSmall(mine));
    said.resize(static_cast<size_t>(collective_.world()));
    std::memcpy(said.data(), all.data(), said.size() * sizeof(HostWords));
  }
  uint64_t bits = 0;
  for (const HostWords& words : said) bits |= words[kBits];
  // Rank 0's are those of the job.
  const HostWords& job = said[0];
  Boundary boundary = {.stop = (bits & kStop) != 0,
                       .last_checkpoint = (bits & kLast) != 0,
                       .pause = (bits & kPause) != 0,
                       .storing = (bits & kStoring) != 0,
                       .checkpoint_request = static_cast<int64_t>(job[kCheckpointRequest])};
  if (job[kRevision] == 0) return boundary;
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          Share(timeline_, static_cast<int64_t>(job[kTimelineBytes])));
  revision_ = boundary.revision = static_cast<int64_t>(job[kRevision]);
  link::v1::Command command;
  NIBBLE_RETURN_IF_ERROR(ParseLinkMessage(text, command));
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
