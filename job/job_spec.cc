#include "job/job_spec.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/defaults.h"
#include "job/job_check.h"
#include "job/job_fields.h"
#include "job/overrides.h"
#include "job/problems.h"
#include "job/yaml_tree.h"

namespace nibble {
namespace {

// A spec of defaults, with examples for required fields.
JobSpec ExampleJob() {
  JobSpec spec;
  spec.name = "example";
  const absl::StatusOr<ModelSpec> model = ModelPreset("tiny-hybrid");
  if (model.ok()) spec.model = *model;
  spec.data.train = {{.path = "corpus.txt"}};
  spec.training.steps = 1000;
  FillDefaults(Problems(), spec);
  return spec;
}

std::string CommentOf(const FieldDoc& doc) {
  std::string comment = doc.meaning;
  comment[0] = absl::ascii_toupper(comment[0]);
  if (doc.type != kSectionType) absl::StrAppend(&comment, "\n", TypeText(doc));
  if (!doc.default_rule.empty()) absl::StrAppend(&comment, "\nDefault: ", doc.default_rule);
  if (doc.required) absl::StrAppend(&comment, "\nRequired: this is an example.");
  return comment;
}

// Adds documentation to the fields of `map`, whose paths begin with `prefix`.
void Comment(YamlNode& map, const std::string& prefix) {
  for (size_t i = 0; i < map.items.size(); ++i) {
    const std::string path = prefix + map.keys[i].text;
    for (const FieldDoc& doc : JobFieldDocs()) {
      if (doc.path == path) map.items[i].comment = CommentOf(doc);
    }
    if (map.items[i].kind == YamlNode::Kind::kMap) Comment(map.items[i], path + ".");
  }
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml) { return ParseJobSpec(yaml, {}); }

absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml, std::span<const std::string> settings) {
  NIBBLE_ASSIGN_OR_RETURN(const YamlNode root, OverriddenTree(yaml, settings));
  Problems problems;
  JobSpec spec;
  ReadRecord(root, "", JobRecord(), spec, problems);
  FillDefaults(problems, spec);
  CheckJob(spec, problems);
  NIBBLE_RETURN_IF_ERROR(problems.ToStatus());
  return spec;
}

absl::Status Validate(const JobSpec& spec) {
  Problems problems;
  CheckJob(spec, problems);
  return problems.ToStatus();
}

std::string ToYaml(const JobSpec& spec) { return WriteYaml(WriteRecord(JobRecord(), spec)); }

std::string DefaultsYaml() {
  YamlNode map = WriteRecord(JobRecord(), ExampleJob());
  Comment(map, "");
  return absl::StrCat("# Every field of a job with its default.\n\n", WriteYaml(map));
}

std::vector<int64_t> RanksThatShare(const TrainingSpec& training, int64_t least, int64_t most) {
  std::vector<int64_t> shared;
  const int64_t each = std::max<int64_t>(1, training.micro_batch);
  for (int64_t ranks = least; ranks <= std::min(most, training.batch); ++ranks) {
    if (training.batch % ranks == 0 && training.batch / ranks % each == 0) shared.push_back(ranks);
  }
  return shared;
}

std::vector<int64_t> AllowedRanks(const JobSpec& spec) {
  const ResourceSpec& resources = spec.resources;
  if (!resources.allowed_ranks.empty()) return resources.allowed_ranks;
  if (resources.min_ranks == 0 && resources.max_ranks == 0) return {resources.ranks};
  return RanksThatShare(spec.training,
                        resources.min_ranks == 0 ? resources.ranks : resources.min_ranks,
                        resources.max_ranks == 0 ? resources.ranks : resources.max_ranks);
}

uint64_t RepeatSeed(const TrainingSpec& training) {
  if (training.repeat == 0) return training.seed;
  // SplitMix64: neighbouring numbers and seeds give unrelated results.
  uint64_t x = training.seed + static_cast<uint64_t>(training.repeat) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::string OutputDirectory(const JobSpec& spec) {
  return spec.output.directory.empty() ? absl::StrCat("runs/", spec.name) : spec.output.directory;
}

std::string TensorboardDirectory(const JobSpec& spec, const std::string& output) {
  const std::string& directory = spec.output.tensorboard;
  return directory.empty() || directory.front() == '/' ? directory
                                                       : absl::StrCat(output, "/", directory);
}

}  // namespace nibble
