#include "server/controller/store_seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

// Empty if the store has no key.
std::string MacOf(const State& state, const v1::StoreIdentity& store) {
  const v1::ClusterRecord* const cluster = FindIn(state.tables().cluster, kOnlyKey);
  if (cluster == nullptr || cluster->key().empty()) return "";
  // Ids contain no spaces: the text is unambiguous.
  const std::string text = absl::StrCat(store.id(), " ", store.epoch(), " ", store.epoch_id(), " ",
                                        store.life(), " ", store.sequence());
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac;
  unsigned int size = 0;
  HMAC(EVP_sha256(), cluster->key().data(), static_cast<int>(cluster->key().size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size);
  return {reinterpret_cast<const char*>(mac.data()), size};
}

}  // namespace

v1::StoreIdentity SealedStore(const State& state) {
  v1::StoreIdentity store = state.store();
  if (!store.id().empty()) store.set_mac(MacOf(state, store));
  return store;
}

bool IsSealed(const State& state, const v1::StoreIdentity& shown) {
  const std::string mac = MacOf(state, shown);
  return !mac.empty() && mac.size() == shown.mac().size() &&
         CRYPTO_memcmp(mac.data(), shown.mac().data(), mac.size()) == 0;
}

}  // namespace nibble
