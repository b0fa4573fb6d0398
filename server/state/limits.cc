#include "server/state/limits.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/field_walk.h"

namespace nibble {
namespace {

constexpr FieldLimit kLimits[] = {
    // Names.
    {"id", kMaxNameBytes},
    {"name", kMaxNameBytes},
    {"store_id", kMaxNameBytes},
    {"epoch_id", kMaxNameBytes},
    {"life", kMaxNameBytes},
    {"mac", kMaxNameBytes},
    {"job", kMaxNameBytes},
    {"worker", kMaxNameBytes},
    {"holder", kMaxNameBytes},
    {"queue", kMaxNameBytes},
    {"project", kMaxNameBytes},
    {"cohort", kMaxNameBytes},
    {"cluster", kMaxNameBytes},
    {"model", kMaxNameBytes},
    {"preset", kMaxNameBytes},
    {"version", kMaxNameBytes},
    {"method", kMaxNameBytes},
    {"guard", kMaxNameBytes},
    {"severity", kMaxNameBytes},
    {"action", kMaxNameBytes},
    {"key", kMaxNameBytes},
    {"value", kMaxPathBytes},
    {"field", kMaxPathBytes},
    {"match", kMaxPathBytes},
    {"from", kMaxPathBytes},
    {"to", kMaxPathBytes},
    {"at", kMaxNameBytes},
    {"waiting_in", kMaxNameBytes},
    {"layer", kMaxPathBytes},
    {"operand", kMaxPathBytes},
    {"format", kMaxPathBytes},
    // Authors and tokens.
    {"author", kMaxAuthorBytes},
    {"owner", kMaxAuthorBytes},
    {"state_author", kMaxAuthorBytes},
    {"goal_author", kMaxAuthorBytes},
    {"mode_author", kMaxAuthorBytes},
    {"restore_author", kMaxAuthorBytes},
    {"pin", kMaxAuthorBytes},
    {"request_id", kMaxRequestIdBytes},
    {"token", kMaxPathBytes},
    {"next_token", kMaxPathBytes},
    {"resume_token", kMaxPathBytes},
    // Messages.
    {"reason", kMaxReasonBytes},
    {"state_reason", kMaxReasonBytes},
    {"replaced_reason", kMaxReasonBytes},
    {"goal_reason", kMaxReasonBytes},
    {"mode_reason", kMaxReasonBytes},
    {"detail", kMaxReasonBytes},
    {"damage", kMaxReasonBytes},
    {"flag", kMaxReasonBytes},
    {"trouble", kMaxReasonBytes},
    {"problem", kMaxReasonBytes},
    {"JobUploads.error", kMaxReasonBytes},
    {"RecipeRevision.refused", kMaxReasonBytes},
    {"summary", kMaxReasonBytes},
    {"JobEvent.text", kMaxReasonBytes},
    {"DiffRecipeResponse.text", kMaxSpecBytes},
    // Addresses and paths.
    {"address", kMaxPathBytes},
    {"http_address", kMaxPathBytes},
    {"destination", kMaxPathBytes},
    {"JobUploads.place", kMaxPathBytes},
    {"url", kMaxPathBytes},
    {"runbook_url", kMaxPathBytes},
    {"sources", kMaxHolders, kMaxPathBytes},
    // Whole documents.
    {"spec_yaml", kMaxSpecBytes},
    {"table", kMaxUpdateBytes},
    {"table_json", kMaxUpdateBytes},
    {"manifest", kMaxUpdateBytes},
    {"header", kMaxUpdateBytes},
    {"data", int64_t{1} << 20},
    {"response", kMaxResponseBytes},
    // Lists.
    {"facts", kMaxFacts},
    {"labels", kMaxLabels},
    {"required_labels", kMaxLabels},
    {"preferred_labels", kMaxLabels},
    {"slots", kMaxSlots},
    {"placements", kMaxRanks},
    {"members", kMaxRanks},
    {"resume_shards", kMaxRanks},
    {"DesiredTask.shards", kMaxRanks},
    {"DesiredTask.store", kMaxNameBytes},
    {"allowed_ranks", kMaxAllowedRanks},
    {"Recipe.set", kMaxSettings},
    {"RecipeChange.set", kMaxSettings},
    {"LayerRule.set", kMaxSettings},
    {"Recipe.layers", kMaxSettings},
    {"RecipeChange.layers", kMaxSettings},
    {"RecipeDifference.layers", kMaxUpdateBytes, kMaxPathBytes},
    {"revisions", kMaxRevisions},
    {"retired", kMaxRevisions},
    {"differences", kMaxUpdateBytes},
    {"presets", kMaxSettings},
    {"flags", kMaxFlags, kMaxReasonBytes},
    {"pins", kMaxPins, kMaxAuthorBytes},
    {"Checkpoint.tasks", kMaxTasks},
    {"JobUploads.copies", kMaxUploadCopies},
    {"ConnectRequest.tasks", kMaxFacts},
    {"ConnectResponse.tasks", kMaxFacts},
    {"ConnectResponse.jobs", kMaxFacts},
    {"lives", kMaxLives},
    {"holders", kMaxHolders, kMaxNameBytes},
    {"CheckpointDeletion.holders", kMaxDeletionHolders, kMaxNameBytes},
    {"deletions", 1000},
    {"blames", kMaxBlames},
    {"notify", kMaxTargets},
    {"alerts", kMaxAlerts},
    {"ForkJobRequest.settings", kMaxForkSettings, kMaxPathBytes},
    {"NotifyTarget.on", kMaxTargets * 4, kMaxNameBytes},
    {"recent_attempts", kMaxRecentAttempts},
    {"jobs", 1000, kMaxNameBytes},
    {"workers", 1000},
    {"queues", 1000},
    {"checkpoints", 1000},
    {"events", 1000},
    {"states", 16},
    {"series", 100'000},
    {"lines", 10'000, kMaxUpdateBytes},
    {"samples", 10'000},
    {"gangs", kMaxSlots},
    {"ranks", kMaxSlots},
    {"GetJobMetricsResponse.ranks", kMaxRanks},
    {"worst", 16},
    {"DescribeCheckpointResponse.shards", kMaxRanks},
    {"CheckpointAdopted.shards", kMaxRanks},
    {"GangReport.refused", kMaxRevisions},
    {"GangReport.decided", kMaxDecided},
    {"GuardDecision.layers", kMaxDecided, kMaxPathBytes},
    {"RevisionsArchived.numbers", kMaxRevisions},
    {"ConnectRequest.damaged", kMaxFacts},
    {"ConnectRequest.orphans", kMaxOrphans},
    {"ConnectResponse.orphans", kMaxOrphans},
    {"ListOrphansResponse.orphans", 1000},
    {"holdings", kMaxWorkers},
    {"Topology.nodes", kMaxNodes},
    {"Topology.links", kMaxSlotLinks},
    {"pci", kMaxNameBytes},
    {"cores", kMaxCoresBytes},
    {"Orphan.shards", 1'000'000},
    {"ConnectRequest.shards", 1'000'000},
    {"ConnectRequest.trash", 1'000'000},
    {"TrashHolding.shards", 1'000'000},
    {"dropped", 1'000'000},
    {"restores", 1'000'000},
    {"replicas", 1'000'000},
};

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

constexpr size_t kMostShown = 60;

const absl::flat_hash_map<absl::string_view, FieldLimit>& LimitsByName() {
  static const auto* const limits = [] {
    auto* made = new absl::flat_hash_map<absl::string_view, FieldLimit>;
    for (const FieldLimit& limit : kLimits) made->emplace(limit.field, limit);
    return made;
  }();
  return *limits;
}

bool IsDocument(const FieldDescriptor& field) {
  return field.name() == "spec_yaml" || field.name() == "table" || field.name() == "table_json" ||
         field.name() == "lines" || field.name() == "text" || field.name() == "detail" ||
         field.name() == "damage";
}

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMostShown)),
                      text.size() > kMostShown ? "…'" : "'");
}

// Bytes of the first character of `text`; 0 if it is not well-formed UTF-8, which excludes overlong
// forms, surrogates and code points beyond U+10FFFF.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool bad = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
                   (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
  return bad ? 0 : size;
}

// Bytes of the longest prefix of whole characters within `most`.
size_t Utf8Bytes(absl::string_view text, size_t most) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const size_t next = CharacterBytes(text.substr(bytes));
    if (next == 0 || bytes + next > most) break;
    bytes += next;
  }
  return bytes;
}

