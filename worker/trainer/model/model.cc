#include "worker/trainer/model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {

Model::Model(const Device& device, Parameters& parameters, const Options& options, Head head)
    : device_(device),
      parameters_(parameters),
      options_(options),
      tokens_(options.sequences * options.length),
      d_model_(parameters.outline().spec.d_model),
      step_(device.memory()),
      kept_(device.memory()),
      saved_(device.memory()),
      scratch_(device.memory()),
      transient_(device.memory()),
      head_(std::move(head)) {}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const Device& device, Parameters& parameters,
                                                     const ResolvedRecipe& recipe,
                                                     const Options& options) {
  if (options.sequences <= 0 || options.length <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch of ", options.sequences,
                                                   " sequences of ", options.length,
                                                   " tokens: both must be positive"));
  }
  absl::StatusOr<Head> head = Head::Create(device, parameters, options.activations);
  if (!head.ok()) return head.status();
  std::unique_ptr<Model> model(new Model(device, parameters, options, *std::move(head)));
  absl::Status status = model->Build();
  if (status.ok()) status = model->SetRecipe(recipe);
  if (!status.ok()) return status;
  return model;
}

absl::Status Model::FindNorm(const std::string& prefix, Block& block) {
  const Outline& outline = parameters_.outline();
  const absl::StatusOr<int64_t> weight = outline.Find(absl::StrCat(prefix, ".weight"));
  if (!weight.ok()) return weight.status();
  block.norm = {.centered = outline.spec.norm == NormKind::kLayerNorm,
                .eps = static_cast<float>(outline.spec.norm_eps),
                .weight = parameters_.weight(*weight)};
  block.dnorm_weight = parameters_.gradient(*weight);
  if (!block.norm.centered) return absl::OkStatus();
  const absl::StatusOr<int64_t> bias = outline.Find(absl::StrCat(prefix, ".bias"));
  if (!bias.ok()) return bias.status();
  block.norm.bias = parameters_.weight(*bias);
  block.dnorm_bias = parameters_.gradient(*bias);
  return absl::OkStatus();
}

absl::Status Model::Build() {
  const Outline& outline = parameters_.outline();
  absl::StatusOr<int64_t> param = outline.Find("embedding.weight");
  if (!param.ok()) return param.status();
  embedding_ = *param;
  if (outline.spec.positions == Positions::kLearned) {
    param = outline.Find("positions.weight");
    if (!param.ok()) return param.status();
    positions_ = *param;
  }
  for (int64_t i = 0; i < outline.spec.blocks(); ++i) {
    Block& block = blocks_.emplace_back();
    absl::Status status = FindNorm(absl::StrCat("blocks.", i, ".norm"), block);
    if (!status.ok()) return status;
    absl::StatusOr<std::unique_ptr<Mixer>> mixer =
        MakeMixer(device_, parameters_, i, options_.activations);
    if (!mixer.ok()) return mixer.status();
    block.mixer = *std::move(mixer);
  }
  return FindNorm("final_norm", final_);
}

absl::Status Model::SetRecipe(const ResolvedRecipe& recipe) {
  const Outline& outline = parameters_.outline();
  if (recipe.layers.size() != outline.linears.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe of ", recipe.layers.size(), " layers for a model of ", outline.linears.size()));
  }
  if (planned_ && recipe == recipe_) return absl::OkStatus();
  planned_ = false;
  absl::Status status = device_.backend.Synchronize();
  if (!status.ok()) return status;
  size_t linear = 0;
  for (Block& block : blocks_) {
    for (Linear* layer : block.mixer->linears()) {
      status = layer->SetRecipe(recipe.layers[linear++]);
      if (!status.ok()) return status;
    }
  }
  Region* const regions[] = {&step_, &kept_, &saved_, &scratch_, &transient_};
  for (Region* region : regions) region->Clear();
  status = Plan();
  for (Region* region : regions) {
    if (status.ok()) status = region->Commit();
  }
  if (status.ok()) status = Plan();
  if (!status.ok()) return status;
  recipe_ = recipe;
  planned_ = true;
  return absl::OkStatus();
}

