// Writes a small coordinator's store with entities of most kinds: the fixture that later versions
// must be able to read (testdata/stores/README.md).
//
//   write_store_fixture DIRECTORY     which must not exist
#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

int Write(const std::string& directory) {
  if (std::filesystem::exists(directory)) {
    std::fprintf(stderr, "%s exists\n", directory.c_str());
    return 1;
  }
  {
    ControllerOptions options;
    options.cluster = "fixture";
    options.fresh_id = [] { return std::string(32, '7'); };
    options.switch_wait_ms = 0;  // no rank switches while this waits
    TestCoordinator coordinator(options, directory);
    TestWorker worker(coordinator, "w1", 2);
    const std::string first = worker.RunJob(2, 40);
    worker.Store(40);
    coordinator.Tick();
    v1::SetQueueRequest queue;
    queue.mutable_queue()->set_name("nights");
    queue.mutable_queue()->set_quota_slots(2);
    (void)coordinator.Do<v1::SetQueueResponse>(queue);
    v1::SetRecipeRequest recipe;
    recipe.set_job(first);
    recipe.set_expected_revision(-1);
    v1::FieldSetting& setting = *recipe.mutable_change()->add_set();
    setting.set_field("fprop");
    setting.set_value("bf16");
    recipe.set_at("step:500");
    (void)coordinator.Do<v1::SetRecipeResponse>(recipe);
    // Until here in tables, the rest in the log.
    const std::string copy = directory + ".copy";
    (void)coordinator.store().Backup(copy).ok();
    std::filesystem::remove_all(copy);
    (void)coordinator.Submit(1, "waiting");
    v1::CancelJobRequest cancel;
    cancel.set_job(coordinator.Submit(1, "cancelled"));
    (void)coordinator.Do<v1::CancelJobResponse>(cancel);
    std::printf("%llu updates\n",
                static_cast<unsigned long long>(coordinator.store().Info().last_sequence));
  }
  // Locks, and what only people read.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name == "LOCK" || absl::StartsWith(name, "OPTIONS-")) {
      std::filesystem::remove(entry.path());
    }
  }
  return 0;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc == 2) return nibble::Write(argv[1]);
  std::fprintf(stderr, "usage: write_store_fixture DIRECTORY\n");
  return 2;
}
