#include "client/local/local_commands.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "worker/infer/decoder.h"
#include "worker/infer/generator.h"
#include "worker/infer/model_choice.h"
#include "worker/weights/weight_source.h"

namespace nibble {
namespace {

struct GenerateRequest {
  std::string from;
  std::string prompt;
  std::string tokenizer;  // as for ChooseTokenizer; empty: the model's own
  int64_t max_tokens = 128;
  int64_t samples = 1;
  SamplerOptions sampler;
  std::string precision = "bf16";
  int threads = 0;
  bool json = false;
};

inline constexpr int64_t kMaxPromptBytes = int64_t{1} << 26;

struct GenerateOutput {
  // Writes a piece of the output to stdout; an error ends the run.
  std::function<absl::Status(std::string_view text)> write;
  // Receives one progress line, without its newline.
  std::function<void(std::string_view line)> say;
};

using Json = nlohmann::ordered_json;

double Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Decodes samples to text, in order; if there are several, each is preceded by a header line.
class SampleText {
 public:
  SampleText(const Tokenizer& tokenizer, absl::Span<const int32_t> prompt, int64_t samples,
             const GenerateOutput* output)
      : tokenizer_(tokenizer), prompt_(prompt), samples_(samples), output_(output) {}

  absl::Status Take(int64_t sample, int32_t token) {
    absl::Status status = GoTo(sample);
    if (!status.ok()) return status;
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, stream_->Add(token));
    return Write(text);
  }
  // Ends the last sample, including samples without tokens.
  absl::Status Finish() {
    absl::Status status = GoTo(samples_ - 1);
    if (status.ok()) status = EndSample();
    return status;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  absl::Status GoTo(int64_t sample) {
    while (static_cast<int64_t>(texts_.size()) <= sample) {
      absl::Status status = EndSample();
      if (!status.ok()) return status;
      NIBBLE_ASSIGN_OR_RETURN(TextStream stream, TextStream::Create(tokenizer_, prompt_));
      stream_ = std::make_unique<TextStream>(std::move(stream));
      texts_.emplace_back();
      if (samples_ > 1 && output_ != nullptr) {
        status = output_->write(absl::StrFormat("--- sample %d of %d\n", texts_.size(), samples_));
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }
  absl::Status EndSample() {
    if (stream_ == nullptr) return absl::OkStatus();
    absl::Status status = Write(stream_->Finish());
    if (status.ok() && output_ != nullptr) status = output_->write("\n");
    stream_ = nullptr;
    return status;
  }
  absl::Status Write(const std::string& text) {
    texts_.back() += text;
    if (output_ == nullptr || text.empty()) return absl::OkStatus();
    return output_->write(text);
  }

  const Tokenizer& tokenizer_;
  const absl::Span<const int32_t> prompt_;
  const int64_t samples_;
  const GenerateOutput* const output_;  // null: nothing is written
  std::unique_ptr<TextStream> stream_;
  std::vector<std::string> texts_;
};

std::string ReportJson(const GenerateRequest& request, const std::string& description,
                       const Decoder& decoder, const Generated& generated,
                       const std::vector<std::string>& texts, double copy_speed) {
  Json samples = Json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    samples.push_back({{"text", texts[i]},
                       {"tokens", generated.samples[i].tokens},
                       {"stop", std::string(StopReasonName(generated.samples[i].stop))}});
  }
  const int64_t bytes = decoder.weight_bytes_per_token();
  const Json json = {
      {"from", request.from},
      {"source", description},
      {"model", decoder.outline().spec.name},
      {"precision", request.precision},
      {"prompt_tokens", generated.prompt_tokens},
      {"samples", samples},
      {"prefill",
       {{"seconds", generated.prefill_seconds},
        {"tokens_per_second", Rate(generated.prompt_tokens, generated.prefill_seconds)}}},
      {"decode",
       {{"tokens", generated.decoded_tokens},
        {"seconds", generated.decode_seconds},
        {"tokens_per_second", Rate(generated.decoded_tokens, generated.decode_seconds)},
        {"weight_bytes_per_token", bytes},
        {"copy_bytes_per_second", copy_speed},
        {"limit_tokens_per_second", copy_speed / static_cast<double>(bytes)}}}};
  return JsonText(json);
}

void SaySpeed(const Decoder& decoder, const Generated& generated, double copy_speed,
              const GenerateOutput& output) {
  output.say(absl::StrFormat("prefill  %d tokens, %.1f tokens/s", generated.prompt_tokens,
                             Rate(generated.prompt_tokens, generated.prefill_seconds)));
  const auto bytes = static_cast<double>(decoder.weight_bytes_per_token());
  output.say(absl::StrFormat(
      "decode   %d tokens, %.1f tokens/s; memory's limit %.1f (%.1f MB of weights a token, "
      "copied at %.1f GB/s)",
      generated.decoded_tokens, Rate(generated.decoded_tokens, generated.decode_seconds),
      copy_speed / bytes, bytes / 1e6, copy_speed / 1e9));
}

// Reads the whole file; "-" is stdin. Errors name the path; InvalidArgument above kMaxPromptBytes.
absl::StatusOr<std::string> ReadPrompt(const std::string& path) {
  const auto close = [](std::FILE* file) { return file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::string text;
  char piece[1 << 16];
  size_t n;
  while ((n = std::fread(piece, 1, sizeof(piece), file.get())) > 0) {
    text.append(piece, n);
    if (static_cast<int64_t>(text.size()) > kMaxPromptBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the prompt has more than ", kMaxPromptBytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  return text;
}

// Writes text as it is generated, in whole characters; JSON in one piece at the end. Errors: those
// of `open`, ChooseTokenizer, Decoder and Generate.
absl::Status RunGenerate(const GenerateRequest& request, const WeightOpener& open,
                         const GenerateOutput& output) {
  const absl::StatusOr<DType> precision = ParsePrecision(request.precision);
  if (!precision.ok()) return precision.status();
  NIBBLE_RETURN_IF_ERROR(Validate(request.sampler));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, open(request.from));
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      ChooseTokenizer(*source, request.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(**tokenizer, request.prompt);
  if (!prompt.ok()) {
    return absl::Status(prompt.status().code(),
                        absl::StrCat("the prompt: ", prompt.status().message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<Decoder> decoder,
      Decoder::Create(*source, {.precision = *precision,
                                .threads = request.threads,
                                .max_sequence = LongestSequence(source->outline())}));

  SampleText text(**tokenizer, *prompt, request.samples, request.json ? nullptr : &output);
  NIBBLE_ASSIGN_OR_RETURN(
      const Generated generated,
      Generate(*decoder, *prompt,
               {.max_tokens = request.max_tokens,
                .samples = request.samples,
                .sampler = request.sampler,
                .vocabulary = (*tokenizer)->vocabulary(),
                .end_of_document = (*tokenizer)->end_of_document()},
               [&](int64_t sample, int32_t token) { return text.Take(sample, token); }));
  NIBBLE_RETURN_IF_ERROR(text.Finish());
  const double copy_speed = MeasureCopySpeed(decoder->pool(), decoder->weight_bytes_per_token());
  SaySpeed(*decoder, generated, copy_speed, output);
  if (!request.json) return absl::OkStatus();
  return output.write(
      ReportJson(request, source->description(), *decoder, generated, text.texts(), copy_speed));
}

struct Flags {
  GenerateRequest request;
  std::string prompt_file;
  std::string print = "text";
};

absl::Status WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "cannot write to stdout");
}

absl::Status Run(Flags& flags, bool has_prompt, const WeightOpener& open) {
  if (!has_prompt) {
    NIBBLE_ASSIGN_OR_RETURN(std::string prompt,
                            ReadPrompt(flags.prompt_file.empty() ? "-" : flags.prompt_file));
    flags.request.prompt = std::move(prompt);
  }
  flags.request.json = ForPrograms(flags.print);
  // JSON arrives in one piece, so it can be converted to YAML; text arrives in pieces.
  const auto write = [&flags](std::string_view text) -> absl::Status {
    if (!flags.request.json) return WriteOut(text);
    const absl::StatusOr<std::string> whole = InFormat(flags.print, std::string(text));
    return whole.ok() ? WriteOut(*whole) : whole.status();
  };
  const auto say = [](std::string_view line) { Tell("generate", line); };
  return RunGenerate(flags.request, open, {.write = write, .say = say});
}

}  // namespace

void AddGenerateCommand(Command app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<Flags>();
  GenerateRequest& request = flags->request;
  Command command = app.AddSubcommand("generate", "Text from a trained model");
  AddModelOptions(command, request.from, request.precision, request.threads, request.tokenizer);
  Option prompt = command.Add("--prompt", request.prompt, "text to go on from");
  command
      .Add("--prompt-file", flags->prompt_file,
           "a file with it; without either it is read from stdin")
      .Excludes(prompt);
  command.Add("--max-tokens", request.max_tokens, "of each sample").AtLeast(1).ShowDefault();
  command
      .Add("--temperature", request.sampler.temperature, "0 takes the likeliest token every time")
      .ShowDefault();
  command.Add("--top-k", request.sampler.top_k, "draw among the likeliest so many tokens; 0: all")
      .ShowDefault();
  command
      .Add("--top-p", request.sampler.top_p,
           "draw among the likeliest tokens that have this share of the probability")
      .ShowDefault();
  command.Add("--seed", request.sampler.seed, "the same seed draws the same text").ShowDefault();
  command.Add("--samples", request.samples, "continuations of the prompt").AtLeast(1).ShowDefault();
  AddOutputOption(command, flags->print);
  command.Footer(
      "Example: nibble generate --from runs/quickstart --prompt 'You may' --temperature 0.8");
  command.OnParsed([flags, prompt, open = std::move(open), &exit_code] {
    const absl::Status status = Run(*flags, prompt.Given(), open);
    if (!status.ok()) Tell("generate", std::string(status.message()));
    exit_code = ExitCodeOf(status);
  });
}

}  // namespace nibble