absl::Status Model::Plan() {
  const DType dtype = options_.activations;
  const Places places = {step_, saved_, scratch_, transient_};
  absl::Status status;
  for (ActivationBuffer* buffer : {&normed_, &mixed_, &last_, &dx_, &dnormed_}) {
    if (status.ok()) status = buffer->Allocate(kept_, dtype, tokens_, d_model_);
  }
  for (Block& block : blocks_) {
    if (options_.recompute) saved_.Rewind();
    scratch_.Rewind();
    if (status.ok()) status = block.input.Allocate(kept_, dtype, tokens_, d_model_);
    if (status.ok()) status = AllocateFloats(saved_, tokens_, block.rstd);
    if (status.ok() && block.norm.centered) status = AllocateFloats(saved_, tokens_, block.mean);
    if (status.ok() && block.mixer->keeps_input()) {
      status = block.normed.Allocate(saved_, dtype, tokens_, d_model_);
    }
    if (status.ok()) status = block.mixer->Allocate(tokens_, places);
  }
  if (status.ok()) status = final_.input.Allocate(kept_, dtype, tokens_, d_model_);
  if (status.ok()) status = AllocateFloats(kept_, tokens_, final_.rstd);
  if (status.ok() && final_.norm.centered) status = AllocateFloats(kept_, tokens_, final_.mean);
  scratch_.Rewind();
  if (status.ok()) status = head_.Allocate(tokens_, step_, scratch_);
  return status;
}

absl::Status Model::BeginStep(const StepContext& context) {
  if (!planned_) return absl::FailedPreconditionError("the model has no recipe");
  const Outline& outline = parameters_.outline();
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    // Written whole by the first micro-batch.
    if (outline.params[i].linear >= 0 || (param == head_.param() && !head_.tied())) continue;
    absl::Status status = device_.ops.elementwise().Zero(
        parameters_.gradient(param), outline.params[i].elements() * int64_t{sizeof(float)});
    if (!status.ok()) return status;
  }
  for (Block& block : blocks_) {
    for (Linear* layer : block.mixer->linears()) {
      absl::Status status = layer->PrepareWeights(context);
      if (!status.ok()) return status;
    }
  }
  return head_.PrepareWeights();
}

absl::Status Model::ForwardBlock(const StepContext& context, int64_t i, bool again) {
  Block& block = blocks_[i];
  AddNormForward norm = {.norm = block.norm,
                         .x = block.input.view(),
                         .out = Normed(block).mut(),
                         .mean = block.mean.data<float>(),
                         .rstd = block.rstd.data<float>()};
  if (!again && i > 0) {
    norm.x = blocks_[i - 1].input.view();
    norm.y = mixed_.view();
    norm.sum = block.input.mut();
  }
  absl::Status status = device_.ops.norm().Forward(norm);
  if (!status.ok()) return status;
  return block.mixer->Forward(context, Normed(block).view(), mixed_.mut());
}

absl::Status Model::RunBlocks(const StepContext& context, const ModelBatch& batch) {
  if (!planned_) return absl::FailedPreconditionError("the model has no recipe");
  if (context.tokens() != tokens_ || context.layout.length != options_.length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro-batch of ", context.layout.sequences, " sequences of ", context.layout.length,
        " tokens; planned for ", options_.sequences, " of ", options_.length));
  }
  const ModelSpec& spec = parameters_.outline().spec;
  absl::Status status = device_.ops.token().Forward(
      EmbeddingForward{.layout = context.layout,
                       .tokens = batch.tokens,
                       .vocab = spec.vocab,
                       .table = parameters_.weight(embedding_),
                       .max_positions = spec.max_positions,
                       .positions = positions_ < 0 ? nullptr : parameters_.weight(positions_),
                       .out = (blocks_.empty() ? final_ : blocks_[0]).input.mut()});
  for (int64_t i = 0; status.ok() && i < spec.blocks(); ++i) {
    status = ForwardBlock(context, i, /*again=*/false);
  }
  if (!status.ok()) return status;
  AddNormForward norm = {.norm = final_.norm,
                         .x = final_.input.view(),
                         .out = last_.mut(),
                         .mean = final_.mean.data<float>(),
                         .rstd = final_.rstd.data<float>()};
  if (!blocks_.empty()) {
    norm.x = blocks_.back().input.view();
    norm.y = mixed_.view();
    norm.sum = final_.input.mut();
  }
  return device_.ops.norm().Forward(norm);
}

