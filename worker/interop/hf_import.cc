#include "worker/interop/hf_import.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/files.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "worker/interop/hf_config.h"
#include "worker/interop/hf_layout.h"
#include "worker/interop/hf_tokenizer.h"
#include "worker/interop/shard_index.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {
namespace {

using TensorsByName = std::map<std::string, const TensorInfo*, std::less<>>;

std::string PathIn(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

absl::Status Refuse(const std::string& directory, std::string_view tensor, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(directory, ": tensor ", std::string(tensor), ": ", std::string(why)));
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Redundant tensors: masks and tables that some releases wrote beside the weights.
bool IsDerived(HfClass model_class, std::string_view name) {
  if (model_class == HfClass::kGpt2) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  return model_class != HfClass::kNemotronH && name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfWeights>> HfWeights::Open(const std::string& directory,
                                                           const HfImportOptions& options) {
  std::unique_ptr<HfWeights> source(new HfWeights());
  source->directory_ = directory;
  const std::string config_path = PathIn(directory, "config.json");
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(config_path, kMaxConfigBytes));
  absl::StatusOr<HfModelConfig> config = SpecFromHfConfig(text);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat(directory, "/", config.status().message()));
  }
  const std::filesystem::path path(directory);
  const std::string name =
      path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (!name.empty()) config->spec.name = name;
  source->remarks_ = std::move(config->remarks);
  source->context_ = config->context;
  NIBBLE_ASSIGN_OR_RETURN(Outline outline, MakeOutline(config->spec));
  source->outline_ = std::move(outline);
  NIBBLE_ASSIGN_OR_RETURN(HfModelLayout layout, HfLayout(source->outline_));
  source->layout_ = std::move(layout);
  absl::Status status = source->OpenFiles();
  if (status.ok()) status = source->MatchTensors();
  if (status.ok() && options.tokenizer) status = source->OpenTokenizer();
  if (!status.ok()) return status;
  return source;
}

std::string HfWeights::description() const {
  return absl::StrCat("the ", std::string(Info(layout_.model_class).model_type), " model in ",
                      directory_);
}

absl::Status HfWeights::OpenFiles() {
  const std::string single = PathIn(directory_, kWeightsFile);
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(single);
  const absl::StatusOr<std::string> text =
      ReadWholeFile(PathIn(directory_, kIndexFile), kMaxIndexBytes);
  if (absl::IsNotFound(text.status())) {
    if (!file.ok()) return file.status();
    files_.push_back(*std::move(file));
    return absl::OkStatus();
  }
  if (!text.ok()) return text.status();
  if (!absl::IsNotFound(file.status())) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, " has both ",
                                                   std::string(kWeightsFile), " and ",
                                                   std::string(kIndexFile), "; one is allowed"));
  }
  const absl::StatusOr<ShardIndex> index = ParseShardIndex(*text);
  if (!index.ok()) {
    return absl::Status(index.status().code(),
                        absl::StrCat(directory_, "/", index.status().message()));
  }
  for (const std::string& name : index->Files()) {
    NIBBLE_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Open(PathIn(directory_, name)));
    for (const TensorInfo& tensor : shard.tensors()) {
      const auto told = index->file_of.find(tensor.name);
      if (told != index->file_of.end() && told->second == name) continue;
      return Refuse(
          directory_, BriefText(tensor.name),
          absl::StrCat("is in ", name, ", and ", std::string(kIndexFile), " does not say so"));
    }
    files_.push_back(std::move(shard));
  }
  size_t present = 0;
  for (const SafetensorsFile& shard : files_) present += shard.tensors().size();
  if (present == index->file_of.size()) return absl::OkStatus();
  // Every present tensor is listed, so a listed one is missing.
  for (const auto& [tensor, name] : index->file_of) {
    bool found = false;
    for (const SafetensorsFile& shard : files_) found = found || shard.Find(tensor) != nullptr;
    if (!found) {
      return Refuse(
          directory_, BriefText(tensor),
          absl::StrCat(std::string(kIndexFile), " lists it in ", name, ", which does not have it"));
    }
  }
  return absl::InternalError("a tensor is in two files");  // the index names one file for each
}

