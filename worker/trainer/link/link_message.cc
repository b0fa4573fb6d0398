#include "worker/trainer/link/link_message.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

constexpr size_t kHeadBytes = 8;

void PutWord(uint32_t word, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(word >> shift));
}

uint32_t GetWord(const std::string& bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) {
    word |= uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return word;
}

// JSON has no NaN and no infinity, so a double is sent as its bits.
int64_t Bits(double value) { return std::bit_cast<int64_t>(value); }

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Reads the fields of one message; status() is about the first that is missing or has a wrong type.
class Fields {
 public:
  Fields(absl::string_view text, const char* kind)
      : Fields(Json::parse(text.begin(), text.end(), nullptr, false), kind) {}
  Fields(Json json, const char* kind) : kind_(kind), json_(std::move(json)) {
    if (!json_.is_object()) status_ = absl::InvalidArgumentError(absl::StrCat(kind, ": no object"));
  }
  template <class Int>
  void Number(const char* name, Int& out) {
    const Json* const value = Find(name);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return Fail(name, "no integer");
    out = value->get<Int>();
  }
  void Real(const char* name, double& out) {
    int64_t bits = 0;
    Number(name, bits);
    out = std::bit_cast<double>(bits);
  }
  void Flag(const char* name, bool& out) {
    const Json* const value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(name, "neither true nor false");
    out = value->get<bool>();
  }
  void Text(const char* name, std::string& out) {
    const Json* const value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(name, "no text");
    out = value->get<std::string>();
  }
  // Text that becomes a metric label.
  void Name(const char* name, std::string& out) {
    Text(name, out);
    if (status_.ok() && out.size() > kMaxLayerNameBytes) {
      Fail(name, absl::StrCat(out.size(), " bytes are more than ", kMaxLayerNameBytes));
    }
  }
  // An enumeration with values [0, last].
  template <class Enum>
  void Choice(const char* name, Enum last, Enum& out) {
    int64_t value = 0;
    Number(name, value);
    if (!status_.ok()) return;
    if (value < 0 || value > static_cast<int64_t>(last)) {
      return Fail(name, absl::StrCat(value, " is not in [0, ", static_cast<int64_t>(last), "]"));
    }
    out = static_cast<Enum>(value);
  }
  // Objects, each read by `read`.
  template <class Read>
  void Object(const char* name, const char* kind, Read read) {
    const Json* const value = Find(name);
    if (value != nullptr) Within(*value, kind, read);
  }
  template <class Read>
  void List(const char* name, const char* kind, size_t most, Read read) {
    const Json* const value = Find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail(name, "no list");
    if (value->size() > most)
      return Fail(name, absl::StrCat(value->size(), " are more than ", most));
    for (const Json& item : *value) Within(item, kind, read);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <class Read>
  void Within(const Json& value, const char* kind, Read& read) {
    Fields fields(value, kind);
    read(fields);
    status_.Update(fields.status());
  }
  const Json* Find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto at = json_.find(name);
    if (at != json_.end()) return &*at;
    Fail(name, "missing");
    return nullptr;
  }
  void Fail(const char* name, absl::string_view what) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(kind_, ".", name, ": ", what)));
  }

  const char* const kind_;
  const Json json_;
  absl::Status status_;
};

Json ToJson(const StepTotals& made) {
  return {{"steps", made.steps},
          {"skipped", made.skipped},
          {"tokens", made.tokens},
          {"seconds", Bits(made.seconds)},
          {"data", Bits(made.data_seconds)},
          {"weights", Bits(made.weights_seconds)},
          {"forward", Bits(made.forward_seconds)},
          {"backward", Bits(made.backward_seconds)},
          {"reduce", Bits(made.reduce_seconds)},
          {"update", Bits(made.update_seconds)}};
}

void Read(Fields& fields, StepTotals& made) {
  fields.Number("steps", made.steps);
  fields.Number("skipped", made.skipped);
  fields.Number("tokens", made.tokens);
  fields.Real("seconds", made.seconds);
  fields.Real("data", made.data_seconds);
  fields.Real("weights", made.weights_seconds);
  fields.Real("forward", made.forward_seconds);
  fields.Real("backward", made.backward_seconds);
  fields.Real("reduce", made.reduce_seconds);
  fields.Real("update", made.update_seconds);
}

