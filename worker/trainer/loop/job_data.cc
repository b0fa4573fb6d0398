#include "worker/trainer/loop/job_data.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/text_shards.h"

namespace nibble {
namespace {

// FNV-1a, 64 bits: names a directory after what is in it.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// What every shard begins with (docs/formats/token-shards.md).
constexpr std::string_view kShardMagic = "NBTOKENS";

// Decides between a shard and text by the first bytes. NotFound names the path.
absl::StatusOr<bool> IsShard(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("data: there is no ", path));
  }
  if (!std::filesystem::is_regular_file(status)) return false;
  std::string begin(kShardMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return file.good() && begin == kShardMagic;
}

// A text source's shards; `held_out`: with documents kept for validation.
struct TextPlace {
  PrepareTextOptions options;
  std::string train() const { return options.output_dir + "/train.tokens"; }
  std::string validation() const { return options.output_dir + "/validation.tokens"; }
};
TextPlace PlaceOf(const JobSpec& spec, const std::string& directory, const std::string& path,
                  double held_out) {
  TextPlace place;
  PrepareTextOptions& options = place.options;
  options.inputs = {path};
  options.split.rule =
      spec.data.split == JobSplit::kFile ? SplitRule::kFile : SplitRule::kParagraphs;
  options.validation_fraction = held_out;
  options.seed = spec.training.seed;
  const std::string key = absl::StrCat(path, "\n", static_cast<int>(options.split.rule), "\n",
                                       held_out, "\n", held_out > 0 ? spec.training.seed : 0);
  options.output_dir = absl::StrFormat("%s/data/%016x", directory, Hash(key));
  return place;
}

double HeldOut(const JobSpec& spec) {
  return spec.data.validation.empty() ? spec.data.validation_fraction : 0.0;
}

// Every text source of a spec, training first.
absl::StatusOr<std::vector<TextPlace>> TextPlaces(const JobSpec& spec,
                                                  const std::string& directory) {
  std::vector<TextPlace> places;
  const auto add = [&](const std::string& path, double held_out) -> absl::Status {
    const absl::StatusOr<bool> shard = IsShard(path);
    if (!shard.ok()) return shard.status();
    if (!*shard) places.push_back(PlaceOf(spec, directory, path, held_out));
    return absl::OkStatus();
  };
  for (const TrainingSource& source : spec.data.train) {
    if (absl::Status status = add(source.path, HeldOut(spec)); !status.ok()) return status;
  }
  for (const ValidationSource& source : spec.data.validation) {
    if (absl::Status status = add(source.path, 0.0); !status.ok()) return status;
  }
  return places;
}

absl::StatusOr<std::shared_ptr<const TokenSource>> OpenShard(const std::string& path) {
  absl::StatusOr<std::unique_ptr<TokenShard>> shard = TokenShard::Open(path);
  if (!shard.ok()) return shard.status();
  return std::shared_ptr<const TokenSource>(*std::move(shard));
}

}  // namespace

absl::Status JobData::Prepare(const JobSpec& spec, const std::string& directory) {
  const absl::StatusOr<std::vector<TextPlace>> places = TextPlaces(spec, directory);
  if (!places.ok()) return places.status();
  for (const TextPlace& place : *places) {
    // Shards appear whole or not at all, the training shard last.
    if (std::filesystem::exists(place.train())) continue;
    std::error_code error;
    std::filesystem::create_directories(directory + "/data", error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("data: cannot make ", directory, "/data: ", error.message()));
    }
    PrepareTextOptions options = place.options;
    options.overwrite = true;
    const absl::StatusOr<PreparedText> prepared = PrepareText(options, ByteTokenizer());
    if (!prepared.ok()) return prepared.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<JobData> JobData::Open(const JobSpec& spec, const std::string& directory) {
  const double held_out = HeldOut(spec);
  const WindowOptions window = {.reset_at_documents = spec.data.reset_at_documents};
  std::vector<BlendedSource> training;
  std::vector<std::pair<std::string, std::string>> validation;  // name, shard
  for (const TrainingSource& source : spec.data.train) {
    const absl::StatusOr<bool> is_shard = IsShard(source.path);
    if (!is_shard.ok()) return is_shard.status();
    std::string path = source.path;
    if (!*is_shard) {
      const TextPlace place = PlaceOf(spec, directory, source.path, held_out);
      path = place.train();
      if (held_out > 0 && std::filesystem::exists(place.validation())) {
        validation.emplace_back(
            absl::StrCat("held out of ", std::filesystem::path(source.path).filename().string()),
            place.validation());
      }
    }
    absl::StatusOr<std::shared_ptr<const TokenSource>> shard = OpenShard(path);
    if (!shard.ok()) return shard.status();
    training.push_back({*std::move(shard), source.weight});
  }
  for (const ValidationSource& source : spec.data.validation) {
    const absl::StatusOr<bool> is_shard = IsShard(source.path);
    if (!is_shard.ok()) return is_shard.status();
    validation.emplace_back(
        source.name, *is_shard ? source.path : PlaceOf(spec, directory, source.path, 0.0).train());
  }
  absl::StatusOr<BatchBuilder> builder =
      BatchBuilder::Create(std::move(training), {.seed = spec.training.seed,
                                                 .global_sequences = spec.training.batch,
                                                 .length = spec.data.sequence,
                                                 .window = window});
  if (!builder.ok()) return builder.status();
  if (builder->vocabulary() > spec.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", spec.model.vocab,
                                                   " is less than the data's ",
                                                   builder->vocabulary(), " tokens"));
  }
  JobData data(*std::move(builder));
  for (const auto& [name, path] : validation) {
    absl::StatusOr<std::shared_ptr<const TokenSource>> shard = OpenShard(path);
    if (!shard.ok()) return shard.status();
    absl::StatusOr<ValidationSet> set =
        ValidationSet::Create(*std::move(shard), {.global_sequences = spec.training.batch,
                                                  .length = spec.data.sequence,
                                                  .max_batches = spec.training.validation_batches,
                                                  .window = window});
    if (!set.ok()) return set.status();
    data.validation_.push_back({name, *std::move(set)});
  }
  return data;
}

}  // namespace nibble
