#include "worker/infer/text_stream.h"

#include <algorithm>

#include "worker/trainer/data/utf8.h"

namespace nibble {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
// Tokenizers treat the first token of a text in their own way, so tokens are decoded behind others;
// so many are enough for that.
constexpr size_t kContext = 64;

// What a tokenizer whose tokens are parts of characters may yet say otherwise.
size_t Unsettled(std::string_view text) {
  size_t bytes = UnfinishedUtf8(text);
  for (int i = 0; i < 3; ++i) {
    const std::string_view rest = text.substr(0, text.size() - bytes);
    if (!rest.ends_with(kReplacement)) break;
    bytes += kReplacement.size();
  }
  return bytes;
}

}  // namespace

size_t UnfinishedUtf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t needs = byte >= 0xc2 && byte < 0xe0   ? 2
                         : byte >= 0xe0 && byte < 0xf0 ? 3
                         : byte >= 0xf0 && byte < 0xf5 ? 4
                                                       : 1;
    return needs > back ? back : 0;
  }
  return 0;
}

std::string WellFormedUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bad = std::min(FindInvalidUtf8(text), text.size());
    result += text.substr(0, bad);
    if (bad == text.size()) break;
    result += kReplacement;
    text.remove_prefix(bad + 1);
  }
  return result;
}

absl::StatusOr<TextStream> TextStream::Create(const Tokenizer& tokenizer,
                                              absl::Span<const int32_t> before) {
  TextStream stream(tokenizer);
  const size_t context = std::min(before.size(), kContext);
  const absl::Span<const int32_t> tail = before.last(context);
  stream.tokens_.assign(tail.begin(), tail.end());
  const absl::StatusOr<std::string> text = tokenizer.Decode(stream.tokens_);
  if (!text.ok()) return text.status();
  stream.given_ = text->size();
  return stream;
}

absl::StatusOr<std::string> TextStream::Add(int32_t token) {
  tokens_.push_back(token);
  const absl::StatusOr<std::string> text = tokenizer_.Decode(tokens_);
  if (!text.ok()) {
    tokens_.pop_back();
    return text.status();
  }
  const std::string_view fresh = std::string_view(*text).substr(std::min(given_, text->size()));
  const size_t settled = fresh.size() - std::min(Unsettled(fresh), fresh.size());
  std::string result = WellFormedUtf8(fresh.substr(0, settled));
  waiting_ = fresh.substr(settled);
  given_ += settled;
  if (waiting_.empty() && tokens_.size() > 2 * kContext) {
    tokens_.erase(tokens_.begin(), tokens_.end() - kContext);
    const absl::StatusOr<std::string> kept = tokenizer_.Decode(tokens_);
    if (!kept.ok()) return kept.status();
    given_ = kept->size();
  }
  return result;
}

std::string TextStream::Finish() {
  given_ += waiting_.size();
  std::string result = WellFormedUtf8(waiting_);
  waiting_.clear();
  return result;
}

}  // namespace nibble
