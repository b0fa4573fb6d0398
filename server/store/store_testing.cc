#include "server/store/store_testing.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/store/store.h"

namespace nibble::store_testing {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();

std::string RandomBytes(std::mt19937_64& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace

TempDirectory::TempDirectory() {
  path_ = absl::StrCat(::testing::TempDir(), "/nibble_store_XXXXXX");
  if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

StoreBatch RandomBatch(uint64_t seed, size_t value_bytes) {
  std::mt19937_64 random(seed);
  StoreBatch batch;
  batch.record = RandomBytes(random, random() % (value_bytes + 1));
  for (uint64_t i = random() % 3; i > 0; --i) {
    batch.topics.push_back(absl::StrCat("job/", random() % 7));
  }
  for (uint64_t i = random() % 4; i > 0; --i) {
    const char* const kinds[] = {"job", "job-queue", "worker"};
    StoreChange change{kinds[random() % 3], absl::StrCat("name-", random() % 12), std::nullopt};
    if (random() % 4 != 0) change.value = RandomBytes(random, random() % (value_bytes + 1));
    batch.changes.push_back(std::move(change));
  }
  return batch;
}

void Content::Apply(uint64_t sequence, const StoreBatch& batch) {
  for (const StoreChange& change : batch.changes) {
    if (change.value.has_value()) {
      entities[{change.kind, change.key}] = *change.value;
    } else {
      entities.erase({change.kind, change.key});
    }
  }
  journal[sequence] = {batch.record, batch.topics};
}

absl::StatusOr<Content> ReadAll(const Store& store) {
  Content content;
  absl::Status s = store.ReadEntities("", [&](const StoredEntity& entity) {
    content.entities[{std::string(entity.kind), std::string(entity.key)}] =
        std::string(entity.value);
    const absl::StatusOr<std::string> alone = store.ReadEntity(entity.kind, entity.key);
    if (!alone.ok()) return alone.status();
    return *alone == entity.value ? absl::OkStatus()
                                  : absl::InternalError("two values of one entity");
  });
  if (!s.ok()) return s;
  std::map<std::string, std::set<uint64_t>> topics;
  s = store.ReadJournal(store.Info().first_sequence, kAll, [&](const StoredRecord& record) {
    content.journal[record.sequence] = {std::string(record.record),
                                        {record.topics.begin(), record.topics.end()}};
    for (const std::string& topic : record.topics) topics[topic].insert(record.sequence);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  for (const auto& [topic, sequences] : topics) {
    auto next = sequences.begin();
    s = store.ReadTopic(topic, 0, kAll, [&](const StoredRecord& record) {
      if (next == sequences.end() || record.sequence != *next++ ||
          content.journal[record.sequence].first != record.record) {
        return absl::InternalError(absl::StrCat("topic ", topic, " is not what the journal says"));
      }
      return absl::OkStatus();
    });
    if (!s.ok()) return s;
    if (next != sequences.end()) return absl::InternalError(absl::StrCat(topic, " ends early"));
  }
  return content;
}

Content From(Content content, uint64_t first) {
  content.journal.erase(content.journal.begin(), content.journal.lower_bound(first));
  return content;
}

}  // namespace nibble::store_testing
