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
    R"(<!-- Made from job/job_fields.cc:
     bazel run //job:write_reference > docs/reference/job-spec.md -->
# Job specs

A job is one YAML document. `nibble job validate FILE` checks it and says what it amounts to;
`nibble job show-defaults` prints one with every field. Fields that are left out have their
defaults, which are never a reason to refuse a job: where a default follows from other fields, such
as the warm-up from the length of the run, it fits them. A field that is not known, is given twice,
or holds a value that is not allowed is an error; all errors are reported at once, with their lines.

Aliases, tags and further documents are not part of a spec. A text that begins with `*`, as a
model's pattern may, goes in quotes.
)";

std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"|", "\\|"}, {"\n", " "}, {"*", "\\*"}});
}

std::string Code(std::string_view text) {
  return text.empty() ? "" : absl::StrCat("`", std::string(text), "`");
}

// A path's first part: the section that it belongs to.
std::string Top(std::string_view path) {
  return std::string(path.substr(0, path.find_first_of(".[")));
}

void Row(const FieldDoc& doc, std::string& out) {
  const std::string default_value = doc.required               ? "required"
                                    : doc.default_rule.empty() ? Code(doc.default_value)
                                                               : doc.default_rule;
  const std::string unit = doc.unit.empty() ? "" : absl::StrCat(", ", doc.unit);
  // Meanings are prose with code in them: their stars stand inside backquotes.
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
  absl::StrAppend(&out, "\n## Recipe presets\n\n| preset | what it is |\n|---|---|\n");
  for (const Preset& preset : AllPresets()) {
    absl::StrAppend(&out, "| ", Code(preset.name), " | ", Cell(preset.summary), " |\n");
  }
  absl::StrAppend(&out,
                  "\n## Recipe fields\n\nWhat `set` takes, in `recipe`, in its `layers` and in "
                  "`changes`: allowed values, then the fields that take them.\n\n```\n",
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
