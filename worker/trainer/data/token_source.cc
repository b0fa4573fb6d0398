#include "worker/trainer/data/token_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/data/foreign_tokens.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/shard.h"

namespace nibble {

absl::Status TokenSource::Verify() const {
  return ReadBlocks([](int64_t, absl::Span<const int32_t>) {});
}

absl::Status TokenSource::ReadBlocks(
    absl::FunctionRef<void(int64_t first, absl::Span<const int32_t> block)> visit) const {
  std::vector<int32_t> block(std::min<int64_t>(tokens(), int64_t{1} << 16));
  for (int64_t first = 0; first < tokens();) {
    const int64_t count = std::min<int64_t>(tokens() - first, static_cast<int64_t>(block.size()));
    NIBBLE_RETURN_IF_ERROR(Read(first, count, block.data()));
    visit(first, absl::MakeConstSpan(block.data(), static_cast<size_t>(count)));
    first += count;
  }
  return absl::OkStatus();
}

int64_t TokenSource::DocumentOf(int64_t position) const {
  int64_t low = 0;
  int64_t high = documents();
  // DocumentBegin(low) <= position < DocumentBegin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DocumentBegin(middle) <= position ? low : high) = middle;
  }
  return low;
}

absl::Status Validate(const TokenHints& hints) {
  constexpr int64_t kMaxVocabulary = int64_t{1} << 31;  // tokens are int32
  const bool printable = std::all_of(hints.tokenizer.begin(), hints.tokenizer.end(),
                                     [](char c) { return c >= ' ' && c <= '~'; });
  if (hints.tokenizer.empty() || hints.tokenizer.size() > 32 || !printable) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokenizer: the file does not record it, and the given label \"%s\" is not 1 to 32 "
        "printable ASCII characters",
        absl::CHexEscape(hints.tokenizer)));
  }
  if (hints.vocabulary < 1 || hints.vocabulary > kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "vocabulary: the file does not record it, and the given %d is not in [1, %d]",
        hints.vocabulary, kMaxVocabulary));
  }
  if (hints.token_width != 0 && hints.token_width != 2 && hints.token_width != 4) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token_width is %d, not 2 or 4", hints.token_width));
  }
  if (hints.document_mark.has_value() &&
      (hints.document_mark->token < 0 || hints.document_mark->token >= hints.vocabulary)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "document_mark is %d, not in [0, %d)", hints.document_mark->token, hints.vocabulary));
  }
  return absl::OkStatus();
}

namespace {

constexpr std::string_view kIndexSuffix = ".idx";

// Formats whose magic would otherwise be taken for raw tokens without a header.
constexpr struct {
  std::string_view magic;
  const char* what;
} kUnsupported[] = {
    {std::string_view("TNTIDX\0\0", 8),
     "a Megatron index of the old format TNTIDX; only MMIDIDX is supported"},
    // 20240522
    {std::string_view("\x8a\xd8\x34\x01", 4), "llm.c's evaluation data, which is not for training"},
};

absl::StatusOr<TokenFileKind> Recognise(const std::string& path, absl::Span<const std::byte> file) {
  using shard_internal::kMagic;
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with(std::string_view(kMagic.data(), kMagic.size())))
    return TokenFileKind::kShard;
  if (HasMegatronMagic(file)) return TokenFileKind::kMegatronIndex;
  if (HasRawHeader(file)) return TokenFileKind::kRaw;
  for (const auto& [magic, what] : kUnsupported) {
    if (text.starts_with(magic)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is ", what));
    }
  }
  if (IsParquet(text)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", ParquetRemedy()));
  }
  return TokenFileKind::kNone;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenShard(const std::string& path, MappedFile file,
                                                       const TokenHints& hints) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TokenShard> shard,
                          TokenShard::Open(path, std::move(file)));
  if (!hints.tokenizer.empty() && hints.tokenizer != shard->tokenizer()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tokenizer is \"%s\", not the requested \"%s\"", path,
                        shard->tokenizer(), hints.tokenizer));
  }
  if (hints.vocabulary != 0 && hints.vocabulary != shard->vocabulary()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: vocabulary is %d, not the requested %d",
                                                      path, shard->vocabulary(), hints.vocabulary));
  }
  if (hints.token_width != 0 || hints.document_mark.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", hints.token_width != 0 ? "token_width" : "document_mark",
                     " was given, but the file is a token shard, which records it"));
  }
  return shard;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatron(const std::string& path, MappedFile file,
                                                          const TokenHints& hints) {
  if (!std::string_view(path).ends_with(kIndexSuffix)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": the name of a Megatron index does not end with .idx; its tokens are "
                     "expected in the same path with .bin"));
  }
  const std::string tokens_path =
      absl::StrCat(path.substr(0, path.size() - kIndexSuffix.size()), ".bin");
  absl::StatusOr<MappedFile> tokens = MappedFile::Open(tokens_path);
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(),
                        absl::StrCat(path, ": its tokens: ", tokens.status().message()));
  }
  return MegatronTokens::Open(path, std::move(file), *std::move(tokens), hints);
}

}  // namespace

bool IsParquet(std::string_view file) {
  constexpr std::string_view kMagic = "PAR1";
  return file.size() > 2 * kMagic.size() && file.starts_with(kMagic) && file.ends_with(kMagic);
}

std::string ParquetRemedy() {
  return "Parquet is not read; convert it to .jsonl (with the package pyarrow of PyPI): "
         "python3 -c 'import json, sys, pyarrow.parquet as p; [print(json.dumps(row)) for batch in "
         "p.ParquetFile(sys.argv[1]).iter_batches(columns=[\"text\"]) for row in "
         "batch.to_pylist()]' FILE.parquet > FILE.jsonl";
}

absl::StatusOr<TokenFileKind> RecogniseTokens(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return Recognise(path, file.bytes());
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(const std::string& path,
                                                        const TokenHints& hints) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, Recognise(path, file.bytes()));
  switch (kind) {
    case TokenFileKind::kShard:
      return OpenShard(path, std::move(file), hints);
    case TokenFileKind::kMegatronIndex:
      return OpenMegatron(path, std::move(file), hints);
    case TokenFileKind::kNone:
      if (hints.token_width == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            path,
            ": not a known kind of token file. For a Megatron data set, give the .idx; for "
            "tokens without a header, give token_width (2 or 4 bytes)"));
      }
      break;
    case TokenFileKind::kRaw:
      break;
  }
  return RawTokens::Open(path, std::move(file), hints);
}

}  // namespace nibble
