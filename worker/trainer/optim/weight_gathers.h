// Gathers the weights of each bucket for the passes of the model, if they take turns in the slots
// of Parameters (ZeRO-3): a rank stores its part of them, and a whole bucket at a time. While one
// bucket is computed with, a message with the next one of the pass arrives.
//
// A message is a rank's part of a bucket as it is read, so that the bits of a run are those of a
// rank that has all weights:
//
//   packed  weights that Linear::packed_weight() names: codes and scales, quantised by their owners
//           with the amax of the whole weight, on which ranks agree at the beginning of a step
//   BF16    parameters of which passes read no more than the BF16 rounding
//   FP32    all others
//
// A bucket that is still in its slot is not gathered again: where the passes turn, the last one is,
// and the embedding of a tied head always is.
//
// Ownership: borrows device, parameters, optimizer and collective; owns the messages.
// Thread-safety: none; every rank makes the same calls in the same order.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/model/parameters.h"
#include "worker/trainer/optim/collective_turn.h"
#include "worker/trainer/optim/sharded_adamw.h"

namespace nibble {

class WeightGathers {
 public:
  static absl::StatusOr<std::unique_ptr<WeightGathers>> Create(const Device& device,
                                                               const Parameters& parameters,
                                                               const ShardedAdamW& optimizer,
                                                               Collective& collective);

  // After the model's recipe was set: plans the messages. Borrows the model.
  absl::Status SetModel(Model& model);
  // The weights have changed: what is in the slots is stale. `packs`: sends packed weights packed;
  // otherwise in FP32, so that every rank quantises all of them.
  absl::Status BeginStep(bool packs);
  // Before part `part` of a forward or backward pass (see PassHooks) reads its weights: computation
  // enqueued afterwards finds them in their slots. A backward pass does not read the embedding.
  // `then_backward`: the backward pass follows.
  absl::Status BeforeForward(int64_t part, bool then_backward);
  absl::Status BeforeBackward(int64_t part);

  size_t message_bytes() const { return messages_.bytes(); }  // of all ranks, in memory
  // So far: gathers, and the bytes that this rank sent to each other one.
  int64_t gathers() const { return gathers_; }
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  enum class Form : uint8_t { kFp32, kBf16, kPacked };
  struct Run {                // adjacent elements of one form
    int64_t first, elements;  // of the bucket
    Form form;
    int64_t at;             // byte of the rank's message
    int64_t scales_at = 0;  // packed: the codes are at `at`
    int64_t linear = -1;    // packed: in the order of the outline
    int64_t row = 0;        // packed: the first row of the weight
  };
  struct Message {
    std::vector<std::vector<Run>> runs;  // by rank
    int64_t bytes = 0;                   // the largest of all ranks
  };
  // Hands out memory that others own: where a message has its codes and scales.
  class Placed : public Memory {
   public:
    void Next(void* place) { next_ = static_cast<char*>(place); }
    absl::StatusOr<Buffer> Allocate(size_t bytes) override;
    absl::Status CopyIn(void*, const void*, size_t) override;
    absl::Status CopyOut(void*, const void*, size_t) override;

   private:
    void Free(void*) override {}
    char* next_ = nullptr;
  };
  // This rank's rows of a packed weight, in its message.
  struct Strip {
    Linear* linear;
    ConstMatrix rows;
    QuantizedTensor packed;
  };

  WeightGathers(const Device& device, const Parameters& parameters, const ShardedAdamW& optimizer,
                Collective& collective)
      : device_(device), parameters_(parameters), optimizer_(optimizer), collective_(collective) {}

  Message Plan(int64_t bucket, const std::vector<bool>& in_bf16, bool packs) const;
  absl::Status MakeStrips();
  // Finds the amax of every packed weight.
  absl::Status AgreeOnAmax();
  const Message& PlanOf(int64_t bucket) const {
    return (packs_ ? packed_plans_ : exact_plans_)[bucket];
  }
  bool InSlot(int64_t bucket) const;
  // Copies a run to its form, and back.
  absl::Status Pack(const Run& run, const float* from, char* message);
  absl::Status Unpack(const Run& run, const char* message, float* to);
  // Begins to gather a bucket.
  absl::Status Begin(int64_t bucket);
  // Computation waits until `bucket` is in its slot; begins to gather `next`, if there is one.
  absl::Status Use(int64_t bucket, int64_t next);

  Device device_;
  const Parameters& parameters_;
  const ShardedAdamW& optimizer_;
  Collective& collective_;
  std::vector<int64_t> bucket_of_part_;  // [blocks + 2], from the embedding on
  Model* model_ = nullptr;
  bool any_packed_ = false, packs_ = false;          // under the recipe; in this step
  std::vector<Message> exact_plans_, packed_plans_;  // by bucket
  Placed placed_, head_place_;
  std::vector<Strip> strips_;
  std::vector<int64_t> strip_of_;  // by linear: in strips_, or -1
  Buffer heads_;                   // [linears] QuantHead, of strips
  Buffer amaxes_;                  // [linears], of whole weights
  std::optional<CollectiveTurn> turn_;
  std::array<int64_t, Parameters::kSlots> in_slot_ = {};  // bucket, or -1
  int64_t copied_ = -1;                                   // bucket of the packed copies, or -1
  int64_t arriving_ = -1;                                 // bucket of the messages, or -1
  Buffer messages_;                                       // [world, bytes of the message]
  std::unique_ptr<Event> packed_, arrived_;
  int64_t gathers_ = 0, bytes_sent_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_
