#include "worker/trainer/tensorboard/tensorboard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "worker/trainer/report/event_descriptions.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/tensorboard/tensorboard_event.pb.h"

namespace nibble {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr int32_t kStringTensor = 7;
constexpr size_t kWaitingBytes = size_t{1} << 20;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

std::string TextIn(const RunEvent& event, const std::string& field) {
  const auto found = event.fields.find(field);
  return found != event.fields.end() && found->is_string() ? found->get<std::string>() : "";
}

// "mean loss over the step's tokens (nats per token)"
std::string DescriptionOf(const EventFieldDescription& field) {
  return field.unit.empty() ? field.meaning : absl::StrCat(field.meaning, " (", field.unit, ")");
}

}  // namespace

uint32_t MaskedCrc32c(std::string_view bytes) {
  constexpr uint32_t kMask = 0xa282ead8u;
  const uint32_t crc = Crc32c(absl::string_view(bytes.data(), bytes.size()));
  return ((crc >> 15) | (crc << 17)) + kMask;
}

std::string TfRecord(std::string_view content) {
  std::string record;
  AppendLittle(record, static_cast<uint64_t>(content.size()));
  AppendLittle(record, MaskedCrc32c(record));
  record.append(content);
  AppendLittle(record, MaskedCrc32c(content));
  return record;
}

absl::StatusOr<std::unique_ptr<TensorboardFile>> TensorboardFile::Create(
    const std::string& directory, absl::Time began, Earlier earlier) {
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory));
  std::string path;
  int fd = -1;
  for (int64_t second = absl::ToUnixSeconds(began); fd < 0; ++second) {
    // TensorBoard reads files whose names contain "tfevents", in the order of their names.
    path = absl::StrCat(directory, "/events.out.tfevents.", second, ".nibble");
    // A new file, not new content of the old one, which a TensorBoard may be reading.
    if (earlier == Earlier::kReplace && unlink(path.c_str()) != 0 && errno != ENOENT) {
      return ErrnoError(errno, "TensorBoard file: replacing", path);
    }
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0 || (earlier == Earlier::kKeep && errno == EEXIST)) continue;
    return ErrnoError(errno, "TensorBoard file: making", path);
  }
  std::unique_ptr<TensorboardFile> file(new TensorboardFile(path, fd));
  tensorboard::Event version;
  version.set_wall_time(UnixSeconds(began));
  version.set_file_version(kFileVersion);
  NIBBLE_RETURN_IF_ERROR(file->AddRecord(version));
  return file;
}

TensorboardFile::~TensorboardFile() { close(fd_); }

absl::Status TensorboardFile::AddRecord(const tensorboard::Event& event) {
  waiting_ += TfRecord(event.SerializeAsString());
  return waiting_.size() < kWaitingBytes ? absl::OkStatus() : Flush();
}

absl::Status TensorboardFile::Flush() {
  NIBBLE_RETURN_IF_ERROR(WriteAll(fd_, AsBytes(waiting_), path_));
  waiting_.clear();
  return absl::OkStatus();
}

void TensorboardFile::AddScalar(const std::string& tag, double value,
                                const std::string& description, tensorboard::Summary& summary) {
  tensorboard::Value& added = *summary.add_values();
  added.set_tag(tag);
  added.set_scalar(static_cast<float>(value));
  if (tags_.insert(tag).second) {
    added.mutable_metadata()->mutable_plugin()->set_name("scalars");
    added.mutable_metadata()->set_description(description);
  }
  ++scalars_;
}

void TensorboardFile::AddFields(const RunEvent& event, const std::string& before,
                                const std::string& after, tensorboard::Summary& summary) {
  for (const EventFieldDescription& field : FieldsOfEvent(event.kind)) {
    if (field.name == "step" || !HasNumber(event, field.name)) continue;
    AddScalar(absl::StrCat(before, field.name, after), NumberOf(event, field.name),
              DescriptionOf(field), summary);
  }
}

absl::Status TensorboardFile::AddStart(const RunEvent& event) {
  tensorboard::Event session;
  session.set_wall_time(UnixSeconds(event.time));
  session.set_step(
      static_cast<int64_t>(HasNumber(event, "first_step") ? NumberOf(event, "first_step") : 0));
  session.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  NIBBLE_RETURN_IF_ERROR(AddRecord(session));
  tensorboard::Event spec = session;
  tensorboard::Value& text = *spec.mutable_summary()->add_values();
  text.set_tag("spec");
  text.mutable_metadata()->mutable_plugin()->set_name("text");
  text.mutable_metadata()->set_description("the job's spec");
  text.mutable_tensor()->set_type(kStringTensor);
  text.mutable_tensor()->mutable_shape();
  text.mutable_tensor()->add_texts(absl::StrCat("```yaml\n", TextIn(event, "spec"), "\n```"));
  return AddRecord(spec);
}

absl::Status TensorboardFile::Add(const RunEvent& event) {
  if (event.kind == StartEvent::kName) return AddStart(event);
  tensorboard::Event record;
  record.set_wall_time(UnixSeconds(event.time));
  record.set_step(event.step);
  tensorboard::Summary& summary = *record.mutable_summary();
  if (event.kind == "step") {
    AddFields(event, "train/", "", summary);
  } else if (event.kind == ValidationEvent::kName) {
    // It counts the steps before it. A run that resumes there repeats the step of that number, but
    // not the validation, which a session start would drop.
    record.set_step(event.step - 1);
    AddScalar(absl::StrCat("validation/", TextIn(event, "set")), NumberOf(event, "loss"),
              "mean loss over the evaluated tokens (nats per token)", summary);
  } else if (event.kind == "precision") {
    AddFields(event, "precision_",
              absl::StrCat("/", TextIn(event, "layer"), "/", TextIn(event, "operand")), summary);
  }
  return summary.values().empty() ? absl::OkStatus() : AddRecord(record);
}

}  // namespace nibble
