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
#include "job/model_fields.h"
#include "job/notify_url.h"

namespace nibble {
namespace {

// Together they keep steps · batch · sequence within 64 bits.
constexpr Range<int64_t> kSteps = {1, 100'000'000};
constexpr Range<int64_t> kBatch = kBatchRange;
constexpr Range<int64_t> kSequence = {1, 1 << 20};
static_assert(kSteps.most <= std::numeric_limits<int64_t>::max() / kBatch.most / kSequence.most);

constexpr TextRule kName = {TextRule::Kind::kName};
constexpr size_t kMostLabelBytes = 80;
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
               "bytes of a token in a file of nothing but tokens. none: the file says what it is");
}

template <class S>
Field<S> DocumentEnd(int64_t S::*member) {
  return Number("document_end", member, Range<int64_t>{-1, std::numeric_limits<int32_t>::max()}, "",
                "the token that ends each document in another trainer's .bin. -1: none, the file "
                "is one document");
}

const Record<TrainingSource>& TrainingSourceRecord() {
  using S = TrainingSource;
  static const auto* const record = new Record<S>{
      .shorthand = "path",
      .fields = {Text("path", &S::path, kPath,
                      "a text file, a .jsonl file (see text_field), either with .gz or .zst, a "
                      "directory of them, a token shard, or another trainer's tokens (.bin of "
                      "GPT-2 trainers, .idx of Megatron); relative to where the trainer runs")
                     .Required(),
                 TokenWidth(&S::token_width), DocumentEnd(&S::document_end),
                 Number("weight", &S::weight, Range<int64_t>{1, 100'000}, "parts",
                        "share of the samples, against the weights of the other entries")}};
  return *record;
}

const Record<ValidationSource>& ValidationSourceRecord() {
  using S = ValidationSource;
  static const auto* const record = [] {
    auto name = Text("name", &S::name, kName,
                     "what its loss is called in events and metrics; where it is left out, the "
                     "last part of the path");
    name.doc.default_value.clear();
    return new Record<S>{
        .shorthand = "path",
        .fields = {std::move(name),
                   Text("path", &S::path, kPath, "as that of training data").Required(),
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
               "a job of the cluster: its id, or its name where no other job has that name. Its "
               "model must have the same shapes, its number of ranks may be another. The "
               "checkpoint is chosen when the job is submitted, and kept until the job has ended"),
          Text("path", &S::path, {TextRule::Kind::kPath, true},
               "the same without a cluster: a checkpoint store, or the output directory of the "
               "run that made it. Not together with job"),
          Number("step", &S::step, Range<int64_t>{-1, kSteps.most}, "steps",
                 "of the checkpoint. -1: the newest good one")}};
  return *record;
}

const Record<DataPhase>& PhaseRecord() {
  using S = DataPhase;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("parts", &S::parts, Range<int64_t>{1, 1'000'000}, "parts",
                 "length of the phase, against those of the other phases")
              .Required(),
          Numbers("weights", &S::weights, Range<int64_t>{0, 100'000}, {1, 256}, "parts",
                  "weights of the entries of data.train, in their order, in this phase. 0: not in "
                  "this phase")
              .Required()}};
  return *record;
}

