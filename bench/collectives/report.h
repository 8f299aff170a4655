#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace tidegate::bench {

/// Processor, cores, kernel, frequency governor, load, and what the bench was told to do.
nlohmann::json HostFingerprint();

/// How much of the machine's processors went to somebody else between construction and Percent().
class Disturbance {
 public:
  Disturbance();
  /// {"others_percent", "stolen_percent"}: processes that are not children of this one, and the
  /// host of a virtual machine. REQUIRES: the children have ended and were waited for.
  nlohmann::json Percent() const;

 private:
  /// In ticks, of all processors together.
  struct Times {
    double total = 0;
    double idle = 0;
    double stolen = 0;
    double own = 0;
  };
  static Times Now();

  const Times before_;
};

/// Tables for a document of the cells, which are what Session reports, in their order.
std::string MarkdownTables(const nlohmann::json& cells);

}  // namespace tidegate::bench
