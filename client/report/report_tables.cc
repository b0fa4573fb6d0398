#include "client/report/report_tables.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/text/text.h"
#include "common/version/build_version.h"

namespace nibble {
namespace {

using TableJson = nlohmann::ordered_json;
using Heads = std::vector<std::pair<const char*, const char*>>;  // text, kind

TableJson MakeTable(const char* title, const Heads& heads, bool open) {
  TableJson head = TableJson::array();
  for (const auto& [text, kind] : heads) head.push_back({{"text", text}, {"kind", kind}});
  return {{"title", title}, {"open", open}, {"head", head}, {"rows", TableJson::array()}};
}

void AddRow(std::vector<std::string> cells, TableJson& table) {
  table["rows"].push_back(std::move(cells));
}

std::string OrDash(int64_t number, int64_t none) {
  return number == none ? "–" : absl::StrCat(number);
}

std::string Took(int64_t from_unix_ms, int64_t to_unix_ms) {
  if (from_unix_ms == 0 || to_unix_ms == 0) return "–";
  return DurationText(static_cast<double>(to_unix_ms - from_unix_ms) / 1000);
}

TableJson RevisionTable(const ReportInput& input) {
  TableJson table = MakeTable("Recipe revisions",
                              {{"revision", "number"},
                               {"from step", "number"},
                               {"recipe", "wide"},
                               {"state", "tight"},
                               {"requested (UTC)", "tight"},
                               {"by", ""},
                               {"reason", ""}},
                              true);
  for (const auto& [revision, recipe] : input.job.revisions) {
    std::string state = revision.confirmed() ? "ran" : "planned";
    if (!revision.refused().empty()) state = "refused";
    AddRow({absl::StrCat(revision.number()), absl::StrCat(revision.first_step()), recipe, state,
            TimeText(revision.time_unix_ms()), revision.author(),
            revision.refused().empty()
                ? revision.reason()
                : absl::StrCat(revision.reason(), "; refused: ", revision.refused())},
           table);
  }
  return table;
}

TableJson AttemptTable(const ReportInput& input) {
  TableJson table = MakeTable("Attempts",
                              {{"attempt", "number"},
                               {"ranks", "number"},
                               {"from", "tight"},
                               {"launched (UTC)", "tight"},
                               {"took", "number"},
                               {"outcome", "tight"},
                               {"workers", ""},
                               {"reason", "wide"}},
                              true);
  const v1::Job& job = input.job.job;
  const auto add = [&](const v1::Attempt& attempt) {
    std::vector<std::string> workers;
    for (const v1::Placement& placement : attempt.placements()) {
      workers.push_back(placement.worker());
    }
    const bool live = attempt.outcome() == v1::ATTEMPT_OUTCOME_UNSPECIFIED;
    std::string from = "step 0";
    if (attempt.has_resume()) {
      const bool own = attempt.resume().job() == job.id();
      from = absl::StrCat(own ? "" : absl::StrCat(attempt.resume().job(), ", "), "step ",
                          attempt.resume().step());
    }
    AddRow({absl::StrCat(attempt.number()), absl::StrCat(attempt.world()), from,
            TimeText(attempt.launched_unix_ms()),
            Took(attempt.launched_unix_ms(), live ? input.now_unix_ms : attempt.ended_unix_ms()),
            live ? "running"
                 : PlainWord(v1::AttemptOutcome_Name(attempt.outcome()), "ATTEMPT_OUTCOME_"),
            absl::StrJoin(workers, ", "), attempt.reason()},
           table);
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) add(attempt);
  if (job.has_attempt()) add(job.attempt());
  return table;
}

TableJson CheckpointTable(const ReportInput& input) {
  TableJson table = MakeTable("Checkpoints",
                              {{"step", "number"},
                               {"attempt", "number"},
                               {"state", "tight"},
                               {"size", "number"},
                               {"shards", "number"},
                               {"committed (UTC)", "tight"},
                               {"took", "number"},
                               {"remarks", "wide"}},
                              false);
  for (const v1::Checkpoint& checkpoint : input.checkpoints) {
    std::vector<std::string> remarks;
    if (checkpoint.harmed()) {
      remarks.push_back("abandoned by a guard's rollback");
    } else if (checkpoint.left()) {
      remarks.push_back("of an abandoned branch of history");
    }
    if (!checkpoint.pins().empty()) {
      remarks.push_back(absl::StrCat("pinned by ", absl::StrJoin(checkpoint.pins(), ", ")));
    }
    if (!checkpoint.damage().empty()) remarks.push_back(checkpoint.damage());
    AddRow({absl::StrCat(checkpoint.ref().step()), absl::StrCat(checkpoint.ref().attempt()),
            PlainWord(v1::CheckpointState_Name(checkpoint.state()), "CHECKPOINT_STATE_"),
            BytesText(checkpoint.bytes()),
            absl::StrCat(checkpoint.durable_shards(), " of ", checkpoint.world()),
            TimeText(checkpoint.committed_unix_ms()),
            Took(checkpoint.first_shard_unix_ms(), checkpoint.committed_unix_ms()),
            absl::StrJoin(remarks, "; ")},
           table);
  }
  return table;
}

TableJson EventsTable(const ReportInput& input) {
  TableJson table = MakeTable(
      "Events",
      {{"time (UTC)", "tight"}, {"attempt", "number"}, {"step", "number"}, {"event", "wide"}},
      false);
  for (const auto& [event, text] : input.events) {
    AddRow({TimeText(event.time_unix_ms()), OrDash(event.attempt(), 0), OrDash(event.step(), -1),
            text},
           table);
  }
  return table;
}

TableJson NoteTable(const ReportInput& input) {
  TableJson table =
      MakeTable("Guards and notices",
                {{"step", "number"}, {"time (UTC)", "tight"}, {"event", "wide"}}, false);
  for (const RunNote& note : input.job.record.notes) {
    // "2026-01-31T12:00:00.250Z" as other times of the page.
    std::string time = note.time.substr(0, 19);
    if (time.size() == 19) time[10] = ' ';
    AddRow({absl::StrCat(note.step), time,
            note.kind == "guard" ? note.text : absl::StrCat(note.kind, ": ", note.text)},
           table);
  }
  return table;
}

TableJson PathTable(const ReportInput& input) {
  TableJson table = MakeTable(
      "How the GEMMs are computed",
      {{"GEMM", "tight"}, {"path", "tight"}, {"linear layers", "number"}, {"reason", "wide"}},
      false);
  for (const GemmPath& path : input.job.record.paths) {
    AddRow({path.gemm, path.path, absl::StrCat(path.linears), path.reason}, table);
  }
  return table;
}

std::string ShareText(double value) { return absl::StrFormat("%.3g %%", 100 * value); }

// "ranks 0-3 of 8": those of the latest attempt on this worker; empty: none.
std::string RanksOn(const v1::Job& job, const std::string& worker) {
  const v1::Attempt* latest = job.has_attempt() ? &job.attempt() : nullptr;
  if (latest == nullptr && job.recent_attempts_size() > 0) {
    latest = &job.recent_attempts(job.recent_attempts_size() - 1);
  }
  if (latest == nullptr) return "";
  for (const v1::Placement& placement : latest->placements()) {
    if (placement.worker() != worker) continue;
    const int64_t first = placement.first_rank();
    const int64_t last = first + placement.slots_size() - 1;
    return absl::StrCat(
        first == last ? absl::StrCat("rank ", first) : absl::StrCat("ranks ", first, " to ", last),
        " of ", latest->world());
  }
  return "";
}

// The words of the start event that the environment shows, in this order.
constexpr std::pair<const char*, const char*> kStartFields[] = {
    {"version", "trainer"},
    {"host", "host of rank 0"},
    {"processor", "processor of rank 0"},
    {"device", "device"},
    {"ranks", "ranks"},
    {"threads", "threads of a rank"},
    {"collectives", "collectives"},
    {"precision", "what is not quantised"},
    {"sequence", "sequence, tokens"},
    {"batch", "batch, sequences"},
    {"micro_batch", "sequences at once on a rank"},
    {"tokens_per_step", "tokens of a step"},
    {"seed", "seed"},
};

}  // namespace

std::string PlainWord(const std::string& name, const std::string& type) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, type));
}

