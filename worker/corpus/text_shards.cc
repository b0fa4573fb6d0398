#include "worker/corpus/text_shards.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
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
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/corpus/text_corpus.h"
#include "worker/corpus/text_sample.h"
#include "worker/trainer/data/shard_writer.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

namespace {

// Buffers of up to this size are kept for the next round.
constexpr size_t kKeptTokens = 1024;

}  // namespace

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, int threads, Name name,
                                 Deliver deliver, size_t round_bytes)
    : tokenizer_(tokenizer),
      pool_(threads),
      name_(std::move(name)),
      deliver_(std::move(deliver)),
      round_bytes_(round_bytes != 0 ? round_bytes
                                    : kRoundBytes * static_cast<size_t>(pool_.threads())) {
  texts_.reserve(round_bytes_);
}

absl::Status ParallelEncoder::Add(std::string_view text) {
  const bool small = text.size() <= round_bytes_;
  // Views of `texts_` stay valid as long as it does not grow.
  if (small && text.size() > round_bytes_ - texts_.size()) {
    NIBBLE_RETURN_IF_ERROR(Flush());
  }
  if (small) {
    const size_t begin = texts_.size();
    texts_.append(text);
    text = std::string_view(texts_).substr(begin);
  }
  size_t offset = 0;
  do {
    const std::string_view rest = text.substr(offset);
    const size_t size = rest.empty() ? 0 : tokenizer_.PieceEnd(rest, kEncodePieceBytes);
    pieces_.push_back({.text = rest.substr(0, size),
                       .document = documents_,
                       .offset = static_cast<int64_t>(offset),
                       .ends_document = size == rest.size()});
    offset += size;
    pending_bytes_ += size;
    if (pending_bytes_ >= round_bytes_) {
      NIBBLE_RETURN_IF_ERROR(Flush());
    }
  } while (offset < text.size());
  ++documents_;
  // The pieces of a large document are views of the caller's text, which need not outlive this
  // call.
  const bool full = pieces_.size() >= kRoundPieces * static_cast<size_t>(pool_.threads());
  return small && !full ? absl::OkStatus() : Flush();
}

absl::Status ParallelEncoder::Finish() { return Flush(); }

absl::Status ParallelEncoder::Flush() {
  tokens_.resize(std::max(tokens_.size(), pieces_.size()));
  pool_.ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t index, int) {
    Piece& piece = pieces_[index];
    std::vector<int32_t>& tokens = tokens_[index];
    tokens.clear();
    piece.status =
        tokenizer_.EncodePiece(piece.text, piece.offset, [&](absl::Span<const int32_t> more) {
          tokens.insert(tokens.end(), more.begin(), more.end());
          return absl::OkStatus();
        });
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!piece.status.ok()) {
      return absl::Status(piece.status.code(),
                          absl::StrCat(name_(piece.document), ": ", piece.status.message()));
    }
    NIBBLE_RETURN_IF_ERROR(deliver_({.document = piece.document,
                                     .offset = piece.offset,
                                     .bytes = static_cast<int64_t>(piece.text.size()),
                                     .ends_document = piece.ends_document,
                                     .tokens = tokens_[i]}));
    if (tokens_[i].capacity() > kKeptTokens) tokens_[i] = {};
  }
  pieces_.clear();
  texts_.clear();
  pending_bytes_ = 0;
  return absl::OkStatus();
}

namespace {

namespace fs = std::filesystem;

constexpr int kMaxThreads = 1024;

// A shard being written and its counts.
struct Output {
  std::unique_ptr<TokenShardWriter> writer;  // null: no such shard
  int64_t bytes = 0;
};

absl::Status CreateDirectory(const std::string& directory) {
  std::error_code error;
  fs::create_directory(directory, error);  // an existing one is no error
  if (!error) return absl::OkStatus();
  return ErrnoError(error.value(), absl::StrCat("making the directory ", directory));
}

// The paths of the training shard and the validation shard.
std::vector<std::string> ShardPaths(const PrepareTextOptions& options) {
  return {absl::StrCat(options.output_dir, "/train.tokens"),
          absl::StrCat(options.output_dir, "/validation.tokens")};
}

absl::Status CheckAbsent(const std::string& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(path, " exists and may not be replaced; set overwrite to replace it"));
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);  // an absent one is no error
  if (!error) return absl::OkStatus();
  return ErrnoError(error.value(), absl::StrCat("removing ", path));
}

