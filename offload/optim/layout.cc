#include "offload/optim/layout.h"

#include "common/check.h"
#include "offload/optim/coefficients.h"

namespace tidegate::offload {

int StateCount(const Hyperparameters& hyperparameters) {
  switch (hyperparameters.rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      return hyperparameters.amsgrad ? 3 : 2;
    case Rule::kSgd:
      return hyperparameters.momentum != 0 ? 1 : 0;
    case Rule::kAdagrad:
    case Rule::kLion:
      return 1;
  }
  TIDEGATE_CHECK(false);
}

std::size_t SizeOf(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

std::size_t SizeOf(Master master) {
  switch (master) {
    case Master::kNone:
      return 0;
    case Master::kFloat32:
      return 4;
    case Master::kSplit:
      return 2;
  }
  TIDEGATE_CHECK(false);
}

std::size_t SizeOf(States states) {
  switch (states) {
    case States::kFloat32:
      return 4;
    case States::kBFloat16:
      return 2;
    case States::kBlock8:
      return 1;
  }
  TIDEGATE_CHECK(false);
}

std::string_view NameOf(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
      return "AdamW";
    case Rule::kAdam:
      return "Adam";
    case Rule::kSgd:
      return "SGD";
    case Rule::kAdagrad:
      return "Adagrad";
    case Rule::kLion:
      return "Lion";
  }
  TIDEGATE_CHECK(false);
}

std::string_view NameOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
  }
  TIDEGATE_CHECK(false);
}

std::string_view NameOf(Master master) {
  switch (master) {
    case Master::kNone:
      return "none";
    case Master::kFloat32:
      return "float32";
    case Master::kSplit:
      return "split";
  }
  TIDEGATE_CHECK(false);
}

std::string_view NameOf(States states) {
  switch (states) {
    case States::kFloat32:
      return "float32";
    case States::kBFloat16:
      return "bfloat16";
    case States::kBlock8:
      return "block8";
  }
  TIDEGATE_CHECK(false);
}

std::string Describe(const Layout& layout) {
  std::string text = "gradient ";
  text += NameOf(layout.gradient);
  text += ", parameter ";
  text += NameOf(layout.parameter);
  text += ", master ";
  text += NameOf(layout.master);
  text += ", states ";
  text += NameOf(layout.states);
  return text;
}

Status CheckSupported(const Hyperparameters& hyperparameters, const Layout& layout) {
  const auto refuse = [&](std::string_view reason) {
    std::string message = "no step of ";
    message += NameOf(hyperparameters.rule);
    message += " for " + Describe(layout) + ": ";
    message += reason;
    return Status(StatusCode::kUnsupported, std::move(message));
  };
  const bool wide = layout.parameter == ElementType::kFloat32;
  if (layout.master == Master::kFloat32 && wide)
    return refuse("a float32 parameter is its own master");
  if (layout.master == Master::kSplit && layout.parameter != ElementType::kBFloat16)
    return refuse("a split master takes a bfloat16 parameter");
  if (!wide && layout.gradient != layout.parameter && layout.gradient != ElementType::kFloat32)
    return refuse("the gradient of a parameter of 16 bits has its type or float32");
  if (layout.states != States::kFloat32) {
    if (hyperparameters.rule != Rule::kAdamW || hyperparameters.amsgrad)
      return refuse("compressed states are those of AdamW without amsgrad");
    if (!wide && layout.master == Master::kNone)
      return refuse("compressed states take a master or a float32 parameter");
  }
  return Status();
}

}  // namespace tidegate::offload
