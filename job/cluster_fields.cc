#include "job/cluster_fields.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "job/job_fields.h"
#include "job/notify_url.h"

namespace nibble {
namespace {

constexpr size_t kMostLabelBytes = 80;

// The coordinator's bounds on worker labels.
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

// Names that the daemon or the dynamic loader uses itself.
bool IsReservedVariable(std::string_view name) {
  for (const std::string_view prefix : {"NIBBLE_", "LD_"}) {
    if (name.starts_with(prefix)) return true;
  }
  for (const std::string_view whole : {"CUDA_VISIBLE_DEVICES", "GCONV_PATH", "PATH", "HOME"}) {
    if (name == whole) return true;
  }
  return name.ends_with("_PLUGIN") || name.find("_INJECTION") != std::string_view::npos;
}

}  // namespace

const Record<ResourceSpec>& ResourceRecord() {
  using S = ResourceSpec;
  static const auto* const record = new Record<S>{
      .fields = {
          Number("ranks", &S::ranks, Range<int64_t>{1, kBatchRange.most}, "processes",
                 "number of data-parallel ranks, each of which trains on its share of the batch"),
          Number("min_ranks", &S::min_ranks, Range<int64_t>{0, kBatchRange.most}, "processes",
                 "fewest ranks that a cluster may run the job with; only numbers that divide the "
                 "batch evenly are used. 0: resources.ranks"),
          Number("max_ranks", &S::max_ranks, Range<int64_t>{0, kBatchRange.most}, "processes",
                 "most ranks that a cluster may run the job with. 0: resources.ranks"),
          Numbers("allowed_ranks", &S::allowed_ranks, Range<int64_t>{1, kBatchRange.most},
                  {0, kMaxAllowedWorlds}, "processes",
                  "instead of min_ranks and max_ranks: the numbers of ranks that a cluster may run "
                  "the job with, ascending"),
          Number("threads", &S::threads, Range<int64_t>{0, 1024}, "threads",
                 "compute threads per rank. 0: one per processor of the machine"),
          Number("memory_mib", &S::memory_mib, Range<int64_t>{0, int64_t{1} << 30}, "MiB",
                 "most memory for the tensors of a rank. A recipe change that needs more is "
                 "refused, and training continues under the current recipe. 0: no limit"),
          OneOf("device", &S::device,
                "device that computes the model: the cores of a processor, or a CUDA card per "
                "rank. gpu is another name of cuda"),
          OneOf("collectives", &S::collectives,
                "how ranks on cards exchange tensors. nccl: from card to card; each rank needs a "
                "card of its own, and libnccl.so.2 must be installed. staged: through the hosts' "
                "memory and TCP. auto: nccl if there are several ranks, each on its own card, else "
                "staged. The event start records which"),
          OneOf("reduction", &S::reduction,
                "order in which gradients are summed over ranks. rank_order: by rank, so that a "
                "result depends on nothing but the inputs and the number of ranks; nccl: in "
                "NCCL's own order, which depends on the cards and how they are linked"),
          OneOf("exchange", &S::exchange,
                "what moves gradients and weights between cards that use NCCL. copies: the cards' "
                "copy engines, beside which GEMMs keep their rate; all ranks must be on one host "
                "and map one another's memory. nccl: NCCL's kernels. auto: copies where every rank "
                "can, else nccl. Sums have the same bits. The event start records which"),
          OneOf("sharding", &S::sharding,
                "what each rank stores its part only of, in the levels of ZeRO. optimizer: "
                "masters and moments; gradients: also the sums of the gradients; weights: also "
                "the weights in the formats that layers read, gathered for each pass, not once "
                "a step. Gradients leave in each micro-batch. Results are the same bit for bit."
                " A run may resume at another level")}};
  return *record;
}

const Record<SchedulingSpec>& SchedulingRecord() {
  using S = SchedulingSpec;
  constexpr char kLabels[] = "worker labels, such as {rack: a12}";
  static const auto* const record = new Record<S>{
      .fields = {
          Text("queue", &S::queue, {TextRule::Kind::kName}, "queue that the job is submitted to"),
          Number("priority", &S::priority, Range<int64_t>{-1000, 1000}, "",
                 "jobs of higher priority are scheduled first"),
          Texts("require", &S::require, kLabels, LabelProblem,
                "only workers with all of these labels are used"),
          Texts("prefer", &S::prefer, kLabels, LabelProblem,
                "workers with more of these labels are preferred"),
          Flag("prefer_fp4", &S::prefer_fp4, "workers with FP4 tensor cores are preferred")}};
  return *record;
}

const Record<RestartSpec>& RestartRecord() {
  using S = RestartSpec;
  constexpr Range<double> kPause = {0, 86'400};
  static const auto* const record = new Record<S>{
      .fields = {Number("max_without_progress", &S::max_without_progress,
                        Range<int64_t>{0, 1'000'000}, "failures",
                        "most consecutive restarts without a new checkpoint; the next failure "
                        "fails the job. 0: no restarts"),
                 Number("backoff", &S::backoff, kPause, "seconds",
                        "delay before the first restart; doubles with each consecutive restart"),
                 Number("max_backoff", &S::max_backoff, kPause, "seconds", "longest delay")
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
        .fields = {
            std::move(url),
            SomeOf(
                "on", &S::on,
                "the events that are posted. recipe_changed: a revision was accepted, took effect "
                "or was refused; checkpoint: requested, committed, pinned, deleted or damaged; "
                "trouble: ranks started or stopped waiting for something, such as disk space; "
                "spike: a guard found a spike of the loss or the gradient norm; guard: another "
                "decision of a guard; alert: an alert of Prometheus about the job fires or is "
                "resolved")}};
  }();
  return *record;
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
        "not a variable name; allowed: letters, digits and _, no digit first, at most ", kMostName);
  }
  if (IsReservedVariable(variable.name)) {
    return "reserved: it decides which code runs, or on which device";
  }
  if (variable.text.size() > kMostText || variable.text.find('\0') != std::string::npos) {
    return absl::StrCat("the value has ", variable.text.size(), " bytes; allowed: at most ",
                        kMostText, ", without NUL");
  }
  return "";
}

}  // namespace nibble
