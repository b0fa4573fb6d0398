// Ranks on the cards of this machine, connected by NCCL: checks every collective bit for bit, loses
// ranks in the middle of each kind, times the sums in rank order beside NCCL's own, and times GEMMs
// beside them.
//
//   nccl_check --ranks 2                 everything; a table last
//   nccl_check --ranks 2 --only time     "check", "loss", "time", "beside" (GEMMs) or "gathers" (of
//                                        weights, packed and in BF16) alone
//
// It starts itself once per rank, each on a card of its own. Exits 1 if a check fails.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/nccl/check_rank.h"
#include "common/command_line/command_line.h"
#include "kernels/cuda/check_data.h"
#include "worker/trainer/comm/launch_local.h"

namespace nibble::bench {
namespace {

struct CheckArguments {
  RankArguments rank;
  int64_t ranks = 2;
  int64_t cases = 30;
  int64_t loss_timeout_ms = 5'000;
  std::string only;
  LossCase loss;
};

void Print(const std::string& text) {
  std::printf("%s\n", text.c_str());
  (void)std::fflush(stdout);
}

// Whether all ranks of a part ended well.
bool Launch(const CheckArguments& arguments, const std::string& part, const std::string& exchange) {
  const auto launched =
      LaunchLocal({.ranks = static_cast<int>(arguments.ranks),
                   .arguments = {"--only", part, "--cases", absl::StrCat(arguments.cases), "--seed",
                                 absl::StrCat(arguments.rank.seed), "--exchange", exchange}});
  if (launched.ok() && launched->ok()) return true;
  Print(absl::StrCat(
      part, ": FAILED: ", launched.ok() ? launched->Describe() : launched.status().ToString()));
  return false;
}

bool LaunchLoss(const CheckArguments& arguments, const LossCase& loss,
                const std::string& exchange) {
  const std::string what = absl::StrCat(loss.kind, ", exchange ", exchange, ", rank ", loss.victim,
                                        " ", loss.how, " after ", loss.after_ms, " ms");
  // A rank that was stopped ends once the launcher kills it, which it does this long after the
  // first other one has ended.
  const auto grace = std::chrono::seconds(loss.how == "killed" ? 20 : 8);
  const auto launched =
      LaunchLocal({.ranks = static_cast<int>(arguments.ranks),
                   .arguments = {"--only", "loss", "--loss-kind", loss.kind, "--loss-how", loss.how,
                                 "--victim", absl::StrCat(loss.victim), "--after-ms",
                                 absl::StrCat(loss.after_ms), "--timeout-ms",
                                 absl::StrCat(arguments.loss_timeout_ms), "--exchange", exchange},
                   .grace = grace});
  if (!launched.ok()) {
    Print(absl::StrCat(what, ": FAILED: ", launched.status().ToString()));
    return false;
  }
  bool good = true;
  for (int r = 0; r < static_cast<int>(launched->ranks.size()); ++r) {
    const RankExit& exit = launched->ranks[static_cast<size_t>(r)];
    const bool dies = r == loss.victim && loss.how != "late";
    good = good &&
           (dies ? exit.signal == SIGKILL : exit.signal == 0 && exit.exit_code == kRankLostAPeer);
  }
  if (!good) Print(absl::StrCat(what, ": FAILED: ", launched->Describe()));
  return good;
}

int Parent(CheckArguments arguments) {
  const absl::StatusOr<int> cards = CudaDevice::Count();
  if (!cards.ok()) {
    std::fprintf(stderr, "nccl_check: %s\n", cards.status().ToString().c_str());
    return 2;
  }
  if (arguments.ranks > *cards) {
    Print(absl::StrCat("NCCL needs a card for each rank: ", *cards, " of ", arguments.ranks,
                       " ranks are checked"));
    arguments.ranks = *cards;
  }
  const auto wants = [&](const char* part) {
    return arguments.only.empty() || arguments.only == part;
  };
  int64_t losses = 0, failures = 0;
  std::string summary;
  // By copy engines if the ranks can, which each part prints, and by NCCL's kernels.
  std::vector<std::string> exchanges = {arguments.rank.exchange};
  if (arguments.rank.exchange == "auto" && arguments.ranks > 1) exchanges.push_back("nccl");
  if (wants("check")) {
    for (const std::string& exchange : exchanges) {
      const bool good = Launch(arguments, "check", exchange);
      failures += good ? 0 : 1;
      absl::StrAppend(&summary, "collectives, exchange ", exchange, ": ", good ? "ok" : "FAILED",
                      "; ");
    }
  }
  if (wants("loss") && arguments.ranks == 1) absl::StrAppend(&summary, "one rank: none to lose; ");
  if (wants("loss") && arguments.ranks > 1) {
    std::vector<std::pair<LossCase, std::string>> cases;
    const std::string& usual = exchanges.front();
    for (const std::string& kind : LossKinds()) {
      cases.push_back({{.kind = kind, .how = "killed"}, usual});
    }
    cases.push_back({{.kind = "ReduceScatter", .how = "stopped"}, usual});
    cases.push_back({{.kind = "ReduceScatter", .how = "late"}, usual});
    cases.push_back({{.kind = "AllGather", .how = "late"}, usual});
    if (exchanges.size() > 1) {
      cases.push_back({{.kind = "ReduceScatter", .how = "killed"}, exchanges.back()});
      cases.push_back({{.kind = "AllGather", .how = "killed"}, exchanges.back()});
    }
    int64_t failed = 0;
    for (auto& [loss, exchange] : cases) {
      const uint64_t draw =
          Mix(static_cast<uint64_t>(arguments.rank.seed), static_cast<uint64_t>(losses++));
      loss.victim = static_cast<int>(draw % static_cast<uint64_t>(arguments.ranks));
      loss.after_ms = static_cast<int64_t>(20 + (draw >> 32) % 200);
      failed += LaunchLoss(arguments, loss, exchange) ? 0 : 1;
    }
    failures += failed;
    absl::StrAppend(&summary, losses, " lost ranks, ", failed, " FAILED; ");
  }
  // Last, so that the table is what one sees.
  if (wants("time")) failures += Launch(arguments, "time", arguments.rank.exchange) ? 0 : 1;
  if (wants("beside") && arguments.ranks > 1)
    failures += Launch(arguments, "beside", arguments.rank.exchange) ? 0 : 1;
  if (wants("gathers")) failures += Launch(arguments, "gathers", arguments.rank.exchange) ? 0 : 1;
  Print(absl::StrCat("nccl_check: ", arguments.ranks, " ranks: ", summary, failures, " failures"));
  return failures == 0 ? 0 : 1;
}

int Rank(const CheckArguments& arguments) {
  absl::StatusOr<std::unique_ptr<CheckRank>> rank = CheckRank::Create(arguments.rank);
  if (!rank.ok()) {
    std::fprintf(stderr, "nccl_check: %s\n", rank.status().ToString().c_str());
    return kRankFailed;
  }
  if (arguments.only == "check") return CheckCollectives(**rank, arguments.cases);
  if (arguments.only == "loss") return CheckLoss(**rank, arguments.loss);
  if (arguments.only == "gathers") return TimeGathers(**rank);
  return arguments.only == "beside" ? TimeBesideGemms(**rank) : TimeCollectives(**rank);
}

int Main(int argc, char** argv) {
  CheckArguments arguments;
  CommandLine app("Checks and times NCCL's collectives on the cards of this machine", "nccl_check");
  app.Add("--ranks", arguments.ranks, "Ranks, each on its own card")
      .WholeNumber(1, kMaxLocalRanks)
      .ShowDefault();
  app.Add("--only", arguments.only, "One part alone")
      .OneOf({"check", "loss", "time", "beside", "gathers"});
  app.Add("--exchange", arguments.rank.exchange,
          "What moves data where ranks are checked and lost; auto: copy engines, and NCCL's "
          "kernels, "
          "too")
      .OneOf({"auto", "copies", "nccl"})
      .ShowDefault();
  app.Add("--cases", arguments.cases, "Sizes that are checked").AtLeast(1).ShowDefault();
  app.Add("--seed", arguments.rank.seed, "Of sizes, values and times").ShowDefault();
  app.Add("--loss-timeout-ms", arguments.loss_timeout_ms, "Timeout where ranks are lost")
      .AtLeast(1000)
      .ShowDefault();
  const std::string inner = "Of the ranks that the program starts";
  app.Add("--rank", arguments.rank.rank, "This process's rank").Group(inner);
  app.Add("--world", arguments.rank.world, "Ranks").Group(inner);
  app.Add("--rendezvous", arguments.rank.rendezvous, "Where they meet").Group(inner);
  app.Add("--timeout-ms", arguments.rank.timeout_ms, "Of a collective").Group(inner);
  app.Add("--loss-kind", arguments.loss.kind, "The collective").Group(inner);
  app.Add("--loss-how", arguments.loss.how, "killed, stopped or late").Group(inner);
  app.Add("--victim", arguments.loss.victim, "The rank that is lost").Group(inner);
  app.Add("--after-ms", arguments.loss.after_ms, "When it is lost").Group(inner);
  if (const std::optional<int> ended = app.Parse(argc, argv, 2)) return *ended;
  return arguments.rank.rank < 0 ? Parent(arguments) : Rank(arguments);
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
