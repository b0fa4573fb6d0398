#include "client/report/testing.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nibble::report_testing {
namespace {

constexpr int64_t kTokensPerStep = 4096;
constexpr int64_t kBegan = 1'769'860'800'000;  // 2026-01-31 12:00:00 UTC

// A number from 0 to 1 that looks random.
double Noise(int64_t seed) {
  uint64_t x = static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) / 9007199254740992.0;
}

void AddSteps(int64_t steps, double factor, RunRecord& record) {
  for (int64_t step = 0; step < steps; ++step) {
    const double part = static_cast<double>(step) / static_cast<double>(steps);
    const double second = 0.21 + 0.02 * Noise(3 * step) + (Noise(7 * step) > 0.995 ? 0.15 : 0);
    record.steps[step] = {
        .tokens = static_cast<double>((step + 1) * kTokensPerStep),
        .loss = factor * LossAt(step, steps),
        .gradient_norm = 0.3 + 2 * std::exp(-40 * part) + 0.2 * Noise(5 * step),
        .learning_rate = part < 0.02 ? 0.05 * part : 0.001 * (part < 0.8 ? 1 : 5 * (1 - part)),
        .tokens_per_second = static_cast<double>(kTokensPerStep) / second,
        .seconds = second,
        .parts = {0.002, 0.012, 0.06, 0.11, 0.015, 0.008},
        .has_parts = true};
  }
}

void AddPrecision(const MadeRun& run, RunRecord& record) {
  const std::vector<std::string> kinds = {"attention.qkv", "attention.out", "mlp.up", "mlp.down"};
  record.operands = {"fprop.activation", "fprop.weight",   "dgrad.gradient",
                     "dgrad.weight",     "wgrad.gradient", "wgrad.activation"};
  record.formats = {"nvfp4", ""};
  for (int block = 0; block < run.blocks; ++block) {
    for (const std::string& kind : kinds) {
      record.layers.push_back(absl::StrCat("blocks.", block, ".", kind));
    }
  }
  const int last_kept = run.blocks - std::max(1, run.blocks / 8);
  for (int64_t step = 0; step < run.steps; step += run.precision_every) {
    std::vector<OperandSample>& cells = record.precision[step];
    const double part = static_cast<double>(step) / static_cast<double>(run.steps);
    for (size_t layer = 0; layer < record.layers.size(); ++layer) {
      const int block = static_cast<int>(layer / kinds.size());
      for (size_t operand = 0; operand < record.operands.size(); ++operand) {
        const bool plain = block >= last_kept || (part >= 0.8 && operand < 2);
        const double depth = static_cast<double>(block) / run.blocks;
        const double noise = Noise(static_cast<int64_t>(1000 * layer + operand) + step * 77);
        const bool outlier = layer % kinds.size() == 3 && depth > 0.6;
        const double error = (operand >= 2 && operand % 2 == 0 ? 0.14 : 0.09) *
                             (1 + 0.25 * depth + 0.1 * noise + (outlier ? 0.8 * part : 0));
        cells.push_back({.layer = static_cast<int32_t>(layer),
                         .operand = static_cast<int32_t>(operand),
                         .format = plain ? 1 : 0,
                         .relative_error = static_cast<float>(error),
                         .underflow = static_cast<float>(0.02 * noise * (1 + 3 * depth)),
                         .clipped = static_cast<float>(operand % 2 == 1 ? 0 : 0.001 * noise)});
      }
    }
  }
}

v1::Job JobOf(const std::string& id, int64_t steps) {
  v1::Job job;
  job.set_id(id);
  job.set_owner("ada");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  job.mutable_shape()->set_model("llama-1b");
  job.mutable_shape()->set_parameters(1'235'814'400);
  job.mutable_shape()->set_ranks(2);
  job.mutable_shape()->set_steps(steps);
  job.mutable_shape()->set_tokens_per_step(kTokensPerStep);
  job.set_next_step(steps);
  job.set_submitted_unix_ms(kBegan);
  job.set_finished_unix_ms(kBegan + steps * 220);
  return job;
}

void AddAttempts(int64_t steps, v1::Job& job) {
  job.set_attempts(2);
  job.set_revision_in_force(2);
  job.set_latest_revision(2);
  for (int number = 1; number <= 2; ++number) {
    v1::Attempt& attempt = *job.add_recent_attempts();
    attempt.set_number(number);
    attempt.set_world(2);
    attempt.set_launched_unix_ms(kBegan + (number == 1 ? 0 : steps * 100));
    attempt.set_ended_unix_ms(kBegan + steps * (number == 1 ? 99 : 220));
    attempt.set_outcome(number == 1 ? v1::ATTEMPT_OUTCOME_LOST : v1::ATTEMPT_OUTCOME_SUCCEEDED);
    attempt.set_reason(number == 1 ? "worker w2 was lost" : "every step is done");
    if (number == 2) {
      attempt.mutable_resume()->set_job(job.id());
      attempt.mutable_resume()->set_step(steps / 2);
    }
    v1::Placement& placement = *attempt.add_placements();
    placement.set_worker("w1");
    placement.add_slots(0);
    placement.add_slots(1);
  }
}

}  // namespace

