#include "job/job_fields.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "job/cluster_fields.h"
#include "job/model_fields.h"

namespace nibble {
namespace {

// Together they keep steps · batch · sequence within 64 bits.
constexpr Range<int64_t> kSteps = {1, 100'000'000};
constexpr Range<int64_t> kBatch = kBatchRange;
constexpr Range<int64_t> kSequence = {1, 1 << 20};
static_assert(kSteps.most <= std::numeric_limits<int64_t>::max() / kBatch.most / kSequence.most);

constexpr TextRule kName = {TextRule::Kind::kName};
constexpr TextRule kPath = {TextRule::Kind::kPath};

// "data/books-en.txt" gives "books-en".
void NameByPath(ValidationSource& source) {
  if (!source.name.empty()) return;
  std::string_view path = source.path;
  while (path.ends_with('/')) path.remove_suffix(1);
  path.remove_prefix(path.rfind('/') + 1);
  while (!path.empty() && !absl::ascii_isalnum(path.front())) path.remove_prefix(1);
  for (const char c : path.substr(0, std::min<size_t>(path.rfind('.'), 63))) {
    const bool fits = absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
    source.name += fits ? c : '-';
  }
  if (source.name.empty()) source.name = "validation";
}

template <class S>
Field<S> TokenWidth(int64_t S::*member) {
  return OneOf("token_width", member, std::vector<Choice<int64_t>>{{0, "none"}, {2, "2"}, {4, "4"}},
               "bytes per token, for a file that contains only raw tokens. none: the format of the "
               "file defines it");
}

template <class S>
Field<S> DocumentEnd(int64_t S::*member) {
  return Number("document_end", member, Range<int64_t>{-1, std::numeric_limits<int32_t>::max()}, "",
                "the token that ends each document in another trainer's .bin. -1: none, the whole "
                "file is one document");
}

const Record<TrainingSource>& TrainingSourceRecord() {
  using S = TrainingSource;
  static const auto* const record = new Record<S>{
      .shorthand = "path",
      .fields = {
          Text("path", &S::path, kPath,
               "a text file, a .jsonl file (see text_field), either of them plain, .gz or .zst, a "
               "directory of such files, a token shard, or another trainer's tokens (.bin of GPT-2 "
               "trainers, .idx of Megatron); relative to the trainer's working directory")
              .Required(),
          TokenWidth(&S::token_width), DocumentEnd(&S::document_end),
          Number("weight", &S::weight, Range<int64_t>{1, 100'000}, "parts",
                 "share of the samples, relative to the weights of the other entries")}};
  return *record;
}

const Record<ValidationSource>& ValidationSourceRecord() {
  using S = ValidationSource;
  static const auto* const record = [] {
    auto name = Text("name", &S::name, kName,
                     "name of the set in events and metrics; if unset, the last part of its path");
    name.doc.default_value.clear();
    return new Record<S>{
        .shorthand = "path",
        .fields = {std::move(name),
                   Text("path", &S::path, kPath, "as data.train[].path").Required(),
                   TokenWidth(&S::token_width), DocumentEnd(&S::document_end)},
        .finish = NameByPath};
  }();
  return *record;
}

const Record<InitSpec>& InitRecord() {
  using S = InitSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Text("job", &S::job, {TextRule::Kind::kLine, true},
               "a job of the cluster: its id, or its name if no other job has that name. Its model "
               "must have the same shapes; its number of ranks may differ. The checkpoint is "
               "chosen when the new job is submitted and kept until the new job ends"),
          Text("path", &S::path, {TextRule::Kind::kPath, true},
               "without a cluster: a checkpoint store, or the output directory of the run that "
               "wrote it. Cannot be combined with job"),
          Number("step", &S::step, Range<int64_t>{-1, kSteps.most}, "steps",
                 "step of the checkpoint. -1: the newest valid one")}};
  return *record;
}

const Record<DataPhase>& PhaseRecord() {
  using S = DataPhase;
  static const auto* const record = new Record<S>{
      .fields = {Number("parts", &S::parts, Range<int64_t>{1, 1'000'000}, "parts",
                        "length of the phase, relative to the other phases")
                     .Required(),
                 Numbers("weights", &S::weights, Range<int64_t>{0, 100'000}, {1, 256}, "parts",
                         "weights of the entries of data.train, in their order, in this phase. 0: "
                         "unused in this phase")
                     .Required()}};
  return *record;
}

const Record<DataSpec>& DataRecord() {
  using S = DataSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          List("train", &S::train, TrainingSourceRecord(), {1, 256},
               "training sets; an entry may be just a path")
              .Required(),
          List("phases", &S::phases, PhaseRecord(), {0, 64},
               "a blend that changes during the run: each phase lasts for its parts of the run and "
               "has its own weights, such as 70, 20 and 10 parts. Empty: the weights of data.train "
               "for the whole run"),
          List("validation", &S::validation, ValidationSourceRecord(), {0, 64},
               "validation sets, each with its own loss; an entry may be just a path. Empty: "
               "documents held out of each training text"),
          Number("sequence", &S::sequence, kSequence, "tokens", "sequence length of a sample")
              .Follows("1024, at most the model's max_positions where positions are learned"),
          OneOf("tokenizer", &S::tokenizer,
                "the tokenizer of the data, which also encodes text files. data: the file in "
                "tokenizer_model if set, else the tokenizer that the token shards name, or bytes "
                "if all data is text. bytes: one token per byte, and 256 ends a document; "
                "sentencepiece, huggingface: the file in tokenizer_model. Shards of another "
                "tokenizer are refused"),
          Text("tokenizer_model", &S::tokenizer_model, {TextRule::Kind::kPath, true},
               "a SentencePiece .model (nibble data tokenize trains one) or a Hugging Face "
               "tokenizer.json"),
          Text("tokenizer_label", &S::tokenizer_label, {TextRule::Kind::kLine, true},
               "the label that the data's tokenizer must have, such as sp:85944171f73967e8. Token "
               "files of other trainers carry no label: set it here, such as gpt2, if the "
               "tokenizer's file is not available"),
          Text("text_field", &S::text_field, {TextRule::Kind::kLine},
               "in .jsonl files, the field of each line's object that contains the document"),
          OneOf("split", &S::split,
                "how text files other than .jsonl are split into documents. file: one document per "
                "file; paragraphs: at blank lines, 1024 bytes or more each"),
          Number("validation_fraction", &S::validation_fraction, Range<double>{0, 0.5}, "",
                 "share of the documents of each training text that is held out if data.validation "
                 "is empty; token shards are used for training in full"),
          Flag("reset_at_documents", &S::reset_at_documents,
               "attention, convolution and state do not cross document boundaries")}};
  return *record;
}

