#include "server/state/notify_events.h"

#include <algorithm>
#include <string_view>

namespace nibble {
namespace {

std::optional<NotifyEvent> OfState(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
      return NotifyEvent::kStarted;
    case v1::JOB_STATE_PAUSED:
      return NotifyEvent::kPaused;
    case v1::JOB_STATE_RECOVERING:
      return NotifyEvent::kRecovering;
    case v1::JOB_STATE_PREEMPTED:
      return NotifyEvent::kPreempted;
    case v1::JOB_STATE_SUCCEEDED:
      return NotifyEvent::kCompleted;
    case v1::JOB_STATE_FAILED:
      return NotifyEvent::kFailed;
    case v1::JOB_STATE_CANCELLED:
      return NotifyEvent::kCancelled;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NotifyEvent> PostedAs(const v1::JobEvent& event) {
  switch (event.kind()) {
    case v1::JOB_EVENT_KIND_SUBMITTED:
      return NotifyEvent::kSubmitted;
    case v1::JOB_EVENT_KIND_MOVED:
      return OfState(event.to());
    case v1::JOB_EVENT_KIND_RECIPE:
      return NotifyEvent::kRecipeChanged;
    case v1::JOB_EVENT_KIND_CHECKPOINT:
      return NotifyEvent::kCheckpoint;
    case v1::JOB_EVENT_KIND_EXCLUDED:
      return NotifyEvent::kWorkerExcluded;
    case v1::JOB_EVENT_KIND_TROUBLE:
      return NotifyEvent::kTrouble;
    default:
      return std::nullopt;
  }
}

bool Wants(const v1::NotifyTarget& target, const v1::JobEvent& event) {
  const std::optional<NotifyEvent> posted = PostedAs(event);
  if (!posted) return false;
  const std::string_view name = ChoiceName(*posted);
  return std::any_of(target.on().begin(), target.on().end(),
                     [name](const std::string& wanted) { return wanted == name; });
}

bool HasUnsettled(const v1::JobRecord& job) {
  return std::any_of(job.notify().begin(), job.notify().end(), [](const v1::NotifyTarget& target) {
    return target.wanted_event() > target.settled_event();
  });
}

}  // namespace nibble
