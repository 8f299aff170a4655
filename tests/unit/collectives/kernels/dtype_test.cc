#include "collectives/kernels/dtype.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace tidegate {
namespace {

TEST(DataTypeTest, NamesAreTorchsAndDiffer) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DataType::kOther1); ++i)
    names.insert(NameOf(static_cast<DataType>(i)));
  EXPECT_EQ(names.size(), 22u);
  for (const char* name : {"float32", "bfloat16", "bool", "complex128", "float8_e5m2fnuz"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(DataTypeTest, SizesFollowFromTheNames) {
  EXPECT_EQ(SizeOf(DataType::kFloat64), sizeof(double));
  EXPECT_EQ(SizeOf(DataType::kComplex128), 2 * sizeof(double));
  EXPECT_EQ(SizeOf(DataType::kComplex32), 4u);
  for (int i = 0; i <= static_cast<int>(DataType::kOther1); ++i) {
    const auto dtype = static_cast<DataType>(i);
    const std::string_view name = NameOf(dtype);
    std::size_t expected = 1;
    for (std::size_t bytes : {2, 4, 8, 16})
      if (name.ends_with(std::to_string(bytes * 8))) expected = bytes;
    EXPECT_EQ(SizeOf(dtype), expected) << name;
  }
}

TEST(DataTypeTest, AByteThatIsNoDataTypeIsShownAndNotSized) {
  EXPECT_EQ(NameOf(static_cast<DataType>(200)), "unknown dtype");
  EXPECT_ANY_THROW(SizeOf(static_cast<DataType>(200)));
}

TEST(ReduceOpTest, NamesAreC10ds) {
  EXPECT_EQ(NameOf(ReduceOp::kNone), "NONE");
  EXPECT_EQ(NameOf(ReduceOp::kSum), "SUM");
  EXPECT_EQ(NameOf(ReduceOp::kAvg), "AVG");
  EXPECT_EQ(NameOf(ReduceOp::kPremulSum), "PREMUL_SUM");
  EXPECT_EQ(NameOf(ReduceOp::kMin), "MIN");
  EXPECT_EQ(NameOf(ReduceOp::kMax), "MAX");
  EXPECT_EQ(NameOf(ReduceOp::kProduct), "PRODUCT");
  EXPECT_EQ(NameOf(ReduceOp::kBitAnd), "BAND");
  EXPECT_EQ(NameOf(ReduceOp::kBitOr), "BOR");
  EXPECT_EQ(NameOf(ReduceOp::kBitXor), "BXOR");
  EXPECT_EQ(NameOf(static_cast<ReduceOp>(200)), "unknown reduce op");
}

}  // namespace
}  // namespace tidegate
