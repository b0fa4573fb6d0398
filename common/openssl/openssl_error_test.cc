#include "common/openssl/openssl_error.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include "common/openssl/owned.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(OpenSslErrorTest, TheFirstErrorIsTakenAndTheRestForgotten) {
  ERR_clear_error();
  EXPECT_EQ(TakeOpenSslError("closed"), "closed");
  EXPECT_EQ(BIO_new_file("/nowhere/at/all", "r"), nullptr);
  EXPECT_EQ(BIO_new_file("/nowhere/at/all", "r"), nullptr);
  EXPECT_THAT(TakeOpenSslError("closed"), testing::HasSubstr("No such file"));
  EXPECT_EQ(ERR_peek_error(), 0u);
}

int freed = 0;
void CountFree(int* object) {
  ++freed;
  delete object;
}

TEST(OwnedTest, AnObjectIsFreedOnceByItsFunction) {
  freed = 0;
  {
    Owned<int, CountFree> object(new int(7));
    const Owned<int, CountFree> moved = std::move(object);
    EXPECT_EQ(*moved, 7);
    const Owned<int, CountFree> none(nullptr);
  }
  EXPECT_EQ(freed, 1);
}

}  // namespace
}  // namespace nibble
