#include "server/access/token_registry.h"

#include <openssl/sha.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/identity/peer_name.h"
#include "common/status_macros.h"
#include "server/access/access_table.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

constexpr size_t kIdDigits = 12;
constexpr size_t kMaxTokenFileBytes = size_t{16} << 20;
constexpr int64_t kMaxValidMs = int64_t{10} * 366 * 86'400'000;  // ten years

std::string IdOfHash(absl::string_view hash) {
  return absl::BytesToHexString(hash).substr(0, kIdDigits);
}

absl::Status CheckTokenRecord(const v1::Token& token, int64_t now_unix_ms) {
  if (token.revoked_unix_ms() > 0) {
    return absl::UnauthenticatedError(absl::StrCat("token ", token.id(), ": it is revoked"));
  }
  if (token.expires_unix_ms() > 0 && now_unix_ms >= token.expires_unix_ms()) {
    return absl::UnauthenticatedError(absl::StrCat("token ", token.id(), ": it has expired"));
  }
  return absl::OkStatus();
}

std::vector<std::string> TextsOf(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

Json JsonOfToken(const v1::Token& token, const std::string& hash) {
  return {{"sha256", absl::BytesToHexString(hash)},
          {"name", token.name()},
          {"role", RoleText(token.role())},
          {"created_unix_ms", token.created_unix_ms()},
          {"expires_unix_ms", token.expires_unix_ms()},
          {"author", token.author()},
          {"revoked_unix_ms", token.revoked_unix_ms()},
          {"revoked_by", token.revoked_by()},
          {"projects", TextsOf(token.projects())}};
}

absl::Status CheckCreate(const v1::CreateTokenRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckCallerName("name", request.name()));
  if (RoleOfText(RoleText(request.role())) == v1::ROLE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        "role: not set; allowed: ROLE_VIEWER, ROLE_SUBMITTER, ROLE_OPERATOR, ROLE_WORKER");
  }
  if (request.valid_ms() < 0 || request.valid_ms() > kMaxValidMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("valid_ms: ", request.valid_ms(), "; allowed: 0 to ", kMaxValidMs));
  }
  if (static_cast<size_t>(request.projects_size()) > kMaxTokenProjects) {
    return absl::InvalidArgumentError(absl::StrCat(
        "projects: ", request.projects_size(), "; at most ", kMaxTokenProjects, " are allowed"));
  }
  for (const std::string& project : request.projects()) {
    NIBBLE_RETURN_IF_ERROR(CheckIdentityName("projects", project));
  }
  if (request.role() == v1::ROLE_WORKER && request.projects_size() > 0) {
    return absl::InvalidArgumentError("projects: a worker has none");
  }
  if (request.secret_sha256().size() != SHA256_DIGEST_LENGTH) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret_sha256: ", request.secret_sha256().size(),
                     " bytes; allowed: ", SHA256_DIGEST_LENGTH));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Sha256(absl::string_view text) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

absl::StatusOr<std::unique_ptr<TokenRegistry>> TokenRegistry::Open(std::string path, size_t most) {
  std::unique_ptr<TokenRegistry> registry(new TokenRegistry(std::move(path), most));
  NIBBLE_RETURN_IF_ERROR(registry->Load());
  return registry;
}

absl::Status TokenRegistry::Load() {
  const absl::StatusOr<std::string> text = ReadWholeFile(path_, kMaxTokenFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(text.status());
  const absl::Status damaged = absl::DataLossError(absl::StrCat(
      "tokens: '", path_, "' is damaged; restore it, or remove it to revoke every token"));
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) return damaged;
  Tokens tokens;
  for (const Json& entry : json["tokens"]) {
    try {
      Stored stored;
      stored.hash = absl::HexStringToBytes(entry.at("sha256").get<std::string>());
      v1::Token& token = stored.token;
      token.set_id(IdOfHash(stored.hash));
      token.set_name(entry.at("name").get<std::string>());
      token.set_role(RoleOfText(entry.at("role").get<std::string>()));
      token.set_created_unix_ms(entry.at("created_unix_ms").get<int64_t>());
      token.set_expires_unix_ms(entry.at("expires_unix_ms").get<int64_t>());
      token.set_author(entry.at("author").get<std::string>());
      token.set_revoked_unix_ms(entry.at("revoked_unix_ms").get<int64_t>());
      token.set_revoked_by(entry.at("revoked_by").get<std::string>());
      // Files of earlier versions have none.
      for (const std::string& project : entry.value("projects", std::vector<std::string>())) {
        token.add_projects(project);
      }
      if (stored.hash.size() != SHA256_DIGEST_LENGTH) return damaged;
      tokens[token.id()] = std::move(stored);
    } catch (const Json::exception&) {
      return damaged;
    }
  }
  const MutexLock lock(&mutex_);
  tokens_ = std::move(tokens);
  return absl::OkStatus();
}