absl::Status HfWeights::MatchTensors() {
  const HfClassInfo& info = Info(layout_.model_class);
  TensorsByName left;
  bool prefixed = false;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) {
      left.emplace(tensor.name, &tensor);
      prefixed = prefixed || std::string_view(tensor.name).starts_with(info.prefix);
    }
  }
  const auto file_name = [&](std::string_view name) {
    if (!prefixed && name.starts_with(info.prefix)) name.remove_prefix(info.prefix.size());
    return name;
  };
  for (const HfTensor& wanted : layout_.tensors) {
    const std::string_view name = file_name(wanted.name);
    const auto found = left.find(name);
    if (found == left.end()) return Refuse(directory_, name, "is missing");
    const TensorInfo& tensor = *found->second;
    if (tensor.shape != wanted.shape) {
      return Refuse(directory_, name,
                    absl::StrCat("its shape is ", ShapeText(tensor.shape), ", not ",
                                 ShapeText(wanted.shape)));
    }
    if (!IsWeightType(tensor.dtype)) {
      return Refuse(directory_, name,
                    absl::StrCat("its type is ", std::string(FileDTypeName(tensor.dtype)),
                                 ", not F32, BF16 or F16"));
    }
    tensors_.push_back(&tensor);
    left.erase(found);
  }
  // A head that is declared tied but differs from the embedding would be lost.
  if (outline_.spec.tied_head) {
    const auto head = left.find("lm_head.weight");
    if (head != left.end()) {
      const TensorInfo& embedding = *tensors_.front();
      if (head->second->dtype != embedding.dtype || head->second->shape != embedding.shape ||
          head->second->data != embedding.data) {
        return Refuse(directory_, head->first,
                      "tie_word_embeddings is true, and it is not the embedding");
      }
      left.erase(head);
    }
  }
  for (const auto& [name, tensor] : left) {
    if (!IsDerived(info.id, name)) {
      return Refuse(directory_, BriefText(name),
                    absl::StrCat("is none of ", std::string(info.model_type), "'s"));
    }
  }
  return absl::OkStatus();
}

absl::Status HfWeights::OpenTokenizer() {
  NIBBLE_ASSIGN_OR_RETURN(HfTokenizer found, ReadHfTokenizer(directory_));
  tokenizer_ = std::move(found.tokenizer);
  if (!found.notice.empty()) remarks_.push_back(std::move(found.notice));
  if (tokenizer_ != nullptr && tokenizer_->vocabulary() > outline_.spec.vocab) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, ": the tokenizer's vocabulary of ",
                                                   tokenizer_->vocabulary(),
                                                   " is over vocab_size, ", outline_.spec.vocab));
  }
  return absl::OkStatus();
}

absl::Status HfWeights::Read(const ParamInfo& param, absl::Span<float> out) {
  const absl::StatusOr<int64_t> index = outline_.Find(param.name);
  if (!index.ok()) return absl::InvalidArgumentError(index.status().message());
  const ParamInfo& own = outline_.params[static_cast<size_t>(*index)];
  if (param.shape != own.shape || out.size() != static_cast<size_t>(own.elements())) {
    return absl::InvalidArgumentError(
        absl::StrCat(param.name, ": ", out.size(), " numbers of shape ", ShapeText(param.shape),
                     " were requested, but it has ", own.elements(), " of ", ShapeText(own.shape)));
  }
  const int64_t columns = own.elements() / own.shape[0];
  for (size_t t = 0; t < layout_.tensors.size(); ++t) {
    const HfTensor& tensor = layout_.tensors[t];
    if (tensor.param != *index) continue;
    const std::byte* bytes = tensors_[t]->data.data();
    const FileDType dtype = tensors_[t]->dtype;
    float* to = out.data() + tensor.first_row * columns;
    for (int64_t r = 0; r < tensor.rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t at = tensor.transposed ? c * tensor.rows + r : r * columns + c;
        to[r * columns + c] = DecodeElement(dtype, bytes, static_cast<size_t>(at));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& source) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName(source));
  std::error_code error;
  if (!name.step.has_value() && std::filesystem::exists(source + "/config.json", error)) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<HfWeights> exported, HfWeights::Open(source));
    return std::unique_ptr<WeightSource>(std::move(exported));
  }
  absl::StatusOr<std::unique_ptr<CheckpointWeights>> checkpoint =
      CheckpointWeights::Open(name.directory, name.step);
  if (absl::IsNotFound(checkpoint.status())) {
    return absl::NotFoundError(absl::StrCat(std::string(checkpoint.status().message()),
                                            "; and no config.json of an exported model"));
  }
  if (!checkpoint.ok()) return checkpoint.status();
  return std::unique_ptr<WeightSource>(*std::move(checkpoint));
}

}  // namespace nibble
