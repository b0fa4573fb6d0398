#include "worker/weights/checkpoint_weights.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/tokenizer_files.h"
#include "worker/weights/state_names.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool IsStore(const std::string& path) { return CheckpointStore::IdentityOf(path).ok(); }

// Of checkpoints from before they carried the tokenizer's label. Null where the model is nowhere to
// be found: weights are of use without it.
absl::StatusOr<std::shared_ptr<const Tokenizer>> OfUnlabelled(const DataSpec& data,
                                                              const std::string& directory) {
  if (data.tokenizer == JobTokenizer::kBytes) return std::make_shared<ByteTokenizer>();
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != ".model") continue;
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(at->path().string());
    if (!loaded.ok()) return loaded.status();
    return std::shared_ptr<const Tokenizer>(*std::move(loaded));
  }
  return std::shared_ptr<const Tokenizer>();
}

// In the run's directory, or beside the data that the run was trained on. Null, with a notice,
// where its file is in neither.
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
      absl::StrCat("its tokenizer, ", label, ", is not at hand",
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
  const absl::StatusOr<std::string> store_path = FindStore(path);
  if (!store_path.ok()) return store_path.status();
  const absl::StatusOr<StoreIdentity> identity = CheckpointStore::IdentityOf(*store_path);
  if (!identity.ok()) return identity.status();
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      CheckpointStore::Open(*store_path, {.identity = *identity, .read_only = true});
  if (!store.ok()) return store.status();
  std::unique_ptr<CheckpointWeights> weights(new CheckpointWeights);
  if (step.has_value()) {
    absl::StatusOr<std::shared_ptr<const CheckpointReader>> reader =
        (*store)->OpenCheckpoint(*step);
    if (!reader.ok()) return reader.status();
    weights->reader_ = *std::move(reader);
  } else {
    absl::StatusOr<GoodCheckpoint> good = (*store)->LatestGood();
    if (!good.ok()) return good.status();
    weights->reader_ = std::move(good->reader);
    for (const SkippedCheckpoint& skipped : good->skipped) {
      weights->notices_.push_back(
          absl::StrCat("checkpoint of step ", skipped.step,
                       " is damaged and passed over: ", std::string(skipped.status.message())));
    }
  }
  weights->description_ =
      absl::StrCat("the checkpoint of step ", weights->header().step, " in ", *store_path);
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
      fs::path(absl::StrCat(*store_path, "/..")).lexically_normal().string();
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

}  // namespace nibble
