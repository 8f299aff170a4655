#include "collectives/calibration/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "collectives/calibration/measure.h"
#include "collectives/calibration/measure_paths.h"
#include "collectives/calibration/timing.h"
#include "common/clock.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

constexpr Calibration kMeasured{
    .rates = {.copy_Bps = 5e9, .memory_Bps = 20e9, .signal_s = 3e-7},
    .paths = {.chunk_bytes = 128 << 10, .stream_bytes = 16 << 20, .single_copy_bytes = 1 << 20}};

int measurements = 0;
Calibration CountedCalibration() {
  ++measurements;
  return kMeasured;
}
Calibration OtherCalibration() {
  return {.rates = {.copy_Bps = 1e9, .memory_Bps = 2e9, .signal_s = 1e-6}, .paths = {}};
}

class CacheTest : public ::testing::Test {
 public:
  CacheTest() { std::filesystem::remove_all(cache_); }
  ~CacheTest() override { std::filesystem::remove_all(cache_); }

 protected:
  std::filesystem::path OnlyFile() const {
    std::filesystem::path only;
    for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
      EXPECT_TRUE(only.empty()) << "a draft was left behind: " << entry.path();
      only = entry.path();
    }
    return only;
  }

  const std::string cache_ = ::testing::TempDir() + "tidegate-" + std::to_string(getpid()) + "/new";
};

TEST_F(CacheTest, AMachineIsMeasuredOnce) {
  measurements = 0;
  EXPECT_EQ(Calibrated(cache_, "a", CountedCalibration), kMeasured);
  EXPECT_EQ(Calibrated(cache_, "a", CountedCalibration), kMeasured);
  EXPECT_EQ(measurements, 1);
  EXPECT_EQ(Calibrated(cache_, "a", OtherCalibration), kMeasured);
}

TEST_F(CacheTest, AnotherMachineOrVersionIsMeasuredAnew) {
  EXPECT_EQ(Calibrated(cache_, "a", CountedCalibration), kMeasured);
  EXPECT_EQ(Calibrated(cache_, "b", OtherCalibration), OtherCalibration());
  EXPECT_EQ(Calibrated(cache_, "a", OtherCalibration), kMeasured);
}

TEST_F(CacheTest, ASpoiltFileIsMadeAnew) {
  EXPECT_EQ(Calibrated(cache_, "a", CountedCalibration), kMeasured);
  const std::filesystem::path file = OnlyFile();
  for (const char* const bad : {"", "{", "{\"tidegate_calibration\": 1}"}) {
    std::ofstream(file, std::ios::trunc) << bad;
    EXPECT_EQ(Calibrated(cache_, "a", OtherCalibration), OtherCalibration()) << bad;
    EXPECT_EQ(Calibrated(cache_, "a", CountedCalibration), OtherCalibration())
        << "kept after: " << bad;
  }
}

TEST_F(CacheTest, AFolderThatCannotBeMadeCostsOnlyTheMeasurement) {
  EXPECT_EQ(Calibrated("/proc/none/cache", "a", CountedCalibration), kMeasured);
  EXPECT_EQ(Calibrated("", "a", CountedCalibration), kMeasured);
}

TEST(CalibrationTest, IsReadBackAsWritten) {
  EXPECT_EQ(ParseCalibration(FormatCalibration("a", kMeasured), "a").value(), kMeasured);
}

TEST(CalibrationTest, AbsurdFiguresAreRefusedByName) {
  const auto complaint = [](MachineRates rates, DataPaths paths = {}) {
    return ParseCalibration(FormatCalibration("a", {rates, paths}), "a").status().message();
  };
  EXPECT_THAT(complaint({}, {.chunk_bytes = 5}), HasSubstr("$.chunk_bytes"));
  EXPECT_THAT(complaint({}, {.stream_bytes = std::size_t{1} << 50}), HasSubstr("$.stream_bytes"));
  EXPECT_THAT(complaint({}, {.single_copy_bytes = std::size_t{1} << 50}),
              HasSubstr("$.single_copy_bytes"));
  EXPECT_THAT(complaint({.copy_Bps = 0}), HasSubstr("$.copy_Bps: is outside"));
  EXPECT_THAT(complaint({.memory_Bps = 1e20}), HasSubstr("$.memory_Bps: is outside"));
  for (const double seconds : {-1.0, 0.0, 2e-3})
    EXPECT_THAT(complaint({.signal_s = seconds}), HasSubstr("$.signal_s: is outside"));
  EXPECT_THAT(ParseCalibration(FormatCalibration("b", kMeasured), "a").status().message(),
              HasSubstr("of another machine than \"a\""));
}

