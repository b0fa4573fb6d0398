// Which events of a job are posted to which of its targets.
//
// A target's `wanted_event` is the newest event that it wants and `settled_event` the newest that
// was delivered or given up, so what is still to be posted follows from the stored job alone.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_NOTIFY_EVENTS_H_
#define NIBBLE_SERVER_STATE_NOTIFY_EVENTS_H_

#include <optional>

#include "job/choices.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// What an event is called in a spec; unset: it is never posted.
std::optional<NotifyEvent> PostedAs(const v1::JobEvent& event);
bool Wants(const v1::NotifyTarget& target, const v1::JobEvent& event);
// Some target has events that are to be posted and are not settled.
bool HasUnsettled(const v1::JobRecord& job);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_NOTIFY_EVENTS_H_
