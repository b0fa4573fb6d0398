#include "client/remote/worker_verbs.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/local/noun.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
  RemoteFlags remote;
  std::string worker, reason;
  bool cordon = false;
  bool clear_flags = false;
};

std::string HeardText(const v1::Worker& worker, int64_t now_unix_ms) {
  if (!worker.present()) {
    return absl::StrCat("absent, last here ", AgoText(worker.present_since_unix_ms(), now_unix_ms));
  }
  return absl::StrCat(DurationText(static_cast<double>(worker.last_heard_ms()) / 1000), " ago");
}

std::string WorkerTable(const v1::ListWorkersResponse& listed) {
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextTable table({"WORKER", "MODE", "SLOTS", "USED", "DEVICE", "HEARD", "JOBS", "FLAGS"});
  for (const v1::Worker& worker : listed.workers()) {
    table.Add({worker.identity().name(), Word(worker.mode()),
               absl::StrCat(worker.identity().slots()), absl::StrCat(worker.used_slots()),
               Word(worker.identity().hardware().device()), HeardText(worker, now),
               Fit(absl::StrJoin(worker.jobs(), ", "), 40),
               Fit(absl::StrJoin(worker.flags(), "; "), 60)});
  }
  return table.Text();
}

std::string WorkerText(const v1::Worker& worker) {
  const v1::WorkerIdentity& identity = worker.identity();
  const v1::Hardware& hardware = identity.hardware();
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextList list;
  list.Add("worker", absl::StrCat(identity.name(), " at ", identity.address()));
  list.Add("mode", worker.mode_reason().empty()
                       ? Word(worker.mode())
                       : absl::StrCat(Word(worker.mode()), ": ", worker.mode_reason()));
  list.Add("heard", HeardText(worker, now));
  if (worker.present()) list.Add("present", AgoText(worker.present_since_unix_ms(), now));
  list.Add("slots", absl::StrCat(worker.used_slots(), " of ", identity.slots(), " used"));
  std::string device = Word(hardware.device());
  if (!hardware.model().empty()) absl::StrAppend(&device, ", ", hardware.model());
  if (hardware.memory_bytes() > 0) {
    absl::StrAppend(&device, ", ", BytesText(hardware.memory_bytes()), " a slot");
  }
  if (hardware.fp4_tensor_cores()) absl::StrAppend(&device, ", FP4 tensor cores");
  list.Add("device", device);
  if (hardware.store_bytes() > 0) {
    list.Add("store", absl::StrCat(BytesText(hardware.store_bytes()), " for checkpoints"));
  }
  for (const v1::Label& label : identity.labels()) {
    list.Add("label", absl::StrCat(label.key(), "=", label.value()));
  }
  if (!worker.jobs().empty()) list.Add("jobs", absl::StrJoin(worker.jobs(), ", "));
  for (const std::string& flag : worker.flags()) list.Add("flag", flag);
  list.Add("daemon", absl::StrCat(identity.version().empty() ? "?" : identity.version(),
                                  ", incarnation ", identity.incarnation()));
  return list.Text();
}

absl::StatusOr<int> List(Session& session, const Flags&) {
  const absl::StatusOr<v1::ListWorkersResponse> all = session.CallAllPages(&Stub::ListWorkers);
  if (!all.ok()) return all.status();
  return session.Finish(*all, WorkerTable(*all));
}

absl::StatusOr<int> Describe(Session& session, const Flags& flags) {
  v1::DescribeWorkerRequest request;
  request.set_worker(flags.worker);
  const absl::StatusOr<v1::DescribeWorkerResponse> response =
      session.Call(&Stub::DescribeWorker, request);
  if (!response.ok()) return response.status();
  return session.Finish(response->worker(), WorkerText(response->worker()));
}

absl::StatusOr<int> Told(Session& session, const v1::Worker& worker) {
  std::string line = absl::StrCat(worker.identity().name(), " is ", Word(worker.mode()));
  if (worker.mode() != v1::WORKER_MODE_OPEN && !worker.jobs().empty()) {
    absl::StrAppend(&line, "; on it still: ", absl::StrJoin(worker.jobs(), ", "));
  }
  return session.Finish(worker, line + "\n");
}

absl::StatusOr<int> Drain(Session& session, const Flags& flags) {
  v1::DrainWorkerRequest request;
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  request.set_cordon_only(flags.cordon);
  const absl::StatusOr<v1::DrainWorkerResponse> response =
      session.Call(&Stub::DrainWorker, request);
  if (!response.ok()) return response.status();
  return Told(session, response->worker());
}

absl::StatusOr<int> Uncordon(Session& session, const Flags& flags) {
  v1::UncordonWorkerRequest request;
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  request.set_clear_flags(flags.clear_flags);
  const absl::StatusOr<v1::UncordonWorkerResponse> response =
      session.Call(&Stub::UncordonWorker, request);
  if (!response.ok()) return response.status();
  return Told(session, response->worker());
}

void AddWorkerOption(RemoteVerb<Flags>& verb) {
  verb.app()
      ->add_option("WORKER", verb->worker, "name, as `nibble worker list` has it")
      ->required();
}

}  // namespace

void AddWorkerNoun(CLI::App& app, int& exit_code) {
  CLI::App* const worker = NounOf(app, "worker", "The daemons that own slots");
  RemoteVerb<Flags> list(worker, "list", "Workers, by name");
  list.Runs(exit_code, List);

  RemoteVerb<Flags> describe(worker, "describe", "Everything about a worker");
  AddWorkerOption(describe);
  describe.Runs(exit_code, Describe);

  RemoteVerb<Flags> drain(worker, "drain",
                          "Give it no new work; what runs there moves off through a checkpoint");
  AddWorkerOption(drain);
  drain.app()->add_flag("--cordon", drain->cordon,
                        "Only give it no new work; what runs there goes on");
  drain.app()->add_option("--reason", drain->reason, "why, for people");
  drain.Runs(exit_code, Drain);
  drain.app()->footer(
      "Example: nibble worker drain worker-1 --reason 'new fan'; `uncordon` takes it back");

  RemoteVerb<Flags> uncordon(worker, "uncordon", "Give it work again");
  AddWorkerOption(uncordon);
  uncordon.app()->add_flag("--clear-flags", uncordon->clear_flags,
                           "Also forget what it was flagged for");
  uncordon.app()->add_option("--reason", uncordon->reason, "why, for people");
  uncordon.Runs(exit_code, Uncordon);
}

}  // namespace nibble
