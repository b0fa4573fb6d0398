#include "worker/trainer/model/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

namespace {

// Each head has a buffer of its own.
static_assert(sizeof(QuantHead) <= Region::kAlign);

}  // namespace

Model::Model(const Device& device, Parameters& parameters, const Options& options, Head head)
    : device_(device),
      parameters_(parameters),
      options_(options),
      tokens_(options.sequences * options.length),
      d_model_(parameters.outline().spec.d_model),
      step_(device.memory()),
      figures_(device.memory()),
      kept_(device.memory()),
      saved_(device.memory()),
      scratch_(device.memory()),
      transient_(device.memory()),
      head_(std::move(head)) {}

absl::StatusOr<std::unique_ptr<Model>> Model::Make(const Device& device, Parameters& parameters,
                                                   const Options& options) {
  if (options.sequences <= 0 || options.length <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch of ", options.sequences,
                                                   " sequences of ", options.length,
                                                   " tokens: both must be positive"));
  }
  NIBBLE_ASSIGN_OR_RETURN(Head head, Head::Create(device, parameters, options.activations));
  std::unique_ptr<Model> model(new Model(device, parameters, options, std::move(head)));
  NIBBLE_RETURN_IF_ERROR(model->Build());
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const Device& device, Parameters& parameters,
                                                     const ResolvedRecipe& recipe,
                                                     const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Make(device, parameters, options));
  NIBBLE_RETURN_IF_ERROR(model->SetRecipe(recipe));
  return model;
}

absl::StatusOr<MemoryPlan> Model::Measure(const Device& device, Parameters& parameters,
                                          const ResolvedRecipe& recipe, const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Make(device, parameters, options));
  NIBBLE_RETURN_IF_ERROR(model->Measure(recipe));
  return model->memory();
}

MemoryPlan Model::memory() const {
  return {.working_weights = step_.bytes(),
          .activations = kept_.bytes() + saved_.bytes(),
          .scratch = scratch_.bytes() + transient_.bytes() + figures_.bytes(),
          .operations = operations_.total()};
}

absl::Status Model::Build() {
  const Outline& outline = parameters_.outline();
  NIBBLE_ASSIGN_OR_RETURN(embedding_, outline.Find("embedding.weight"));
  if (outline.spec.positions == Positions::kLearned) {
    NIBBLE_ASSIGN_OR_RETURN(positions_, outline.Find("positions.weight"));
  }
  for (int64_t i = 0; i < outline.spec.blocks(); ++i) {
    Block& block = blocks_.emplace_back();
    NIBBLE_ASSIGN_OR_RETURN(block.norm, FindNorm(parameters_, absl::StrCat("blocks.", i, ".norm")));
    NIBBLE_ASSIGN_OR_RETURN(block.mixer, MakeMixer(device_, parameters_, i, options_.activations));
  }
  NIBBLE_ASSIGN_OR_RETURN(final_.norm, FindNorm(parameters_, "final_norm"));
  PlanZeros();
  if (!parameters_.weights_are_gathered()) return absl::OkStatus();
  for (Linear* linear : linears()) linear->Gather(parameters_.strip_rows(linear->info().weight));
  return absl::OkStatus();
}

void Model::PlanZeros() {
  const Outline& outline = parameters_.outline();
  const std::vector<Bucket>& buckets = parameters_.buckets();
  zeros_.resize(buckets.size());
  size_t param = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    int64_t covered = 0;  // elements of the bucket
    const auto zero_until = [&](int64_t end) {
      if (end > covered) zeros_[b].push_back({.first = covered, .elements = end - covered});
    };
    for (; param < outline.params.size(); ++param) {
      const auto index = static_cast<int64_t>(param);
      if (parameters_.bucket_of(index) != static_cast<int64_t>(b)) break;
      // Overwritten completely by the first micro-batch.
      const ParamInfo& info = outline.params[param];
      if (info.linear < 0 && (index != head_.param() || head_.tied())) continue;
      const int64_t first = parameters_.offset(index) - buckets[b].first;
      zero_until(first);
      covered = first + info.elements();
    }
    zero_until(buckets[b].elements);
  }
}