class BoundsVisitor : public FieldVisitor {
 public:
  absl::Status OnMessage(const std::string& path, const Message& message) override {
    const int unknown = UnknownFieldOf(message);
    if (unknown == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path, path.empty() ? "" : ": ", "has field ",
                                                      unknown,
                                                      ", which this program does not know"));
  }

  absl::Status OnList(const VisitedField& list, int size) override {
    NIBBLE_ASSIGN_OR_RETURN(const FieldLimit limit, RequireLimit(list));
    if (size <= limit.most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(list.path, ": has ", size, " entries; at most ", limit.most, " are allowed"));
  }

  absl::Status OnValue(const VisitedField& value) override {
    if (value.field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const FieldLimit limit, RequireLimit(value));
    const Reflection& reflection = *value.message.GetReflection();
    std::string scratch;
    if (value.index < 0) {
      return CheckText(value, reflection.GetStringReference(value.message, &value.field, &scratch),
                       limit.most);
    }
    return CheckText(
        value,
        reflection.GetRepeatedStringReference(value.message, &value.field, value.index, &scratch),
        limit.most_each);
  }

 private:
  static absl::StatusOr<FieldLimit> RequireLimit(const VisitedField& visited) {
    const std::optional<FieldLimit> limit = LimitOf(visited.field);
    if (limit) return *limit;
    return absl::InvalidArgumentError(
        absl::StrCat(visited.path, ": has no limit in server/state/limits.cc"));
  }

  static absl::Status CheckText(const VisitedField& value, absl::string_view text, int64_t most) {
    if (static_cast<int64_t>(text.size()) > most) {
      return absl::InvalidArgumentError(absl::StrCat(value.path, ": ", Shown(text), " has ",
                                                     text.size(), " bytes; at most ", most,
                                                     " are allowed"));
    }
    if (value.field.type() == FieldDescriptor::TYPE_BYTES) return absl::OkStatus();
    if (Utf8Bytes(text, text.size()) != text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(value.path, ": ", Shown(text), " is not UTF-8"));
    }
    const bool document = IsDocument(value.field);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte != 0x7f) continue;
      if (document && (c == '\n' || c == '\t' || c == '\r')) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(value.path, ": ", Shown(text), " has a control character"));
    }
    return absl::OkStatus();
  }
};

