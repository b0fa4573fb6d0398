#include "client/remote/scheduling_flags.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/yaml_scalar.h"

namespace nibble {
namespace {

constexpr int kMaxRanks = 1 << 16;
constexpr int kMostPriority = 1000;

absl::Status AddLabels(const char* option, const std::vector<std::string>& texts,
                       google::protobuf::RepeatedPtrField<v1::Label>& labels) {
  if (!texts.empty()) labels.Clear();
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": '", text, "' is not KEY=VALUE, such as rack=a12"));
    }
    v1::Label& label = *labels.Add();
    label.set_key(text.substr(0, equals));
    label.set_value(text.substr(equals + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Milliseconds(const std::string& text) {
  if (text == "0") return 0;
  NIBBLE_ASSIGN_OR_RETURN(const absl::Duration duration, ParseSeconds(text));
  return absl::ToInt64Milliseconds(duration);
}

// For Option::Check.
std::string IsPause(const std::string& text) {
  return std::string(Milliseconds(text).status().message());
}

}  // namespace

bool SchedulingFlags::given() const {
  return queue || project || priority || !ranks.empty() || min_slots || max_slots ||
         !required.empty() || !preferred.empty() || fp4;
}

absl::StatusOr<v1::JobScheduling> SchedulingFlags::Over(v1::JobScheduling base, int64_t batch,
                                                        int64_t micro_batch) const {
  if (queue) base.set_queue(*queue);
  if (project) base.set_project(*project);
  if (priority) base.set_priority(*priority);
  if (fp4) base.set_wants_fp4_tensor_cores(true);
  NIBBLE_RETURN_IF_ERROR(AddLabels("--require", required, *base.mutable_required_labels()));
  NIBBLE_RETURN_IF_ERROR(AddLabels("--prefer", preferred, *base.mutable_preferred_labels()));
  if (!ranks.empty()) {
    std::vector<int32_t> sorted = ranks;
    std::sort(sorted.begin(), sorted.end());
    base.mutable_allowed_ranks()->Assign(sorted.begin(), sorted.end());
  }
  if (!min_slots && !max_slots) return base;
  const int32_t least = min_slots.value_or(1);
  const int32_t most = max_slots.value_or(kMaxRanks);
  base.clear_allowed_ranks();
  const int64_t each = std::max<int64_t>(1, micro_batch);
  for (int64_t count = least; count <= std::min<int64_t>(most, batch); ++count) {
    if (batch % count == 0 && (batch / count) % each == 0) {
      base.add_allowed_ranks(static_cast<int32_t>(count));
    }
  }
  if (base.allowed_ranks().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-slots, --max-slots: no number of ranks from ", least, " to ", most,
                     " divides a batch of ", batch, " into micro-batches of ", each));
  }
  return base;
}

absl::StatusOr<std::vector<std::string>> SchedulingFlags::Settings() const {
  std::vector<std::string> settings;
  if (queue) settings.push_back(absl::StrCat("scheduling.queue=", YamlQuoted(*queue)));
  if (priority) settings.push_back(absl::StrCat("scheduling.priority=", *priority));
  if (fp4) settings.push_back("scheduling.prefer_fp4=true");
  v1::JobScheduling labels;
  NIBBLE_RETURN_IF_ERROR(AddLabels("--require", required, *labels.mutable_required_labels()));
  NIBBLE_RETURN_IF_ERROR(AddLabels("--prefer", preferred, *labels.mutable_preferred_labels()));
  const auto set_labels = [&](const char* field, const auto& given) {
    if (given.empty()) return;
    settings.push_back(absl::StrCat(field, "={",
                                    absl::StrJoin(given, ", ",
                                                  [](std::string* out, const v1::Label& label) {
                                                    absl::StrAppend(out, YamlQuoted(label.key()),
                                                                    ": ",
                                                                    YamlQuoted(label.value()));
                                                  }),
                                    "}"));
  };
  set_labels("scheduling.require", labels.required_labels());
  set_labels("scheduling.prefer", labels.preferred_labels());
  // A spec has either allowed_ranks or min_ranks and max_ranks: the given form clears the other.
  if (ranks.empty() && !min_slots && !max_slots) return settings;
  std::vector<int32_t> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  settings.push_back(absl::StrCat("resources.allowed_ranks=[", absl::StrJoin(sorted, ", "), "]"));
  settings.push_back(
      absl::StrCat("resources.min_ranks=", ranks.empty() ? min_slots.value_or(1) : 0));
  settings.push_back(
      absl::StrCat("resources.max_ranks=", ranks.empty() ? max_slots.value_or(kMaxRanks) : 0));
  return settings;
}