TableJson ReportTables(const ReportInput& input) {
  TableJson tables = TableJson::array();
  tables.push_back(RevisionTable(input));
  tables.push_back(AttemptTable(input));
  tables.push_back(CheckpointTable(input));
  tables.push_back(EventsTable(input));
  if (!input.job.record.notes.empty()) tables.push_back(NoteTable(input));
  if (!input.job.record.paths.empty()) tables.push_back(PathTable(input));
  return tables;
}

TableJson WorstTable(const PrecisionMap& map) {
  TableJson table = MakeTable("Worst operands",
                              {{"layer", ""},
                               {"operand", ""},
                               {"format", "tight"},
                               {"relative error", "number"},
                               {"underflow", "number"},
                               {"clipped", "number"}},
                              false);
  for (const WorstOperand& worst : map.worst) {
    AddRow({worst.layer, worst.operand, worst.format, ShareText(worst.relative_error),
            ShareText(worst.underflow), ShareText(worst.clipped)},
           table);
  }
  return table;
}

TableJson ComparedTable(const std::vector<JobSummary>& jobs) {
  TableJson table = MakeTable("Compared jobs",
                              {{"job", ""},
                               {"model", "tight"},
                               {"first recipe", "tight"},
                               {"steps", "number"},
                               {"tokens", "number"},
                               {"loss", "number"},
                               {"validation", "number"},
                               {"difference", "number"},
                               {"tokens/s", "number"}},
                              true);
  const auto text = [](double value, const std::string& shown) {
    return std::isfinite(value) ? shown : std::string("–");
  };
  for (const JobSummary& job : jobs) {
    AddRow(
        {job.job, job.model, job.recipe.empty() ? "–" : job.recipe, absl::StrCat(job.steps),
         text(job.tokens, CountText(job.tokens)), text(job.loss, absl::StrFormat("%.4f", job.loss)),
         text(job.validation, absl::StrFormat("%.4f", job.validation)),
         text(job.difference.mean,
              absl::StrCat(job.difference.mean >= 0 ? "+" : "", job.difference.Text(2), " %")),
         text(job.tokens_per_second, CountText(job.tokens_per_second))},
        table);
  }
  table["lead"] =
      "Loss: mean of the last twentieth of the steps, at least of ten. Difference: of the loss, "
      "relative to the second job, ± its standard error within this pair of runs.";
  return table;
}

