#include "client/local/local_commands.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/local/quantize_file.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"

namespace nibble {
namespace {

struct QuantizeFlags {
  std::string input, output;
  std::string format, block, rounding = "nearest", signs = "fixed", formula = "te-2.14";
  std::string print = "table";
  std::string isa;
  int hadamard = 0;
  uint64_t signs_seed = 0;
  bool transpose = false;
  uint64_t seed = 0;
  uint32_t stream = 0, step = 0;
  std::string amax;
  int threads = 0;
};

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const FormatInfo& info : AllFormats()) names.emplace_back(info.name);
  return names;
}

// The problem of an option's value, as Option::Check() takes it.
template <class Parse>
auto ProblemOf(Parse parse) {
  return [parse](const std::string& text) { return std::string(parse(text).status().message()); };
}

absl::StatusOr<BlockShape> ParseBlock(const std::string& text) {
  if (const std::optional<BlockShape> block = ParseBlockShape(text)) return *block;
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ROWSxCOLUMNS, such as 1x16"));
}

// "fixed", "none" and "seeded"; or "0xd7e8", up to 128 bits; bit i set: sign of element i is
// negative.
absl::StatusOr<HadamardSpec> ParseSigns(std::string text) {
  HadamardSpec spec;
  if (text == "fixed") return spec;
  if (text == "none" || text == "seeded") {
    spec.signs = text == "none" ? SignChoice::kNone : SignChoice::kSeeded;
    return spec;
  }
  const std::string original = text;
  spec.signs = SignChoice::kGiven;
  if (text.rfind("0x", 0) == 0 || text.rfind("0X", 0) == 0) text = text.substr(2);
  bool good = !text.empty() && text.size() <= 32;
  for (size_t i = 0; good && i < text.size(); ++i) {
    const char digit = text[text.size() - 1 - i];
    good = absl::ascii_isxdigit(static_cast<unsigned char>(digit));
    const uint32_t value = digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
    if (good) spec.mask[i / 8] |= value << (4 * (i % 8));
  }
  if (good) return spec;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", original, "' is neither fixed, seeded, none nor a hexadecimal mask of 1 to 32 digits"));
}

// The flags have passed the checks of their options.
absl::StatusOr<QuantizeFileOptions> ToOptions(const QuantizeFlags& flags) {
  QuantizeFileOptions options;
  options.input = flags.input;
  options.output = flags.output;
  options.spec = OperandSpec::Of(*ParseFormat(flags.format));
  if (!flags.block.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(options.spec.block, ParseBlock(flags.block));
  }
  options.spec.rounding = flags.rounding == "nearest" ? Rounding::kNearest : Rounding::kStochastic;
  options.spec.formula =
      flags.formula == "te-2.14" ? FormulaVersion::kTe2_14 : FormulaVersion::kTePre2_14;
  HadamardSpec& hadamard = options.spec.hadamard;
  NIBBLE_ASSIGN_OR_RETURN(hadamard, ParseSigns(flags.signs));
  hadamard.size = flags.hadamard;
  if (hadamard.signs == SignChoice::kSeeded) hadamard.seed = flags.seed;
  if (flags.hadamard == 0 && flags.signs != "fixed") {
    return absl::InvalidArgumentError(
        absl::StrCat("signs: '", flags.signs, "' without a transform; give its size, --hadamard"));
  }
  options.transpose = flags.transpose;
  options.random = {flags.seed, flags.stream, flags.step};
  if (float amax; absl::SimpleAtof(flags.amax, &amax)) options.amax = amax;
  options.threads = flags.threads;
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (cpu::IsaName(isa) == flags.isa) options.isa = isa;
  }
  return options;
}