const Record<DataSpec>& DataRecord() {
  using S = DataSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          List("train", &S::train, TrainingSourceRecord(), {1, 256},
               "what to train on; an entry may be a path alone")
              .Required(),
          List("phases", &S::phases, PhaseRecord(), {0, 64},
               "a blend that changes: each phase takes its parts of the run and has weights of its "
               "own, such as 70, 20 and 10 parts. Empty: the weights of data.train all along"),
          List("validation", &S::validation, ValidationSourceRecord(), {0, 64},
               "what to validate on, each with a loss of its own; an entry may be a path alone. "
               "Empty: documents held out of each text that is trained on"),
          Number("sequence", &S::sequence, kSequence, "tokens", "length of a sample")
              .Follows("1024, at most the model's max_positions where positions are learned"),
          OneOf("tokenizer", &S::tokenizer,
                "what made the tokens of the data, and makes those of text files. data: the file "
                "in tokenizer_model, or else the tokenizer that the token shards name; where all "
                "data is text, bytes. bytes: a token per byte, and 256 ends a document; "
                "sentencepiece, huggingface: the file in tokenizer_model. Shards of another one "
                "are refused"),
          Text("tokenizer_model", &S::tokenizer_model, {TextRule::Kind::kPath, true},
               "a SentencePiece .model (nibble data tokenize trains one) or a tokenizer.json of "
               "Hugging Face's"),
          Text("tokenizer_label", &S::tokenizer_label, {TextRule::Kind::kLine, true},
               "the label that the data's tokenizer must have, such as sp:85944171f73967e8. Token "
               "files of other trainers do not say theirs: there this names it where its file is "
               "not at hand, such as gpt2"),
          Text("text_field", &S::text_field, {TextRule::Kind::kLine},
               "the field of each line's object that holds the document, in .jsonl files"),
          OneOf("split", &S::split,
                "where text files other than .jsonl are cut into documents. file: a file is one; "
                "paragraphs: at "
                "blank lines, 1024 bytes or more each"),
          Number("validation_fraction", &S::validation_fraction, Range<double>{0, 0.5}, "",
                 "share of the documents of each training text that is held out where validation "
                 "is empty; token shards are trained on whole"),
          Flag("reset_at_documents", &S::reset_at_documents,
               "attention, convolution and state do not see past the beginning of a document")}};
  return *record;
}

const Record<TrainingSpec>& TrainingRecord() {
  using S = TrainingSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("steps", &S::steps, kSteps, "steps", "length of the run").Required(),
          Number("batch", &S::batch, kBatch, "sequences",
                 "samples of one step, over all ranks; a multiple of resources.ranks")
              .Follows("32, or the next multiple of the ranks and their micro_batch"),
          Number("micro_batch", &S::micro_batch, Range<int64_t>{0, kBatch.most}, "sequences",
                 "samples that a rank computes at once; divides its share of the batch. 0: the "
                 "whole share"),
          Number(
              "seed", &S::seed, Range<uint64_t>{0, std::numeric_limits<uint64_t>::max()}, "",
              "what initial weights, the order of samples and stochastic rounding are drawn from"),
          OneOf("precision", &S::precision,
                "format of everything that is not quantised. fp32 is the oracle: it goes with "
                "recipes that quantise nothing"),
          OneOf("recompute", &S::recompute,
                "what is computed twice to save memory, with the same results. blocks: the "
                "forward pass of a block runs again before its backward pass"),
          Number("validate_every", &S::validate_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "distance between validations; the last step has one, too. 0: never")
              .Follows("a tenth of training.steps, at most 100; 0 where there is nothing to "
                       "validate on"),
          Number(
              "validation_batches", &S::validation_batches, Range<int64_t>{1, 65'536}, "batches",
              "how much of each set a validation reads, in batches of training.batch sequences")}};
  return *record;
}

const Record<OptimizerSpec>& OptimizerRecord() {
  using S = OptimizerSpec;
  // In FP32, as the update computes it, no allowed value is another's neighbour that means more: a
  // beta of 1, or an epsilon, a rate or a norm of 0.
  constexpr Range<double> kBeta = {0, 0.999999};
  constexpr Range<double> kEpsilon = {1e-30, 1};
  constexpr Range<double> kRate = {1e-12, 10};
  static const auto* const record = new Record<S>{
      .fields = {
          Number("lr", &S::lr, kRate, "", "learning rate after the warm-up"),
          Number("final_lr", &S::final_lr, Range<double>{0, 10}, "",
                 "learning rate of the last step; not over lr")
              .Follows("1.0e-05, at most optimizer.lr"),
          Number("beta1", &S::beta1, kBeta, "", "AdamW: decay of the first moment"),
          Number("beta2", &S::beta2, kBeta, "", "AdamW: decay of the second moment"),
          Number("epsilon", &S::epsilon, kEpsilon, "",
                 "AdamW: added to the root of the second moment"),
          Number("weight_decay", &S::weight_decay, Range<double>{0, 10}, "",
                 "AdamW: decay of linear layers, embedding, positions and head, never of norms, "
                 "biases, A_log, D and dt_bias"),
          Number("clip_norm", &S::clip_norm, kClipNorm, "",
                 "gradients of a larger norm are scaled down to it. 0: no clipping")
              .Allowing(absl::StrCat("0 or ", RangeText(kClipNorm))),
          OneOf("schedule", &S::schedule,
                "course of the learning rate after the warm-up. wsd: lr, then a decay over the "
                "last steps; cosine: a cosine over all the rest; constant: lr"),
          Number("warmup_steps", &S::warmup_steps, Range<int64_t>{0, kSteps.most}, "steps",
                 "length of the rise of the learning rate to lr")
              .Follows("a tenth of training.steps, at most 100 and no longer than until the decay"),
          Number("decay_fraction", &S::decay_fraction, Range<double>{0, 1}, "",
                 "share of the run that the decay of wsd takes")
              .Follows("0.2, at most what warmup_steps leaves"),
          OneOf("decay_shape", &S::decay_shape, "course of the decay of wsd")}};
  return *record;
}

