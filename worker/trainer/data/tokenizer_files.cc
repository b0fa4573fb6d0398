#include "worker/trainer/data/tokenizer_files.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/staged_file.h"
#include "worker/trainer/data/bpe_tokenizer.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"

namespace nibble {
namespace {

std::string PathIn(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& named) {
  if (named == ByteTokenizer().label()) return std::make_unique<ByteTokenizer>();
  const absl::StatusOr<MappedFile> file = MappedFile::Open(named);
  if (!file.ok()) return file.status();
  const std::string_view content = TextOf(*file);
  // No SentencePiece model begins with a brace: that would be a group, of which it has none.
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && content[first] == '{') {
    absl::StatusOr<std::unique_ptr<BpeTokenizer>> loaded = BpeTokenizer::Load(named);
    if (!loaded.ok()) return loaded.status();
    return *std::move(loaded);
  }
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> loaded =
      SentencePieceTokenizer::FromModel(named, content);
  if (!loaded.ok()) return loaded.status();
  return *std::move(loaded);
}

std::string TokenizerFileName(std::string_view label) {
  constexpr struct {
    std::string_view kind, before, after;
  } kKinds[] = {{"sp:", "sp-", ".model"}, {"hf:", "hf-", ".json"}};
  for (const auto& [kind, before, after] : kKinds) {
    if (!label.starts_with(kind) || label.size() != kind.size() + 16 ||
        label.find_first_not_of("0123456789abcdef", kind.size()) != std::string_view::npos) {
      continue;
    }
    std::string name(before);
    name += label.substr(kind.size());
    name += after;
    return name;
  }
  return "";
}

absl::StatusOr<std::string> SaveTokenizer(const std::string& directory,
                                          const Tokenizer& tokenizer) {
  const std::string_view content = tokenizer.file();
  if (content.empty()) return std::string();
  std::error_code error;
  std::filesystem::create_directory(directory, error);  // an existing one is no error
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("making the directory ", directory));
  }
  const std::string path = PathIn(directory, TokenizerFileName(tokenizer.label()));
  const absl::StatusOr<MappedFile> present = MappedFile::Open(path);
  if (present.ok()) {
    if (TextOf(*present) == content) return path;
    return absl::DataLossError(
        absl::StrCat(path, " is there and does not hold the tokenizer that its name says"));
  }
  if (!absl::IsNotFound(present.status())) return present.status();
  absl::StatusOr<std::unique_ptr<StagedFile>> file = StagedFile::Create(path);
  if (!file.ok()) return file.status();
  absl::Status status =
      (*file)->Append({reinterpret_cast<const std::byte*>(content.data()), content.size()});
  if (status.ok()) status = (*file)->Publish();
  if (!status.ok()) return status;
  return path;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory) {
  if (label == ByteTokenizer().label()) return std::make_unique<ByteTokenizer>();
  const std::string name = TokenizerFileName(label);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer \"%s\" is neither \"bytes\", a SentencePiece model (sp:...) nor "
                        "a tokenizer.json (hf:...)",
                        absl::CHexEscape(label)));
  }
  const std::string path = PathIn(directory, name);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(path);
  if (tokenizer.ok() && (*tokenizer)->label() != label) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is the tokenizer \"%s\", not \"%s\"",
                                                      path, (*tokenizer)->label(), label));
  }
  return tokenizer;
}

}  // namespace nibble