Json ToJson(const CheckpointTotals& checkpoints) {
  return {{"stored", checkpoints.stored},
          {"failed", checkpoints.failed},
          {"bytes", checkpoints.bytes},
          {"stall", Bits(checkpoints.stall_seconds)},
          {"write", Bits(checkpoints.write_seconds)}};
}

void Read(Fields& fields, CheckpointTotals& checkpoints) {
  fields.Number("stored", checkpoints.stored);
  fields.Number("failed", checkpoints.failed);
  fields.Number("bytes", checkpoints.bytes);
  fields.Real("stall", checkpoints.stall_seconds);
  fields.Real("write", checkpoints.write_seconds);
}

Json ToJson(const RevisionBegun& begun) {
  return {{"revision", begun.revision}, {"first_step", begun.first_step}};
}

void Read(Fields& fields, RevisionBegun& begun) {
  fields.Number("revision", begun.revision);
  fields.Number("first_step", begun.first_step);
}

Json ToJson(const RevisionRefused& refused) {
  return {{"revision", refused.revision}, {"reason", refused.reason}};
}

void Read(Fields& fields, RevisionRefused& refused) {
  fields.Number("revision", refused.revision);
  fields.Text("reason", refused.reason);
}

Json ToJson(const PrecisionSample& sample) {
  return {{"step", sample.step},
          {"layer", sample.layer},
          {"operand", sample.operand},
          {"format", sample.format},
          {"relative_error", Bits(sample.relative_error)},
          {"underflow", Bits(sample.underflow)},
          {"clipped", Bits(sample.clipped)},
          {"amax", Bits(sample.amax)},
          {"scale_spread", Bits(sample.scale_spread_octaves)},
          {"non_finite", sample.non_finite}};
}

void Read(Fields& fields, PrecisionSample& sample) {
  fields.Number("step", sample.step);
  fields.Name("layer", sample.layer);
  fields.Name("operand", sample.operand);
  fields.Name("format", sample.format);
  fields.Real("relative_error", sample.relative_error);
  fields.Real("underflow", sample.underflow);
  fields.Real("clipped", sample.clipped);
  fields.Real("amax", sample.amax);
  fields.Real("scale_spread", sample.scale_spread_octaves);
  fields.Number("non_finite", sample.non_finite);
}

constexpr char kPayload[] = "nibble/trainer-exit";

constexpr std::array kAll = {
    TrainerExit::kDone,      TrainerExit::kError,      TrainerExit::kUsage,
    TrainerExit::kSpec,      TrainerExit::kCheckpoint, TrainerExit::kDisk,
    TrainerExit::kPeer,      TrainerExit::kGuardPause, TrainerExit::kGuardRollback,
    TrainerExit::kGuardFail, TrainerExit::kStopped,
};

}  // namespace

std::string EncodeHello(const LinkHello& hello) {
  return Dump({{"rank", hello.rank}, {"attempt", hello.attempt}, {"pid", hello.pid}});
}

absl::StatusOr<LinkHello> DecodeHello(absl::string_view json) {
  Fields fields(json, "hello");
  LinkHello hello;
  fields.Number("rank", hello.rank);
  fields.Number("attempt", hello.attempt);
  fields.Number("pid", hello.pid);
  if (!fields.status().ok()) return fields.status();
  return hello;
}

std::string EncodeNews(const RankNews& news) {
  Json precision = Json::array();
  for (const PrecisionSample& sample : news.precision) precision.push_back(ToJson(sample));
  Json begun = Json::array(), refused = Json::array();
  for (const RevisionBegun& revision : news.begun) begun.push_back(ToJson(revision));
  for (const RevisionRefused& revision : news.refused) refused.push_back(ToJson(revision));
  return Dump({{"doing", static_cast<int>(news.doing)},
               {"next_step", news.next_step},
               {"waiting_in", news.waiting_in},
               {"memory_bytes", news.memory_bytes},
               {"trouble", news.trouble},
               {"has_sample", news.has_sample},
               {"step", news.step},
               {"tokens", news.tokens},
               {"loss", Bits(news.loss)},
               {"gradient_norm", Bits(news.gradient_norm)},
               {"learning_rate", Bits(news.learning_rate)},
               {"tokens_per_second", Bits(news.tokens_per_second)},
               {"step_seconds", Bits(news.step_seconds)},
               {"revision", news.revision},
               {"updated", news.updated},
               {"revision_first_step", news.revision_first_step},
               {"begun", std::move(begun)},
               {"refused", std::move(refused)},
               {"checkpoint_request", news.checkpoint_request},
               {"made", ToJson(news.made)},
               {"checkpoints", ToJson(news.checkpoints)},
               {"precision", std::move(precision)}});
}