std::string ShapeName(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string Table(const QuantizeFlags& flags, const QuantizeFileOptions& options,
                  const QuantizeFileReport& report) {
  TextTable table(
      {"tensor", "shape", "amax", "rel.error", "SNR dB", "underflow", "clipped", "non-finite"});
  for (const QuantizedTensorReport& tensor : report.tensors) {
    const QuantStats& stats = tensor.stats;
    table.Add({absl::Utf8SafeCEscape(tensor.name), ShapeName(tensor.shape),
               absl::StrFormat("%.5g", stats.amax), absl::StrFormat("%.5f", stats.relative_error),
               absl::StrFormat("%.2f", stats.snr_db),
               absl::StrFormat("%.4f%%", 100 * stats.underflow),
               absl::StrFormat("%.4f%%", 100 * stats.clipped), absl::StrCat(stats.non_finite)});
  }
  const std::string head =
      absl::StrFormat("%s%s -> %s (%s)\n", options.spec.Name(),
                      options.transpose ? " transposed" : "", flags.output, report.backend);
  return absl::StrCat(head, table.Text());
}

// JSON has no infinity and no NaN: both become null. The fields non_finite and amax show why.
nlohmann::json Number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

std::string ReportJson(const QuantizeFlags& flags, const QuantizeFileOptions& options,
                       const QuantizeFileReport& report) {
  nlohmann::ordered_json out;
  out["format"] = flags.format;
  out["block"] = BlockShapeName(options.spec.block);
  out["rounding"] = flags.rounding;
  out["hadamard"] = flags.hadamard;
  out["transpose"] = options.transpose;
  out["formula"] = flags.formula;
  out["backend"] = report.backend;
  out["output"] = flags.output;
  out["tensors"] = nlohmann::ordered_json::array();
  for (const QuantizedTensorReport& tensor : report.tensors) {
    const QuantStats& stats = tensor.stats;
    out["tensors"].push_back({{"name", tensor.name},
                              {"shape", tensor.shape},
                              {"amax", Number(stats.amax)},
                              {"relative_error", Number(stats.relative_error)},
                              {"snr_db", Number(stats.snr_db)},
                              {"underflow", Number(stats.underflow)},
                              {"clipped", Number(stats.clipped)},
                              {"non_finite", stats.non_finite},
                              {"scale_spread_octaves", Number(stats.scale_spread_octaves)}});
  }
  out["copied"] = nlohmann::ordered_json::array();
  for (const CopiedTensorReport& tensor : report.copied) {
    out["copied"].push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  }
  return JsonText(out);
}

absl::StatusOr<Reply> Run(const QuantizeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const QuantizeFileOptions options, ToOptions(flags));
  NIBBLE_ASSIGN_OR_RETURN(const QuantizeFileReport report, QuantizeFile(options));
  Reply reply = {.text = Table(flags, options, report), .json = ReportJson(flags, options, report)};
  uint64_t non_finite = 0;
  for (const QuantizedTensorReport& tensor : report.tensors) non_finite += tensor.stats.non_finite;
  if (non_finite > 0) {
    reply.notes.push_back(absl::StrCat("warning: ", non_finite, " values are NaN or infinite"));
  }
  for (const CopiedTensorReport& tensor : report.copied) {
    reply.notes.push_back(absl::StrCat("tensor '", absl::Utf8SafeCEscape(tensor.name),
                                       "' is copied: ", tensor.reason));
  }
  return reply;
}

}  // namespace

void AddQuantizeCommand(Command app, int& exit_code) {
  auto flags = std::make_shared<QuantizeFlags>();
  Command command = app.AddSubcommand(
      "quantize",
      "Quantise every 2-D F32, BF16 or F16 tensor of a safetensors file, and copy the others");
  command.Add("IN", flags->input, "safetensors file to read").Required();
  command.Add("OUT", flags->output, "safetensors file to write").Required();
  command.Add("--format", flags->format, "format: " + absl::StrJoin(FormatNames(), ", "))
      .Required()
      .OneOf(FormatNames());
  command
      .Add("--block", flags->block,
           "block shape: 1x16 or 16x16 (nvfp4), 1x128 or 128x128 (fp8-block), ...; default: the "
           "format's first")
      .Check(ProblemOf(ParseBlock));
  command.Add("--rounding", flags->rounding, "rounding: nearest or stochastic")
      .OneOf({"nearest", "stochastic"})
      .ShowDefault();
  command
      .Add("--hadamard", flags->hadamard,
           "size of a Hadamard transform along the quantised dimension, 2 to 128; 0: none")
      .OneOfNumbers({0, 2, 4, 8, 16, 32, 64, 128})
      .ShowDefault();
  command
      .Add("--signs", flags->signs,
           "signs of the transform: fixed, seeded (by --seed), none, or a hexadecimal mask "
           "whose bit i makes sign i negative")
      .Check(ProblemOf(ParseSigns))
      .ShowDefault();
  command.AddFlag("--transpose", flags->transpose,
                  "quantise along columns; outputs have the transposed shape");
  command.Add("--seed", flags->seed, "seed of stochastic rounding").ShowDefault();
  command
      .Add("--stream", flags->stream,
           "random stream of stochastic rounding: one per quantised copy")
      .ShowDefault();
  command.Add("--step", flags->step, "training step, for stochastic rounding").ShowDefault();
  command
      .Add("--amax", flags->amax,
           "largest magnitude to scale for, such as 6.5; default: the tensor's own")
      .RealNumber(0, std::numeric_limits<float>::max());
  command.Add("--formula", flags->formula, "version of the nvfp4 scale formula")
      .OneOf({"te-2.14", "te-pre-2.14"})
      .ShowDefault();
  AddOutputOption(command, flags->print);
  command.Footer("Example: nibble quantize in.safetensors out.safetensors --format nvfp4");
  command.Add("--threads", flags->threads, "number of threads; 0: one per processor")
      .InRange(0, 1024)
      .ShowDefault();
  command
      .Add("--isa", flags->isa,
           "instruction set to use; changes the speed, not the output; default: the best")
      .OneOf({"scalar", "avx2", "avx512"});
  command.OnParsed(
      [flags, &exit_code] { exit_code = Finish("quantize", flags->print, Run(*flags)); });
}

}  // namespace nibble
