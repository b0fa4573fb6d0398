#include "worker/corpus/text_corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/errno_error.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/corpus/expanded_file.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

namespace {

using DocumentSink = absl::FunctionRef<absl::Status(std::string_view)>;

// The end of the line that begins at `begin`, including its line feed.
size_t LineEnd(std::string_view text, size_t begin) {
  const size_t feed = text.find('\n', begin);
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

absl::Status SplitParagraphs(std::string_view text, size_t min_bytes, DocumentSink sink) {
  size_t begin = 0;
  bool after_blank = false;
  for (size_t line = 0; line < text.size();) {
    const size_t end = LineEnd(text, line);
    const bool blank = IsBlank(text.substr(line, end - line));
    if (after_blank && !blank && line - begin >= min_bytes && text.size() - line >= min_bytes) {
      NIBBLE_RETURN_IF_ERROR(sink(text.substr(begin, line - begin)));
      begin = line;
    }
    after_blank = blank;
    line = end;
  }
  return begin == text.size() ? absl::OkStatus() : sink(text.substr(begin));
}

absl::Status SplitAtLines(std::string_view text, std::string_view delimiter, DocumentSink sink) {
  size_t begin = 0;
  for (size_t line = 0; line < text.size();) {
    const size_t end = LineEnd(text, line);
    std::string_view content = text.substr(line, end - line);
    if (!content.empty() && content.back() == '\n') content.remove_suffix(1);
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    if (content == delimiter) {
      if (line > begin) {
        NIBBLE_RETURN_IF_ERROR(sink(text.substr(begin, line - begin)));
      }
      begin = end;
    }
    line = end;
  }
  return begin == text.size() ? absl::OkStatus() : sink(text.substr(begin));
}

}  // namespace

absl::Status Validate(const DocumentSplit& split) {
  if (split.rule == SplitRule::kParagraphs && split.min_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("min_bytes is %d, not at least 1", split.min_bytes));
  }
  if (split.rule == SplitRule::kLine &&
      (split.delimiter.empty() || split.delimiter.find('\n') != std::string::npos ||
       split.delimiter.back() == '\r')) {
    return absl::InvalidArgumentError(
        absl::StrFormat("delimiter is \"%s\", not one line without its line feed",
                        absl::CHexEscape(split.delimiter)));
  }
  if (split.text_field.empty()) return absl::InvalidArgumentError("text_field is empty");
  return absl::OkStatus();
}

absl::Status SplitDocuments(std::string_view text, const DocumentSplit& split, DocumentSink sink) {
  NIBBLE_RETURN_IF_ERROR(Validate(split));
  if (text.empty()) return absl::OkStatus();
  switch (split.rule) {
    case SplitRule::kFile:
      return sink(text);
    case SplitRule::kParagraphs:
      return SplitParagraphs(text, static_cast<size_t>(split.min_bytes), sink);
    case SplitRule::kLine:
      return SplitAtLines(text, split.delimiter, sink);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("rule is %d, none of SplitRule", static_cast<int>(split.rule)));
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The parsed object takes several times the memory of its line.
constexpr size_t kMaxLineBytes = size_t{1} << 28;

absl::Status FileError(const std::error_code& error, const std::string& doing) {
  return ErrnoError(error.value(), doing);
}

bool HasExtension(const std::string& name, absl::Span<const std::string> extensions) {
  return extensions.empty() ||
         std::any_of(extensions.begin(), extensions.end(),
                     [&](const std::string& extension) { return name.ends_with(extension); });
}

bool EndsWithAny(std::string_view name, absl::Span<const std::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(), [&](std::string_view extension) {
    return name.size() > extension.size() &&
           absl::EndsWithIgnoreCase(absl::string_view(name.data(), name.size()),
                                    absl::string_view(extension.data(), extension.size()));
  });
}