TableJson EnvironmentList(const ReportInput& input) {
  TableJson list = TableJson::array();
  const auto add = [&list](const std::string& name, const std::string& value) {
    if (!value.empty()) list.push_back({name, value});
  };
  const v1::Job& job = input.job.job;
  add("report", absl::StrCat("nibble ", BuildVersion()));
  for (const auto& [field, name] : kStartFields) {
    for (const auto& [given, value] : input.job.record.start) {
      if (given == field) add(name, value);
    }
  }
  add("model",
      absl::StrCat(job.shape().model(), ", ",
                   CountText(static_cast<double>(job.shape().parameters())), " parameters"));
  for (const v1::Worker& worker : input.workers) {
    const v1::WorkerIdentity& identity = worker.identity();
    const std::string ranks = RanksOn(job, identity.name());
    std::vector<std::string> parts;
    if (!ranks.empty()) parts.push_back(ranks);
    parts.push_back(identity.hardware().device() == v1::DEVICE_CPU
                        ? absl::StrCat(Counted(identity.slots(), "slot"), " on CPU")
                        : absl::StrCat(identity.slots(), " × ", identity.hardware().model()));
    if (identity.hardware().memory_bytes() > 0) {
      parts.push_back(absl::StrCat(BytesText(identity.hardware().memory_bytes()), " each"));
    }
    if (identity.hardware().fp4_tensor_cores()) parts.emplace_back("FP4 tensor cores");
    if (!identity.address().empty()) parts.push_back(absl::StrCat("at ", identity.address()));
    parts.push_back(
        absl::StrCat("nibble-worker ", absl::StripPrefix(identity.version(), "nibble ")));
    add(absl::StrCat("worker ", identity.name()), absl::StrJoin(parts, ", "));
  }
  std::vector<std::string> memory;
  for (const auto& [name, bytes] : input.job.record.memory) {
    if (bytes > 0) {
      memory.push_back(
          absl::StrCat(absl::StrReplaceAll(name, {{"_", " "}}), " ", BytesText(bytes)));
    }
  }
  add("planned memory of rank 0", absl::StrJoin(memory, ", "));
  add("queue", absl::StrCat(job.scheduling().queue(), ", priority ", job.scheduling().priority()));
  return list;
}

}  // namespace nibble
