#include "server/controller/project_view.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/views.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Texts of the caller's own job alone, which may be large.
bool IsOwnDocument(const FieldDescriptor& field) {
  return field.name() == "spec_yaml" || field.name() == "table" || field.name() == "table_json";
}

bool IsOfName(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

}  // namespace

bool ProjectView::Shows(const v1::JobRecord& job) const { return IsOfProjects(projects_, job); }

bool ProjectView::Shows(const State& state, const std::string& job) const {
  if (!bound()) return true;
  const v1::JobRecord* const found = state.FindJob(job);
  return found != nullptr && Shows(*found);
}

bool ProjectView::Shows(const State& state, const v1::WatchJobsResponse& change) const {
  if (change.has_job()) return Shows(state, change.job().id());
  if (change.has_event()) return Shows(state, change.event().job());
  return !change.has_sample() || Shows(state, change.sample().job());
}

bool ProjectView::Hides(const State& state, absl::string_view word) const {
  const v1::JobRecord* const job = state.FindJob(std::string(word));
  return job != nullptr && !Shows(*job);
}

std::string ProjectView::Redacted(const State& state, const std::string& text) const {
  std::string redacted;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at;
    while (end < text.size() && IsOfName(text[end])) ++end;
    absl::string_view word = absl::string_view(text).substr(at, end - at);
    const size_t whole = word.size();
    // The end of a sentence.
    while (absl::ConsumeSuffix(&word, ".")) {
    }
    const bool hidden = !word.empty() && Hides(state, word);
    absl::StrAppend(&redacted, hidden ? absl::string_view(kHiddenJob) : word,
                    text.substr(at + word.size(), whole - word.size()));
    if (end < text.size()) redacted += text[end++];
    at = end;
  }
  return redacted;
}

void ProjectView::Redact(const State& state, Message& message) const {
  if (!bound()) return;
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        Redact(state, *reflection.MutableMessage(&message, field));
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        Redact(state, *reflection.MutableRepeatedMessage(&message, field, i));
      }
      continue;
    }
    if (field->type() != FieldDescriptor::TYPE_STRING || IsOwnDocument(*field)) continue;
    if (!field->is_repeated()) {
      reflection.SetString(&message, field, Redacted(state, reflection.GetString(message, field)));
      continue;
    }
    int kept = 0;
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      const std::string text = reflection.GetRepeatedString(message, field, i);
      if (Hides(state, text)) continue;
      reflection.SetRepeatedString(&message, field, kept++, Redacted(state, text));
    }
    while (reflection.FieldSize(message, field) > kept) reflection.RemoveLast(&message, field);
  }
}

}  // namespace nibble