// `named`: the file is itself an input, not found in a directory.
absl::Status CheckKind(const std::string& path, bool named) {
  constexpr std::string_view kTokens[] = {".bin", ".idx", ".tokens", ".npy", ".npz"};
  constexpr std::string_view kOthers[] = {
      ".arrow",  ".feather", ".orc", ".avro", ".tfrecord",    ".h5",   ".hdf5", ".mdb",
      ".sqlite", ".db",      ".pkl", ".pt",   ".pth",         ".ckpt", ".zip",  ".tar",
      ".tgz",    ".bz2",     ".xz",  ".lz4",  ".lzma",        ".7z",   ".rar",  ".pdf",
      ".doc",    ".docx",    ".xls", ".xlsx", ".safetensors", ".gguf", ".model"};
  constexpr std::string_view kStructured[] = {".json", ".csv", ".tsv"};
  const std::string_view name = ExpandedName(path);
  const char* remedy = nullptr;
  if (EndsWithAny(name, {".parquet"})) {
    return absl::InvalidArgumentError(absl::StrCat("inputs: ", path, ": ", ParquetRemedy()));
  }
  if (EndsWithAny(name, kTokens)) {
    remedy = "for a token file without a known header, give token_width";
  } else if (EndsWithAny(name, kOthers)) {
    remedy = "convert it to text or to .jsonl";
  } else if (named && EndsWithAny(name, kStructured)) {
    remedy = "convert it to .jsonl, one object with a text field on each line";
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("inputs: ", path,
                   ": its extension is not that of a text file, a .jsonl or .ndjson file, or "
                   "either with .gz or .zst; ",
                   remedy));
}

absl::StatusOr<std::vector<std::string>> ListTextDirectory(
    const std::string& directory, absl::Span<const std::string> extensions) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (!HasExtension(path, extensions)) continue;
    // A link counts as its target; a dangling link is an error.
    const bool regular = it->is_regular_file(error);
    if (error) return FileError(error, absl::StrCat("examining ", path));
    if (!regular) continue;
    NIBBLE_RETURN_IF_ERROR(CheckKind(path, false));
    files.push_back(path);
  }
  if (error) return FileError(error, absl::StrCat("listing ", directory));
  std::sort(files.begin(), files.end());
  return files;
}

bool HasJsonLines(std::string_view path) {
  return EndsWithAny(ExpandedName(path), {".jsonl", ".ndjson"});
}

using TakePart = absl::FunctionRef<absl::Status(int64_t offset, std::string_view part)>;

constexpr char kKeepOrSkip[] = "; control skip leaves such documents out, keep keeps them";

// Whether to pass on a document. `where` makes the place of the zero byte that it has, if any.
absl::StatusOr<bool> Takes(ControlRule rule, std::string_view document,
                           absl::FunctionRef<std::string(size_t zero)> where,
                           SkippedDocuments& skipped) {
  if (rule == ControlRule::kKeep) return true;
  const size_t zero = document.find('\0');
  if (zero == std::string_view::npos) return true;
  if (rule == ControlRule::kRefuse) {
    return absl::InvalidArgumentError(absl::StrCat(where(zero), " is zero", kKeepOrSkip));
  }
  if (skipped.count++ == 0) skipped.first = where(zero);
  return false;
}

absl::Status ForEachPart(const std::string& file, std::string_view text, const DocumentSplit& split,
                         SkippedDocuments& skipped, TakePart take) {
  return SplitDocuments(text, split, [&](std::string_view part) -> absl::Status {
    const int64_t offset = part.data() - text.data();
    const auto where = [&](size_t zero) {
      return absl::StrCat(file, ": byte ", offset + static_cast<int64_t>(zero));
    };
    NIBBLE_ASSIGN_OR_RETURN(const bool takes, Takes(split.control, part, where, skipped));
    return takes ? take(offset, part) : absl::OkStatus();
  });
}

