#include "worker/trainer/report/events_reference.h"

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Made from worker/trainer/report/events.h:
     bazel run //worker/trainer/report:write_events_reference > docs/reference/events.md -->
# Events

A run writes its events to `events.jsonl` in its output directory (`output.directory` of its spec):
one JSON object a line, handed to the system as it happens. A run that goes on from a checkpoint
appends, beginning with another `start`. Readers skip events and fields that they do not know.

Every line has
- `schema`: )";

constexpr char kCommon[] =
    R"(, the version of this page. It grows when a field changes its meaning or goes;
- `event`: one of those below;
- `time`: when it was written, UTC, `2026-01-31T12:00:00.250Z`.

Numbers that JSON cannot hold are texts: `"nan"`, `"inf"`, `"-inf"`. Steps count from 0.
)";

template <class T>
std::string_view TypeName() {
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of texts";
  return "whole number";
}

template <class Event>
void AddEvent(std::string& out) {
  absl::StrAppend(&out, "\n## ", Event::kName, "\n", Event::kMeaning,
                  "\n\n| field | type | unit | meaning |\n|---|---|---|---|\n");
  Event::Describe([&out]<class T>(std::string_view name, T Event::*, std::string_view unit,
                                  std::string_view meaning) {
    absl::StrAppend(&out, "| `", std::string(name), "` | ", std::string(TypeName<T>()), " | ",
                    std::string(unit), " | ");
    absl::StrAppend(&out, std::string(meaning), " |\n");
  });
}

template <class... Events>
void AddEvents(const std::tuple<Events...>*, std::string& out) {
  (AddEvent<Events>(out), ...);
}

}  // namespace

std::string EventsReferenceMarkdown() {
  std::string out = absl::StrCat(kIntroduction, kEventSchema, kCommon);
  AddEvents(static_cast<const AllEvents*>(nullptr), out);
  return out;
}

}  // namespace nibble
