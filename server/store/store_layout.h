// The names in a store's directory that no other header has.
//
// Ownership: constants. Thread-safety: immutable.
#ifndef NIBBLE_SERVER_STORE_STORE_LAYOUT_H_
#define NIBBLE_SERVER_STORE_STORE_LAYOUT_H_

namespace nibble {

inline constexpr char kStoreDbName[] = "db";

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_LAYOUT_H_
