#include "client/local/local_commands.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
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
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "worker/infer/decoder.h"
#include "worker/infer/generator.h"
#include "worker/infer/model_choice.h"
#include "worker/weights/weight_source.h"

namespace nibble {
namespace {

struct GenerateRequest {
  InferenceFlags model;
  std::string prompt;
  int64_t max_tokens = 128;
  int64_t samples = 1;
  SamplerOptions sampler;
  bool stream = true;  // write the text to stdout as it is generated
};

constexpr size_t kMaxPromptBytes = size_t{1} << 26;

using Json = nlohmann::ordered_json;

double Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Decodes samples to text, in order. Streams them to stdout if `stream` is set, each after a header
// line if there are several.
class SampleStream {
 public:
  SampleStream(const Tokenizer& tokenizer, absl::Span<const int32_t> prompt, int64_t samples,
               bool stream)
      : tokenizer_(tokenizer), prompt_(prompt), samples_(samples), streams_(stream) {}

  absl::Status Add(int64_t sample, int32_t token) {
    NIBBLE_RETURN_IF_ERROR(GoTo(sample));
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, stream_->Add(token));
    return Write(text);
  }
  // Ends the last sample, including samples without tokens.
  absl::Status Finish() {
    NIBBLE_RETURN_IF_ERROR(GoTo(samples_ - 1));
    return EndSample();
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  absl::Status GoTo(int64_t sample) {
    while (static_cast<int64_t>(texts_.size()) <= sample) {
      NIBBLE_RETURN_IF_ERROR(EndSample());
      NIBBLE_ASSIGN_OR_RETURN(TextStream stream, TextStream::Create(tokenizer_, prompt_));
      stream_ = std::make_unique<TextStream>(std::move(stream));
      texts_.emplace_back();
      if (samples_ > 1) {
        NIBBLE_RETURN_IF_ERROR(
            Stream(absl::StrFormat("--- sample %d of %d\n", texts_.size(), samples_)));
      }
    }
    return absl::OkStatus();
  }
  absl::Status EndSample() {
    if (stream_ == nullptr) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(Write(stream_->Finish()));
    stream_ = nullptr;
    return Stream("\n");
  }
  absl::Status Write(const std::string& text) {
    texts_.back() += text;
    return Stream(text);
  }
  absl::Status Stream(std::string_view text) const {
    return streams_ && !text.empty() ? WriteOut(text) : absl::OkStatus();
  }

  const Tokenizer& tokenizer_;
  const absl::Span<const int32_t> prompt_;
  const int64_t samples_;
  const bool streams_;
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
      {"from", request.model.from},
      {"source", description},
      {"model", decoder.outline().spec.name},
      {"precision", request.model.precision},
      {"device", request.model.device},
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

std::vector<std::string> SpeedLines(const Decoder& decoder, const Generated& generated,
                                    double copy_speed) {
  const auto bytes = static_cast<double>(decoder.weight_bytes_per_token());
  return {absl::StrFormat("prefill  %d tokens, %.1f tokens/s", generated.prompt_tokens,
                          Rate(generated.prompt_tokens, generated.prefill_seconds)),
          absl::StrFormat("decode   %d tokens, %.1f tokens/s; memory bandwidth limit %.1f tokens/s "
                          "(%.1f MB of weights "
                          "per token at %.1f GB/s)",
                          generated.decoded_tokens,
                          Rate(generated.decoded_tokens, generated.decode_seconds),
                          copy_speed / bytes, bytes / 1e6, copy_speed / 1e9)};
}

int64_t LongestSample(const Generated& generated) {
  size_t longest = 0;
  for (const GeneratedSample& sample : generated.samples) {
    longest = std::max(longest, sample.tokens.size());
  }
  return static_cast<int64_t>(longest);
}

// With `stream`, the text is written while it is generated, and the reply has none. Errors: those
// of `open`, ChooseTokenizer, Decoder and Generate.
absl::StatusOr<Reply> RunGenerate(const GenerateRequest& request, const WeightOpener& open) {
  const absl::StatusOr<DType> precision = ParsePrecision(request.model.precision);
  if (!precision.ok()) return precision.status();
  NIBBLE_ASSIGN_OR_RETURN(const DecodeOn on, ParseDecodeOn(request.model.device));
  NIBBLE_RETURN_IF_ERROR(Validate(request.sampler));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, open(request.model.from));
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      ChooseTokenizer(*source, request.model.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(**tokenizer, request.prompt);
  if (!prompt.ok()) {
    return absl::Status(prompt.status().code(),
                        absl::StrCat("prompt: ", prompt.status().message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<Decoder> decoder,
      Decoder::Create(*source, {.precision = *precision,
                                .on = on,
                                .threads = request.model.threads,
                                .max_sequence = LongestSequence(source->outline())}));

  SampleStream text(**tokenizer, *prompt, request.samples, request.stream);
  NIBBLE_ASSIGN_OR_RETURN(
      const Generated generated,
      Generate(*decoder, *prompt,
               {.max_tokens = request.max_tokens,
                .samples = request.samples,
                .sampler = request.sampler,
                .vocabulary = (*tokenizer)->vocabulary(),
                .end_of_document = (*tokenizer)->end_of_document()},
               [&](int64_t sample, int32_t token) { return text.Add(sample, token); }));
  NIBBLE_RETURN_IF_ERROR(text.Finish());
  NIBBLE_ASSIGN_OR_RETURN(const double copy_speed,
                          decoder->device().CopySpeed(decoder->weight_bytes_per_token()));
  std::vector<std::string> notes = source->notices();
  std::optional<std::string> beyond =
      BeyondTraining(*source, static_cast<int64_t>(prompt->size()) + LongestSample(generated));
  if (beyond.has_value()) notes.push_back(*std::move(beyond));
  const std::vector<std::string> speed = SpeedLines(*decoder, generated, copy_speed);
  notes.insert(notes.end(), speed.begin(), speed.end());
  return Reply{.json = ReportJson(request, source->description(), *decoder, generated, text.texts(),
                                  copy_speed),
               .notes = std::move(notes)};
}

struct GenerateFlags {
  GenerateRequest request;
  std::string prompt_file;
  std::string print = "text";
};

absl::StatusOr<Reply> Run(GenerateFlags& flags, bool has_prompt, const WeightOpener& open) {
  if (!has_prompt) {
    const std::string path = flags.prompt_file.empty() ? "-" : flags.prompt_file;
    NIBBLE_ASSIGN_OR_RETURN(flags.request.prompt, ReadInput(path, kMaxPromptBytes));
    if (flags.request.prompt.size() > kMaxPromptBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the prompt has more than ", kMaxPromptBytes, " bytes"));
    }
  }
  flags.request.stream = !ForPrograms(flags.print);
  return RunGenerate(flags.request, open);
}

}  // namespace

void AddGenerateCommand(Command app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<GenerateFlags>();
  GenerateRequest& request = flags->request;
  Command command = app.AddSubcommand("generate", "Generate text with a trained model");
  AddModelOptions(command, request.model);
  Option prompt = command.Add("--prompt", request.prompt, "text to continue");
  command.Add("--prompt-file", flags->prompt_file, "a file with the prompt; default: stdin")
      .Excludes(prompt);
  command.Add("--max-tokens", request.max_tokens, "tokens of each sample").AtLeast(1).ShowDefault();
  command
      .Add("--temperature", request.sampler.temperature,
           "sampling temperature; 0: always the most likely token")
      .InRange(0.0, std::numeric_limits<double>::max())
      .ShowDefault();
  command.Add("--top-k", request.sampler.top_k, "sample from the N most likely tokens; 0: from all")
      .AtLeast(0)
      .ShowDefault();
  command
      .Add("--top-p", request.sampler.top_p,
           "sample from the most likely tokens that have this share of the probability")
      .AboveUpTo(0.0, 1.0)
      .ShowDefault();
  command.Add("--seed", request.sampler.seed, "random seed: the same seed gives the same text")
      .ShowDefault();
  command.Add("--samples", request.samples, "number of continuations of the prompt")
      .AtLeast(1)
      .ShowDefault();
  AddOutputOption(command, flags->print);
  command.Footer(
      "Example: nibble generate --from runs/quickstart --prompt 'You may' --temperature 0.8");
  command.OnParsed([flags, prompt, open = std::move(open), &exit_code] {
    exit_code = Finish("generate", flags->print, Run(*flags, prompt.Given(), open));
  });
}

}  // namespace nibble
