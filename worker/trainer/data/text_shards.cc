#include "worker/trainer/data/text_shards.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/hold_out.h"
#include "worker/trainer/data/shard_writer.h"
#include "worker/trainer/data/text_corpus.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// A shard being made and what is counted on the way.
struct Output {
  std::unique_ptr<ShardWriter> writer;  // null: not wanted
  int64_t bytes = 0;
};

absl::Status CreateDirectory(const std::string& directory) {
  std::error_code error;
  fs::create_directory(directory, error);  // an existing one is no error
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("making the directory ", directory));
}

absl::Status CheckAbsent(const std::string& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " exists and may not be replaced"));
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);  // an absent one is no error
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("removing ", path));
}

absl::Status AddDocument(std::string_view text, const Tokenizer& tokenizer, Output& output) {
  absl::Status status = tokenizer.Encode(
      text, [&](absl::Span<const int32_t> tokens) { return output.writer->Append(tokens); });
  if (status.ok()) status = output.writer->EndDocument();
  output.bytes += static_cast<int64_t>(text.size());
  return status;
}

TextShard Describe(const Output& output) {
  return {.path = output.writer->path(),
          .documents = output.writer->documents(),
          .tokens = output.writer->tokens(),
          .bytes = output.bytes};
}

// Puts complete shards in place of whatever is there.
absl::Status Publish(absl::Span<Output* const> outputs, absl::Span<const std::string> paths) {
  for (Output* output : outputs) {
    if (absl::Status status = output->writer->Finish(); !status.ok()) return status;
  }
  for (const std::string& path : paths) {
    if (absl::Status status = Remove(path); !status.ok()) return status;
  }
  for (Output* output : outputs) {
    absl::Status status = output->writer->Commit();
    if (status.ok()) continue;
    // Half a pair is no result. What cannot be removed either stays; the first error says more.
    for (const std::string& path : paths) (void)Remove(path);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer) {
  if (absl::Status status = Validate(options.split); !status.ok()) return status;
  const absl::StatusOr<HoldOut> hold_out =
      HoldOut::Create(options.seed, options.validation_fraction);
  if (!hold_out.ok()) return hold_out.status();
  if (options.output_dir.empty()) return absl::InvalidArgumentError("output_dir is empty");
  const absl::StatusOr<std::vector<std::string>> files =
      ListTextFiles(options.inputs, options.extensions);
  if (!files.ok()) return files.status();

  if (absl::Status status = CreateDirectory(options.output_dir); !status.ok()) return status;
  const std::string train_path = absl::StrCat(options.output_dir, "/train.tokens");
  const std::string validation_path = absl::StrCat(options.output_dir, "/validation.tokens");
  const std::vector<std::string> paths = {train_path, validation_path};
  if (!options.overwrite) {
    for (const std::string& path : paths) {
      if (absl::Status status = CheckAbsent(path); !status.ok()) return status;
    }
  }

  const ShardOptions shard_options{.tokenizer = tokenizer.label(),
                                   .vocabulary = tokenizer.vocabulary(),
                                   .end_of_document = tokenizer.end_of_document()};
  const auto create = [&](const std::string& path, Output& output) {
    absl::StatusOr<std::unique_ptr<ShardWriter>> writer = ShardWriter::Create(path, shard_options);
    if (writer.ok()) output.writer = *std::move(writer);
    return writer.status();
  };
  Output train, validation;
  std::vector<Output*> outputs = {&train};
  if (absl::Status status = create(train_path, train); !status.ok()) return status;
  if (options.validation_fraction > 0) {
    if (absl::Status status = create(validation_path, validation); !status.ok()) return status;
    outputs.push_back(&validation);
  }

  absl::Status status =
      ForEachDocument(*files, options.split, [&](int64_t document, std::string_view text) {
        return AddDocument(text, tokenizer, hold_out->Contains(document) ? validation : train);
      });
  if (!status.ok()) return status;
  for (const Output* output : outputs) {
    if (output->writer->documents() > 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s would hold no document: validation_fraction %g with seed %d leaves it none of %d",
        output->writer->path(), options.validation_fraction, options.seed,
        train.writer->documents() +
            (validation.writer == nullptr ? 0 : validation.writer->documents())));
  }

  PreparedText prepared{.files = static_cast<int64_t>(files->size()), .train = Describe(train)};
  if (validation.writer != nullptr) prepared.validation = Describe(validation);
  if (absl::Status published = Publish(outputs, paths); !published.ok()) return published;
  return prepared;
}

}  // namespace nibble