absl::Status Model::Backward(const StepContext& context, const ModelBatch& batch) {
  // Head left the gradient of the normed output in dnormed_.
  absl::Status status = device_.ops.norm().Backward(NormBackward{.norm = final_.norm,
                                                                 .x = final_.input.view(),
                                                                 .dout = dnormed_.view(),
                                                                 .mean = final_.mean.data<float>(),
                                                                 .rstd = final_.rstd.data<float>(),
                                                                 .dx = dx_.mut(),
                                                                 .dweight = final_.dnorm_weight,
                                                                 .dbias = final_.dnorm_bias});
  const int64_t last = parameters_.outline().spec.blocks() - 1;
  for (int64_t i = last; status.ok() && i >= 0; --i) {
    Block& block = blocks_[i];
    // What the last block saved is still there.
    if (options_.recompute && i != last) status = ForwardBlock(context, i, /*again=*/true);
    if (status.ok()) {
      status = block.mixer->Backward(context, Normed(block).view(), dx_.view(), dnormed_.mut());
    }
    if (status.ok()) {
      status = device_.ops.norm().Backward(NormBackward{.norm = block.norm,
                                                        .x = block.input.view(),
                                                        .dout = dnormed_.view(),
                                                        .residual = dx_.view(),
                                                        .mean = block.mean.data<float>(),
                                                        .rstd = block.rstd.data<float>(),
                                                        .dx = dx_.mut(),
                                                        .dweight = block.dnorm_weight,
                                                        .dbias = block.dnorm_bias});
    }
  }
  if (!status.ok()) return status;
  const ModelSpec& spec = parameters_.outline().spec;
  return device_.ops.token().Backward(
      EmbeddingBackward{.layout = context.layout,
                        .tokens = batch.tokens,
                        .vocab = spec.vocab,
                        .dout = dx_.view(),
                        .dtable = parameters_.gradient(embedding_),
                        .max_positions = spec.max_positions,
                        .dpositions = positions_ < 0 ? nullptr : parameters_.gradient(positions_)});
}

absl::Status Model::Forward(const StepContext& context, const ModelBatch& batch, float scale,
                            float* loss) {
  absl::Status status = RunBlocks(context, batch);
  if (!status.ok()) return status;
  return head_.LossAndGradient(context, last_.view(), batch.targets, scale, loss, dnormed_.mut());
}

absl::Status Model::Evaluate(const StepContext& context, const ModelBatch& batch, float* loss) {
  absl::Status status = RunBlocks(context, batch);
  if (status.ok()) status = head_.Loss(last_.view(), batch.targets, loss);
  return status;
}

absl::Status Model::Logits(const StepContext& context, const ModelBatch& batch,
                           const MutableMatrix& logits) {
  absl::Status status = RunBlocks(context, batch);
  if (status.ok()) status = head_.Logits(last_.view(), logits);
  return status;
}

absl::Status Model::ReadFigures(std::vector<OperandFigures>& out) const {
  for (const Block& block : blocks_) {
    for (const Linear* layer : block.mixer->linears()) {
      absl::Status status = layer->ReadFigures(out);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

Model::MemoryUse Model::memory_use() const {
  return {.working_weights = step_.bytes(),
          .activations = kept_.bytes() + saved_.bytes(),
          .scratch = scratch_.bytes() + transient_.bytes()};
}

}  // namespace nibble