absl::Status Model::ZeroGradients(int64_t bucket) {
  for (const Range& range : zeros_[bucket]) {
    NIBBLE_RETURN_IF_ERROR(
        device_.ops.elementwise().Zero(parameters_.bucket_gradients(bucket) + range.first,
                                       range.elements * int64_t{sizeof(float)}));
  }
  return absl::OkStatus();
}

absl::Status Model::BeginGradients(int64_t part) {
  if (!zeroes_by_part()) return absl::OkStatus();
  for (size_t b = 0; b < zeros_.size(); ++b) {
    if (parameters_.buckets()[b].begins != part) continue;
    NIBBLE_RETURN_IF_ERROR(ZeroGradients(static_cast<int64_t>(b)));
  }
  return absl::OkStatus();
}

absl::Status Model::Measure(const ResolvedRecipe& recipe) {
  const Outline& outline = parameters_.outline();
  if (recipe.layers.size() != outline.linears.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe of ", recipe.layers.size(), " layers for a model of ", outline.linears.size()));
  }
  size_t linear = 0;
  for (Block& block : blocks_) {
    for (Linear* layer : block.mixer->linears()) {
      NIBBLE_RETURN_IF_ERROR(layer->SetRecipe(recipe.layers[linear++]));
    }
  }
  for (Region* region : Regions()) region->Clear();
  return Plan();
}

absl::Status Model::SetRecipe(const ResolvedRecipe& recipe) {
  if (planned_ && recipe == recipe_) return absl::OkStatus();
  planned_ = false;
  NIBBLE_RETURN_IF_ERROR(device_.backend.Synchronize());
  NIBBLE_RETURN_IF_ERROR(Measure(recipe));
  const MemoryUse use = device_.memory().use();
  const MemoryPlan plan = memory();
  // The memory that operations kept from earlier passes is part of use.used already.
  const size_t wanted = plan.of_model() - std::min(plan.operations, operations_kept_);
  if (use.capacity > 0 && wanted > use.capacity - std::min(use.used, use.capacity)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "micro-batches of ", options_.sequences, " x ", options_.length, " tokens take ",
        BytesOfMemory(plan.of_model()), " (activations ", BytesOfMemory(plan.activations),
        ", working weights ", BytesOfMemory(plan.working_weights), ", scratch ",
        BytesOfMemory(plan.scratch), ", operations ", BytesOfMemory(plan.operations), "); of ",
        BytesOfMemory(use.capacity), ", ", BytesOfMemory(use.used),
        " are in use by weights, gradients, moments and GEMMs"));
  }
  for (Region* region : Regions()) NIBBLE_RETURN_IF_ERROR(region->Commit());
  NIBBLE_RETURN_IF_ERROR(Plan());
  recipe_ = recipe;
  planned_ = true;
  return absl::OkStatus();
}

std::vector<ProductUse> Model::Products() const {
  std::vector<ProductUse> products;
  for (const LinearGemm gemm : kAllLinearGemms) {
    const auto [a, b] = OperandsOf(gemm);
    const size_t first = products.size();
    for (const Block& block : blocks_) {
      for (const Linear* linear : block.mixer->linears()) {
        const GemmPlan& plan = linear->plan(gemm);
        const bool quantized = linear->recipe()[a].has_value() || linear->recipe()[b].has_value();
        auto at = std::find_if(products.begin() + first, products.end(), [&](const ProductUse& p) {
          return p.path == plan.path && p.reason == plan.reason && p.quantized == quantized;
        });
        if (at == products.end()) {
          at = products.insert(at, {.gemm = gemm,
                                    .path = plan.path,
                                    .reason = plan.reason,
                                    .quantized = quantized,
                                    .native = plan.native()});
        }
        ++at->linears;
      }
    }
  }
  return products;
}

std::vector<Linear*> Model::linears() const {
  std::vector<Linear*> all;
  for (const Block& block : blocks_) {
    for (Linear* linear : block.mixer->linears()) all.push_back(linear);
  }
  return all;
}

std::vector<bool> Model::ReadInBf16() const {
  std::vector<bool> bf16(parameters_.outline().params.size(), false);
  if (options_.activations != DType::kBf16) return bf16;
  bf16[head_.param()] = bf16[embedding_] = true;
  if (positions_ >= 0) bf16[positions_] = true;
  return bf16;
}