absl::Status ForEachObject(const std::string& file, std::string_view text,
                           const DocumentSplit& split, SkippedDocuments& skipped, TakePart take) {
  const std::string& field = split.text_field;
  int64_t number = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ", line ", number, ": ", std::string(why)));
    };
    if (line.size() > kMaxLineBytes) {
      return refuse(absl::StrCat(line.size(), " bytes, more than ", kMaxLineBytes));
    }
    if (NestsDeeperThan(kMaxJsonLineDepth, line)) {
      return refuse(absl::StrCat("nested deeper than ", kMaxJsonLineDepth));
    }
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) return refuse("not JSON");
    if (!object.is_object()) return refuse("not a JSON object");
    const auto found = object.find(field);
    if (found == object.end()) {
      return refuse(
          absl::StrCat("it has no field '", field, "'; text_field names the one to read"));
    }
    if (!found->is_string()) return refuse(absl::StrCat("its field '", field, "' is not a string"));
    const auto& document = found->get_ref<const std::string&>();
    if (document.empty()) continue;
    const auto where = [&](size_t zero) {
      return absl::StrCat(file, ", line ", number, ": byte ", zero, " of its field '", field, "'");
    };
    NIBBLE_ASSIGN_OR_RETURN(const bool takes, Takes(split.control, document, where, skipped));
    if (!takes) continue;
    NIBBLE_RETURN_IF_ERROR(take(static_cast<int64_t>(begin), document));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> inputs,
                                                       absl::Span<const std::string> extensions) {
  if (inputs.empty()) return absl::InvalidArgumentError("inputs: none were given");
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (error) return FileError(error, absl::StrCat("examining ", input));
    if (fs::is_directory(status)) {
      NIBBLE_ASSIGN_OR_RETURN(std::vector<std::string> listed,
                              ListTextDirectory(input, extensions));
      if (listed.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("inputs: the directory ", input, " contains no file",
                         extensions.empty() ? "" : " with a requested extension"));
      }
      files.insert(files.end(), listed.begin(), listed.end());
    } else if (fs::is_regular_file(status)) {
      NIBBLE_RETURN_IF_ERROR(CheckKind(input, true));
      files.push_back(input);
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("inputs: ", input, " is neither a regular file nor a directory"));
    }
  }
  // A file that occurs twice could be both in training and in validation.
  std::set<fs::path> seen;
  for (const std::string& file : files) {
    std::error_code error;
    const fs::path canonical = fs::canonical(file, error);
    if (error) return FileError(error, absl::StrCat("resolving ", file));
    if (!seen.insert(canonical).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs: the file ", canonical.string(), " occurs twice, also as ", file));
    }
  }
  return files;
}

absl::StatusOr<std::vector<int64_t>> FileSizes(absl::Span<const std::string> files) {
  std::vector<int64_t> sizes;
  for (const std::string& file : files) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t size, ExpandedSize(file));
    sizes.push_back(size);
  }
  return sizes;
}

std::string SkippedText(const SkippedDocuments& skipped) {
  return absl::StrCat(skipped.count, skipped.count == 1 ? " document" : " documents",
                      " with a zero byte ", skipped.count == 1 ? "was" : "were",
                      " skipped, the first at ", skipped.first);
}

absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink,
                             SkippedDocuments* skipped) {
  NIBBLE_RETURN_IF_ERROR(Validate(split));
  SkippedDocuments unwanted;
  if (skipped == nullptr) skipped = &unwanted;
  CorpusDocument document;
  for (; document.file < files.size(); ++document.file) {
    const std::string& file = files[document.file];
    NIBBLE_ASSIGN_OR_RETURN(const MappedFile mapped, OpenExpanded(file));
    const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                                mapped.bytes().size());
    const auto take = [&](int64_t offset, std::string_view part) {
      document.offset = offset;
      document.text = part;
      absl::Status taken = sink(document);
      ++document.number;
      return taken;
    };
    if (IsParquet(text)) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", ParquetRemedy()));
    }
    NIBBLE_RETURN_IF_ERROR(HasJsonLines(file) ? ForEachObject(file, text, split, *skipped, take)
                                              : ForEachPart(file, text, split, *skipped, take));
  }
  return absl::OkStatus();
}

}  // namespace nibble