absl::Status TokenRegistry::Replace(Tokens tokens) {
  Json json = {{"tokens", Json::array()}};
  for (const auto& [id, stored] : tokens) {
    json["tokens"].push_back(JsonOfToken(stored.token, stored.hash));
  }
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(path_, json.dump(1) + "\n"));
  const MutexLock lock(&mutex_);
  tokens_ = std::move(tokens);
  return absl::OkStatus();
}

absl::StatusOr<v1::Token> TokenRegistry::Create(const v1::CreateTokenRequest& request,
                                                const std::string& author, int64_t now_unix_ms) {
  NIBBLE_RETURN_IF_ERROR(CheckCreate(request));
  const MutexLock changing(&change_);
  Tokens tokens;
  {
    const MutexLock lock(&mutex_);
    tokens = tokens_;
  }
  const std::string id = IdOfHash(request.secret_sha256());
  if (const auto found = tokens.find(id); found != tokens.end()) {
    const v1::Token& old = found->second.token;
    const int64_t valid_ms =
        old.expires_unix_ms() == 0 ? 0 : old.expires_unix_ms() - old.created_unix_ms();
    const bool same = found->second.hash == request.secret_sha256() &&
                      old.name() == request.name() && old.role() == request.role() &&
                      valid_ms == request.valid_ms() &&
                      TextsOf(old.projects()) == TextsOf(request.projects());
    if (same) return old;
    return absl::AlreadyExistsError(
        absl::StrCat("secret_sha256: token ", id, " has it; make another secret"));
  }
  while (tokens.size() >= most_) {
    auto oldest = tokens.end();
    for (auto at = tokens.begin(); at != tokens.end(); ++at) {
      if (CheckTokenRecord(at->second.token, now_unix_ms).ok()) continue;
      if (oldest == tokens.end() ||
          at->second.token.created_unix_ms() < oldest->second.token.created_unix_ms()) {
        oldest = at;
      }
    }
    if (oldest == tokens.end()) {
      return absl::ResourceExhaustedError(absl::StrCat("tokens: ", tokens.size(),
                                                       " are valid; allowed: ", most_,
                                                       "; revoke some with 'nibble token revoke'"));
    }
    tokens.erase(oldest);
  }
  Stored& stored = tokens[id];
  stored.hash = request.secret_sha256();
  v1::Token& token = stored.token;
  token.set_id(id);
  token.set_name(request.name());
  token.set_role(request.role());
  *token.mutable_projects() = request.projects();
  token.set_created_unix_ms(now_unix_ms);
  if (request.valid_ms() > 0) token.set_expires_unix_ms(now_unix_ms + request.valid_ms());
  token.set_author(author);
  v1::Token made = token;
  NIBBLE_RETURN_IF_ERROR(Replace(std::move(tokens)));
  return made;
}

absl::StatusOr<v1::Token> TokenRegistry::Revoke(const std::string& id, const std::string& author,
                                                int64_t now_unix_ms) {
  if (id.empty()) return absl::InvalidArgumentError("id: it is empty");
  const MutexLock changing(&change_);
  Tokens tokens;
  {
    const MutexLock lock(&mutex_);
    tokens = tokens_;
  }
  const auto found = tokens.find(id);
  if (found == tokens.end()) {
    // The text may be a secret that was given in the wrong place: it is not repeated.
    return absl::NotFoundError("id: there is no such token; 'nibble token list' lists their ids");
  }
  v1::Token& token = found->second.token;
  if (token.revoked_unix_ms() > 0) return token;
  token.set_revoked_unix_ms(now_unix_ms);
  token.set_revoked_by(author);
  v1::Token revoked = token;
  NIBBLE_RETURN_IF_ERROR(Replace(std::move(tokens)));
  return revoked;
}

std::vector<v1::Token> TokenRegistry::List() const {
  std::vector<v1::Token> tokens;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [id, stored] : tokens_) tokens.push_back(stored.token);
  }
  std::stable_sort(tokens.begin(), tokens.end(), [](const v1::Token& a, const v1::Token& b) {
    return a.created_unix_ms() < b.created_unix_ms();
  });
  return tokens;
}

absl::StatusOr<v1::Token> TokenRegistry::Find(absl::string_view text, int64_t now_unix_ms) const {
  // The table is searched by a prefix of the hash, and how long that takes says nothing about the
  // text that was hashed.
  const std::string hash = Sha256(text);
  const MutexLock lock(&mutex_);
  const auto found = tokens_.find(IdOfHash(hash));
  if (found == tokens_.end() || found->second.hash != hash) {
    return absl::UnauthenticatedError("token: this coordinator has no such token");
  }
  NIBBLE_RETURN_IF_ERROR(CheckTokenRecord(found->second.token, now_unix_ms));
  return found->second.token;
}

absl::Status TokenRegistry::CheckValid(const std::string& id, int64_t now_unix_ms) const {
  const MutexLock lock(&mutex_);
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) {
    return absl::UnauthenticatedError(absl::StrCat("token ", id, ": it is no longer known"));
  }
  return CheckTokenRecord(found->second.token, now_unix_ms);
}

}  // namespace nibble