const Record<GuardSpec>& GuardRecord() {
  using S = GuardSpec;
  static const auto* const record = new Record<S>{
      .fields = {OneOf("non_finite", &S::non_finite,
                       "what happens when loss or gradient is NaN or infinite. skip: no update in "
                       "that step; stop: "
                       "the run ends with an error"),
                 Number("max_skips", &S::max_skips, Range<int64_t>{1, 100000000}, "steps",
                        "how many steps in a row may be skipped as not finite"),
                 OneOf("after_skips", &S::after_skips,
                       "what happens after so many. pause: the job waits for a person; roll_back: "
                       "it resumes from the newest checkpoint, and is paused where that does not "
                       "help; fail: it ends"),
                 OneOf("spike", &S::spike,
                       "what happens when the loss jumps. observe: an event; skip: no update in "
                       "that step either"),
                 Number("spike_z", &S::spike_z, Range<double>{1, 1000}, "standard deviations",
                        "how far above the mean of the last losses is a jump"),
                 Number("spike_window", &S::spike_window, Range<int64_t>{8, 4096}, "steps",
                        "how many losses are looked at; the first so many are never judged")}};
  return *record;
}

const Record<EarlyStopSpec>& EarlyStopRecord() {
  using S = EarlyStopSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("patience", &S::patience, Range<int64_t>{0, 10'000}, "validations",
                 "after so many in a row that were no improvement the run is over: the job has "
                 "succeeded. What counts is the mean of the losses of all validation sets. 0: "
                 "every step is made"),
          Number("min_delta", &S::min_delta, Range<double>{0, 1000}, "",
                 "only a loss that is lower by more than this is an improvement")}};
  return *record;
}

const Record<MetricsSpec>& MetricsRecord() {
  using S = MetricsSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("precision_every", &S::precision_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "distance between precision figures of every quantised operand. 0: never")
              .Follows("a tenth of training.steps, at most 100"),
          Number("log_every", &S::log_every, Range<int64_t>{1, kSteps.most}, "steps",
                 "distance between step events, and between lines of progress")
              .Follows("a tenth of training.steps, at most 10")}};
  return *record;
}

const Record<CheckpointSpec>& CheckpointRecord() {
  using S = CheckpointSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("every", &S::every, Range<int64_t>{0, kSteps.most}, "steps",
                 "distance between checkpoints. 0: none on the way")
              .Follows("a tenth of training.steps, at most 1000"),
          Flag("at_end", &S::at_end, "one after the last step, and where the run is stopped"),
          Number("keep_last", &S::keep_last, Range<int64_t>{1, 10'000}, "checkpoints",
                 "how many of the newest are kept"),
          Number("keep_every", &S::keep_every, Range<int64_t>{0, kSteps.most}, "steps",
                 "checkpoints of steps that are a multiple of it are kept for good. 0: none")}};
  return *record;
}

const Record<ResourceSpec>& ResourceRecord() {
  using S = ResourceSpec;
  static const auto* const record = new Record<S>{
      .fields = {Number("ranks", &S::ranks, Range<int64_t>{1, kBatch.most}, "processes",
                        "how many train together, each on its share of the batch"),
                 Number("min_ranks", &S::min_ranks, Range<int64_t>{0, kBatch.most}, "processes",
                        "a cluster may run the job with as few as this, of the numbers that share "
                        "the batch evenly. 0: resources.ranks"),
                 Number("max_ranks", &S::max_ranks, Range<int64_t>{0, kBatch.most}, "processes",
                        "and with as many as this. 0: resources.ranks"),
                 Numbers("allowed_ranks", &S::allowed_ranks, Range<int64_t>{1, kBatch.most},
                         {0, kMaxAllowedWorlds}, "processes",
                         "instead of min_ranks and max_ranks: the numbers that a cluster may run "
                         "the job with, ascending"),
                 Number("threads", &S::threads, Range<int64_t>{0, 1024}, "threads",
                        "how many each rank computes with. 0: one per processor of the machine"),
                 Number("memory_mib", &S::memory_mib, Range<int64_t>{0, int64_t{1} << 30}, "MiB",
                        "most that the tensors of a rank take. A change of the recipe that needs "
                        "more is refused, and training continues under the recipe that it has. 0: "
                        "no bound"),
                 OneOf("device", &S::device, "where the model is computed")}};
  return *record;
}

