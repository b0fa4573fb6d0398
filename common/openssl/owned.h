// Owners of OpenSSL's objects: std::unique_ptr with the function that frees objects of that type.
//
//   const Owned<BIO, BIO_free_all> in(BIO_new_mem_buf(text.data(), size));
//
// Ownership: as of std::unique_ptr. Thread-safety: none.
#ifndef NIBBLE_COMMON_OPENSSL_OWNED_H_
#define NIBBLE_COMMON_OPENSSL_OWNED_H_

#include <memory>

namespace nibble {

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

template <class T, auto Free>
using Owned = std::unique_ptr<T, FreeWith<Free>>;

}  // namespace nibble

#endif  // NIBBLE_COMMON_OPENSSL_OWNED_H_
