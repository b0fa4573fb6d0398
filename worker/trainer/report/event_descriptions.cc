#include "worker/trainer/report/event_descriptions.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "worker/trainer/report/events.h"
#include "worker/trainer/report/figure_event.h"

namespace nibble {
namespace {

template <class T>
std::string TypeName() {
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of texts";
  return "whole number";
}

std::string TypeName(const google::protobuf::FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
      return TypeName<double>();
    case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
      return TypeName<bool>();
    case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
      return TypeName<std::string>();
    default:
      return TypeName<int64_t>();
  }
}

template <class Event>
EventDescription Describe() {
  EventDescription description;
  if constexpr (kIsFigureEvent<Event>) {
    const v1::EventKind& kind = FigureEventKind(*Event::descriptor());
    description = {kind.name(), kind.meaning(), {}};
    for (const FigureField& figure : FigureEventFields(*Event::descriptor())) {
      description.fields.push_back(
          {figure.name, TypeName(*figure.field), figure.option->unit(), figure.option->meaning()});
    }
  } else {
    description = {Event::kName, Event::kMeaning, {}};
    Event::Describe([&description]<class T>(std::string_view name, T Event::*,
                                            std::string_view unit, std::string_view meaning) {
      description.fields.push_back(
          {std::string(name), TypeName<T>(), std::string(unit), std::string(meaning)});
    });
  }
  return description;
}

template <class... Events>
std::vector<EventDescription> DescribeAll(const std::tuple<Events...>*) {
  return {Describe<Events>()...};
}

}  // namespace

const std::vector<EventDescription>& EventDescriptions() {
  static const auto* const all =
      new std::vector<EventDescription>(DescribeAll(static_cast<const AllEvents*>(nullptr)));
  return *all;
}

const std::vector<EventFieldDescription>& FieldsOfEvent(std::string_view event) {
  static const auto* const none = new std::vector<EventFieldDescription>();
  const std::vector<EventDescription>& all = EventDescriptions();
  const auto found = std::find_if(
      all.begin(), all.end(), [event](const EventDescription& one) { return one.name == event; });
  return found == all.end() ? *none : found->fields;
}

}  // namespace nibble