std::vector<WorkingCopy> Model::UpdatedCopies() const {
  std::vector<WorkingCopy> copies(parameters_.outline().params.size());
  for (Linear* linear : linears()) copies[linear->info().weight] = linear->updated_copy();
  copies[head_.param()].bf16 = head_.working_copy();
  return copies;
}

void Model::SetCopiesAreCurrent(bool current) {
  for (Linear* linear : linears()) linear->set_copy_is_current(current);
  head_.set_bf16_arrives(current);
}

absl::Status Model::Plan() {
  const DType dtype = options_.activations;
  const Places places = {step_, figures_, saved_, scratch_, transient_};
  absl::Status status;
  for (ActivationBuffer* buffer : {&normed_, &mixed_, &last_, &dx_, &dnormed_}) {
    if (status.ok()) status = buffer->Allocate(kept_, dtype, tokens_, d_model_);
  }
  const bool turns = parameters_.weights_take_turns();
  int64_t bucket = -1;  // whose working copies are next
  const auto begin_bucket = [&](int64_t next) {
    if (turns && next != bucket) step_.Rewind();
    bucket = next;
  };
  for (Block& block : blocks_) {
    if (options_.recompute) saved_.Rewind();
    begin_bucket(parameters_.bucket_of(block.mixer->linears().front()->info().weight));
    scratch_.Rewind();
    if (status.ok()) status = block.input.Allocate(kept_, dtype, tokens_, d_model_);
    if (status.ok()) status = AllocateFloats(saved_, tokens_, block.rstd);
    if (status.ok() && block.norm.params.centered)
      status = AllocateFloats(saved_, tokens_, block.mean);
    if (status.ok() && block.mixer->keeps_input()) {
      status = block.normed.Allocate(saved_, dtype, tokens_, d_model_);
    }
    if (status.ok()) status = block.mixer->AllocateForward(tokens_, places);
    if (status.ok()) status = block.mixer->AllocateBackward(tokens_, places);
  }
  if (status.ok()) status = final_.input.Allocate(kept_, dtype, tokens_, d_model_);
  if (status.ok()) status = AllocateFloats(kept_, tokens_, final_.rstd);
  if (status.ok() && final_.norm.params.centered)
    status = AllocateFloats(kept_, tokens_, final_.mean);
  scratch_.Rewind();
  begin_bucket(static_cast<int64_t>(parameters_.buckets().size()) - 1);
  if (status.ok()) status = head_.Allocate(tokens_, step_, scratch_);
  if (!status.ok()) return status;
  // One count for each head; heads have a buffer each, so the region's size gives their number.
  Region& counts = turns ? kept_ : step_;
  NIBBLE_ASSIGN_OR_RETURN(non_finite_,
                          counts.Allocate(static_cast<size_t>(heads()) * sizeof(uint64_t)));
  operations_ = BackwardScratch();
  return absl::OkStatus();
}

NormBackward Model::BackwardOf(const Block& block, const ConstMatrix& residual) const {
  return {.norm = block.norm.params,
          .x = block.input.view(),
          .dout = dnormed_.view(),
          .residual = residual,
          .mean = block.mean.data<float>(),
          .rstd = block.rstd.data<float>(),
          .dx = dx_.mut(),
          .dweight = block.norm.dweight,
          .dbias = block.norm.dbias};
}

EmbeddingBackward Model::EmbeddingBackwardOf(const SequenceLayout& layout,
                                             const int32_t* tokens) const {
  const ModelSpec& spec = parameters_.outline().spec;
  return {.layout = layout,
          .tokens = tokens,
          .vocab = spec.vocab,
          .dout = dx_.view(),
          .dtable = parameters_.gradient(embedding_),
          .max_positions = spec.max_positions,
          .dpositions = positions_ < 0 ? nullptr : parameters_.gradient(positions_)};
}