const Record<TrainingSpec>& TrainingRecord() {
  using S = TrainingSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("steps", &S::steps, kSteps, "steps", "length of the run").Required(),
          Number("batch", &S::batch, kBatch, "sequences",
                 "samples per step, over all ranks; a multiple of resources.ranks")
              .Follows("32, rounded up to a multiple of resources.ranks · micro_batch"),
          Number("micro_batch", &S::micro_batch, Range<int64_t>{0, kBatch.most}, "sequences",
                 "samples per forward and backward pass of a rank; divides its share of the batch. "
                 "0: the whole share"),
          Number("seed", &S::seed, Range<uint64_t>{0, std::numeric_limits<uint64_t>::max()}, "",
                 "seed of the initial weights, the order of samples and stochastic rounding"),
          Number("repeat", &S::repeat, Range<int64_t>{0, 1'000'000}, "",
                 "number of a repeat of the run: each number has its own order of samples and its "
                 "own draws of stochastic rounding; initial weights and held-out documents are "
                 "those of the seed. Forks of one checkpoint with different numbers show the noise "
                 "of a result"),
          Number("stop_at", &S::stop_at, Range<int64_t>{0, kSteps.most}, "steps",
                 "number of steps after which the run ends, at most training.steps, with the "
                 "learning rates and data phases of a run of training.steps. 0: training.steps"),
          OneOf("precision", &S::precision,
                "format of everything that is not quantised. fp32 is the reference; it requires a "
                "recipe that quantises nothing"),
          OneOf(
              "products", &S::products,
              "how GEMMs of quantised operands are computed on a card. fastest: on FP8 or FP4 "
              "tensor cores if the card has them for the formats, otherwise emulated in BF16. "
              "native: on these tensor cores, otherwise an error. emulated: as on a CPU, up to the "
              "order of sums"),
          OneOf("recompute", &S::recompute,
                "activation recomputation: saves memory, does not change results. blocks: the "
                "forward pass of a block runs again before its backward pass"),
          Number("validate_every", &S::validate_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "steps between validations; the last step is followed by one, too. 0: never")
              .Follows("a tenth of training.steps, at most 100; 0 where there is nothing to "
                       "validate on"),
          Number("validation_batches", &S::validation_batches, Range<int64_t>{1, 65'536}, "batches",
                 "batches per set and validation, of training.batch sequences each")}};
  return *record;
}

