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
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"

namespace nibble {
namespace {

std::string PathIn(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

}  // namespace

absl::StatusOr<std::string> SaveSentencePieceModel(const std::string& directory,
                                                   std::string_view model) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);  // an existing one is no error
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("making the directory ", directory));
  }
  const std::string path = PathIn(directory, SentencePieceFileName(SentencePieceLabel(model)));
  absl::StatusOr<MappedFile> present = MappedFile::Open(path);
  if (present.ok()) {
    const std::string_view content(reinterpret_cast<const char*>(present->bytes().data()),
                                   present->bytes().size());
    if (content == model) return path;
    return absl::DataLossError(
        absl::StrCat(path, " is there and does not hold the model that its name tells"));
  }
  if (!absl::IsNotFound(present.status())) return present.status();
  absl::StatusOr<std::unique_ptr<StagedFile>> file = StagedFile::Create(path);
  if (!file.ok()) return file.status();
  absl::Status status =
      (*file)->Append({reinterpret_cast<const std::byte*>(model.data()), model.size()});
  if (status.ok()) status = (*file)->Publish();
  if (!status.ok()) return status;
  return path;
}

absl::StatusOr<std::string> CopySentencePieceModel(const std::string& directory,
                                                   const std::string& model_path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(model_path);
  if (!file.ok()) return file.status();
  const std::string_view model(reinterpret_cast<const char*>(file->bytes().data()),
                               file->bytes().size());
  absl::Status status = SentencePieceTokenizer::FromModel(model_path, model).status();
  if (!status.ok()) return status;
  return SaveSentencePieceModel(directory, model);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory) {
  if (label == ByteTokenizer().label()) return std::make_unique<ByteTokenizer>();
  const std::string name = SentencePieceFileName(label);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer \"%s\" is neither \"bytes\" nor a SentencePiece model",
                        absl::CHexEscape(label)));
  }
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
      SentencePieceTokenizer::Load(PathIn(directory, name));
  if (!tokenizer.ok()) return tokenizer.status();
  if ((*tokenizer)->label() != label) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is the model of \"%s\", not of \"%s\"",
                                                      PathIn(directory, name),
                                                      (*tokenizer)->label(), label));
  }
  return *std::move(tokenizer);
}

}  // namespace nibble