OperationScratch Model::BackwardScratch() const {
  LayerOps& ops = device_.ops;
  const SequenceLayout layout = {.sequences = options_.sequences, .length = options_.length};
  OperationScratch scratch = {
      .norm = ops.norm().ScratchBytes(BackwardOf(final_, {})),
      .token = ops.token().ScratchBytes(EmbeddingBackwardOf(layout, nullptr))};
  for (const Block& block : blocks_) {
    scratch.Fit(block.mixer->BackwardScratch(layout));
    scratch.Fit({.norm = ops.norm().ScratchBytes(BackwardOf(block, dx_.view()))});
    for (const Linear* linear : block.mixer->linears()) {
      if (linear->bias() == nullptr) continue;
      const int64_t out = linear->info().out;
      const ConstMatrix dy = {nullptr, options_.activations, tokens_, out, out};
      scratch.Fit({.elementwise = ops.elementwise().ScratchBytes(BiasBackward{.dy = dy})});
    }
  }
  return scratch;
}

absl::Status Model::BeginStep(const StepContext& context) {
  if (!planned_) return absl::FailedPreconditionError("the model has no recipe");
  for (size_t b = 0; b < zeros_.size() && !zeroes_by_part(); ++b) {
    NIBBLE_RETURN_IF_ERROR(ZeroGradients(static_cast<int64_t>(b)));
  }
  if (non_finite_) {
    NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Zero(
        non_finite_.data(), static_cast<int64_t>(non_finite_.bytes())));
  }
  weight_statistics_ = context.statistics;
  if (parameters_.weights_are_gathered()) return absl::OkStatus();
  for (Block& block : blocks_) {
    for (Linear* layer : block.mixer->linears()) {
      NIBBLE_RETURN_IF_ERROR(layer->PrepareWeights(context));
    }
  }
  return head_.PrepareWeights();
}

absl::Status Model::PrepareWeights(const StepContext& context, int64_t part) {
  // If weights take turns, the copies of each part replace those of the previous one.
  if (!parameters_.weights_are_gathered() ||
      !(context.new_weights || parameters_.weights_take_turns())) {
    return absl::OkStatus();
  }
  if (part == parameters_.outline().spec.blocks()) return head_.PrepareWeights();
  StepContext of_weights = context;
  of_weights.statistics = weight_statistics_;
  for (Linear* layer : blocks_[part].mixer->linears()) {
    NIBBLE_RETURN_IF_ERROR(layer->PrepareWeights(of_weights));
  }
  return absl::OkStatus();
}

