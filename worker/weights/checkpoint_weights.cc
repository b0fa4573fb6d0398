#include "worker/weights/checkpoint_weights.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "recipe/recipe_json.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view text) {
  CheckpointName name = {.directory = std::string(text)};
  const size_t at = text.rfind('@');
  if (at != std::string_view::npos && at + 1 < text.size()) {
    const std::string digits(text.substr(at + 1));
    if (std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) {
      int64_t step = 0;
      if (!absl::SimpleAtoi(digits, &step)) {
        return absl::InvalidArgumentError(absl::StrCat("step: ", digits, " is beyond any step"));
      }
      name.step = step;
      name.directory = std::string(text.substr(0, at));
    }
  }
  if (name.directory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' names no directory"));
  }
  return name;
}

namespace {

namespace fs = std::filesystem;

bool IsStore(const std::string& path) { return CheckpointStore::IdentityOf(path).ok(); }

// For checkpoints that predate the tokenizer's label. Null if its model is not found: the weights
// are usable without it.
absl::StatusOr<std::shared_ptr<const Tokenizer>> OfUnlabelled(const DataSpec& data,
                                                              const std::string& directory) {
  if (data.tokenizer == JobTokenizer::kBytes) return std::make_shared<ByteTokenizer>();
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != ".model") continue;
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> loaded, LoadTokenizer(at->path().string()));
    return std::shared_ptr<const Tokenizer>(std::move(loaded));
  }
  return std::shared_ptr<const Tokenizer>();
}

// Looks in the run's directory and beside its training data. Null, with a notice, if the file is in
// neither.
absl::StatusOr<std::shared_ptr<const Tokenizer>> FindTokenizer(const DataSpec& data,
                                                               const std::string& directory,
                                                               std::vector<std::string>& notices) {
  const std::string& label = data.tokenizer_label;
  if (label.empty()) return OfUnlabelled(data, directory);
  std::vector<std::string> places = {directory};
  for (const TrainingSource& source : data.train) {
    places.push_back(fs::path(source.path).parent_path().string());
  }
  for (const std::string& place : places) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> opened = OpenTokenizer(label, place);
    if (opened.ok()) return std::shared_ptr<const Tokenizer>(*std::move(opened));
    if (!absl::IsNotFound(opened.status()) && !TokenizerFileName(label).empty()) {
      return opened.status();
    }
  }
  const std::string name = TokenizerFileName(label);
  notices.push_back(
      absl::StrCat("its tokenizer, ", label, ", is missing",
                   name.empty() ? "" : absl::StrCat(": there is no ", name, " in ", directory)));
  return std::shared_ptr<const Tokenizer>();
}

}  // namespace

absl::StatusOr<std::string> FindStore(const std::string& path) {
  std::string inside = absl::StrCat(path, "/", kCheckpointDirectoryName);
  std::error_code error;
  if (fs::is_directory(inside, error)) return inside;
  if (IsStore(path)) return path;
  return absl::NotFoundError(
      absl::StrCat("there is no checkpoint store in ", path, ", nor in ", inside));
}

absl::StatusOr<std::unique_ptr<CheckpointWeights>> CheckpointWeights::Open(
    const std::string& path, std::optional<int64_t> step) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string store_path, FindStore(path));
  NIBBLE_ASSIGN_OR_RETURN(const StoreIdentity identity, CheckpointStore::IdentityOf(store_path));
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CheckpointStore> store,
      CheckpointStore::Open(store_path, {.identity = identity, .read_only = true}));
  std::unique_ptr<CheckpointWeights> weights(new CheckpointWeights);
  if (step.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const CheckpointReader> reader,
                            store->OpenCheckpoint(*step));
    weights->reader_ = std::move(reader);
  } else {
    NIBBLE_ASSIGN_OR_RETURN(GoodCheckpoint good, store->LatestGood());
    weights->reader_ = std::move(good.reader);
    for (const SkippedCheckpoint& skipped : good.skipped) {
      weights->notices_.push_back(
          absl::StrCat("checkpoint of step ", skipped.step,
                       " is damaged and passed over: ", std::string(skipped.status.message())));
    }
  }
  weights->description_ =
      absl::StrCat("the checkpoint of step ", weights->header().step, " in ", store_path);
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(weights->description_, ": ", std::string(status.message())));
  };
  absl::StatusOr<JobSpec> spec = ParseJobSpec(weights->header().spec);
  if (!spec.ok()) return named(spec.status());
  weights->spec_ = *std::move(spec);
  absl::StatusOr<Outline> outline = MakeOutline(weights->spec_.model);
  if (!outline.ok()) return named(outline.status());
  weights->outline_ = *std::move(outline);
  for (const ParamInfo& param : weights->outline_.params) {
    const auto found = weights->reader_->tensors().find(absl::StrCat(kMasterPrefix, param.name));
    if (found == weights->reader_->tensors().end() || found->second.shape != param.shape ||
        found->second.dtype != FileDType::kF32) {
      return named(absl::DataLossError(
          absl::StrCat("it has no ", kMasterPrefix, param.name, " of the model's shape")));
    }
  }
  // A run keeps its tokenizer beside its checkpoints' directory.
  const std::string run_directory =
      fs::path(absl::StrCat(store_path, "/..")).lexically_normal().string();
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      FindTokenizer(weights->spec_.data, run_directory, weights->notices_);
  if (!tokenizer.ok()) return named(tokenizer.status());
  weights->tokenizer_ = *std::move(tokenizer);
  return weights;
}

