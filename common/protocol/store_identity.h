// Which store, and which of its epochs, ordered something.
#ifndef NIBBLE_COMMON_PROTOCOL_STORE_IDENTITY_H_
#define NIBBLE_COMMON_PROTOCOL_STORE_IDENTITY_H_

#include "proto/nibble/v1/common.pb.h"

namespace nibble {

// Whether both are the same store in the same epoch; two unset ones are. Two restores of one backup
// begin epochs with one number and different ids.
inline bool SameEpoch(const v1::StoreIdentity& a, const v1::StoreIdentity& b) {
  return a.id() == b.id() && a.epoch() == b.epoch() && a.epoch_id() == b.epoch_id();
}

// The identity as it is recorded beside what the epoch ordered.
inline v1::StoreIdentity EpochOf(const v1::StoreIdentity& store) {
  v1::StoreIdentity epoch;
  epoch.set_id(store.id());
  epoch.set_epoch(store.epoch());
  epoch.set_epoch_id(store.epoch_id());
  return epoch;
}

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROTOCOL_STORE_IDENTITY_H_