// Passes documents through the encoder into their shards.
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
            [this](const ParallelEncoder::Encoded& piece) { return Write(piece); }) {
    progress_.total_bytes = ends.empty() ? 0 : ends.back();
  }

  absl::Status Run(SkippedDocuments& skipped) {
    NIBBLE_RETURN_IF_ERROR(ForEachDocument(
        files_, options_.split,
        [&](const CorpusDocument& document) {
          pending_.push_back({document.file, document.offset});
          return encoder_.Add(document.text);
        },
        &skipped));
    NIBBLE_RETURN_IF_ERROR(encoder_.Finish());
    progress_.bytes = progress_.total_bytes;
    Report();
    return absl::OkStatus();
  }

 private:
  // The position of a document.
  struct Place {
    size_t file;
    int64_t offset;
  };

  const Place& PlaceOf(int64_t document) const {
    return pending_[static_cast<size_t>(document - progress_.documents)];
  }

  std::string NameOf(int64_t document) const {
    const Place& place = PlaceOf(document);
    return absl::StrFormat("%s, document %d, from byte %d of the file on", files_[place.file],
                           document, place.offset);
  }

  absl::Status Write(const ParallelEncoder::Encoded& piece) {
    Output& output = hold_out_.Contains(piece.document) ? validation_ : train_;
    NIBBLE_RETURN_IF_ERROR(output.writer->Append(piece.tokens));
    output.bytes += piece.bytes;
    const Place& place = PlaceOf(piece.document);
    const int64_t file_begin = place.file == 0 ? 0 : ends_[place.file - 1];
    progress_.bytes = file_begin + place.offset + piece.offset + piece.bytes;
    progress_.tokens += static_cast<int64_t>(piece.tokens.size());
    if (piece.ends_document) {
      NIBBLE_RETURN_IF_ERROR(output.writer->EndDocument());
      pending_.pop_front();
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
  std::deque<Place> pending_;  // documents that are not yet in their shards, in order
  ParallelEncoder encoder_;
};

TextShard Describe(const Output& output) {
  return {.path = output.writer->path(),
          .documents = output.writer->documents(),
          .tokens = output.writer->tokens(),
          .bytes = output.bytes};
}

// Publishes complete shards, replacing existing ones; the first of `outputs` last, because callers
// take its presence for that of all.
absl::Status Publish(absl::Span<Output* const> outputs, absl::Span<const std::string> paths) {
  for (Output* output : outputs) {
    NIBBLE_RETURN_IF_ERROR(output->writer->Finish());
  }
  for (const std::string& path : paths) {
    NIBBLE_RETURN_IF_ERROR(Remove(path));
  }
  for (auto output = outputs.rbegin(); output != outputs.rend(); ++output) {
    absl::Status status = (*output)->writer->Commit();
    if (status.ok()) continue;
    // Never leave half a pair. Errors of removal are ignored: the first error is returned.
    for (const std::string& path : paths) (void)Remove(path);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrepareText(const PrepareTextOptions& options) {
  NIBBLE_RETURN_IF_ERROR(Validate(options.split));
  NIBBLE_RETURN_IF_ERROR(HoldOut::Create(options.seed, options.validation_fraction).status());
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("threads is %d, not in [0, %d]", options.threads, kMaxThreads));
  }
  if (options.output_dir.empty()) return absl::InvalidArgumentError("output_dir is empty");
  if (options.overwrite) return absl::OkStatus();
  for (const std::string& path : ShardPaths(options)) {
    NIBBLE_RETURN_IF_ERROR(CheckAbsent(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer) {
  NIBBLE_RETURN_IF_ERROR(CheckPrepareText(options));
  NIBBLE_ASSIGN_OR_RETURN(const HoldOut hold_out,
                          HoldOut::Create(options.seed, options.validation_fraction));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                          ListTextFiles(options.inputs, options.extensions));
  NIBBLE_RETURN_IF_ERROR(CreateDirectory(options.output_dir));

  const ShardOptions shard_options{.tokenizer = tokenizer.label(),
                                   .vocabulary = tokenizer.vocabulary(),
                                   .end_of_document = tokenizer.end_of_document()};
  const auto create = [&](const std::string& path, Output& output) {
    absl::StatusOr<std::unique_ptr<TokenShardWriter>> writer =
        TokenShardWriter::Create(path, shard_options);
    if (writer.ok()) output.writer = *std::move(writer);
    return writer.status();
  };
  Output train, validation;
  std::vector<Output*> outputs = {&train};
  const std::vector<std::string> paths = ShardPaths(options);
  NIBBLE_RETURN_IF_ERROR(create(paths[0], train));
  if (options.validation_fraction > 0) {
    NIBBLE_RETURN_IF_ERROR(create(paths[1], validation));
    outputs.push_back(&validation);
  }

  NIBBLE_ASSIGN_OR_RETURN(std::vector<int64_t> ends, FileSizes(files));
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  SkippedDocuments skipped;
  NIBBLE_RETURN_IF_ERROR(
      Pipeline(options, tokenizer, hold_out, files, ends, train, validation).Run(skipped));
  const int64_t documents = train.writer->documents() +
                            (validation.writer == nullptr ? 0 : validation.writer->documents());
  if (documents == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("inputs: none of the %d files has text%s", files.size(),
                        skipped.count == 0 ? "" : absl::StrCat("; ", SkippedText(skipped))));
  }
  for (const Output* output : outputs) {
    if (output->writer->documents() > 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s would have no document: validation_fraction %g with seed %d gives it none of the %d; "
        "change the fraction or the seed",
        output->writer->path(), options.validation_fraction, options.seed, documents));
  }

  PreparedText prepared{.files = static_cast<int64_t>(files.size()),
                        .skipped = std::move(skipped),
                        .train = Describe(train)};
  if (validation.writer != nullptr) prepared.validation = Describe(validation);
  NIBBLE_RETURN_IF_ERROR(Publish(outputs, paths));
  return prepared;
}

}  // namespace nibble
