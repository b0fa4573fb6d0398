#include "worker/trainer/data/text_corpus.h"

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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/expanded_file.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A tree of an object takes several times its line.
constexpr size_t kMaxLineBytes = size_t{1} << 28;

absl::Status FileError(const std::error_code& error, const std::string& doing) {
  return absl::ErrnoToStatus(error.value(), doing);
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

// `named`: an input is this file, which therefore is no text by chance.
absl::Status CheckKind(const std::string& path, bool named) {
  constexpr std::string_view kTokens[] = {".bin", ".idx", ".tokens", ".npy", ".npz"};
  constexpr std::string_view kOthers[] = {
      ".parquet", ".arrow",  ".feather", ".orc", ".avro", ".tfrecord",    ".h5",   ".hdf5",
      ".mdb",     ".sqlite", ".db",      ".pkl", ".pt",   ".pth",         ".ckpt", ".zip",
      ".tar",     ".tgz",    ".bz2",     ".xz",  ".lz4",  ".lzma",        ".7z",   ".rar",
      ".pdf",     ".doc",    ".docx",    ".xls", ".xlsx", ".safetensors", ".gguf", ".model"};
  constexpr std::string_view kStructured[] = {".json", ".csv", ".tsv"};
  const std::string_view name = ExpandedName(path);
  const char* remedy = nullptr;
  if (EndsWithAny(name, kTokens)) {
    remedy = "a token file names its kind in its first bytes, or its token_width is given";
  } else if (EndsWithAny(name, kOthers)) {
    remedy = "convert it to text or to .jsonl";
  } else if (named && EndsWithAny(name, kStructured)) {
    remedy = "convert it to .jsonl, one object with a text field on each line";
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("inputs: ", path,
                   ": its extension is of other data than text, which is read from text files, "
                   ".jsonl and either with .gz or .zst; ",
                   remedy));
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& directory,
                                                       absl::Span<const std::string> extensions) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (!HasExtension(path, extensions)) continue;
    // By its target for a link; a link that leads nowhere is an error, not a file less.
    const bool regular = it->is_regular_file(error);
    if (error) return FileError(error, absl::StrCat("examining ", path));
    if (!regular) continue;
    if (absl::Status status = CheckKind(path, false); !status.ok()) return status;
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

absl::Status ForEachPart(const std::string& file, std::string_view text, const DocumentSplit& split,
                         TakePart take) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is no text: byte %d is zero", file, zero));
  }
  return SplitDocuments(
      text, split, [&](std::string_view part) { return take(part.data() - text.data(), part); });
}

absl::Status ForEachObject(const std::string& file, std::string_view text, const std::string& field,
                           TakePart take) {
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
    if (const size_t zero = document.find('\0'); zero != std::string::npos) {
      return refuse(absl::StrCat("byte ", zero, " of its field '", field, "' is zero"));
    }
    if (absl::Status status = take(static_cast<int64_t>(begin), document); !status.ok()) {
      return status;
    }
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
      absl::StatusOr<std::vector<std::string>> listed = ListDirectory(input, extensions);
      if (!listed.ok()) return listed.status();
      if (listed->empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("inputs: the directory ", input, " holds no file",
                         extensions.empty() ? "" : " of the extensions asked for"));
      }
      files.insert(files.end(), listed->begin(), listed->end());
    } else if (fs::is_regular_file(status)) {
      if (absl::Status kind = CheckKind(input, true); !kind.ok()) return kind;
      files.push_back(input);
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("inputs: ", input, " is neither a regular file nor a directory"));
    }
  }
  // A file that counts twice could be in training and in validation.
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
    const absl::StatusOr<int64_t> size = ExpandedSize(file);
    if (!size.ok()) return size.status();
    sizes.push_back(*size);
  }
  return sizes;
}

absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink) {
  if (absl::Status status = Validate(split); !status.ok()) return status;
  CorpusDocument document;
  for (; document.file < files.size(); ++document.file) {
    const std::string& file = files[document.file];
    const absl::StatusOr<MappedFile> mapped = OpenExpanded(file);
    if (!mapped.ok()) return mapped.status();
    const std::string_view text(reinterpret_cast<const char*>(mapped->bytes().data()),
                                mapped->bytes().size());
    const auto take = [&](int64_t offset, std::string_view part) {
      document.offset = offset;
      document.text = part;
      absl::Status taken = sink(document);
      ++document.number;
      return taken;
    };
    absl::Status status = HasJsonLines(file) ? ForEachObject(file, text, split.text_field, take)
                                             : ForEachPart(file, text, split, take);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble
