#include "tests/trainer/stored_runs_testing.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"

namespace nibble {

std::unique_ptr<CheckpointStore> StoredRuns::Store(const std::string& name) const {
  auto store = CheckpointStore::Open((root_ / name / "checkpoints").string(),
                                     {.identity = {.job = "run"}, .read_only = true});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

std::map<std::string, std::string> StoredRuns::Tensors(const std::string& name,
                                                       int64_t step) const {
  std::map<std::string, std::string> tensors;
  const auto store = Store(name);
  const auto reader = store->OpenCheckpoint(step);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return tensors;
  for (const auto& [tensor, entry] : (*reader)->tensors()) {
    std::string bytes(entry.elements * FileDTypeSize(entry.dtype), '\0');
    const absl::Status loaded = (*reader)->Load(
        tensor, 0, entry.elements, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
    EXPECT_TRUE(loaded.ok()) << loaded;
    tensors[tensor] = std::move(bytes);
  }
  return tensors;
}

std::vector<int64_t> StoredRuns::Stored(const std::string& name) const {
  std::vector<int64_t> steps;
  const auto list = Store(name)->List();
  EXPECT_TRUE(list.ok()) << list.status();
  for (const CheckpointSummary& summary : *list) steps.push_back(summary.step);
  return steps;
}

bool StoredRuns::SameTensors(const std::map<std::string, std::string>& a,
                             const std::map<std::string, std::string>& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (const auto& [name, bytes] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second != bytes) {
      ADD_FAILURE() << name << " differs";
      return false;
    }
  }
  return true;
}

}  // namespace nibble