absl::Status Model::ForwardBlock(const StepContext& context, int64_t i, bool again) {
  Block& block = blocks_[i];
  AddNormForward norm = {.norm = block.norm.params,
                         .x = block.input.view(),
                         .out = Normed(block).mut(),
                         .mean = block.mean.data<float>(),
                         .rstd = block.rstd.data<float>()};
  if (!again && i > 0) {
    norm.x = blocks_[i - 1].input.view();
    norm.y = mixed_.view();
    norm.sum = block.input.mut();
  }
  NIBBLE_RETURN_IF_ERROR(device_.ops.norm().Forward(norm));
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
  NIBBLE_RETURN_IF_ERROR(hooks_->BeforeForward(-1));
  absl::Status status = device_.ops.token().Forward(
      EmbeddingForward{.layout = context.layout,
                       .tokens = batch.tokens,
                       .table = parameters_.matrix(embedding_),
                       .positions = positions_ < 0 ? ConstMatrix() : parameters_.matrix(positions_),
                       .out = (blocks_.empty() ? final_ : blocks_[0]).input.mut()});
  for (int64_t i = 0; status.ok() && i < spec.blocks(); ++i) {
    status = hooks_->BeforeForward(i);
    if (status.ok()) status = PrepareWeights(context, i);
    if (status.ok()) status = ForwardBlock(context, i, /*again=*/false);
  }
  if (status.ok()) status = hooks_->BeforeForward(spec.blocks());
  if (status.ok()) status = PrepareWeights(context, spec.blocks());
  if (!status.ok()) return status;
  AddNormForward norm = {.norm = final_.norm.params,
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
  operations_kept_ = std::max(operations_kept_, operations_.total());
  absl::Status status = device_.ops.norm().Backward(BackwardOf(final_, {}));
  const int64_t last = parameters_.outline().spec.blocks() - 1;
  if (status.ok()) status = hooks_->AfterBackward(last + 1);
  for (int64_t i = last; status.ok() && i >= 0; --i) {
    Block& block = blocks_[i];
    status = hooks_->BeforeBackward(i);
    if (status.ok() && parameters_.weights_take_turns()) status = PrepareWeights(context, i);
    if (status.ok()) status = BeginGradients(i);
    // The saved tensors of the last block are still valid.
    if (status.ok() && options_.recompute && i != last) {
      status = ForwardBlock(context, i, /*again=*/true);
    }
    if (status.ok()) {
      status = block.mixer->Backward(context, Normed(block).view(), dx_.view(), dnormed_.mut());
    }
    if (status.ok()) {
      status = device_.ops.norm().Backward(BackwardOf(block, dx_.view()));
    }
    if (status.ok()) status = hooks_->AfterBackward(i);
  }
  if (!status.ok()) return status;
  NIBBLE_RETURN_IF_ERROR(hooks_->BeforeBackward(-1));
  NIBBLE_RETURN_IF_ERROR(BeginGradients(-1));
  NIBBLE_RETURN_IF_ERROR(
      device_.ops.token().Backward(EmbeddingBackwardOf(context.layout, batch.tokens)));
  return hooks_->AfterBackward(-1);
}

absl::Status Model::Forward(const StepContext& context, const ModelBatch& batch, float scale,
                            float* loss) {
  NIBBLE_RETURN_IF_ERROR(RunBlocks(context, batch));
  NIBBLE_RETURN_IF_ERROR(BeginGradients(parameters_.outline().spec.blocks()));
  return head_.LossAndGradient(context, last_.view(), batch.targets, scale, loss, dnormed_.mut());
}

absl::Status Model::Evaluate(const StepContext& context, const ModelBatch& batch, float* loss) {
  NIBBLE_RETURN_IF_ERROR(RunBlocks(context, batch));
  return head_.Loss(last_.view(), batch.targets, loss);
}

absl::Status Model::Logits(const StepContext& context, const ModelBatch& batch,
                           const MutableMatrix& logits) {
  NIBBLE_RETURN_IF_ERROR(RunBlocks(context, batch));
  return head_.Logits(last_.view(), logits);
}

absl::Status Model::CountNonFinite(StepNumbers* numbers) {
  return device_.ops.step().Run(nibble::CountNonFinite{.heads = figures_.data(),
                                                       .count = heads(),
                                                       .stride = Region::kAlign,
                                                       .by_head = non_finite_.data<uint64_t>(),
                                                       .numbers = numbers});
}

absl::Status Model::CopyFigures(Queue& queue, void* pinned) const {
  return queue.CopyOut(pinned, figures_.data(), figures_.bytes());
}

std::vector<OperandFigures> Model::FiguresOf(const void* copied) const {
  std::vector<OperandFigures> figures;
  for (const Block& block : blocks_) {
    for (const Linear* layer : block.mixer->linears()) {
      layer->AppendFigures(static_cast<const char*>(copied), figures_.data(), figures);
    }
  }
  return figures;
}

absl::StatusOr<std::vector<OperandFigures>> Model::ReadFigures() const {
  std::vector<char> copied(figures_.bytes());
  NIBBLE_RETURN_IF_ERROR(device_.backend.Synchronize());
  NIBBLE_RETURN_IF_ERROR(device_.memory().CopyOut(copied.data(), figures_.data(), copied.size()));
  return FiguresOf(copied.data());
}

absl::StatusOr<std::vector<OperandFigures>> Model::ReadNonFinite() const {
  std::vector<uint64_t> counts(static_cast<size_t>(heads()));
  NIBBLE_RETURN_IF_ERROR(device_.backend.Synchronize());
  NIBBLE_RETURN_IF_ERROR(
      device_.memory().CopyOut(counts.data(), non_finite_.data(), non_finite_.bytes()));
  std::vector<char> heads(figures_.bytes());
  for (size_t i = 0; i < counts.size(); ++i) {
    const QuantHead head = {.non_finite = counts[i]};
    std::memcpy(heads.data() + i * Region::kAlign, &head, sizeof head);
  }
  return FiguresOf(heads.data());
}

}  // namespace nibble
