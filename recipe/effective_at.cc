#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

constexpr std::string_view kAllowedTimes =
    "allowed: step:N, tokens:N, fraction:F from 0 to 1, P%, lr-decay, now";

absl::Status Refuse(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("at: '", std::string(text), "' ", std::string(why),
                                                 "; ", std::string(kAllowedTimes)));
}

template <class T>
std::optional<T> ParseNumber(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// The rest of `text` after `prefix`, if it begins with that.
std::optional<std::string_view> After(std::string_view prefix, std::string_view text) {
  if (text.substr(0, prefix.size()) != prefix) return std::nullopt;
  return text.substr(prefix.size());
}

absl::StatusOr<EffectiveAt> CountAt(EffectiveAt::Kind kind, std::string_view number,
                                    std::string_view text) {
  const std::optional<int64_t> count = ParseNumber<int64_t>(number);
  if (!count || *count < 0) return Refuse(text, "has no count from 0");
  return EffectiveAt{.kind = kind, .count = *count};
}

absl::StatusOr<EffectiveAt> FractionAt(std::string_view number, double unit,
                                       std::string_view text) {
  const std::optional<double> value = ParseNumber<double>(number);
  if (!value || !(*value >= 0 && *value <= unit)) {
    return Refuse(text, "is not a fraction from 0 to 1 (0% to 100%)");
  }
  return EffectiveAt{.kind = EffectiveAt::Kind::kFraction, .fraction = *value / unit};
}

// The first whole step at or after `exact`. Fractions are written in decimal, so a product very
// close to a whole number means that number: 0.82 of 1000 steps is step 820.
int64_t CeilStep(double exact) {
  const double nearest = std::round(exact);
  if (std::abs(exact - nearest) <= 1e-12 * std::max(1.0, std::abs(exact))) {
    return static_cast<int64_t>(nearest);
  }
  return static_cast<int64_t>(std::ceil(exact));
}

absl::StatusOr<int64_t> InRange(int64_t step, const EffectiveAt& at, const ScheduleFacts& facts) {
  if (step >= 0 && step <= facts.steps) return step;
  return absl::InvalidArgumentError(absl::StrCat("at: ", ToString(at), " is step ", step,
                                                 ", outside [0, ", facts.steps,
                                                 "], the steps of the run"));
}

}  // namespace

absl::StatusOr<EffectiveAt> ParseEffectiveAt(std::string_view text) {
  if (text == "now") return EffectiveAt{.kind = EffectiveAt::Kind::kNow};
  if (text == "lr-decay") return EffectiveAt{.kind = EffectiveAt::Kind::kLrDecay};
  if (const auto number = After("step:", text)) {
    return CountAt(EffectiveAt::Kind::kStep, *number, text);
  }
  if (const auto number = After("tokens:", text)) {
    return CountAt(EffectiveAt::Kind::kTokens, *number, text);
  }
  const std::string_view fraction = After("fraction:", text).value_or(text);
  if (!fraction.empty() && fraction.back() == '%') {
    return FractionAt(fraction.substr(0, fraction.size() - 1), 100.0, text);
  }
  if (fraction.size() != text.size()) return FractionAt(fraction, 1.0, text);
  return Refuse(text, "is not a time");
}

std::string ToString(const EffectiveAt& at) {
  switch (at.kind) {
    case EffectiveAt::Kind::kStep:
      return absl::StrCat("step:", at.count);
    case EffectiveAt::Kind::kTokens:
      return absl::StrCat("tokens:", at.count);
    case EffectiveAt::Kind::kLrDecay:
      return "lr-decay";
    case EffectiveAt::Kind::kNow:
      return "now";
    case EffectiveAt::Kind::kFraction:
      break;
  }
  // The shortest text that reads back as the same value.
  char digits[32];
  const auto result = std::to_chars(digits, digits + sizeof(digits), at.fraction);
  return absl::StrCat("fraction:", std::string(digits, result.ptr));
}

absl::StatusOr<int64_t> ResolveStep(const EffectiveAt& at, const ScheduleFacts& facts) {
  switch (at.kind) {
    case EffectiveAt::Kind::kStep:
      return InRange(at.count, at, facts);
    case EffectiveAt::Kind::kTokens:
      if (facts.tokens_per_step <= 0) {
        return absl::InvalidArgumentError(absl::StrCat("at: ", ToString(at), " with ",
                                                       facts.tokens_per_step,
                                                       " tokens per step; allowed: 1 or more"));
      }
      return InRange(
          at.count / facts.tokens_per_step + (at.count % facts.tokens_per_step > 0 ? 1 : 0), at,
          facts);
    case EffectiveAt::Kind::kLrDecay:
      if (facts.decay_first_step < 0 || facts.decay_first_step >= facts.steps) {
        return absl::InvalidArgumentError(
            absl::StrCat("at: lr-decay, but the learning rate never decays in the ", facts.steps,
                         " steps of the run"));
      }
      return facts.decay_first_step;
    case EffectiveAt::Kind::kNow:
      return InRange(facts.next_step, at, facts);
    case EffectiveAt::Kind::kFraction:
      break;
  }
  if (!(at.fraction >= 0 && at.fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("at: ", ToString(at), " is outside [0, 1] of the run"));
  }
  return InRange(CeilStep(at.fraction * static_cast<double>(facts.steps)), at, facts);
}

}  // namespace nibble