absl::Status CheckpointWeights::Read(const ParamInfo& param, absl::Span<float> out) {
  if (static_cast<int64_t>(out.size()) != param.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(param.name, ": room for ", out.size(),
                                                   " of its ", param.elements(), " elements"));
  }
  return reader_->Load(absl::StrCat(kMasterPrefix, param.name), 0, param.elements(),
                       {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float)});
}

namespace {

// Models are equal if they have the same parameters and compute the same function; names may
// differ.
absl::Status CheckModels(const JobSpec& spec, const WeightSource& source) {
  const ModelSpec& a = source.outline().spec;
  const ModelSpec& b = spec.model;
  const bool learned = b.positions == Positions::kLearned;
  const bool rope = b.positions == Positions::kRope;
  const std::pair<const char*, bool> fields[] = {
      {"pattern", a.pattern == b.pattern},
      {"vocab", a.vocab == b.vocab},
      {"d_model", a.d_model == b.d_model},
      {"norm", a.norm == b.norm},
      {"norm_eps", a.norm_eps == b.norm_eps},
      {"positions", a.positions == b.positions},
      {"rope_theta", !rope || a.rope_theta == b.rope_theta},
      {"max_positions", !learned || a.max_positions == b.max_positions},
      {"biases", a.biases == b.biases},
      {"tied_head", a.tied_head == b.tied_head},
      {"activation", a.activation == b.activation || b.pattern.find('-') == std::string::npos},
  };
  for (const auto& [field, same] : fields) {
    if (!same) {
      return absl::FailedPreconditionError(absl::StrCat(
          "model.", field, ": that of ", source.description(), " is another than the job's"));
    }
  }
  // The parameters already determine the sizes of mixers.
  NIBBLE_ASSIGN_OR_RETURN(const Outline mine, MakeOutline(b));
  const std::vector<ParamInfo>& theirs = source.outline().params;
  for (size_t i = 0; i < mine.params.size() && i < theirs.size(); ++i) {
    const ParamInfo& param = mine.params[i];
    if (theirs[i].name == param.name && theirs[i].shape == param.shape) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "model: ", param.name, " is [", absl::StrJoin(param.shape, ", "), "] in the job, ",
        theirs[i].name, " [", absl::StrJoin(theirs[i].shape, ", "), "] in ", source.description()));
  }
  return absl::OkStatus();
}

class Writer {
 public:
  explicit Writer(ShardWriter& shard) : shard_(shard) {}

  template <class T>
  absl::Status Put(const std::string& name, FileDType dtype, const std::vector<int64_t>& shape,
                   const std::vector<T>& values) {
    const auto count = static_cast<int64_t>(values.size());
    return shard_.Put({.name = name, .dtype = dtype, .shape = shape, .count = count},
                      {reinterpret_cast<const std::byte*>(values.data()), count * sizeof(T)});
  }

 private:
  ShardWriter& shard_;
};

absl::Status PutAll(ShardWriter& shard, const JobSpec& spec, WeightSource& source) {
  Writer writer(shard);
  for (const ParamInfo& param : source.outline().params) {
    std::vector<float> values(param.elements());
    absl::Status status = source.Read(param, absl::MakeSpan(values));
    if (status.ok()) {
      status =
          writer.Put(absl::StrCat(kMasterPrefix, param.name), FileDType::kF32, param.shape, values);
    }
    std::fill(values.begin(), values.end(), 0.0f);
    for (const char* prefix : {kFirstMomentPrefix, kSecondMomentPrefix}) {
      if (status.ok()) {
        status = writer.Put(absl::StrCat(prefix, param.name), FileDType::kF32, param.shape, values);
      }
    }
    if (!status.ok()) return status;
  }
  NIBBLE_RETURN_IF_ERROR(writer.Put(kCounters, FileDType::kI64, {kCounterCount},
                                    std::vector<int64_t>(kCounterCount, 0)));
  const int64_t window = spec.guards.spike_window;
  return writer.Put(kSpikeLosses, FileDType::kF64, {window}, std::vector<double>(window, 0.0));
}

}  // namespace

absl::Status WriteInitialCheckpoint(CheckpointStore& store, const JobSpec& spec,
                                    WeightSource& source, int64_t time_unix_nanos) {
  NIBBLE_RETURN_IF_ERROR(CheckModels(spec, source));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> there, store.List());
  if (!there.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(store.path(), " has ", there.size(),
                                                      " checkpoints already: weights begin a run"));
  }
  const int64_t attempt = store.attempt() + 1;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> writer, store.Begin(0, attempt, 0));
  NIBBLE_RETURN_IF_ERROR(PutAll(*writer, spec, source));
  NIBBLE_ASSIGN_OR_RETURN(ShardManifest shard, writer->Seal());
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest,
                          MakeManifest({.identity = store.identity(),
                                        .step = 0,
                                        .attempt = attempt,
                                        .seed = spec.training.seed,
                                        .formula_version = kFormulaVersion,
                                        .world = 1,
                                        .time_unix_nanos = time_unix_nanos,
                                        .recipe_timeline = ToJson(MakeTimeline(spec)),
                                        .spec = ToYaml(spec)},
                                       {std::move(shard)}));
  return store.Commit(manifest).status();
}

}  // namespace nibble