TEST(CalibrationTest, TheKeyTellsHostProcessorsAndVersion) {
  const std::string key = MachineKey(3);
  EXPECT_THAT(key, HasSubstr(HostName()));
  EXPECT_THAT(key, HasSubstr(CpuModel()));
  EXPECT_THAT(key, HasSubstr("3 processors, tidegate "));
  EXPECT_NE(key, MachineKey(4));
}

TEST(MeasureTest, FindsPlausibleRates) {
  const MachineRates rates = MeasureMachine(2, 1);
  // Far wider than any machine, so that only nonsense fails.
  EXPECT_GT(rates.copy_Bps, 1e7);
  EXPECT_LT(rates.copy_Bps, 1e13);
  // All cores together move at least what one does, read and written.
  EXPECT_GE(rates.memory_Bps, 2 * rates.copy_Bps);
  EXPECT_GT(rates.signal_s, 1e-9);
  EXPECT_LE(rates.signal_s, kMostSignalSeconds);
}

TEST(MeasureTest, FindsDataPathsThatTheStageCanServe) {
  const DataPaths paths = MeasureDataPaths(2);
  EXPECT_GE(paths.chunk_bytes, std::size_t{64} << 10);
  EXPECT_LE(paths.chunk_bytes, std::size_t{512} << 10);
  EXPECT_GE(paths.stream_bytes, std::size_t{4} << 20);
  EXPECT_LE(paths.stream_bytes, std::size_t{128} << 20);
}

/// Of a machine on which everything between two looks at the clock takes `step`.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(Nanoseconds step) : step_(step) {}
  TimePoint Now() const override { return TimePoint(step_ * looks_.fetch_add(1)); }
  Nanoseconds Elapsed() const { return step_ * looks_.load(); }

 private:
  const Nanoseconds step_;
  mutable std::atomic<int> looks_{0};
};

TEST(MeasureTest, SixteenCoresTakeTwoSecondsHoweverSlowTheyAre) {
  for (const int milliseconds : {5, 25}) {
    const Nanoseconds step = std::chrono::milliseconds(milliseconds);
    const SlowClock clock(step);
    const MachineRates rates = MeasureMachine(16, 1, clock);
    // A round is three looks at the clock; that begun last may end late, and there are two pings.
    const Nanoseconds machine = clock.Elapsed();
    EXPECT_LE(machine, 2 * kCopyBudget + kPingBudget + (2 * 3 + 6) * step) << milliseconds;
    EXPECT_NE(rates.copy_Bps, MachineRates().copy_Bps) << "not measured, " << milliseconds;
    static_cast<void>(MeasureDataPaths(16, clock));
    EXPECT_LE(clock.Elapsed() - machine, 3 * (kPathBudget + 3 * step)) << milliseconds;
    EXPECT_LE(clock.Elapsed(), std::chrono::seconds(2)) << milliseconds;
  }
}

TEST(MeasureTest, ATimeSliceIsNoSignal) {
  for (const int microseconds : {100, 2000}) {
    const SlowClock clock{std::chrono::microseconds(microseconds)};
    EXPECT_EQ(MeasureMachine(1, 1, clock).signal_s, MachineRates().signal_s) << microseconds;
  }
  const SlowClock quick{std::chrono::microseconds(10)};
  EXPECT_NEAR(MeasureMachine(1, 1, quick).signal_s, 5.7e-6, 1e-9);
}

TEST(MeasureTest, OneCoreHasNobodyToExchangeWith) { EXPECT_EQ(MeasureDataPaths(1), DataPaths()); }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(MeasureTest, WithoutMemoryOrThreadsTheDeclaredRatesStay) {
  const auto measure_in = [](rlim_t bytes) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    // 16 stacks of 8 MiB and 128 MiB of buffers do not fit.
    const MachineRates rates = MeasureMachine(16, 1);
    static_cast<void>(MeasureDataPaths(16));
    _exit(rates.copy_Bps > 0 && rates.signal_s > 0 ? 0 : 1);
  };
  for (const rlim_t mebibytes : {16, 40, 100, 200})
    EXPECT_EXIT(measure_in(mebibytes << 20), ::testing::ExitedWithCode(0), "") << mebibytes;
}
#endif

}  // namespace
}  // namespace tidegate
