#include "worker/corpus/data_sources.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/shard.h"

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
      NIBBLE_ASSIGN_OR_RETURN(Source source, LookAt(absl::StrCat("data.", name, "[", i, "]"),
                                                    list[i].path, list[i].token_width));
      sources.push_back(std::move(source));
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

// Null if the label's file does not exist.
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

// The tokenizer of the data: that of its first shard; the label that the spec gives for files
// without one; bytes if all sources are text.
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
        ") does not record its tokenizer; give the tokenizer's file in data.tokenizer_model, "
        "'data.tokenizer: bytes', or its name alone in data.tokenizer_label"));
  }
  if (label.empty()) label = ByteTokenizer().label();
  NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, FindFile(label, sources));
  return DataTokenizer{.label = std::move(label), .tokenizer = std::move(tokenizer)};
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
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  }
  if (error) return ErrnoError(error.value(), "looking at", path);
  if (!std::filesystem::is_regular_file(status)) return SourceKind::kText;
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(path));
  if (kind == TokenFileKind::kShard) return SourceKind::kShard;
  const bool tokens = kind != TokenFileKind::kNone || token_width != 0;
  return tokens ? SourceKind::kOthers : SourceKind::kText;
}

absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Source> sources, SourcesOf(spec));
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<DataTokenizer> named, Named(spec.data));
  NIBBLE_ASSIGN_OR_RETURN(const DataTokenizer found, named.has_value()
                                                         ? absl::StatusOr<DataTokenizer>(*named)
                                                         : OfData(spec.data, sources));
  NIBBLE_RETURN_IF_ERROR(Check(spec, found, sources));
  return found;
}

namespace {

// Reads the first tokens before any step: a file made by another tokenizer than the spec names
// usually fails there.
absl::Status CheckFirstTokens(const TokenSource& source, const std::string& label) {
  constexpr int64_t kTokens = 4096;
  std::vector<int32_t> first(static_cast<size_t>(std::min(kTokens, source.tokens())));
  const absl::Status status = source.Read(0, static_cast<int64_t>(first.size()), first.data());
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("data.tokenizer: ", label, " did not make these tokens: ", status.message()));
}

// With the spec's hints for a file that does not record everything.
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenWith(const JobSpec& spec,
                                                            const DataTokenizer& tokenizer,
                                                            const std::string& path,
                                                            int64_t token_width,
                                                            int64_t document_end) {
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(path));
  TokenHints hints;
  if (kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer.label;
    hints.vocabulary =
        tokenizer.tokenizer != nullptr ? tokenizer.tokenizer->vocabulary() : spec.model.vocab;
    hints.token_width = static_cast<int>(token_width);
    if (document_end >= 0 && kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(document_end)};
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> opened, OpenTokens(path, hints));
  if (kind != TokenFileKind::kShard) {
    NIBBLE_RETURN_IF_ERROR(CheckFirstTokens(*opened, tokenizer.label));
  }
  return std::shared_ptr<const TokenSource>(std::move(opened));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenSource>> OpenDataSource(const JobSpec& spec,
                                                                  const DataTokenizer& tokenizer,
                                                                  const TrainingSource& source) {
  return OpenWith(spec, tokenizer, source.path, source.token_width, source.document_end);
}

absl::StatusOr<std::shared_ptr<const TokenSource>> OpenDataSource(const JobSpec& spec,
                                                                  const DataTokenizer& tokenizer,
                                                                  const ValidationSource& source) {
  return OpenWith(spec, tokenizer, source.path, source.token_width, source.document_end);
}

absl::Status CheckTrainingLength(const JobSpec& spec, const std::string& path,
                                 const TokenSource& source) {
  if (SampleCount(source.tokens(), spec.data.sequence) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " has ", source.tokens(), " tokens; one sample of data.sequence ",
                   spec.data.sequence, " takes ", spec.data.sequence + 1));
}

namespace {

// Collects what is wrong with the sources of one list of the spec, once their tokenizer is known.
template <class Sources>
void OpenAll(const JobSpec& spec, const DataTokenizer& tokenizer, const Sources& sources,
             const char* name, std::vector<absl::Status>& problems) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string field = absl::StrCat("data.", name, "[", i, "]");
    const std::string& path = sources[i].path;
    const absl::StatusOr<SourceKind> kind = KindOfSource(path, sources[i].token_width);
    absl::Status status = kind.status();
    if (status.ok() && *kind == SourceKind::kText) status = ListTextFiles({path}, {}).status();
    if (status.ok() && *kind != SourceKind::kText) {
      const auto opened = OpenDataSource(spec, tokenizer, sources[i]);
      status = opened.status();
      if (status.ok()) status = CheckTrainingLength(spec, path, **opened);
      if (status.ok() && (*opened)->vocabulary() > spec.model.vocab) {
        status =
            absl::InvalidArgumentError(absl::StrCat("its vocabulary, ", (*opened)->vocabulary(),
                                                    ", is over model.vocab, ", spec.model.vocab));
      }
    }
    if (!status.ok()) problems.push_back(OfField(field, path, status));
  }
}

}  // namespace

absl::StatusOr<std::string> CheckDataSources(const JobSpec& spec) {
  std::vector<absl::Status> problems;
  const auto look = [&](const auto& sources, const char* name) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const absl::StatusOr<Source> source =
          LookAt(absl::StrCat("data.", name, "[", i, "]"), sources[i].path, sources[i].token_width);
      if (!source.ok()) problems.push_back(source.status());
    }
  };
  look(spec.data.train, "train");
  look(spec.data.validation, "validation");
  std::string label;
  if (problems.empty()) {
    const absl::StatusOr<DataTokenizer> tokenizer = FindDataTokenizer(spec);
    if (tokenizer.ok()) {
      label = tokenizer->label;
      OpenAll(spec, *tokenizer, spec.data.train, "train", problems);
      OpenAll(spec, *tokenizer, spec.data.validation, "validation", problems);
    } else {
      problems.push_back(tokenizer.status());
    }
  }
  if (problems.empty()) {
    const size_t count = spec.data.train.size() + spec.data.validation.size();
    return absl::StrCat(count,
                        count == 1 ? " source was opened; its" : " sources were opened; their",
                        " tokenizer is ", label);
  }
  return absl::Status(problems.front().code(),
                      absl::StrJoin(problems, "\n", [](std::string* out, const absl::Status& one) {
                        absl::StrAppend(out, one.message());
                      }));
}

}  // namespace nibble