void AddSchedulingOptions(Command verb, SchedulingFlags& flags) {
  verb.Add("--queue", flags.queue,
           "queue of the job; default: that of the spec, or of a fork's parent");
  verb.Add("--project", flags.project,
           "project of the job; default: that of a fork's parent, or of the caller's token");
  verb.Add("--priority", flags.priority, "jobs of higher priority are scheduled first")
      .WholeNumber(-kMostPriority, kMostPriority);
  const Option ranks = verb.Add("--ranks", flags.ranks, "allowed numbers of ranks, such as 2,4,8")
                           .SplitAt(',')
                           .OneValueEach()
                           .WholeNumber(1, kMaxRanks);
  verb.Add("--min-slots", flags.min_slots,
           "the least number of slots; the batch must be divisible by it")
      .WholeNumber(1, kMaxRanks)
      .Excludes(ranks);
  verb.Add("--max-slots", flags.max_slots, "the greatest number of slots")
      .WholeNumber(1, kMaxRanks)
      .Excludes(ranks);
  verb.Add("--require", flags.required, "KEY=VALUE: a label that workers must have").OneValueEach();
  verb.Add("--prefer", flags.preferred, "KEY=VALUE: a label of preferred workers").OneValueEach();
  verb.AddFlag("--prefer-fp4", flags.fp4, "prefer workers with FP4 tensor cores");
}

absl::StatusOr<v1::RestartPolicy> RestartFlags::Over(v1::RestartPolicy base) const {
  if (max_restarts) base.set_max_without_progress(*max_restarts);
  if (backoff) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t ms, Milliseconds(*backoff));
    base.set_initial_backoff_ms(ms);
    if (!max_backoff) base.set_max_backoff_ms(std::max(base.max_backoff_ms(), ms));
  }
  if (max_backoff) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t ms, Milliseconds(*max_backoff));
    base.set_max_backoff_ms(ms);
  }
  return base;
}

absl::StatusOr<std::vector<std::string>> RestartFlags::Settings() const {
  std::vector<std::string> settings;
  if (max_restarts) {
    settings.push_back(absl::StrCat("restarts.max_without_progress=", *max_restarts));
  }
  const auto set_pause = [&](const char* field, const std::optional<std::string>& text) {
    if (!text) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const int64_t ms, Milliseconds(*text));
    // Enough digits for every millisecond, and no exponent.
    settings.push_back(absl::StrFormat("%s=%.15g", field, static_cast<double>(ms) / 1000));
    return absl::OkStatus();
  };
  NIBBLE_RETURN_IF_ERROR(set_pause("restarts.backoff", backoff));
  NIBBLE_RETURN_IF_ERROR(set_pause("restarts.max_backoff", max_backoff));
  return settings;
}

void AddRestartOptions(Command verb, RestartFlags& flags) {
  verb.Add("--max-restarts", flags.max_restarts,
           "consecutive failures without a new checkpoint before the job fails; 0: no restart")
      .AtLeast(0);
  verb.Add("--backoff", flags.backoff,
           "pause before the first restart, such as 5s or 0; it doubles with each restart")
      .Check(IsPause);
  verb.Add("--max-backoff", flags.max_backoff, "the longest pause, such as 5m").Check(IsPause);
}

}  // namespace nibble
