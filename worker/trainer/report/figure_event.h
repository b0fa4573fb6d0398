// Events whose fields are the figures of a message, declared by its options
// (proto/nibble/v1/figure.proto): "step", "products" and "precision".
//
// Ownership: FigureField borrows from descriptors, which live as long as the program.
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_FIGURE_EVENT_H_
#define NIBBLE_WORKER_TRAINER_REPORT_FIGURE_EVENT_H_

#include <string>
#include <type_traits>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/figure.pb.h"

namespace nibble {

template <class Event>
inline constexpr bool kIsFigureEvent = std::is_base_of_v<google::protobuf::Message, Event>;

struct FigureField {
  std::string name;  // in the event's line
  const google::protobuf::FieldDescriptor* field = nullptr;
  const v1::EventField* option = nullptr;
};

// The event's name and meaning.
const v1::EventKind& FigureEventKind(const google::protobuf::Descriptor& message);
// The event's fields, in the order of their declaration.
std::vector<FigureField> FigureEventFields(const google::protobuf::Descriptor& message);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_FIGURE_EVENT_H_