double LossAt(int64_t step, int64_t steps) {
  const double part = static_cast<double>(step) / static_cast<double>(steps);
  return 2.6 + 5 * std::exp(-30 * part) + 1.2 * std::exp(-4 * part) + 0.12 * (Noise(step) - 0.5);
}

ReportInput MakeRun(const MadeRun& run) {
  ReportInput input;
  input.now_unix_ms = kBegan + run.steps * 240;
  input.job.job = JobOf("nvfp4-7", run.steps);
  AddAttempts(run.steps, input.job.job);
  AddSteps(run.steps, 1, input.job.record);
  AddPrecision(run, input.job.record);
  input.job.record.validation["held-out"] = {{run.steps / 2, 3.0}, {run.steps, 2.71}};
  input.job.record.notes.push_back(
      {run.steps / 3, "2026-01-31T12:00:40.000Z", "guard", "spike guard: skipped, z = 7.1"});
  input.job.record.lines = run.steps;
  input.job.record.abandoned = {{{run.steps / 2, 9.0}, {run.steps / 2 + 1, 9.5}}};
  input.job.record.start = {{"recipe", "nvfp4"},
                            {"version", "0.1.0, commit 2df3eca"},
                            {"device", "cpu"},
                            {"threads", "1"},
                            {"collectives", "gloo"},
                            {"host", "node-1"},
                            {"processor", "Xeon, 2 threads"}};
  v1::WorkerIdentity& worker = *input.workers.emplace_back().mutable_identity();
  worker.set_name("w1");
  worker.set_slots(2);
  worker.set_address("10.0.0.1:7800");
  worker.set_version("0.1.0");
  worker.mutable_hardware()->set_device(v1::DEVICE_CPU);
  if (run.compared) {
    input.compared.push_back({JobOf("bf16-6", run.steps), {}, {}});
    AddSteps(run.steps, 0.99, input.compared[0].record);
    ReportedRevision& only = input.compared[0].revisions.emplace_back();
    only.recipe = "bf16";
    only.revision.set_number(1);
    only.revision.set_confirmed(true);
  }
  for (int number = 1; number <= 2; ++number) {
    ReportedRevision& one = input.job.revisions.emplace_back();
    one.recipe = number == 1 ? "nvfp4" : "nvfp4, fprop=bf16";
    one.revision.set_number(number);
    one.revision.set_first_step(number == 1 ? 0 : run.steps * 8 / 10);
    one.revision.mutable_recipe()->set_preset("nvfp4");
    one.revision.set_author("ada");
    one.revision.set_time_unix_ms(kBegan);
    one.revision.set_reason(number == 1 ? "" : "to recover the loss");
    one.revision.set_confirmed(true);
  }
  for (int i = 1; i <= 6; ++i) {
    v1::Checkpoint& checkpoint = input.checkpoints.emplace_back();
    checkpoint.mutable_ref()->set_job(input.job.job.id());
    checkpoint.mutable_ref()->set_step(run.steps * i / 6);
    checkpoint.mutable_ref()->set_attempt(i <= 3 ? 1 : 2);
    checkpoint.set_state(v1::CHECKPOINT_STATE_COMMITTED);
    checkpoint.set_bytes(14'800'000'000);
    checkpoint.set_world(2);
    checkpoint.set_durable_shards(2);
    checkpoint.set_first_shard_unix_ms(kBegan + run.steps * 30 * i);
    checkpoint.set_committed_unix_ms(kBegan + run.steps * 30 * i + 6000);
  }
  for (int i = 0; i < 20; ++i) {
    ReportedEvent& one = input.events.emplace_back();
    one.event.set_time_unix_ms(kBegan + 1000 * i);
    one.event.set_attempt(1);
    one.event.set_step(i);
    one.text = absl::StrCat("event ", i);
  }
  input.recipe_table = "layer  layers  fprop.activation\nmlp.up all  4  nvfp4 1x16\n";
  input.recipe_revision = 2;
  input.spec_yaml = "name: nvfp4\n";
  return input;
}

}  // namespace nibble::report_testing
