// What a rank and its daemon say to each other over a Unix socket: what the rank has done, and what
// the job is to do. Each message is whole and replaces the one before it, so that only the newest
// of a kind counts.
//
//   rank → daemon   Hello once, then RankNews after each step, before the first step under another
//                   recipe, and whenever the rank pauses or waits
//   daemon → rank   ControlWord, to rank 0 alone; the ranks agree on it among themselves
//
// On the wire: 4 bytes kLinkMagic, 4 bytes length, both little-endian, then that many bytes of
// JSON. Both sides are built together; another version is refused by its magic.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LINK_LINK_MESSAGE_H_
#define NIBBLE_WORKER_TRAINER_LINK_LINK_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

inline constexpr uint32_t kDaemonLinkMagic = 0x314b4e4c;  // "LNK1"
// A timeline has 2 MiB at most; escaped, and with what goes along, not more than this.
inline constexpr int64_t kMaxLinkMessageBytes = int64_t{8} << 20;

// Who is there.
struct LinkHello {
  int32_t rank = 0;
  int64_t attempt = 0;
  int64_t pid = 0;

  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

// Of all steps since the rank began, so that news which is lost takes nothing with it. Seconds are
// those of StepSeconds (worker/trainer/loop/trainer.h).
struct StepTotals {
  int64_t steps = 0;
  int64_t skipped = 0;  // steps whose update a guard skipped
  int64_t tokens = 0;   // of all ranks
  double seconds = 0;
  double data_seconds = 0;
  double weights_seconds = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double reduce_seconds = 0;
  double update_seconds = 0;

  friend bool operator==(const StepTotals&, const StepTotals&) = default;
};

// Likewise of the rank's checkpoints, whose end it knows.
struct CheckpointTotals {
  int64_t stored = 0;
  int64_t failed = 0;
  int64_t bytes = 0;         // of the rank, in those that were stored
  double stall_seconds = 0;  // training waited
  double write_seconds = 0;  // from the last rank's copy until they were committed

  friend bool operator==(const CheckpointTotals&, const CheckpointTotals&) = default;
};

// What quantising one operand of one layer did to it, at one step; see PrecisionEvent
// (worker/trainer/report/events.h).
struct PrecisionSample {
  int64_t step = 0;
  std::string layer;
  std::string operand;
  std::string format;  // empty: not quantised
  double relative_error = 0;
  double underflow = 0;
  double clipped = 0;
  double amax = 0;
  double scale_spread_octaves = 0;
  int64_t non_finite = 0;

  friend bool operator==(const PrecisionSample&, const PrecisionSample&) = default;
};

// A revision of the recipe and the first step of the job under it, exact.
struct RevisionBegun {
  int64_t revision = 0;
  int64_t first_step = 0;

  friend bool operator==(const RevisionBegun&, const RevisionBegun&) = default;
};

// A revision that ranks could not prepare, and why.
struct RevisionRefused {
  int64_t revision = 0;
  std::string reason;

  friend bool operator==(const RevisionRefused&, const RevisionRefused&) = default;
};

// Of one message; a layer's name has kMaxLayerNameBytes at most.
inline constexpr size_t kMaxPrecisionSamples = 8192;
inline constexpr size_t kMaxLayerNameBytes = 128;
inline constexpr size_t kMaxRevisionsBegun = 16;
inline constexpr size_t kMaxRevisionsRefused = 8;

// What a rank has just done. Figures of training are those of the last finished step.
struct RankNews {
  enum class Doing : uint8_t { kStarting, kSteps, kStanding };

  Doing doing = Doing::kStarting;
  int64_t next_step = 0;     // that it will make
  std::string waiting_in;    // collective that it stands in; empty: none
  int64_t memory_bytes = 0;  // that it has taken
  std::string trouble;       // what it waits for or cannot do, such as room on a disk; empty: none
  bool has_sample = false;   // the rest is set
  int64_t step = 0;
  int64_t tokens = 0;  // trained on so far
  double loss = 0;     // nats per token
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  int64_t revision = 0;             // of the recipe in force
  bool updated = true;              // false: a guard skipped the update
  int64_t revision_first_step = 0;  // of the job under that revision, exact
  // The newest revisions that the rank runs or has run under, by number, each from before its first
  // step is made on: a report that is lost loses none of them.
  std::vector<RevisionBegun> begun;
  std::vector<RevisionRefused> refused;  // the newest, by number; they hold at no step
  int64_t checkpoint_request = 0;        // greatest that was carried out
  StepTotals made;
  CheckpointTotals checkpoints;
  std::vector<PrecisionSample> precision;  // of `step`, where it was sampled

  friend bool operator==(const RankNews&, const RankNews&) = default;
};

// What the job is to do from the next step boundary on.
struct ControlWord {
  enum class Command : uint8_t { kRun, kPause, kStop };

  Command command = Command::kRun;
  int64_t checkpoint_request = 0;  // a checkpoint is due where this has grown
  int64_t timeline_revision = 0;   // the latest in `timeline`; 0: it says nothing
  std::string timeline;            // JSON (recipe/recipe_json.h), whole

  friend bool operator==(const ControlWord&, const ControlWord&) = default;
};

// Losses that are not finite travel, too.
std::string EncodeHello(const LinkHello& hello);
std::string EncodeNews(const RankNews& news);
std::string EncodeControl(const ControlWord& word);
// InvalidArgument naming the field for bytes that are no such message.
absl::StatusOr<LinkHello> DecodeHello(absl::string_view json);
absl::StatusOr<RankNews> DecodeNews(absl::string_view json);
absl::StatusOr<ControlWord> DecodeControl(absl::string_view json);

// Puts the magic and the length before it.
std::string FrameOf(absl::string_view json);

// Cuts a stream of bytes into messages.
class FrameReader {
 public:
  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next whole message; nullopt where more bytes are needed. InvalidArgument for what is no
  // frame, and for ever after.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_LINK_MESSAGE_H_
