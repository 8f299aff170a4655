#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace tidegate::bench {

/// Processor, cores, kernel, frequency governor, load, and what the bench was told to do.
nlohmann::json HostFingerprint();

/// Tables for a document of the cells, which are what Session reports, in their order.
std::string MarkdownTables(const nlohmann::json& cells);

}  // namespace tidegate::bench
