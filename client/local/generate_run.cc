#include "client/local/generate_run.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/local/json_text.h"
#include "worker/infer/decoder.h"
#include "worker/infer/generator.h"
#include "worker/infer/memory_speed.h"
#include "worker/infer/model_choice.h"
#include "worker/infer/text_stream.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

double Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Samples come one after the other; where there are several, each has a line above it.
class SampleText {
 public:
  SampleText(const Tokenizer& tokenizer, absl::Span<const int32_t> prompt, int64_t samples,
             const GenerateOutput* output)
      : tokenizer_(tokenizer), prompt_(prompt), samples_(samples), output_(output) {}

  absl::Status Take(int64_t sample, int32_t token) {
    absl::Status status = GoTo(sample);
    if (!status.ok()) return status;
    const absl::StatusOr<std::string> text = stream_->Add(token);
    if (!text.ok()) return text.status();
    return Write(*text);
  }
  // Also for samples of which no token came.
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
      absl::StatusOr<TextStream> stream = TextStream::Create(tokenizer_, prompt_);
      if (!stream.ok()) return stream.status();
      stream_ = std::make_unique<TextStream>(*std::move(stream));
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
  const GenerateOutput* const output_;  // null: nothing is written as it comes
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

}  // namespace

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

absl::Status RunGenerate(const GenerateRequest& request, const WeightOpener& open,
                         const GenerateOutput& output) {
  const absl::StatusOr<DType> precision = ParsePrecision(request.precision);
  if (!precision.ok()) return precision.status();
  if (absl::Status status = Validate(request.sampler); !status.ok()) return status;
  const absl::StatusOr<std::unique_ptr<WeightSource>> source = open(request.from);
  if (!source.ok()) return source.status();
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      ChooseTokenizer(**source, request.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(**tokenizer, request.prompt);
  if (!prompt.ok()) {
    return absl::Status(prompt.status().code(),
                        absl::StrCat("the prompt: ", prompt.status().message()));
  }
  absl::StatusOr<std::unique_ptr<Decoder>> decoder =
      Decoder::Create(**source, {.precision = *precision,
                                 .threads = request.threads,
                                 .max_sequence = LongestSequence((*source)->outline())});
  if (!decoder.ok()) return decoder.status();

  SampleText text(**tokenizer, *prompt, request.samples, request.json ? nullptr : &output);
  const absl::StatusOr<Generated> generated =
      Generate(**decoder, *prompt,
               {.max_tokens = request.max_tokens,
                .samples = request.samples,
                .sampler = request.sampler,
                .vocabulary = (*tokenizer)->vocabulary(),
                .end_of_document = (*tokenizer)->end_of_document()},
               [&](int64_t sample, int32_t token) { return text.Take(sample, token); });
  if (!generated.ok()) return generated.status();
  if (absl::Status status = text.Finish(); !status.ok()) return status;
  const double copy_speed =
      MeasureCopySpeed((*decoder)->pool(), (*decoder)->weight_bytes_per_token());
  SaySpeed(**decoder, *generated, copy_speed, output);
  if (!request.json) return absl::OkStatus();
  return output.write(ReportJson(request, (*source)->description(), **decoder, *generated,
                                 text.texts(), copy_speed));
}

}  // namespace nibble