const Record<OptimizerSpec>& OptimizerRecord() {
  using S = OptimizerSpec;
  // The bounds are chosen so that in FP32, in which the update is computed, an allowed value never
  // rounds to a degenerate one: a beta of 1, or an epsilon, a rate or a norm of 0.
  constexpr Range<double> kBeta = {0, 0.999999};
  constexpr Range<double> kEpsilon = {1e-30, 1};
  constexpr Range<double> kRate = {1e-12, 10};
  static const auto* const record = new Record<S>{
      .fields = {
          Number("lr", &S::lr, kRate, "", "learning rate after the warm-up"),
          Number("final_lr", &S::final_lr, Range<double>{0, 10}, "",
                 "learning rate of the last step; at most lr")
              .Follows("1.0e-05, at most optimizer.lr"),
          Number("beta1", &S::beta1, kBeta, "", "AdamW: decay of the first moment"),
          Number("beta2", &S::beta2, kBeta, "", "AdamW: decay of the second moment"),
          Number("epsilon", &S::epsilon, kEpsilon, "",
                 "AdamW: added to the root of the second moment"),
          Number("weight_decay", &S::weight_decay, Range<double>{0, 10}, "",
                 "AdamW: weight decay of linear layers, embedding, positions and head; norms, "
                 "biases, A_log, D and dt_bias have none"),
          Number("clip_norm", &S::clip_norm, kClipNorm, "",
                 "gradient clipping: a larger norm is scaled down to this. 0: no clipping")
              .Allowing(absl::StrCat("0 or ", RangeText(kClipNorm))),
          OneOf("schedule", &S::schedule,
                "learning rate schedule after the warm-up. wsd: constant at lr, then a decay over "
                "the last steps; cosine: a cosine decay over all remaining steps; constant: lr"),
          Number("warmup_steps", &S::warmup_steps, Range<int64_t>{0, kSteps.most}, "steps",
                 "length of the linear warm-up to lr")
              .Follows("a tenth of training.steps, at most 100, ending before the decay"),
          Number("decay_fraction", &S::decay_fraction, Range<double>{0, 1}, "",
                 "share of the run that the wsd decay takes")
              .Follows("0.2, or less if warmup_steps leaves less"),
          OneOf("decay_shape", &S::decay_shape, "shape of the wsd decay")}};
  return *record;
}