// Bytes of the character at the beginning of the text if HasUnseen finds it; else 0.
size_t UnseenBytes(absl::string_view utf8) {
  const auto byte = [&utf8](size_t i) {
    return i < utf8.size() ? static_cast<unsigned char>(utf8[i]) : 0;
  };
  const auto within = [](int value, int least, int most) {
    return value >= least && value <= most;
  };
  switch (byte(0)) {
    case 0xc2:  // U+0080 to U+009F
      return within(byte(1), 0x80, 0x9f) ? 2 : 0;
    case 0xd8:  // U+061C
      return byte(1) == 0x9c ? 2 : 0;
    case 0xe2:  // U+200E, U+200F, U+2028 to U+202E; U+2066 to U+2069
      if (byte(1) == 0x80)
        return within(byte(2), 0x8e, 0x8f) || within(byte(2), 0xa8, 0xae) ? 3 : 0;
      return byte(1) == 0x81 && within(byte(2), 0xa6, 0xa9) ? 3 : 0;
    default:
      return 0;
  }
}

bool IsWordCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

}  // namespace

std::optional<FieldLimit> LimitOf(const FieldDescriptor& field) {
  const auto& limits = LimitsByName();
  const auto own = limits.find(absl::StrCat(field.containing_type()->name(), ".", field.name()));
  if (own != limits.end()) return own->second;
  const auto general = limits.find(field.name());
  if (general != limits.end()) return general->second;
  return std::nullopt;
}

absl::Status CheckBounds(const Message& message) {
  BoundsVisitor visitor;
  return VisitFields(message, visitor);
}

absl::Status CheckName(absl::string_view field, absl::string_view name) {
  bool good = !name.empty() && static_cast<int64_t>(name.size()) <= kMaxNameBytes &&
              absl::ascii_isalnum(static_cast<unsigned char>(name[0]));
  for (const char c : name) good = good && (IsWordCharacter(c) || c == '.');
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", Shown(name), " is not a name; allowed: 1 to ", kMaxNameBytes,
                   " letters, digits, '.', '_' and '-', a letter or digit first"));
}

absl::Status CheckRequestId(absl::string_view request_id) {
  const auto size = static_cast<int64_t>(request_id.size());
  bool good = size >= kMinRequestIdBytes && size <= kMaxRequestIdBytes;
  for (const char c : request_id) good = good && IsWordCharacter(c);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("request_id: ", Shown(request_id), "; allowed: ", kMinRequestIdBytes, " to ",
                   kMaxRequestIdBytes, " letters, digits, '_' and '-'"));
}

std::string Clip(absl::string_view text, int64_t most) {
  return std::string(text.substr(0, Utf8Bytes(text, static_cast<size_t>(most))));
}

bool HasUnseen(absl::string_view utf8) {
  for (size_t i = 0; i < utf8.size(); ++i) {
    if (UnseenBytes(utf8.substr(i)) > 0) return true;
  }
  return false;
}

std::string WithoutUnseen(absl::string_view utf8) {
  std::string text;
  while (!utf8.empty()) {
    const size_t unseen = UnseenBytes(utf8);
    text.push_back(unseen > 0 ? ' ' : utf8[0]);
    utf8.remove_prefix(std::max<size_t>(unseen, 1));
  }
  return text;
}

std::string OneLine(absl::string_view text) {
  std::string line = WithoutUnseen(Clip(text, kMaxReasonBytes));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return line;
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, "; allowed: ", least, " to ", most));
}

}  // namespace nibble
