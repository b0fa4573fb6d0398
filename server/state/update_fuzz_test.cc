// Mutated updates: whatever bytes a journal or the network contains, validation returns a status
// and changes nothing.
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "server/state/entities.h"
#include "server/state/state.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

// A cluster with running jobs, and updates of every kind that made it or could follow.
class Corpus {
 public:
  Corpus() {
    cluster_.AddWorkers(4, 2);
    const std::string first = cluster_.Submit();
    const std::string second = cluster_.Submit(2, "other");
    EXPECT_EQ(cluster_.Start(first), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(first, 10), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(first, 20), absl::OkStatus());
    EXPECT_EQ(cluster_.Shard(first, 30, 0), absl::OkStatus());
    EXPECT_EQ(cluster_.Start(second), absl::OkStatus());
    for (const std::string& bytes : cluster_.journal()) {
      v1::Update update;
      EXPECT_TRUE(update.ParseFromString(bytes));
      Keep(update);
    }
    v1::CheckpointRef ref;
    ref.set_job(first);
    ref.set_step(10);
    ref.set_attempt(1);
    // One fact of every kind, with fields that refer to existing entities where possible.
    const google::protobuf::Descriptor* const fact = v1::Fact::descriptor();
    for (int i = 0; i < fact->field_count(); ++i) {
      v1::Update update;
      google::protobuf::Message* const message =
          update.add_facts()->GetReflection()->MutableMessage(update.mutable_facts(0),
                                                              fact->field(i));
      const auto* const reflection = message->GetReflection();
      for (int f = 0; f < message->GetDescriptor()->field_count(); ++f) {
        const auto* const field = message->GetDescriptor()->field(f);
        const bool text = field->cpp_type() == field->CPPTYPE_STRING;
        if (text && field->name() == "job") reflection->SetString(message, field, first);
        if (text && field->name() == "worker") reflection->SetString(message, field, "w1");
        if (text && field->name() == "reason") reflection->SetString(message, field, "why");
        if (field->name() == "attempt" && field->cpp_type() == field->CPPTYPE_INT64) {
          reflection->SetInt64(message, field, 1);
        }
        if (field->name() == "ref") reflection->MutableMessage(message, field)->CopyFrom(ref);
      }
      Keep(update);
    }
  }

  const State& state() const { return cluster_.state(); }
  const std::vector<std::string>& updates() const { return updates_; }

 private:
  void Keep(v1::Update& update) {
    update.set_sequence(cluster_.state().sequence() + 1);
    update.set_time_unix_ms(cluster_.now_ms);
    update.set_author("ann");
    updates_.push_back(update.SerializeAsString());
  }

  TestCluster cluster_;
  std::vector<std::string> updates_;
};

std::string Mutate(const std::vector<std::string>& corpus, std::mt19937_64& random) {
  const auto below = [&random](size_t bound) { return random() % bound; };
  std::string bytes = corpus[below(corpus.size())];
  const size_t edits = below(6);
  for (size_t i = 0; i < edits && !bytes.empty(); ++i) {
    switch (below(5)) {
      case 0:
        bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes[below(bytes.size())] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(below(bytes.size()));
        break;
      case 3: {
        // Insert a part of another update.
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size());
        bytes.insert(below(bytes.size() + 1), other.substr(from, below(64)));
        break;
      }
      default:
        bytes.append(corpus[below(corpus.size())]);
    }
    if (bytes.size() > 1 << 16) bytes.resize(1 << 16);
  }
  return bytes;
}

TEST(UpdateFuzz, ValidationOfMutatedUpdatesReturnsAndChangesNothing) {
  const google::protobuf::LogSilencer quiet;
  const Corpus corpus;
  const std::vector<EntityChange> before = Snapshot(corpus.state());
  std::mt19937_64 random(20'260'101);
  std::map<absl::StatusCode, int> answers;
  int parsed = 0;
  for (int i = 0; i < 120'000; ++i) {
    const std::string bytes = Mutate(corpus.updates(), random);
    v1::Update update;
    if (!update.ParseFromString(bytes)) continue;
    ++parsed;
    // Otherwise the first rule would refuse nearly all of them.
    if (random() % 4 != 0) {
      update.set_sequence(corpus.state().sequence() + 1);
      update.set_time_unix_ms(corpus.state().time_unix_ms());
    }
    ++answers[corpus.state().Validate(update).code()];
  }
  EXPECT_EQ(Snapshot(corpus.state()), before);
  EXPECT_GT(parsed, 20'000);
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted}) {
    EXPECT_GT(answers[code], 0) << absl::StatusCodeToString(code);
  }
}

TEST(UpdateFuzz, AcceptedMutationsLeaveAStateThatLoads) {
  const google::protobuf::LogSilencer quiet;
  const Corpus corpus;
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    v1::Update update;
    if (!update.ParseFromString(Mutate(corpus.updates(), random))) continue;
    update.set_sequence(corpus.state().sequence() + 1);
    if (!corpus.state().Validate(update).ok() || ++accepted % 20 != 0) continue;
    State next(corpus.state());
    ASSERT_EQ(next.Apply(update).status(), absl::OkStatus());
    StateLoader loader;
    for (const EntityChange& entity : Snapshot(next)) {
      ASSERT_EQ(loader.Add(entity.kind, entity.key, *entity.value), absl::OkStatus())
          << update.DebugString();
    }
    ASSERT_EQ(loader.Finish().status(), absl::OkStatus()) << update.DebugString();
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace nibble
