// What the events of a run are made of: names, types, units and meanings of their fields, for the
// reference page and for exports.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_EVENT_DESCRIPTIONS_H_
#define NIBBLE_WORKER_TRAINER_REPORT_EVENT_DESCRIPTIONS_H_

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct EventFieldDescription {
  std::string name;
  std::string type;  // as people write it: "number", "whole number", "true or false", "text", …
  std::string unit;  // empty: none
  std::string meaning;
};

struct EventDescription {
  std::string name;
  std::string meaning;
  std::vector<EventFieldDescription> fields;  // in the order of the line
};

// Every event, in the order of the reference page.
const std::vector<EventDescription>& EventDescriptions();

// The fields of the event of this name; none if there is no such event.
const std::vector<EventFieldDescription>& FieldsOfEvent(std::string_view event);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENT_DESCRIPTIONS_H_
