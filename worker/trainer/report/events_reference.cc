#include "worker/trainer/report/events_reference.h"

#include "absl/strings/str_cat.h"
#include "worker/trainer/report/event_descriptions.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Made from worker/trainer/report/events.h:
     bazel run //worker/trainer/report:write_events_reference > docs/reference/events.md -->
# Events

A run writes its events to `events.jsonl` in its output directory (`output.directory` of its spec):
one JSON object per line, written when the event happens. A run that resumes from a checkpoint
appends, beginning with another `start`. Readers skip events and fields that they do not know.

Every line has
- `schema`: )";

constexpr char kCommon[] =
    R"(, the version of this page. It grows when a field changes its meaning or is removed;
- `event`: one of those below;
- `time`: when the event was written, UTC, `2026-01-31T12:00:00.250Z`.

Numbers that JSON cannot express are texts: `"nan"`, `"inf"`, `"-inf"`. Steps count from 0.
)";

}  // namespace

std::string EventsReferenceMarkdown() {
  std::string out = absl::StrCat(kIntroduction, kEventSchema, kCommon);
  for (const EventDescription& event : EventDescriptions()) {
    absl::StrAppend(&out, "\n## ", event.name, "\n", event.meaning,
                    "\n\n| field | type | unit | meaning |\n|---|---|---|---|\n");
    for (const EventFieldDescription& field : event.fields) {
      absl::StrAppend(&out, "| `", field.name, "` | ", field.type, " | ", field.unit, " | ");
      absl::StrAppend(&out, field.meaning, " |\n");
    }
  }
  return out;
}

}  // namespace nibble
