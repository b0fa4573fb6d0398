// Gathers the weights of each bucket for the passes of the model. Each rank stores its part of
// them, the masters. While one bucket is computed with, a message with the next one of the pass
// arrives.
//
//   levels optimizer, gradients  in the first forward pass of a step, behind the update; what
//   passes
//                                read stays in memory until the next step
//   level weights                in every pass: weights take turns in the slots of Parameters. A
//                                bucket that is still in its slot is not gathered again: where the
//                                passes turn, the last one is, and the embedding of a tied head
//                                always is.
//
// A message is a rank's part of a bucket as it is read, so that the bits of a run are those of a
// rank that has all weights:
//
//   packed  weights of linear layers whose quantised copies owners can make
//   (Linear::working_copies):
//           codes and scales of each copy, with the amax of the whole weight, on which ranks agree
//           at the beginning of a step
//   BF16    of which passes read the BF16 rounding: linear layers, with the codes if one product is
//   in
//           BF16 and the other quantised; the head; embedding and learned positions
//   FP32    what passes read in FP32: norms, biases, convolutions, parameters of Mamba; and
//           quantised weights of which owners cannot make the copies
//
// One operation copies a message to where its parts belong.
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

// Bytes that a rank sent to each other one, by form.
struct GatheredBytes {
  int64_t packed = 0, bf16 = 0, fp32 = 0;
  int64_t sent = 0;  // with the gaps in messages, which are as long for every rank
};

class WeightGathers {
 public:
  static absl::StatusOr<std::unique_ptr<WeightGathers>> Create(const Device& device,
                                                               const Parameters& parameters,
                                                               const ShardedAdamW& optimizer,
                                                               Collective& collective);

  // After the model's recipe was set: plans the messages. Borrows the model.
  absl::Status SetModel(Model& model);
  // The weights have changed: what has been gathered is stale. `packs`: sends packed weights
  // packed; otherwise in FP32, so that every rank quantises all of them: for comparisons.
  // `statistics`: with the figures of quantised copies.
  absl::Status BeginStep(bool packs, bool statistics);
  // Once the first bucket's weights are those of the next step, which every rank will make: begins
  // to gather them for it, behind the other updates.
  absl::Status BeginNextStep();
  // The weights have changed since: what BeginNextStep() gathers is of no use.
  void Forget() { is_early_ = false; }
  // Before part `part` of a forward or backward pass (see PassHooks) reads its weights: computation
  // enqueued afterwards finds them in their slots. A backward pass does not read the embedding.
  // `then_backward`: the backward pass follows.
  absl::Status BeforeForward(int64_t part, bool then_backward);
  absl::Status BeforeBackward(int64_t part);

  // After the passes of a step with statistics, in which every bucket was gathered: copies the
  // figures that ranks have of their strips to figure_bytes() of pinned memory. MergeFigures() then
  // turns those of the model's figures that are of packed weights into those of whole weights.
  size_t figure_bytes() const { return heads_.bytes(); }
  absl::Status CopyFigures(void* pinned);
  void MergeFigures(const void* copied, std::vector<OperandFigures>& figures) const;

  size_t message_bytes() const { return messages_.bytes(); }  // of all ranks, in memory
  // So far.
  int64_t gathers() const { return gathers_; }
  const GatheredBytes& bytes() const { return bytes_; }

 private:
  // kBf16Copy arrives in a layer's working copy; kBf16 and kFp32 where the parameter is in FP32.
  enum class Form : uint8_t { kFp32, kBf16, kBf16Copy, kRowCopy, kColumnCopy };
  struct Run {                // adjacent elements of one form
    int64_t first, elements;  // of the bucket
    Form form;
    int64_t at;             // byte of the rank's message
    void* to = nullptr;     // unless it is a quantised copy
    int64_t scales_at = 0;  // of a quantised copy: the codes are at `at`
    // Of a quantised copy: of the whole weight, the layer in the order of the outline, and the
    // first row of the weight.
    QuantizedTensor* copy = nullptr;
    int64_t linear = -1, row = 0;
  };
  struct Message {
    std::vector<std::vector<Run>> runs;  // by rank
    int64_t bytes = 0;                   // the largest of all ranks
    GatheredBytes mine;
    bool makes_copies = false;  // a run arrives in a working copy
    // What this rank sends, without quantised copies; and what it does with all messages.
    std::vector<CopyParts::Part> pack, unpack;
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
    std::optional<QuantizedTensor> row, column;

