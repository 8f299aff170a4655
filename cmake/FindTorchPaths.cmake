# Finds torch by the include and lib folders of the chosen Python, without importing it.
# find_package(Torch) is no way: on a CUDA wheel it fails without a complete CUDA toolkit.
#
# Sets TIDEGATE_TORCH_FOUND; where true also TIDEGATE_TORCH_VERSION, TIDEGATE_SHIM_NAME and the
# target tidegate_torch; where false TIDEGATE_TORCH_PROBLEM, the reason as the end of a sentence.

find_package(Python 3.10 QUIET COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)

set(TIDEGATE_TORCH_FOUND FALSE)
set(TIDEGATE_TORCH_PROBLEM "")
if(NOT Python_Interpreter_FOUND)
  set(TIDEGATE_TORCH_PROBLEM "no Python >= 3.10 was found (set Python_EXECUTABLE)")
elseif(NOT Python_Development.Module_FOUND)
  set(TIDEGATE_TORCH_PROBLEM "${Python_EXECUTABLE} has no headers (install python3-dev)")
else()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT torch_dir OR NOT EXISTS "${torch_dir}/version.py")
    set(TIDEGATE_TORCH_PROBLEM "${Python_EXECUTABLE} has no torch")
  elseif(NOT EXISTS "${torch_dir}/include/torch/csrc/distributed/c10d/Backend.hpp")
    set(TIDEGATE_TORCH_PROBLEM "${torch_dir} has no c10d headers")
  else()
    set(TIDEGATE_TORCH_FOUND TRUE)
  endif()
endif()

if(TIDEGATE_TORCH_FOUND)
  # A rerun of CMake after another torch was installed into the same environment.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${torch_dir}/version.py")
  file(STRINGS "${torch_dir}/version.py" version_line REGEX "^__version__ *=")
  string(REGEX MATCH "['\"]([0-9]+)\\.([0-9]+)[^'\"]*" version_text "${version_line}")
  set(TIDEGATE_SHIM_NAME _c10d_pt${CMAKE_MATCH_1}${CMAKE_MATCH_2})
  string(SUBSTRING "${version_text}" 1 -1 TIDEGATE_TORCH_VERSION)

  # What the wheel's own code was compiled with decides the layout of std::string in its symbols.
  set(cxx11_abi 1)
  file(GLOB torch_config "${torch_dir}/share/cmake/Torch/TorchConfig.cmake")
  if(torch_config)
    file(STRINGS "${torch_config}" abi_line REGEX "_GLIBCXX_USE_CXX11_ABI=[01]")
    if(abi_line MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
      set(cxx11_abi 0)
    endif()
  endif()

  add_library(tidegate_torch INTERFACE)
  target_include_directories(tidegate_torch SYSTEM INTERFACE
    "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
  target_link_directories(tidegate_torch INTERFACE "${torch_dir}/lib")
  # Python::Module gives Python.h to backend/, whose static library is no Python module itself.
  target_link_libraries(tidegate_torch INTERFACE c10 torch torch_cpu torch_python Python::Module)
  target_compile_definitions(tidegate_torch INTERFACE
    USE_DISTRIBUTED _GLIBCXX_USE_CXX11_ABI=${cxx11_abi})
endif()
