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
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/mapped_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

absl::Status FileError(const std::error_code& error, const std::string& doing) {
  return absl::ErrnoToStatus(error.value(), doing);
}

bool HasExtension(const std::string& name, absl::Span<const std::string> extensions) {
  return extensions.empty() ||
         std::any_of(extensions.begin(), extensions.end(),
                     [&](const std::string& extension) { return name.ends_with(extension); });
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
    if (regular) files.push_back(path);
  }
  if (error) return FileError(error, absl::StrCat("listing ", directory));
  std::sort(files.begin(), files.end());
  return files;
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
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file, error);
    if (error) return FileError(error, absl::StrCat("examining ", file));
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink) {
  CorpusDocument document;
  for (; document.file < files.size(); ++document.file) {
    const std::string& file = files[document.file];
    const absl::StatusOr<MappedFile> mapped = MappedFile::Open(file);
    if (!mapped.ok()) return mapped.status();
    const std::string_view text(reinterpret_cast<const char*>(mapped->bytes().data()),
                                mapped->bytes().size());
    if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is no text: byte %d is zero", file, zero));
    }
    absl::Status status = SplitDocuments(text, split, [&](std::string_view part) {
      document.offset = part.data() - text.data();
      document.text = part;
      absl::Status taken = sink(document);
      ++document.number;
      return taken;
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble
