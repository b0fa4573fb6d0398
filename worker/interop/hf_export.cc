#include "worker/interop/hf_export.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files/staged_file.h"
#include "common/json_text.h"
#include "common/safetensors/writer.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_config.h"
#include "worker/interop/hf_tokenizer.h"
#include "worker/interop/shard_index.h"
#include "worker/interop/tensor_plan.h"

namespace nibble {
namespace {

using Json = nlohmann::json;
using Files = std::map<std::string, std::string>;

absl::Status CheckOptions(const HfExportOptions& options) {
  if (options.dtype != FileDType::kF32 && options.dtype != FileDType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: ", std::string(FileDTypeName(options.dtype)), " is neither F32 nor BF16"));
  }
  if (options.quantise != nullptr && options.dtype != FileDType::kBF16) {
    return absl::InvalidArgumentError(
        "dtype: tensors that stay unquantised are written in BF16, not F32");
  }
  if (options.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_shard_bytes: ", options.max_shard_bytes, " is not above 0"));
  }
  if (options.context < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("context: ", options.context, " is not above 0"));
  }
  return absl::OkStatus();
}

// A pattern for the module under any prefix: newer releases of transformers use "model." where the
// files have "backbone.".
std::string IgnorePattern(HfClass model_class, std::string_view module) {
  const HfClassInfo& info = Info(model_class);
  if (model_class != HfClass::kNemotronH || !module.starts_with(info.prefix)) {
    return std::string(module);
  }
  std::string pattern = "re:(backbone|model)\\.";
  for (const char c : module.substr(info.prefix.size())) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

// See docs/formats/hugging-face.md.
Json QuantizationConfig(HfClass model_class, const TensorPlan& plan) {
  Json ignore = Json::array();
  for (const std::string& module : plan.kept_modules) {
    ignore.push_back(IgnorePattern(model_class, module));
  }
  ignore.push_back("lm_head");
  const Json weights = {{"num_bits", 4},    {"type", "float"},   {"strategy", "tensor_group"},
                        {"group_size", 16}, {"symmetric", true}, {"dynamic", false}};
  const Json group = {{"targets", Json::array({"Linear"})},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"},
          {"quantization_status", "compressed"},  {"config_groups", {{"group_0", group}}},
          {"ignore", std::move(ignore)},          {"kv_cache_scheme", nullptr}};
}

absl::StatusOr<Files> TokenizerFiles(const WeightSource& source, const HfExportOptions& options) {
  const std::shared_ptr<const Tokenizer> tokenizer = source.tokenizer();
  if (!options.tokenizer || tokenizer == nullptr) return Files();
  const int64_t vocab = source.outline().spec.vocab;
  if (tokenizer->vocabulary() > vocab) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tokenizer: its vocabulary of ", tokenizer->vocabulary(), " is over the model's, ", vocab));
  }
  return HfTokenizerFiles(*tokenizer);
}

absl::Status WriteShards(const TensorPlan& plan, StagedDirectory& staged) {
  ShardIndex index;
  for (int64_t shard = 0; shard < plan.shards; ++shard) {
    SafetensorsWriter writer;
    // transformers refuses files without this metadata.
    absl::Status status = writer.AddMetadata("format", "pt");
    const std::string name = ShardFileName(shard + 1, plan.shards);
    for (size_t i = 0; status.ok() && i < plan.tensors.size(); ++i) {
      if (plan.shard[i] != shard) continue;
      const PlannedTensor& tensor = plan.tensors[i];
      index.file_of.emplace(tensor.name, name);
      status = writer.AddStreamedTensor(tensor.name, tensor.dtype, tensor.shape, tensor.producer);
      if (status.ok() && tensor.amax.has_value()) {
        status = writer.AddMetadata(absl::StrCat("amax:", tensor.name),
                                    absl::StrFormat("%a", *tensor.amax));
      }
    }
    if (status.ok()) status = writer.Write(staged.PathOf(name));
    if (!status.ok()) return status;
  }
  if (plan.shards == 1) return absl::OkStatus();
  return staged.Write(kIndexFile, ShardIndexText(index, plan.bytes));
}

}  // namespace

absl::StatusOr<HfExportReport> ExportHf(WeightSource& source, const std::string& directory,
                                        const HfExportOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  const Outline& outline = source.outline();
  NIBBLE_ASSIGN_OR_RETURN(const HfModelLayout layout, HfLayout(outline));
  const HfClassInfo& info = Info(layout.model_class);

  TensorPlanOptions plan_options = {.dtype = options.dtype,
                                    .max_shard_bytes = options.max_shard_bytes,
                                    .threads = options.threads};
  if (options.quantise != nullptr) {
    if (info.transposed_linears) {
      return absl::FailedPreconditionError(
          absl::StrCat(std::string(info.model_type),
                       ": its linears are Conv1D modules, which no engine reads quantised"));
    }
    NIBBLE_ASSIGN_OR_RETURN(std::vector<OperandFormat> formats,
                            Nvfp4Layers(*options.quantise, outline));
    plan_options.quantised = std::move(formats);
  }
  NIBBLE_ASSIGN_OR_RETURN(const Files tokenizer, TokenizerFiles(source, options));
  HfConfigFacts facts = {.dtype = options.dtype == FileDType::kF32 ? "float32" : "bfloat16",
                         .context = options.context};
  if (!tokenizer.empty()) facts.end_of_document = source.tokenizer()->end_of_document();
  NIBBLE_ASSIGN_OR_RETURN(Json config, HfConfig(outline, facts));

  // Before reading the weights, which may take long.
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<StagedDirectory> staged,
      StagedDirectory::Create(directory,
                              options.overwrite ? StagedDirectory::Existing::kReplace
                                                : StagedDirectory::Existing::kRefuse,
                              /*marker=*/"config.json"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(source, layout, plan_options));
  if (plan.shards > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat("max_shard_bytes: ", options.max_shard_bytes,
                                                   " makes ", plan.shards, " shards, over ",
                                                   kMaxShards));
  }
  HfExportReport report = {.model_class = info.id,
                           .shards = plan.shards,
                           .tensors = static_cast<int64_t>(plan.tensors.size()),
                           .bytes = plan.bytes,
                           .tokenizer = !tokenizer.empty()};
  for (const OperandFormat& format : plan_options.quantised) {
    report.quantised_linears += format.has_value() ? 1 : 0;
  }
  if (options.quantise != nullptr) {
    config["quantization_config"] = QuantizationConfig(info.id, plan);
  }
  absl::Status status = staged->Write("config.json", FileJson(config));
  if (status.ok() && facts.end_of_document) {
    status = staged->Write("generation_config.json",
                           FileJson({{"eos_token_id", *facts.end_of_document}}));
  }
  for (const auto& [name, content] : tokenizer) {
    if (status.ok()) status = staged->Write(name, content);
  }
  if (status.ok()) status = WriteShards(plan, *staged);
  if (status.ok()) status = staged->Commit();
  if (!status.ok()) return status;
  return report;
}

}  // namespace nibble
