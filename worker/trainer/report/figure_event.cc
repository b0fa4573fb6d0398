#include "worker/trainer/report/figure_event.h"

namespace nibble {

const v1::EventKind& FigureEventKind(const google::protobuf::Descriptor& message) {
  return message.options().GetExtension(v1::event_kind);
}

std::vector<FigureField> FigureEventFields(const google::protobuf::Descriptor& message) {
  std::vector<FigureField> fields;
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    const v1::Figure& figure = field.options().GetExtension(v1::figure);
    if (!figure.has_event()) continue;
    const v1::EventField& option = figure.event();
    fields.push_back({.name = option.name().empty() ? field.name() : option.name(),
                      .field = &field,
                      .option = &option});
  }
  return fields;
}

}  // namespace nibble
