#include "client/report/run_events.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json_text.h"

namespace nibble {
namespace {

using EventJson = nlohmann::json;

// NaN for texts such as "nan" and for fields that are missing.
double NumberOf(const EventJson& event, const char* field) {
  const auto found = event.find(field);
  if (found == event.end()) return StepFigures::kUnknown;
  if (found->is_number()) return found->get<double>();
  if (found->is_string() && *found == "inf") return std::numeric_limits<double>::infinity();
  if (found->is_string() && *found == "-inf") return -std::numeric_limits<double>::infinity();
  return StepFigures::kUnknown;
}

int64_t WholeOf(const EventJson& event, const char* field) {
  const auto found = event.find(field);
  return found != event.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string WordOf(const EventJson& event, const char* field) {
  const auto found = event.find(field);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

// A value of the start event as text.
std::string AnyText(const EventJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

StepFigures StepOf(const EventJson& event) {
  StepFigures step = {.tokens = NumberOf(event, "tokens"),
                      .loss = NumberOf(event, "loss"),
                      .gradient_norm = NumberOf(event, "gradient_norm"),
                      .learning_rate = NumberOf(event, "learning_rate"),
                      .tokens_per_second = NumberOf(event, "tokens_per_second"),
                      .seconds = NumberOf(event, "seconds")};
  for (size_t i = 0; i < kStepParts.size(); ++i) {
    const double part = NumberOf(event, kStepParts[i].first);
    if (!std::isfinite(part)) continue;
    step.parts[i] = part;
    step.has_parts = true;
  }
  return step;
}

std::string GuardText(const EventJson& event) {
  std::string text = absl::StrCat(WordOf(event, "guard"), " guard: ", WordOf(event, "action"));
  const double z = NumberOf(event, "z");
  if (std::isfinite(z) && z != 0) absl::StrAppend(&text, absl::StrFormat(", z = %.3g", z));
  const std::string detail = WordOf(event, "detail");
  if (!detail.empty()) absl::StrAppend(&text, ": ", detail);
  return text;
}

template <class Value>
void EraseFrom(int64_t step, std::map<int64_t, Value>& by_step) {
  by_step.erase(by_step.lower_bound(step), by_step.end());
}

bool SameLoss(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Drops the steps that were repeated with the same loss: a killed run that resumes from a
// checkpoint repeats the bits, and abandons nothing.
void DropRepeated(RunRecord& record) {
  std::erase_if(record.abandoned, [&record](std::map<int64_t, double>& losses) {
    bool differs = false;
    std::erase_if(losses, [&](const auto& one) {
      const auto found = record.steps.find(one.first);
      if (found == record.steps.end()) return false;
      const bool same = SameLoss(found->second.loss, one.second);
      differs |= !same;
      return same;
    });
    return !differs;
  });
}

}  // namespace

int32_t RunEvents::IndexOf(const std::string& name, std::map<std::string, int32_t>& indices,
                           std::vector<std::string>& names) {
  const auto [found, added] = indices.try_emplace(name, static_cast<int32_t>(names.size()));
  if (added) names.push_back(name);
  return found->second;
}

void RunEvents::Add(std::string_view line) {
  if (line.empty()) return;
  ++names_.lines;
  if (!with_precision_ && line.find("\"event\":\"precision\"") != line.npos) return;
  const EventJson event = NestsDeeperThan(kMaxJsonLineDepth, line)
                              ? EventJson()
                              : EventJson::parse(line, nullptr, false);
  const std::string kind = event.is_object() ? WordOf(event, "event") : "";
  if (kind.empty()) {
    ++names_.unreadable;
    return;
  }
  if (kind == "start" || current_ == nullptr) {
    attempts_.push_back(std::make_unique<Attempt>());
    current_ = attempts_.back().get();
    current_->began = WordOf(event, "time");
    current_->first_step = WholeOf(event, "first_step");
  }
  RunRecord& record = current_->record;
  const int64_t step = WholeOf(event, "step");
  const auto note = [&](const std::string& text) {
    record.notes.push_back({step, WordOf(event, "time"), kind, text});
  };
  if (kind == "start") {
    for (const auto& [name, value] : event.items()) {
      if (name == "schema" || name == "event" || name == "spec") continue;
      record.start.emplace_back(name, AnyText(value));
    }
  } else if (kind == "step") {
    record.steps[step] = StepOf(event);
  } else if (kind == "precision") {
    record.precision[step].push_back(
        {.layer = IndexOf(WordOf(event, "layer"), layers_, names_.layers),
         .operand = IndexOf(WordOf(event, "operand"), operands_, names_.operands),
         .format = IndexOf(WordOf(event, "format"), formats_, names_.formats),
         .relative_error = static_cast<float>(NumberOf(event, "relative_error")),
         .underflow = static_cast<float>(NumberOf(event, "underflow")),
         .clipped = static_cast<float>(NumberOf(event, "clipped"))});
  } else if (kind == "validation") {
    record.validation[WordOf(event, "set")][step] = NumberOf(event, "loss");
  } else if (kind == "products") {
    if (!record.paths.empty() && record.paths.back().step != step) record.paths.clear();
    record.paths.push_back({step, WordOf(event, "gemm"), WordOf(event, "path"),
                            WordOf(event, "reason"), WholeOf(event, "linears")});
  } else if (kind == "memory") {
    record.memory.clear();
    for (const auto& [name, value] : event.items()) {
      if (name == "schema" || name == "step" || !value.is_number_integer()) continue;
      record.memory.emplace_back(name, value.get<int64_t>());
    }
  } else if (kind == "resume") {
    record.resumed_at.push_back(step);
  } else if (kind == "guard") {
    note(GuardText(event));
  } else if (kind == "notice") {
    note(WordOf(event, "text"));
  } else if (kind == "error") {
    note(absl::StrCat(WordOf(event, "code"), ": ", WordOf(event, "message")));
  } else if (kind == "checkpoint" && event.contains("stored") && event["stored"] == false) {
    note(absl::StrCat("not stored: ", WordOf(event, "problem")));
  }
}

RunRecord RunEvents::Finish() {
  std::stable_sort(attempts_.begin(), attempts_.end(),
                   [](const auto& a, const auto& b) { return a->began < b->began; });
  RunRecord all = std::move(names_);
  for (const std::unique_ptr<Attempt>& attempt : attempts_) {
    RunRecord& record = attempt->record;
    std::map<int64_t, double>& abandoned = all.abandoned.emplace_back();
    for (auto at = all.steps.lower_bound(attempt->first_step); at != all.steps.end(); ++at) {
      abandoned[at->first] = at->second.loss;
    }
    EraseFrom(attempt->first_step, all.steps);
    EraseFrom(attempt->first_step, all.precision);
    for (auto& [set, losses] : all.validation) {
      // A validation after N steps belongs to the attempt that ran step N - 1.
      EraseFrom(attempt->first_step + 1, losses);
    }
    all.steps.merge(record.steps);
    all.precision.merge(record.precision);
    for (auto& [set, losses] : record.validation) {
      for (const auto& [step, loss] : losses) all.validation[set][step] = loss;
    }
    all.notes.insert(all.notes.end(), record.notes.begin(), record.notes.end());
    all.resumed_at.insert(all.resumed_at.end(), record.resumed_at.begin(), record.resumed_at.end());
    if (!record.paths.empty()) all.paths = std::move(record.paths);
    if (!record.start.empty()) all.start = std::move(record.start);
    if (!record.memory.empty()) all.memory = std::move(record.memory);
  }
  DropRepeated(all);
  std::stable_sort(all.notes.begin(), all.notes.end(),
                   [](const RunNote& a, const RunNote& b) { return a.step < b.step; });
  return all;
}

bool OnlyObserved(std::string_view text) {
  return text.find(" guard: observed") != std::string_view::npos;
}

void AddSamples(const std::vector<v1::StepSample>& samples, RunRecord& record) {
  for (const v1::StepSample& sample : samples) {
    record.steps.try_emplace(sample.step(),
                             StepFigures{.tokens = static_cast<double>(sample.tokens()),
                                         .loss = sample.loss(),
                                         .gradient_norm = sample.gradient_norm(),
                                         .learning_rate = sample.learning_rate(),
                                         .tokens_per_second = sample.tokens_per_second(),
                                         .seconds = sample.step_seconds()});
  }
}

}  // namespace nibble
