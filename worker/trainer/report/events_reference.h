// Generates docs/reference/events.md from the descriptions of the events (events.h).
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_EVENTS_REFERENCE_H_
#define NIBBLE_WORKER_TRAINER_REPORT_EVENTS_REFERENCE_H_

#include <string>

namespace nibble {

std::string EventsReferenceMarkdown();

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENTS_REFERENCE_H_