    absl::Status Quantize(const float* amaxes, bool statistics) {
      return linear->QuantizeStrip(rows, row ? &*row : nullptr, column ? &*column : nullptr, amaxes,
                                   statistics);
    }
  };

  WeightGathers(const Device& device, const Parameters& parameters, const ShardedAdamW& optimizer,
                Collective& collective)
      : device_(device), parameters_(parameters), optimizer_(optimizer), collective_(collective) {}

  Message Plan(int64_t bucket, const std::vector<bool>& in_bf16, bool packs) const;
  // Appends what arrives of elements [from, to) of a parameter, which begins at `begin`, all in the
  // bucket; `bytes`: of the message so far.
  void AppendCopies(const Linear::WorkingCopies& copies, const ParamInfo& weight, int64_t begin,
                    int64_t from, int64_t to, bool packs, std::vector<Run>& runs,
                    int64_t& bytes) const;
  void AppendPlain(Form form, int64_t param, int64_t begin, int64_t from, int64_t to,
                   std::vector<Run>& runs, int64_t& bytes) const;
  absl::Status MakeStrips();
  // Where the parts of messages are copied from and to; after the messages' memory has its size.
  void PlanCopies(int64_t bucket, Message& message) const;
  void PlanHeads();
  QuantHead* heads() const {  // this rank's
    const auto copies = static_cast<int64_t>(2 * parameters_.outline().linears.size());
    return heads_.data<QuantHead>() + collective_.rank() * copies;
  }
  // Finds the amax of every packed weight.
  absl::Status AgreeOnAmax();
  const Message& PlanOf(int64_t bucket) const {
    return (packs_ ? packed_plans_ : exact_plans_)[bucket];
  }
  bool IsGathered(int64_t bucket) const;
  // Begins to gather a bucket.
  absl::Status Begin(int64_t bucket, Beside beside);
  // Copies the message of a bucket, once it has arrived, to where its parts belong.
  absl::Status Unpack(int64_t bucket);
  // Computation waits until `bucket` has arrived; begins to gather `next`, if there is one.
  absl::Status Use(int64_t bucket, int64_t next);

  Device device_;
  const Parameters& parameters_;
  const ShardedAdamW& optimizer_;
  Collective& collective_;
  std::vector<int64_t> bucket_of_part_;  // [blocks + 2], from the embedding on
  Model* model_ = nullptr;
  bool statistics_ = false;                          // in this step
  bool any_packed_ = false, packs_ = false;          // under the recipe; in this step
  std::vector<Message> exact_plans_, packed_plans_;  // by bucket
  Placed placed_, head_place_;
  std::vector<Strip> strips_;
  std::vector<int64_t> strip_of_;  // by linear: in strips_, or -1
  // [world, linears, 2] QuantHead, of each rank's strips: row and column copy.
  Buffer heads_;
  Buffer amaxes_;                          // [linears, 2], of whole weights
  std::vector<CopyParts::Part> to_heads_;  // of working copies: from this rank's heads and amaxes_
  std::optional<CollectiveTurn> turn_;
  std::vector<bool> in_memory_;                           // by bucket, if they do not take turns
  std::array<int64_t, Parameters::kSlots> in_slot_ = {};  // bucket, or -1, if they do
  int64_t copied_ = -1;                                   // bucket of the working copies, or -1
  int64_t arriving_ = -1;                                 // bucket of the messages, or -1
  Buffer messages_;                                       // [world, bytes of the message]
  std::unique_ptr<Event> packed_, arrived_;
  int64_t gathers_ = 0;
  GatheredBytes bytes_;
  bool is_early_ = false;  // arriving_ is the first one, of the next step
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_WEIGHT_GATHERS_H_
