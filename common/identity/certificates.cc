#include "common/identity/certificates.h"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/openssl/openssl_error.h"
#include "common/openssl/owned.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using Bio = Owned<BIO, BIO_free_all>;
using Certificate = Owned<X509, X509_free>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Extension = Owned<X509_EXTENSION, X509_EXTENSION_free>;

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", TakeOpenSslError("unknown reason")));
}

// Asks nobody for a passphrase: an encrypted key is an error.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

Certificate ParseCertificate(const std::string& pem) {
  const Bio in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(PEM_read_bio_X509(in.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return certificate;
}

Key ParseKey(const std::string& pem) {
  const Bio in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Key key(PEM_read_bio_PrivateKey(in.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

std::string TextOfBio(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<KeyedCertificate> ToPem(X509* certificate, EVP_PKEY* key) {
  const Bio certificate_out(BIO_new(BIO_s_mem()));
  const Bio key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_out.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return Failed("writing PEM");
  }
  return KeyedCertificate{TextOfBio(certificate_out.get()), TextOfBio(key_out.get())};
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetRandomSerial(X509* certificate) {
  constexpr int kSerialBits = 127;
  const Owned<BIGNUM, BN_free> number(BN_new());
  return number != nullptr &&
         BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

// A certificate of version 3 with everything but its issuer and extensions.
Certificate Begin(const std::string& common_name, EVP_PKEY* key, const Validity& validity) {
  Certificate certificate(X509_new());
  if (certificate == nullptr) return nullptr;
  const bool made =
      X509_set_version(certificate.get(), 2) == 1 && SetRandomSerial(certificate.get()) &&
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), static_cast<time_t>(validity.from)) !=
          nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), static_cast<time_t>(validity.until)) !=
          nullptr &&
      X509_set_pubkey(certificate.get(), key) == 1 &&
      X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1,
                                 -1, 0) == 1;
  return made ? std::move(certificate) : nullptr;
}

bool IsIpAddress(const std::string& host) {
  in6_addr room = {};
  return inet_pton(AF_INET, host.c_str(), &room) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &room) == 1;
}

// The host enters OpenSSL's list of names, where ',' begins another name.
absl::Status CheckHost(const std::string& host) {
  if (IsIpAddress(host)) return absl::OkStatus();
  const bool fits = !host.empty() && host.size() <= 253 &&
                    host.find_first_not_of(
                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789.-_") == std::string::npos;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("host: '", host, "'; allowed: an IP address, or a name of [A-Za-z0-9._-]"));
}

}  // namespace

absl::StatusOr<KeyedCertificate> MakeAuthority(const std::string& common_name,
                                               const Validity& validity) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("making a key");
  const Certificate certificate = Begin(common_name, key.get(), validity);
  X509* const self = certificate.get();
  if (self == nullptr || X509_set_issuer_name(self, X509_get_subject_name(self)) != 1 ||
      !AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(self, self, NID_subject_key_identifier, "hash") ||
      X509_sign(self, key.get(), EVP_sha256()) == 0) {
    return Failed("making a certificate");
  }
  return ToPem(self, key.get());
}

absl::StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority,
                                                  const PeerName& peer,
                                                  const std::vector<std::string>& hosts,
                                                  const Validity& validity) {
  std::vector<std::string> names = {absl::StrCat("URI:", peer.ToString())};
  NIBBLE_RETURN_IF_ERROR(ParsePeerUri(peer.ToString()).status());
  for (const std::string& host : hosts) {
    NIBBLE_RETURN_IF_ERROR(CheckHost(host));
    names.push_back(absl::StrCat(IsIpAddress(host) ? "IP:" : "DNS:", host));
  }
  const Certificate issuer = ParseCertificate(authority.certificate);
  const Key issuer_key = ParseKey(authority.key);
  if (issuer == nullptr || issuer_key == nullptr) {
    return absl::InvalidArgumentError("authority: no certificate and key in PEM");
  }
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("making a key");
  const std::string common_name = peer.name.empty() ? "coordinator" : peer.name.substr(0, 64);
  const Certificate certificate = Begin(common_name, key.get(), validity);
  X509* const made = certificate.get();
  if (made == nullptr || X509_set_issuer_name(made, X509_get_subject_name(issuer.get())) != 1 ||
      !AddExtension(made, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(made, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(made, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(made, issuer.get(), NID_subject_alt_name, absl::StrJoin(names, ",")) ||
      !AddExtension(made, issuer.get(), NID_authority_key_identifier, "keyid") ||
      X509_sign(made, issuer_key.get(), EVP_sha256()) == 0) {
    return Failed("making a certificate");
  }
  return ToPem(made, key.get());
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem) {
  const Certificate certificate = ParseCertificate(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("it has no certificate in PEM");
  CertificateFacts facts;
  tm until = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &until) == 1) {
    facts.expires_unix_s = timegm(&until);
  }
  const Owned<GENERAL_NAMES, GENERAL_NAMES_free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    facts.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                            static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return facts;
}

absl::Status CheckKeyFits(const std::string& certificate, const std::string& key) {
  const Certificate parsed = ParseCertificate(certificate);
  const Key own = ParseKey(key);
  if (parsed == nullptr) return absl::InvalidArgumentError("it has no certificate in PEM");
  if (own == nullptr) {
    return absl::InvalidArgumentError("it has no private key in PEM without a passphrase");
  }
  const bool fits = X509_check_private_key(parsed.get(), own.get()) == 1;
  ERR_clear_error();
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError("the key is not that of the certificate");
}

}  // namespace nibble
