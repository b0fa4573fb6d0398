// Proof that a store has issued the identity that a worker shows: a MAC under a key that never
// leaves the store, so that a worker can relay what it was sent and invents nothing.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_STORE_SEAL_H_
#define NIBBLE_SERVER_CONTROLLER_STORE_SEAL_H_

#include "proto/nibble/v1/common.pb.h"
#include "server/state/state.h"

namespace nibble {

// The state's identity with its MAC; without one if the store has no key.
v1::StoreIdentity SealedStore(const State& state);

// Whether the MAC of `shown` is that of the state's store. False if either has none.
bool IsSealed(const State& state, const v1::StoreIdentity& shown);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_STORE_SEAL_H_
