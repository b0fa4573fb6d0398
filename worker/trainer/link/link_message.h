// What a rank and its daemon send each other over a Unix socket, and how nibble-trainer ends.
//
// Each message is complete and replaces the one before it, so that only the newest of a kind
// counts.
//
//   rank → daemon   Hello once, then RankNews after each step, before the first step under another
//                   recipe, and whenever the rank pauses or waits
//   daemon → rank   ControlWord, to rank 0 alone, which agrees on it with the other ranks
//
// On the wire: 4 bytes kDaemonLinkMagic, 4 bytes length, both little-endian, then that many bytes
// of JSON. Both sides are built together; another version is refused by its magic.
//
// The exit code of a trainer names the cause of its end (TrainerExit), so that its parent (a shell,
// the launcher of local ranks, a worker daemon) neither retries what must fail again nor blames a
// machine for it; docs/guide/cli.md has the same table. An error carries its exit code as a payload
// from where the cause is known (the data, the checkpoint, the collective) up to main().
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
// A timeline has at most 2 MiB; escaped, and with the other fields, it stays below this.
inline constexpr int64_t kMaxLinkMessageBytes = int64_t{8} << 20;

// The first message of a rank.
struct LinkHello {
  int32_t rank = 0;
  int64_t attempt = 0;
  int64_t pid = 0;

  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

// Totals of all steps since the rank began, so that a lost report loses no counts. Seconds are
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

// Totals of the rank's finished checkpoints since it began.
struct CheckpointTotals {
  int64_t stored = 0;
  int64_t failed = 0;
  int64_t bytes = 0;         // of this rank, in the stored ones
  double stall_seconds = 0;  // while training waited
  double write_seconds = 0;  // from the last rank's copy until they were committed

  friend bool operator==(const CheckpointTotals&, const CheckpointTotals&) = default;
};

// The effect of quantising one operand of one layer at one step; see PrecisionEvent
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

// A revision of the recipe and the exact first step of the job under it.
struct RevisionBegun {
  int64_t revision = 0;
  int64_t first_step = 0;

  friend bool operator==(const RevisionBegun&, const RevisionBegun&) = default;
};

// A revision that the ranks could not prepare, and the reason.
struct RevisionRefused {
  int64_t revision = 0;
  std::string reason;

  friend bool operator==(const RevisionRefused&, const RevisionRefused&) = default;
};

// Limits of one message; of a layer's name in bytes.
inline constexpr size_t kMaxPrecisionSamples = 8192;
inline constexpr size_t kMaxLayerNameBytes = 128;
inline constexpr size_t kMaxRevisionsBegun = 16;
inline constexpr size_t kMaxRevisionsRefused = 8;

// A rank's report. Figures of training are those of the last finished step.
struct RankNews {
  enum class Doing : uint8_t { kStarting, kSteps, kStanding };

  Doing doing = Doing::kStarting;
  int64_t next_step = 0;     // that it will run
  std::string waiting_in;    // the collective that it waits in; empty: none
  int64_t memory_bytes = 0;  // that it has allocated
  std::string trouble;       // what blocks it, such as a full disk; empty: none
  bool has_sample = false;   // the fields below are set
  int64_t step = 0;
  int64_t tokens = 0;  // trained on so far
  double loss = 0;     // nats per token
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  int64_t revision = 0;             // of the recipe in effect
  bool updated = true;              // false: a guard skipped the update
  int64_t revision_first_step = 0;  // the job's exact first step under that revision
  // The newest revisions that the rank runs or has run under, by number, each included from before
  // its first step on, so that a lost report loses none of them.
  std::vector<RevisionBegun> begun;
  std::vector<RevisionRefused> refused;  // the newest, by number; never in effect
  int64_t checkpoint_request = 0;        // the greatest one carried out
  StepTotals made;
  CheckpointTotals checkpoints;
  std::vector<PrecisionSample> precision;  // of `step`, if it was sampled

  friend bool operator==(const RankNews&, const RankNews&) = default;
};

// The command for the job from the next step boundary on.
struct ControlWord {
  enum class Command : uint8_t { kRun, kPause, kStop };

  Command command = Command::kRun;
  int64_t checkpoint_request = 0;  // an increase requests a checkpoint
  int64_t timeline_revision = 0;   // the latest in `timeline`; 0: unset
  std::string timeline;            // complete, as JSON (recipe/recipe_json.h)

  friend bool operator==(const ControlWord&, const ControlWord&) = default;
};

// A loss that is not finite is preserved.
std::string EncodeHello(const LinkHello& hello);
std::string EncodeNews(const RankNews& news);
std::string EncodeControl(const ControlWord& word);
// InvalidArgument, naming the field, for malformed messages.
absl::StatusOr<LinkHello> DecodeHello(absl::string_view json);
absl::StatusOr<RankNews> DecodeNews(absl::string_view json);
absl::StatusOr<ControlWord> DecodeControl(absl::string_view json);

// Prepends the magic and the length.
std::string FrameOf(absl::string_view json);

// Splits a stream of bytes into messages.
class FrameReader {
 public:
  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next complete message; nullopt if more bytes are needed. InvalidArgument for a malformed
  // frame, and on every later call.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
};

// --- Exit codes of nibble-trainer

enum class TrainerExit : uint8_t {
  kDone = 0,           // every step is done
  kError = 1,          // of the machine or the program
  kUsage = 2,          // unknown flags or an invalid spec
  kSpec = 3,           // what the spec names is missing or unusable for training
  kCheckpoint = 4,     // the checkpoint to resume from is damaged
  kDisk = 5,           // the disk is full or refuses writes
  kPeer = 6,           // another rank of the group is gone
  kGuardPause = 7,     // a guard of the spec pauses the job for a person
  kGuardRollback = 8,  // a guard requests a resume from the newest good checkpoint
  kGuardFail = 9,      // a guard of the spec ends the run
  kStopped = 101,      // stopped on command before the last step
};

// Adds the exit code to an error. An existing code is kept, because it was set closest to the
// cause. An OK status is returned unchanged.
absl::Status WithExit(absl::Status status, TrainerExit exit);

// The exit code of an error, kError if none was set; kDone for an OK status.
TrainerExit ExitOf(const absl::Status& status);

inline bool IsGuards(TrainerExit exit) {
  return exit >= TrainerExit::kGuardPause && exit <= TrainerExit::kGuardFail;
}

// From an exit code as the system reports it; nullopt for any other number.
std::optional<TrainerExit> TrainerExitFrom(int code);

// Prefix of the line on standard error with the reason of a trainer's end; the last such line
// counts.
inline constexpr char kTrainerComplaint[] = "nibble-trainer: ";

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_LINK_MESSAGE_H_
