#include "worker/trainer/loop/data_tokenizer.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/open_tokens.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/tokenizer_files.h"

namespace nibble {
namespace {

struct Source {
  std::string field;
  std::string path;
  SourceKind kind;
  std::string label;  // of a shard
};

std::string DirectoryOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

absl::StatusOr<Source> LookAt(std::string field, const std::string& path, int64_t token_width) {
  const absl::StatusOr<SourceKind> kind = KindOfSource(path, token_width);
  if (!kind.ok()) return OfField(field, path, kind.status());
  Source source = {.field = std::move(field), .path = path, .kind = *kind};
  if (*kind == SourceKind::kShard) {
    const absl::StatusOr<std::unique_ptr<TokenShard>> shard = TokenShard::Open(path);
    if (!shard.ok()) return OfField(source.field, path, shard.status());
    source.label = (*shard)->tokenizer();
  }
  return source;
}

absl::StatusOr<std::vector<Source>> SourcesOf(const JobSpec& spec) {
  std::vector<Source> sources;
  const auto add = [&](const auto& list, const char* name) -> absl::Status {
    for (size_t i = 0; i < list.size(); ++i) {
      absl::StatusOr<Source> source =
          LookAt(absl::StrCat("data.", name, "[", i, "]"), list[i].path, list[i].token_width);
      if (!source.ok()) return source.status();
      sources.push_back(*std::move(source));
    }
    return absl::OkStatus();
  };
  absl::Status status = add(spec.data.train, "train");
  if (status.ok()) status = add(spec.data.validation, "validation");
  if (!status.ok()) return status;
  return sources;
}

// The tokenizer that the spec names, if it names one.
absl::StatusOr<std::optional<DataTokenizer>> Named(const DataSpec& data) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (data.tokenizer == JobTokenizer::kBytes) {
    tokenizer = std::make_shared<ByteTokenizer>();
  } else if (!data.tokenizer_model.empty()) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(data.tokenizer_model);
    if (!loaded.ok()) {
      return absl::Status(loaded.status().code(),
                          absl::StrCat("data.tokenizer_model: ", loaded.status().message()));
    }
    tokenizer = *std::move(loaded);
  } else {
    return std::optional<DataTokenizer>();
  }
  const std::string label = tokenizer->label();
  const bool other_kind =
      (data.tokenizer == JobTokenizer::kSentencePiece && !label.starts_with("sp:")) ||
      (data.tokenizer == JobTokenizer::kHuggingFace && !label.starts_with("hf:"));
  if (other_kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer_model: ", data.tokenizer_model, " is the tokenizer ", label,
                     ", but data.tokenizer is ", std::string(ChoiceName(data.tokenizer))));
  }
  return DataTokenizer{.label = label, .tokenizer = std::move(tokenizer)};
}

// Null where the label's file is not there.
absl::StatusOr<std::shared_ptr<const Tokenizer>> FindFile(const std::string& label,
                                                          const std::vector<Source>& sources) {
  if (label == ByteTokenizer().label()) return std::make_shared<const ByteTokenizer>();
  if (TokenizerFileName(label).empty()) return std::shared_ptr<const Tokenizer>();
  for (const Source& source : sources) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> opened =
        OpenTokenizer(label, DirectoryOf(source.path));
    if (absl::IsNotFound(opened.status())) continue;
    if (!opened.ok()) return opened.status();
    return std::shared_ptr<const Tokenizer>(*std::move(opened));
  }
  return std::shared_ptr<const Tokenizer>();
}

// The tokenizer that the data names: that of its first shard; the label that the spec gives for
// files which do not say; bytes where all is text.
absl::StatusOr<DataTokenizer> OfData(const DataSpec& data, const std::vector<Source>& sources) {
  std::string label;
  const Source* others = nullptr;
  for (const Source& source : sources) {
    if (source.kind == SourceKind::kShard && label.empty()) label = source.label;
    if (source.kind == SourceKind::kOthers && others == nullptr) others = &source;
  }
  if (label.empty()) label = data.tokenizer_label;
  if (label.empty() && others != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer: ", others->path, " (", others->field,
        ") does not say which tokenizer made it; give its file in data.tokenizer_model, "
        "'data.tokenizer: bytes', or its name alone in data.tokenizer_label"));
  }
  if (label.empty()) label = ByteTokenizer().label();
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = FindFile(label, sources);
  if (!tokenizer.ok()) return tokenizer.status();
  return DataTokenizer{.label = std::move(label), .tokenizer = *std::move(tokenizer)};
}

absl::Status Check(const JobSpec& spec, const DataTokenizer& found,
                   const std::vector<Source>& sources) {
  const DataSpec& data = spec.data;
  if (!data.tokenizer_label.empty() && data.tokenizer_label != found.label) {
    return absl::InvalidArgumentError(absl::StrCat("data.tokenizer_label: ", data.tokenizer_label,
                                                   ", but the tokenizer is ", found.label));
  }
  for (const Source& source : sources) {
    if (source.kind == SourceKind::kShard && source.label != found.label) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer: ", found.label, ", but ", source.path, " (", source.field,
          ") was made with ", source.label,
          "; a run has one tokenizer, and without data.tokenizer and data.tokenizer_model it is "
          "that of its shards"));
    }
    if (source.kind == SourceKind::kText && found.tokenizer == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer_model: missing; ", source.path, " (", source.field,
          ") is text, and the file of the tokenizer ", found.label, " is not beside the data"));
    }
  }
  if (found.tokenizer != nullptr && found.tokenizer->vocabulary() > spec.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", spec.model.vocab, " is under ",
                                                   found.tokenizer->vocabulary(),
                                                   ", the tokens of the tokenizer ", found.label));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OfField(absl::string_view field, const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  const bool named = absl::StrContains(status.message(), path);
  return absl::Status(status.code(), absl::StrCat(field, ": ", named ? "" : path, named ? "" : ": ",
                                                  status.message()));
}

absl::StatusOr<SourceKind> KindOfSource(const std::string& path, int64_t token_width) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  }
  if (!std::filesystem::is_regular_file(status)) return SourceKind::kText;
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(path);
  if (!kind.ok()) return kind.status();
  if (*kind == TokenFileKind::kShard) return SourceKind::kShard;
  const bool tokens = *kind != TokenFileKind::kNone || token_width != 0;
  return tokens ? SourceKind::kOthers : SourceKind::kText;
}

absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec) {
  const absl::StatusOr<std::vector<Source>> sources = SourcesOf(spec);
  if (!sources.ok()) return sources.status();
  const absl::StatusOr<std::optional<DataTokenizer>> named = Named(spec.data);
  if (!named.ok()) return named.status();
  const absl::StatusOr<DataTokenizer> found =
      named->has_value() ? absl::StatusOr<DataTokenizer>(**named) : OfData(spec.data, *sources);
  if (!found.ok()) return found.status();
  if (absl::Status status = Check(spec, *found, *sources); !status.ok()) return status;
  return *found;
}

}  // namespace nibble
