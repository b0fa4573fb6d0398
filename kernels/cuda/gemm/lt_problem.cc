#include "kernels/cuda/gemm/lt_problem.h"

#include <cstddef>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

// In the order of the enumerations.
constexpr absl::string_view kTypes[] = {"f32", "bf16", "e4m3", "e5m2", "e2m1"};
constexpr absl::string_view kScales[] = {"none",   "tensor", "lines", "slices",
                                         "blocks", "mx",     "nvfp4"};

std::string OperandText(const LtOperand& operand) {
  return absl::StrCat(kTypes[static_cast<size_t>(operand.type)], ":",
                      operand.k_major ? "k" : "lines", ":", operand.stride, ":",
                      kScales[static_cast<size_t>(operand.scale)]);
}

template <class Enum, size_t kCount>
bool ParseName(absl::string_view text, const absl::string_view (&names)[kCount], Enum& value) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] != text) continue;
    value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

bool ParseChoice(absl::string_view text, absl::string_view if_false, absl::string_view if_true,
                 bool& value) {
  value = text == if_true;
  return value || text == if_false;
}

bool ParseSize(absl::string_view text, int64_t& value) {
  return absl::SimpleAtoi(text, &value) && value > 0;
}

bool ParseOperand(absl::string_view text, LtOperand& operand) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 4 && ParseName(parts[0], kTypes, operand.type) &&
         ParseChoice(parts[1], "lines", "k", operand.k_major) &&
         ParseSize(parts[2], operand.stride) && ParseName(parts[3], kScales, operand.scale);
}

bool ParseShape(absl::string_view text, LtProblem& problem) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  return parts.size() == 3 && ParseSize(parts[0], problem.m) && ParseSize(parts[1], problem.n) &&
         ParseSize(parts[2], problem.k);
}

bool ParseResult(absl::string_view text, LtProblem& problem) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 4 && ParseName(parts[0], kTypes, problem.c) &&
         ParseSize(parts[1], problem.c_stride) &&
         ParseChoice(parts[2], "set", "add", problem.accumulate) &&
         ParseChoice(parts[3], "host", "device", problem.device_alpha);
}

}  // namespace

int LtTypeBits(LtType type) {
  constexpr int kBits[] = {32, 16, 8, 8, 4};
  return kBits[static_cast<size_t>(type)];
}

std::string LtProblem::Text() const {
  return absl::StrCat(m, "x", n, "x", k, " a=", OperandText(a), " b=", OperandText(b),
                      " c=", kTypes[static_cast<size_t>(c)], ":", c_stride, ":",
                      accumulate ? "add" : "set", ":", device_alpha ? "device" : "host",
                      " align=", alignment);
}

absl::StatusOr<LtProblem> ParseLtProblem(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "matmul '", text, "': ", what,
        " is wrong; an example is '16384x6144x2048 a=bf16:k:2048:none b=bf16:k:2048:none "
        "c=bf16:6144:set:host align=16'"));
  };
  if (parts.size() != 5) return wrong("the number of parts");
  LtProblem problem;
  absl::string_view a = parts[1], b = parts[2], c = parts[3], align = parts[4];
  int64_t alignment = 0;
  if (!ParseShape(parts[0], problem)) return wrong("the shape");
  if (!absl::ConsumePrefix(&a, "a=") || !ParseOperand(a, problem.a)) return wrong("operand a");
  if (!absl::ConsumePrefix(&b, "b=") || !ParseOperand(b, problem.b)) return wrong("operand b");
  if (!absl::ConsumePrefix(&c, "c=") || !ParseResult(c, problem)) return wrong("result c");
  if (!absl::ConsumePrefix(&align, "align=") || !ParseSize(align, alignment) || alignment > 16) {
    return wrong("the alignment");
  }
  problem.alignment = static_cast<int>(alignment);
  return problem;
}

}  // namespace nibble
