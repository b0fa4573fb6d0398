#include "worker/trainer/data/open_tokens.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/megatron_tokens.h"
#include "worker/trainer/data/raw_tokens.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/shard_format.h"
#include "worker/trainer/data/token_hints.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {
namespace {

constexpr std::string_view kIndexSuffix = ".idx";

// Formats whose magic would otherwise pass for no header.
constexpr struct {
  std::string_view magic;
  const char* what;
} kUnread[] = {
    {std::string_view("TNTIDX\0\0", 8), "a Megatron index of the old kind, not MMIDIDX"},
    // 20240522
    {std::string_view("\x8a\xd8\x34\x01", 4), "llm.c's evaluation data, not tokens to train on"},
};

bool BeginsWith(absl::Span<const std::byte> file, const char* magic, size_t size) {
  return file.size() >= size && std::memcmp(file.data(), magic, size) == 0;
}

absl::StatusOr<TokenFileKind> Recognise(const std::string& path, absl::Span<const std::byte> file) {
  using shard_internal::kMagic;
  if (BeginsWith(file, kMagic.data(), kMagic.size())) return TokenFileKind::kShard;
  if (HasMegatronMagic(file)) return TokenFileKind::kMegatronIndex;
  if (HasRawHeader(file)) return TokenFileKind::kRaw;
  for (const auto& [magic, what] : kUnread) {
    if (BeginsWith(file, magic.data(), magic.size())) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is ", what));
    }
  }
  return TokenFileKind::kNone;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenShard(const std::string& path, MappedFile file,
                                                       const TokenHints& hints) {
  absl::StatusOr<std::unique_ptr<TokenShard>> shard = TokenShard::Open(path, std::move(file));
  if (!shard.ok()) return shard.status();
  if (!hints.tokenizer.empty() && hints.tokenizer != (*shard)->tokenizer()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tokenizer is \"%s\", not the \"%s\" asked for", path,
                        (*shard)->tokenizer(), hints.tokenizer));
  }
  if (hints.vocabulary != 0 && hints.vocabulary != (*shard)->vocabulary()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: vocabulary is %d, not the %d asked for",
                                                      path, (*shard)->vocabulary(),
                                                      hints.vocabulary));
  }
  if (hints.token_width != 0 || hints.document_mark.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", hints.token_width != 0 ? "token_width" : "document_mark",
                     " was given, but the file is a token shard, which says so itself"));
  }
  return *std::move(shard);
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatron(const std::string& path, MappedFile file,
                                                          const TokenHints& hints) {
  if (!std::string_view(path).ends_with(kIndexSuffix)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": a Megatron index whose name does not end with .idx, so that its "
                     "tokens' name cannot be told"));
  }
  const std::string tokens_path =
      absl::StrCat(path.substr(0, path.size() - kIndexSuffix.size()), ".bin");
  absl::StatusOr<MappedFile> tokens = MappedFile::Open(tokens_path);
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(),
                        absl::StrCat(path, ": its tokens: ", tokens.status().message()));
  }
  auto opened = MegatronTokens::Open(path, std::move(file), *std::move(tokens), hints);
  if (!opened.ok()) return opened.status();
  return *std::move(opened);
}

}  // namespace

absl::StatusOr<TokenFileKind> RecogniseTokens(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return Recognise(path, file->bytes());
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(const std::string& path,
                                                        const TokenHints& hints) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<TokenFileKind> kind = Recognise(path, file->bytes());
  if (!kind.ok()) return kind.status();
  switch (*kind) {
    case TokenFileKind::kShard:
      return OpenShard(path, *std::move(file), hints);
    case TokenFileKind::kMegatronIndex:
      return OpenMegatron(path, *std::move(file), hints);
    case TokenFileKind::kNone:
      if (hints.token_width == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            path,
            ": begins like no token file known here. Of a Megatron data set, give the .idx; "
            "of a file of nothing but tokens, their width (2 or 4 bytes)"));
      }
      break;
    case TokenFileKind::kRaw:
      break;
  }
  auto opened = RawTokens::Open(path, *std::move(file), hints);
  if (!opened.ok()) return opened.status();
  return *std::move(opened);
}

}  // namespace nibble
