// The collective of a job of one rank: nothing to send, nothing to wait for.
//
// Operations that are called in place touch no memory and so serve any backend; the others copy on
// the host. Ownership, thread-safety: as collective.h.
#ifndef NIBBLE_WORKER_TRAINER_COMM_LOCAL_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_LOCAL_COLLECTIVE_H_

#include <memory>

#include "worker/trainer/comm/collective.h"

namespace nibble {

std::unique_ptr<Collective> CreateLocal();

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_LOCAL_COLLECTIVE_H_
