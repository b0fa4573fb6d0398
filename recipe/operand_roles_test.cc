#include "recipe/operand_roles.h"

#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(OperandRoles, NamesAreTheGemmAndTheTensor) {
  const char* tensors[] = {"activation", "weight", "gradient"};
  for (const OperandRole role : kAllOperandRoles) {
    EXPECT_EQ(std::string(OperandRoleName(role)), std::string(LinearGemmName(GemmOf(role))) + "." +
                                                      tensors[static_cast<size_t>(TensorOf(role))]);
  }
}

TEST(OperandRoles, EachGemmHasItsTwoOperandsInOrder) {
  for (size_t i = 0; i < kAllOperandRoles.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kAllOperandRoles[i]), i);
    EXPECT_EQ(OperandsOf(GemmOf(kAllOperandRoles[i]))[i % 2], kAllOperandRoles[i]);
  }
}

TEST(OperandRoles, SetsContainTheRolesTheyAreMadeOf) {
  for (const OperandRole role : kAllOperandRoles) {
    EXPECT_TRUE(RoleSet::All().Has(role));
    EXPECT_FALSE(RoleSet().Has(role));
    for (const OperandRole other : kAllOperandRoles) {
      EXPECT_EQ(RoleSet::Of(role).Has(other), role == other);
      EXPECT_EQ(RoleSet::Of(GemmOf(role)).Has(other), GemmOf(role) == GemmOf(other));
      EXPECT_EQ(RoleSet::Of(TensorOf(role)).Has(other), TensorOf(role) == TensorOf(other));
    }
    for (const LinearGemm gemm : kAllLinearGemms) {
      EXPECT_EQ(RoleSet::Of(role).Has(gemm), GemmOf(role) == gemm);
    }
  }
}

}  // namespace
}  // namespace nibble
