"""The one place that states the version: CMake and the package metadata read this line."""

__version__ = "0.1.0"
