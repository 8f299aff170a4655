#include "offload/optim/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "offload/optim/update.h"

namespace tidegate::offload::testing {
namespace {

std::vector<float> Normal(std::size_t count, bool squares) {
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (squares) value *= value;
  }
  return values;
}

TEST(ConvertTest, WhatWasExportedIsImportedAsItWas) {
  for (States states : {States::kFloat32, States::kBFloat16, States::kBlock8})
    for (bool squares : {false, true})
      for (std::size_t count : {1, 255, 256, 257, 1000}) {
        const std::vector<float> values = Normal(count, squares);
        std::vector<std::byte> kept(count * sizeof(float));
        std::vector<float> scales(count / kScaleBlock + 1);
        ImportState(states, squares, values.data(), 0, count, kept.data(), scales.data());
        std::vector<float> exported(count);
        ExportState(states, squares, kept.data(), scales.data(), 0, count, exported.data());
        std::vector<std::byte> again(count * sizeof(float));
        std::vector<float> scales_again(scales.size());
        ImportState(states, squares, exported.data(), 0, count, again.data(), scales_again.data());
        EXPECT_EQ(kept, again);
        EXPECT_EQ(scales, scales_again);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_NEAR(exported[i], values[i], squares ? values[i] / 15 : 0.1);
      }
}

TEST(ConvertTest, ARangeIsThatOfTheWhole) {
  const std::size_t count = 700;
  const std::vector<float> values = Normal(count, false);
  std::vector<std::uint8_t> whole(count);
  std::vector<float> whole_scales(3);
  ImportState(States::kBlock8, false, values.data(), 0, count, whole.data(), whole_scales.data());
  std::vector<std::uint8_t> parts(count);
  std::vector<float> parts_scales(3);
  const auto import = [&](std::size_t first, std::size_t size) {
    ImportState(States::kBlock8, false, values.data() + first, first, size, parts.data(),
                parts_scales.data());
  };
  import(256, 444);
  import(0, 256);
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(parts_scales, whole_scales);
  std::vector<float> exported(188);
  ExportState(States::kBlock8, false, parts.data(), parts_scales.data(), 512, 188, exported.data());
  EXPECT_NEAR(exported[187], values[699], 0.1);
}

TEST(ConvertTest, SplitMastersComeBackBitForBit) {
  const std::vector<float> values = Normal(500, false);
  std::vector<std::uint16_t> parameter(500);
  std::vector<std::uint16_t> master(500);
  ImportSplitMaster(values.data(), 500, parameter.data(), master.data());
  std::vector<float> back(500);
  ExportSplitMaster(parameter.data(), master.data(), 500, back.data());
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace tidegate::offload::testing