absl::StatusOr<RankNews> DecodeNews(absl::string_view json) {
  Fields fields(json, "news");
  RankNews news;
  fields.Choice("doing", RankNews::Doing::kStanding, news.doing);
  fields.Number("next_step", news.next_step);
  fields.Text("waiting_in", news.waiting_in);
  fields.Number("memory_bytes", news.memory_bytes);
  fields.Text("trouble", news.trouble);
  fields.Flag("has_sample", news.has_sample);
  fields.Number("step", news.step);
  fields.Number("tokens", news.tokens);
  fields.Real("loss", news.loss);
  fields.Real("gradient_norm", news.gradient_norm);
  fields.Real("learning_rate", news.learning_rate);
  fields.Real("tokens_per_second", news.tokens_per_second);
  fields.Real("step_seconds", news.step_seconds);
  fields.Number("revision", news.revision);
  fields.Flag("updated", news.updated);
  fields.Number("revision_first_step", news.revision_first_step);
  fields.List("begun", "news.begun", kMaxRevisionsBegun,
              [&](Fields& revision) { Read(revision, news.begun.emplace_back()); });
  fields.List("refused", "news.refused", kMaxRevisionsRefused,
              [&](Fields& revision) { Read(revision, news.refused.emplace_back()); });
  fields.Number("checkpoint_request", news.checkpoint_request);
  fields.Object("made", "news.made", [&](Fields& made) { Read(made, news.made); });
  fields.Object("checkpoints", "news.checkpoints",
                [&](Fields& checkpoints) { Read(checkpoints, news.checkpoints); });
  fields.List("precision", "news.precision", kMaxPrecisionSamples,
              [&](Fields& sample) { Read(sample, news.precision.emplace_back()); });
  if (!fields.status().ok()) return fields.status();
  return news;
}

std::string EncodeControl(const ControlWord& word) {
  return Dump({{"command", static_cast<int>(word.command)},
               {"checkpoint_request", word.checkpoint_request},
               {"timeline_revision", word.timeline_revision},
               {"timeline", word.timeline}});
}

absl::StatusOr<ControlWord> DecodeControl(absl::string_view json) {
  Fields fields(json, "control");
  ControlWord word;
  fields.Choice("command", ControlWord::Command::kStop, word.command);
  fields.Number("checkpoint_request", word.checkpoint_request);
  fields.Number("timeline_revision", word.timeline_revision);
  fields.Text("timeline", word.timeline);
  if (!fields.status().ok()) return fields.status();
  return word;
}

std::string FrameOf(absl::string_view json) {
  std::string frame;
  frame.reserve(kHeadBytes + json.size());
  PutWord(kDaemonLinkMagic, frame);
  PutWord(static_cast<uint32_t>(json.size()), frame);
  frame.append(json.data(), json.size());
  return frame;
}

absl::StatusOr<std::optional<std::string>> FrameReader::Next() {
  if (buffer_.size() < kHeadBytes) return std::nullopt;
  const uint32_t magic = GetWord(buffer_, 0);
  if (magic != kDaemonLinkMagic) {
    return absl::InvalidArgumentError(absl::StrCat("magic: ", magic, " is not ", kDaemonLinkMagic));
  }
  const uint32_t bytes = GetWord(buffer_, 4);
  if (bytes > kMaxLinkMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", bytes, " bytes are more than ", kMaxLinkMessageBytes));
  }
  if (buffer_.size() < kHeadBytes + bytes) return std::nullopt;
  std::string message = buffer_.substr(kHeadBytes, bytes);
  buffer_.erase(0, kHeadBytes + bytes);
  return message;
}

absl::Status WithExit(absl::Status status, TrainerExit exit) {
  if (status.ok() || status.GetPayload(kPayload).has_value()) return status;
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(exit))));
  return status;
}

TrainerExit ExitOf(const absl::Status& status) {
  if (status.ok()) return TrainerExit::kDone;
  const auto payload = status.GetPayload(kPayload);
  int code = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &code)) {
    return TrainerExit::kError;
  }
  return TrainerExitFrom(code).value_or(TrainerExit::kError);
}

std::optional<TrainerExit> TrainerExitFrom(int code) {
  for (const TrainerExit exit : kAll) {
    if (static_cast<int>(exit) == code) return exit;
  }
  return std::nullopt;
}

}  // namespace nibble
