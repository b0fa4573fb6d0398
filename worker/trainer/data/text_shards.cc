#include "worker/trainer/data/text_shards.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
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
#include "worker/trainer/data/parallel_encoder.h"
#include "worker/trainer/data/shard_writer.h"
#include "worker/trainer/data/text_corpus.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxThreads = 1024;

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

// Of training and of validation.
std::vector<std::string> ShardPaths(const PrepareTextOptions& options) {
  return {absl::StrCat(options.output_dir, "/train.tokens"),
          absl::StrCat(options.output_dir, "/validation.tokens")};
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

// Documents on their way through the encoder into their shards.
class Pipeline {
 public:
  // Borrows all of its arguments. `ends` are the sums of the sizes of each file and those before.
  Pipeline(const PrepareTextOptions& options, const Tokenizer& tokenizer, const HoldOut& hold_out,
           const std::vector<std::string>& files, const std::vector<int64_t>& ends, Output& train,
           Output& validation)
      : options_(options),
        hold_out_(hold_out),
        files_(files),
        ends_(ends),
        train_(train),
        validation_(validation),
        encoder_(
            tokenizer, options.threads, [this](int64_t document) { return NameOf(document); },
            [this](const ParallelEncoder::Encoded& piece) { return Take(piece); }) {
    progress_.total_bytes = ends.empty() ? 0 : ends.back();
  }

  absl::Status Run() {
    absl::Status status =
        ForEachDocument(files_, options_.split, [&](const CorpusDocument& document) {
          under_way_.push_back({document.file, document.offset});
          return encoder_.Add(document.text);
        });
    if (status.ok()) status = encoder_.Finish();
    if (!status.ok()) return status;
    progress_.bytes = progress_.total_bytes;
    Report();
    return absl::OkStatus();
  }

 private:
  // Where a document lies.
  struct Place {
    size_t file;
    int64_t offset;
  };

  const Place& PlaceOf(int64_t document) const {
    return under_way_[static_cast<size_t>(document - progress_.documents)];
  }

  std::string NameOf(int64_t document) const {
    const Place& place = PlaceOf(document);
    return absl::StrFormat("%s, document %d, from byte %d of the file on", files_[place.file],
                           document, place.offset);
  }

  absl::Status Take(const ParallelEncoder::Encoded& piece) {
    Output& output = hold_out_.Contains(piece.document) ? validation_ : train_;
    if (absl::Status status = output.writer->Append(piece.tokens); !status.ok()) return status;
    output.bytes += piece.bytes;
    const Place& place = PlaceOf(piece.document);
    const int64_t file_begin = place.file == 0 ? 0 : ends_[place.file - 1];
    progress_.bytes = file_begin + place.offset + piece.offset + piece.bytes;
    progress_.tokens += static_cast<int64_t>(piece.tokens.size());
    if (piece.ends_document) {
      if (absl::Status status = output.writer->EndDocument(); !status.ok()) return status;
      under_way_.pop_front();
      ++progress_.documents;
      ++progress_.tokens;
    }
    Report();
    return absl::OkStatus();
  }

  void Report() const {
    if (options_.progress) options_.progress(progress_);
  }

  const PrepareTextOptions& options_;
  const HoldOut& hold_out_;
  const std::vector<std::string>& files_;
  const std::vector<int64_t>& ends_;
  Output& train_;
  Output& validation_;
  TextProgress progress_;
  std::deque<Place> under_way_;  // documents that are not in their shards yet, in order
  ParallelEncoder encoder_;
};

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

absl::Status CheckPrepareText(const PrepareTextOptions& options) {
  if (absl::Status status = Validate(options.split); !status.ok()) return status;
  if (absl::Status status = HoldOut::Create(options.seed, options.validation_fraction).status();
      !status.ok()) {
    return status;
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("threads is %d, not in [0, %d]", options.threads, kMaxThreads));
  }
  if (options.output_dir.empty()) return absl::InvalidArgumentError("output_dir is empty");
  if (options.overwrite) return absl::OkStatus();
  for (const std::string& path : ShardPaths(options)) {
    if (absl::Status status = CheckAbsent(path); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer) {
  if (absl::Status status = CheckPrepareText(options); !status.ok()) return status;
  const absl::StatusOr<HoldOut> hold_out =
      HoldOut::Create(options.seed, options.validation_fraction);
  if (!hold_out.ok()) return hold_out.status();
  const absl::StatusOr<std::vector<std::string>> files =
      ListTextFiles(options.inputs, options.extensions);
  if (!files.ok()) return files.status();
  if (absl::Status status = CreateDirectory(options.output_dir); !status.ok()) return status;

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
  const std::vector<std::string> paths = ShardPaths(options);
  if (absl::Status status = create(paths[0], train); !status.ok()) return status;
  if (options.validation_fraction > 0) {
    if (absl::Status status = create(paths[1], validation); !status.ok()) return status;
    outputs.push_back(&validation);
  }

  absl::StatusOr<std::vector<int64_t>> ends = FileSizes(*files);
  if (!ends.ok()) return ends.status();
  std::partial_sum(ends->begin(), ends->end(), ends->begin());
  absl::Status status =
      Pipeline(options, tokenizer, *hold_out, *files, *ends, train, validation).Run();
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
