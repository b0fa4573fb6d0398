// Where a layer's tensors are planned, by how long they live.
//
// Ownership: borrows. Thread-safety: as Region.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_PLACES_H_
#define NIBBLE_WORKER_TRAINER_MODEL_PLACES_H_

#include "worker/trainer/model/region.h"

namespace nibble {

struct Places {
  Region& step;       // written at the start of a step, read through all of it
  Region& saved;      // from a block's forward to its backward pass
  Region& scratch;    // within one pass of one block
  Region& transient;  // within one call of one linear layer, which rewinds it
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_PLACES_H_