const Record<GuardSpec>& GuardRecord() {
  using S = GuardSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          OneOf(
              "non_finite", &S::non_finite,
              "response to a NaN or infinite loss, gradient or quantised operand. skip: no update "
              "in that step; promote, roll_back, stop: as for spike"),
          Number("max_skips", &S::max_skips, Range<int64_t>{1, 100000000}, "steps",
                 "most consecutive steps that may be skipped as not finite"),
          OneOf("after_skips", &S::after_skips,
                "response when max_skips is exceeded. pause: the job is paused until someone "
                "resumes it; roll_back: as for spike; fail: the job fails"),
          OneOf("spike", &S::spike,
                "response to a loss spike. observe: an event; skip: also no update in that step; "
                "promote: also BF16 for promote_layers in the next promote_steps steps; roll_back: "
                "the job resumes from a checkpoint before the harm, with a lower learning rate if "
                "rollback_lr_scale is below 1, otherwise with promote_layers in BF16; stop: the "
                "run ends with an error"),
          Number("spike_z", &S::spike_z, Range<double>{1, 1000}, "standard deviations",
                 "distance from the mean of the recent losses above which a loss is a spike"),
          Number("spike_window", &S::spike_window, Range<int64_t>{8, 4096}, "steps",
                 "number of recent losses in that mean, and of recent norms for gradient_norm; the "
                 "first spike_window steps are never judged"),
          OneOf("gradient_norm", &S::gradient_norm,
                "response to a spike of the gradient norm before clipping; values as for spike"),
          Number("gradient_norm_z", &S::gradient_norm_z, Range<double>{1, 1000},
                 "standard deviations",
                 "distance from the mean of the recent norms above which a norm is a spike"),
          OneOf("relative_error", &S::relative_error,
                "response to an operand whose relative quantisation error is above its bound in a "
                "step that metrics.precision_every samples. observe: an event; promote: the "
                "operand's layer is BF16 in the next promote_steps steps; roll_back, stop: as for "
                "spike, with the layers found in BF16"),
          Number("relative_error_above", &S::relative_error_above, Range<double>{0, 1000}, "ratio",
                 "bound of relative_error"),
          OneOf("underflow", &S::underflow,
                "response to an operand whose share of non-zero values that became zero is above "
                "its bound; values as for relative_error"),
          Number("underflow_above", &S::underflow_above, Range<double>{0, 1}, "share",
                 "bound of underflow"),
          OneOf("clipped", &S::clipped,
                "response to an operand whose share of values beyond the largest code is above its "
                "bound; values as for relative_error"),
          Number("clipped_above", &S::clipped_above, Range<double>{0, 1}, "share",
                 "bound of clipped"),
          Text("promote_layers", &S::promote_layers,
               {.kind = TextRule::Kind::kLine, .may_be_empty = true},
               "layers that non_finite, spike and gradient_norm promote to BF16, as match in "
               "recipe.layers. Empty: all; and none by a roll_back that lowers the learning rate"),
          Number("promote_steps", &S::promote_steps, Range<int64_t>{1, kSteps.most}, "steps",
                 "length of a promotion; a guard that decides again during it lengthens it"),
          Number("rollback_margin", &S::rollback_margin, Range<int64_t>{0, 1'000'000}, "steps",
                 "number of steps before the finding of a guard whose updates a rollback also "
                 "undoes"),
          Number("rollback_lr_scale", &S::rollback_lr_scale, Range<double>{0.001, 1}, "",
                 "factor on the learning rate from a rollback of non_finite, spike or "
                 "gradient_norm on; it multiplies with that of earlier rollbacks"),
          Number("max_rollbacks", &S::max_rollbacks, Range<int64_t>{0, kMaxGuardRollbacks},
                 "attempts",
                 "most consecutive attempts that guards may roll back; then the job is paused")}};
  return *record;
}

const Record<EarlyStopSpec>& EarlyStopRecord() {
  using S = EarlyStopSpec;
  static const auto* const record = new Record<S>{
      .fields = {Number("patience", &S::patience, Range<int64_t>{0, 10'000}, "validations",
                        "consecutive validations without improvement after which the run ends and "
                        "the job has succeeded. The mean of the losses of all validation sets "
                        "decides. 0: no early stop"),
                 Number("min_delta", &S::min_delta, Range<double>{0, 1000}, "",
                        "a loss counts as an improvement if it is lower by more than this")}};
  return *record;
}

const Record<MetricsSpec>& MetricsRecord() {
  using S = MetricsSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("precision_every", &S::precision_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "steps between precision statistics of every quantised operand. 0: never")
              .Follows("a tenth of training.steps, at most 100"),
          Number("log_every", &S::log_every, Range<int64_t>{1, kSteps.most}, "steps",
                 "steps between step events, and between progress lines")
              .Follows("a tenth of training.steps, at most 10")}};
  return *record;
}

const Record<CheckpointSpec>& CheckpointRecord() {
  using S = CheckpointSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("every", &S::every, Range<int64_t>{0, kSteps.most}, "steps",
                 "steps between checkpoints. 0: none during the run")
              .Follows("a tenth of training.steps, at most 1000"),
          Flag("at_end", &S::at_end,
               "write a checkpoint after the last step and when the run is stopped"),
          Number("keep_last", &S::keep_last, Range<int64_t>{1, 10'000}, "checkpoints",
                 "number of newest checkpoints that are kept"),
          Number("keep_every", &S::keep_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "checkpoints whose step is a multiple of this are kept permanently. 0: none")}};
  return *record;
}

const Record<OutputSpec>& OutputRecord() {
  using S = OutputSpec;
  static const auto* const record = new Record<S>{
      .fields = {Text("directory", &S::directory, {TextRule::Kind::kPath, true},
                      "directory for events and results. Empty: runs/NAME, with the job's name"),
                 Text("tensorboard", &S::tensorboard, {TextRule::Kind::kPath, true},
                      "directory for TensorBoard's event files, which the run writes as it trains; "
                      "relative to the output directory. In a cluster an absolute one gets a "
                      "subdirectory for each job. Empty: none")}};
  return *record;
}