// What a worker's label may be, as the coordinator bounds it.
std::string LabelProblem(const NamedText& label) {
  if (label.name.empty() || label.name.size() > kMostLabelBytes) {
    return absl::StrCat("the name has ", label.name.size(), " bytes; allowed: 1 to ",
                        kMostLabelBytes);
  }
  if (label.text.size() > kMostLabelBytes) {
    return absl::StrCat("the value has ", label.text.size(), " bytes; at most ", kMostLabelBytes,
                        " are allowed");
  }
  return "";
}

const Record<SchedulingSpec>& SchedulingRecord() {
  using S = SchedulingSpec;
  constexpr char kLabels[] = "labels of workers, such as {rack: a12}";
  static const auto* const record = new Record<S>{
      .fields = {
          Text("queue", &S::queue, kName, "the queue that the job waits in"),
          Number("priority", &S::priority, Range<int64_t>{-1000, 1000}, "", "higher goes first"),
          Texts("require", &S::require, kLabels, LabelProblem,
                "a worker without one of them is not used"),
          Texts("prefer", &S::prefer, kLabels, LabelProblem,
                "workers with more of them come first"),
          Flag("prefer_fp4", &S::prefer_fp4, "workers with FP4 tensor cores come first")}};
  return *record;
}

const Record<RestartSpec>& RestartRecord() {
  using S = RestartSpec;
  constexpr Range<double> kPause = {0, 86'400};
  static const auto* const record = new Record<S>{
      .fields = {
          Number("max_without_progress", &S::max_without_progress, Range<int64_t>{0, 1'000'000},
                 "failures",
                 "failures in a row without a new checkpoint, after which the job is given up. 0: "
                 "none"),
          Number("backoff", &S::backoff, kPause, "seconds",
                 "pause before the first restart; doubles with each in a row"),
          Number("max_backoff", &S::max_backoff, kPause, "seconds", "no pause is longer")
              .Follows("300, at least restarts.backoff")}};
  return *record;
}

const Record<NotifySpec>& NotifyRecord() {
  using S = NotifySpec;
  static const auto* const record = [] {
    auto url = Text("url", &S::url, {TextRule::Kind::kLine},
                    "receives a POST with a JSON body for each event. It is stored and shown with "
                    "the job")
                   .Required()
                   .Allowing("http:// or https://, host, path");
    url.check = [](const S& s, const std::string& path, Problems& p) {
      if (!p.Sound(path)) return;
      const absl::StatusOr<NotifyUrl> parsed = ParseNotifyUrl(s.url);
      if (!parsed.ok()) p.Add(path, std::string(parsed.status().message()));
    };
    return new Record<S>{
        .shorthand = "url",
        .fields = {std::move(url),
                   SomeOf("on", &S::on,
                          "the events that are posted. recipe_changed: a revision was accepted, is "
                          "in effect or was refused; checkpoint: requested, committed, pinned, "
                          "deleted, damaged; trouble: ranks wait for something, such as room on a "
                          "disk, or no longer")}};
  }();
  return *record;
}

const Record<OutputSpec>& OutputRecord() {
  using S = OutputSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Text("directory", &S::directory, {TextRule::Kind::kPath, true},
               "where the run writes its events and results. Where it is empty: runs/NAME, by "
               "the name of the job")}};
  return *record;
}

// Names that the daemon or the loader of programs takes for its own.
bool IsReservedVariable(std::string_view name) {
  for (const std::string_view prefix : {"NIBBLE_", "LD_"}) {
    if (name.starts_with(prefix)) return true;
  }
  for (const std::string_view whole : {"CUDA_VISIBLE_DEVICES", "GCONV_PATH", "PATH", "HOME"}) {
    if (name == whole) return true;
  }
  return name.ends_with("_PLUGIN") || name.find("_INJECTION") != std::string_view::npos;
}

