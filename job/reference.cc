#include "job/reference.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "job/job_fields.h"
#include "recipe/fields.h"
#include "recipe/presets.h"

namespace nibble {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Generated from job/job_fields.cc:
     bazel run //job:write_reference > docs/reference/job-spec.md -->
# Job specs

A job is one YAML document. `nibble job validate FILE` checks it and prints a summary;
`nibble job show-defaults` prints a spec with every field. Unset fields take their defaults. A
default that follows from other fields, such as the warm-up from the length of the run, adapts to
them, so that a default never makes a job invalid. A field that is unknown, is set twice, or has a
value that is not allowed is an error; all errors are reported at once, with their lines.

YAML aliases, tags and multiple documents are not supported. Quote a text that begins with `*`, as a
model's pattern may.
)";

std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"|", "\\|"}, {"\n", " "}, {"*", "\\*"}});
}

std::string Code(std::string_view text) {
  return text.empty() ? "" : absl::StrCat("`", std::string(text), "`");
}

// The first part of a path: the section.
std::string Top(std::string_view path) {
  return std::string(path.substr(0, path.find_first_of(".[")));
}

void Row(const FieldDoc& doc, std::string& out) {
  const std::string default_value = doc.required               ? "required"
                                    : doc.default_rule.empty() ? Code(doc.default_value)
                                                               : doc.default_rule;
  const std::string unit = doc.unit.empty() ? "" : absl::StrCat(", ", doc.unit);
  // In meanings, stars occur only inside backquotes, where they need no escape.
  absl::StrAppend(&out, "| ", Code(doc.path), " | ", doc.type, Cell(unit), " | ", default_value,
                  " | ", Cell(doc.allowed), " | ", absl::StrReplaceAll(doc.meaning, {{"|", "\\|"}}),
                  " |\n");
}

void FieldTables(std::string& out) {
  constexpr char kHead[] =
      "\n| field | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const FieldDoc& doc : JobFieldDocs()) {
    const bool top = Top(doc.path) == doc.path;
    if (top) absl::StrAppend(&out, "\n## ", doc.path, "\n", kHead);
    Row(doc, out);
  }
}

void RecipeTables(std::string& out) {
  absl::StrAppend(&out, "\n## Recipe presets\n\n| preset | description |\n|---|---|\n");
  for (const Preset& preset : AllPresets()) {
    absl::StrAppend(&out, "| ", Code(preset.name), " | ", Cell(preset.summary), " |\n");
  }
  absl::StrAppend(&out,
                  "\n## Recipe fields\n\nThe fields of `set`, in `recipe`, in its `layers` and in "
                  "`changes`: allowed values, then the fields that accept them.\n\n```\n",
                  FieldsHelp(), "```\n");
}

}  // namespace

std::string JobReferenceMarkdown() {
  std::string out = kIntroduction;
  FieldTables(out);
  RecipeTables(out);
  return out;
}

}  // namespace nibble