Field<JobSpec> ModelField() {
  auto field = Section("model", &JobSpec::model, ModelRecord(),
                       "the name of a preset, or a map: a preset and the fields to change, or no "
                       "preset and every field that the pattern needs. Unset fields take the "
                       "preset's value, or the default")
                   .Required();
  field.write = [](const JobSpec& spec) { return WriteModel(spec.model); };
  return field;
}

Field<JobSpec> RecipeField() {
  auto field = Section(
      "recipe", &JobSpec::recipe, RecipeRecord(),
      "the precision of every GEMM: the name of a preset, or a map with fields that override one");
  field.doc.default_value = JobSpec().recipe.preset;
  return std::move(field).Follows("nvfp4; bf16 where training.precision is fp32");
}

std::vector<Field<JobSpec>> JobFields() {
  using S = JobSpec;
  return {
      Text("name", &S::name, kName, "name of the job in events, metrics and paths").Required(),
      ModelField(),
      Section("init_from", &S::init_from, InitRecord(),
              "initial weights, from a checkpoint of another job; without it they are random. Only "
              "the weights are loaded: the run starts at step 0 with zero optimizer moments, and "
              "uses this spec's data, tokenizer, schedule and recipe. Once the run has a "
              "checkpoint of its own, it resumes from that"),
      RecipeField(),
      List("changes", &S::changes, ChangeRecord(), {0, 64},
           "planned changes of the recipe, such as {at: lr-decay, set: {fprop: bf16}}"),
      Section("data", &S::data, DataRecord(), "training and validation data"),
      Section("training", &S::training, TrainingRecord(), "length, batch and precision of the run"),
      Section("optimizer", &S::optimizer, OptimizerRecord(), "AdamW and its learning rate"),
      Section("guards", &S::guards, GuardRecord(),
              "guards against non-finite steps, spikes and large quantisation errors"),
      Section("early_stop", &S::early_stop, EarlyStopRecord(),
              "early end of a run whose validation loss no longer improves"),
      Section("metrics", &S::metrics, MetricsRecord(), "logging intervals"),
      Section("checkpoints", &S::checkpoints, CheckpointRecord(),
              "when checkpoints are written and which are kept"),
      Section("resources", &S::resources, ResourceRecord(), "ranks, threads, memory and device"),
      Section("scheduling", &S::scheduling, SchedulingRecord(),
              "where and when a cluster runs the job; ignored without a cluster"),
      Section("restarts", &S::restarts, RestartRecord(),
              "restarts after a failed attempt, on a cluster"),
      List("notify", &S::notify, NotifyRecord(), {0, kMaxNotifyTargets},
           "URLs to which a cluster's coordinator posts events of the job, if its --notify-allow "
           "permits them; an entry may be just a URL. Ignored without a cluster"),
      Texts("env", &S::env, "names of letters, digits and _, with text values", EnvironmentProblem,
            "environment variables of the rank processes, such as {OMP_NUM_THREADS: 4}. They are "
            "stored with the job: do not put secrets here. Variables that decide which code runs "
            "or on which device are refused: NIBBLE_*, LD_*, *_PLUGIN, *_INJECTION*, "
            "CUDA_VISIBLE_DEVICES, GCONV_PATH, PATH, HOME"),
      Section("output", &S::output, OutputRecord(), "where results are written"),
  };
}

}  // namespace

const Record<JobSpec>& JobRecord() {
  static const auto* const record = new Record<JobSpec>{.fields = JobFields()};
  return *record;
}

const std::vector<FieldDoc>& JobFieldDocs() {
  static const auto* const docs = new std::vector<FieldDoc>(DocsOf(JobRecord(), ""));
  return *docs;
}

std::string TypeText(const FieldDoc& doc) {
  const std::string unit = doc.unit.empty() ? "" : absl::StrCat(", in ", doc.unit);
  if (doc.type == "number") return absl::StrCat("Number in ", doc.allowed, unit);
  if (doc.type == "whole number") return absl::StrCat("Whole number in ", doc.allowed, unit);
  if (doc.type == "one of") return absl::StrCat("One of ", doc.allowed);
  if (doc.type == "list") return absl::StrCat("List of ", doc.allowed);
  if (doc.type == "map") return absl::StrCat("Map of ", doc.allowed);
  if (doc.type == "text") return absl::StrCat("Text: ", doc.allowed);
  if (doc.type == "time") return absl::StrCat("One of ", doc.allowed);
  return "True or false";
}

}  // namespace nibble