std::string EnvironmentProblem(const NamedText& variable) {
  constexpr size_t kMostName = 128, kMostText = 4096;
  bool named = !variable.name.empty() && variable.name.size() <= kMostName &&
               !absl::ascii_isdigit(static_cast<unsigned char>(variable.name.front()));
  for (const char c : variable.name) {
    named = named && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_');
  }
  if (!named) {
    return absl::StrCat(
        "no name of a variable; allowed: letters, digits and _, no digit first, at "
        "most ",
        kMostName);
  }
  if (IsReservedVariable(variable.name)) {
    return "reserved: it decides which code runs, or on which device";
  }
  if (variable.text.size() > kMostText || variable.text.find('\0') != std::string::npos) {
    return absl::StrCat("its text has ", variable.text.size(), " bytes; allowed: at most ",
                        kMostText, ", none of them 0");
  }
  return "";
}

Field<JobSpec> ModelField() {
  auto field = Section("model", &JobSpec::model, ModelRecord(),
                       "the name of a preset, or a map: a preset and fields that change it, or no "
                       "preset and all the fields that the pattern needs. What is left out is as "
                       "in the preset, or the default")
                   .Required();
  field.write = [](const JobSpec& spec) { return WriteModel(spec.model); };
  return field;
}

Field<JobSpec> RecipeField() {
  auto field = Section("recipe", &JobSpec::recipe, RecipeRecord(),
                       "the precision of every GEMM: the name of a preset, or a map with fields "
                       "over one");
  field.doc.default_value = JobSpec().recipe.preset;
  return std::move(field).Follows("nvfp4; bf16 where training.precision is fp32");
}

std::vector<Field<JobSpec>> JobFields() {
  using S = JobSpec;
  return {
      Text("name", &S::name, kName, "what the job is called in events, metrics and paths")
          .Required(),
      ModelField(),
      Section("init_from", &S::init_from, InitRecord(),
              "the weights that the run begins with, from a checkpoint of another job; without it "
              "they are random. Only the weights are taken: the first step is 0, the optimizer's "
              "moments are 0, and data, tokenizer, schedule and recipe are this spec's. Once the "
              "run has a checkpoint of its own, it resumes from that"),
      RecipeField(),
      List("changes", &S::changes, ChangeRecord(), {0, 64},
           "planned changes of the recipe, such as {at: lr-decay, set: {fprop: bf16}}"),
      Section("data", &S::data, DataRecord(), "what is read"),
      Section("training", &S::training, TrainingRecord(), "how long and in what portions"),
      Section("optimizer", &S::optimizer, OptimizerRecord(), "AdamW and its learning rate"),
      Section("guards", &S::guards, GuardRecord(), "what happens when a step goes wrong"),
      Section("early_stop", &S::early_stop, EarlyStopRecord(),
              "when a run ends because its validation loss no longer improves"),
      Section("metrics", &S::metrics, MetricsRecord(), "how often is told how it goes"),
      Section("checkpoints", &S::checkpoints, CheckpointRecord(),
              "when the run's state is stored, and what is kept of it"),
      Section("resources", &S::resources, ResourceRecord(), "what the run gets"),
      Section("scheduling", &S::scheduling, SchedulingRecord(),
              "where and when a cluster runs the job; without a cluster it means nothing"),
      Section("restarts", &S::restarts, RestartRecord(),
              "when a cluster follows a failed attempt by another"),
      List("notify", &S::notify, NotifyRecord(), {0, kMaxNotifyTargets},
           "URLs to which a cluster's coordinator posts events of the job, as far as its "
           "--notify-allow names them; an entry may be a URL alone. Without a cluster it means "
           "nothing"),
      Texts("env", &S::env, "names of letters, digits and _, and texts", EnvironmentProblem,
            "environment variables of the ranks' processes, such as {OMP_NUM_THREADS: 4}. They are "
            "stored with the job: no place for secrets. Not those that decide which code runs or "
            "on which device: NIBBLE_*, LD_*, *_PLUGIN, *_INJECTION*, CUDA_VISIBLE_DEVICES, "
            "GCONV_PATH, PATH, HOME"),
      Section("output", &S::output, OutputRecord(), "where results go"),
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
