#include "server/notify/tls_receiver.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "server/notify/testing.h"

namespace nibble {

struct TlsReceiver::Parts {
  ~Parts() {
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
};

TlsReceiver::TlsReceiver(const std::string& certificate_path) : parts_(std::make_unique<Parts>()) {
  X509* const certificate = parts_->certificate;
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
  X509_set_pubkey(certificate, parts_->key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
  X509_add_ext(certificate, names, -1);
  X509_EXTENSION_free(names);
  X509_sign(certificate, parts_->key, EVP_sha256());
  SSL_CTX_use_certificate(parts_->context, certificate);
  SSL_CTX_use_PrivateKey(parts_->context, parts_->key);
  if (std::FILE* const file = std::fopen(certificate_path.c_str(), "w")) {
    PEM_write_X509(file, certificate);
    std::fclose(file);
  }
  listener_ = ListenOnLoopback(port_);
  thread_ = std::thread([this] { Accept(); });
}

TlsReceiver::~TlsReceiver() {
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void TlsReceiver::Accept() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    SSL* const tls = SSL_new(parts_->context);
    SSL_set_fd(tls, connection);
    char buffer[4096];
    if (SSL_accept(tls) == 1 && SSL_read(tls, buffer, sizeof(buffer)) > 0) {
      constexpr std::string_view kAnswer = "HTTP/1.1 204 No Content\r\n\r\n";
      SSL_write(tls, kAnswer.data(), static_cast<int>(kAnswer.size()));
    }
    SSL_free(tls);
    close(connection);
  }
}

}  // namespace nibble
