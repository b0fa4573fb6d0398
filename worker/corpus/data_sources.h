// The sources of a job's data, which a spec names, and the tokenizer that made them.
//
// The tokenizer is determined by the data: token shards have its label, and its file is in their
// directory. The job spec supplies what files of other trainers do not record; if it names a
// tokenizer, the shards must agree.
//
// Thread-safety: the functions depend on nothing but the file system.
#ifndef NIBBLE_WORKER_CORPUS_DATA_SOURCES_H_
#define NIBBLE_WORKER_CORPUS_DATA_SOURCES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job_spec.h"
#include "worker/trainer/data/token_source.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

enum class SourceKind : uint8_t {
  kText,    // a directory, or a file without the first bytes of a token file
  kShard,   // a token shard, which needs no hints
  kOthers,  // a token file of another trainer
};

// `status` with the field of the spec and its path before the message.
absl::Status OfField(absl::string_view field, const std::string& path, const absl::Status& status);

// NotFound names the path.
absl::StatusOr<SourceKind> KindOfSource(const std::string& path, int64_t token_width);

struct DataTokenizer {
  std::string label;
  // Null if only the label is known, in which case no source is text.
  std::shared_ptr<const Tokenizer> tokenizer;
};

//   InvalidArgument  begins with the field of the spec: the data was made by another tokenizer than
//                    the spec names, a source does not record its tokenizer, a source is text and
//                    the tokenizer's file is missing, or its vocabulary is larger than the model's
//   any other        reading files failed
absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec);

// Opens token files, and reads the first tokens of those that do not record their tokenizer. Errors
// as OpenTokens(); InvalidArgument if another tokenizer made those tokens.
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenDataSource(const JobSpec& spec,
                                                                  const DataTokenizer& tokenizer,
                                                                  const TrainingSource& source);
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenDataSource(const JobSpec& spec,
                                                                  const DataTokenizer& tokenizer,
                                                                  const ValidationSource& source);

// InvalidArgument unless the source has tokens for a sample. `path`: as in the spec, also if the
// source is made from it.
absl::Status CheckTrainingLength(const JobSpec& spec, const std::string& path,
                                 const TokenSource& source);

// Checks the data before a run: every source is there, of a kind that is read, and agrees with the
// tokenizer, the vocabulary and the sequences of the spec. Text is not read. Returns a description;
// an error has a line for each problem, which begins with the field of the spec.
absl::StatusOr<std::string> CheckDataSources(const JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CORPUS_DATA_SOURCES_H_
