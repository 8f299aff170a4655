#include "backend/call_builder.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backend/validate.h"

namespace tidegate {
namespace {

Result<ReduceOp> ReduceOpOf(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBitXor;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kPremulSum;
    default:
      return Status(StatusCode::kUnsupported,
                    "reduce op number " + std::to_string(op) + " is not supported");
  }
}

// The factor of PREMUL_SUM, a number or a tensor of one element.
Result<double> FactorOf(const c10d::ReduceOp& op) {
  if (!op.supplement_) {
    return Status(StatusCode::kInvalidArgument, "PREMUL_SUM came without its factor");
  }
  // The struct is header-only, so its type information is not shared with torch: no dynamic_cast.
  // This is its name in every torch; the newer one is missing in 2.11.
  const auto* supplement = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  const at::Tensor& tensor = supplement->tensor_factor;
  if (!tensor.defined()) return supplement->double_factor;
  if (tensor.numel() != 1) {
    return Status(StatusCode::kInvalidArgument,
                  "the factor of PREMUL_SUM is a number or a tensor of one element; got one of " +
                      std::to_string(tensor.numel()));
  }
  const at::Scalar factor = tensor.item();
  if (factor.isComplex() && factor.toComplexDouble().imag() != 0) {
    return Status(StatusCode::kUnsupported,
                  "the factor of PREMUL_SUM must be real; got one with an imaginary part");
  }
  return factor.toDouble();
}

// Fills in the reduction of `op` over tensors like `first`.
Status SetReduction(const c10d::ReduceOp& op, const at::Tensor& first, CollectiveRequest& request) {
  const Result<ReduceOp> reduce_op = ReduceOpOf(op.op_);
  if (!reduce_op.ok()) return reduce_op.status();
  request.reduce_op = reduce_op.value();
  // The core refuses what else has no meaning; of this dtype it does not know the name.
  if (request.dtype == DataType::kOther1) {
    return Status(StatusCode::kUnsupported, "reduce op " + std::string(NameOf(request.reduce_op)) +
                                                " is not supported for dtype " +
                                                at::toString(first.scalar_type()) +
                                                ", which is only moved");
  }
  if (request.reduce_op != ReduceOp::kPremulSum) return Status();
  const Result<double> factor = FactorOf(op);
  if (!factor.ok()) return factor.status();
  request.factor = factor.value();
  return Status();
}

bool Overlap(const Block& a, const Block& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// The smallest block that holds all of `blocks`.
Block Envelope(std::span<const Block> blocks) {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  for (const Block& block : blocks) {
    if (block.bytes == 0) continue;
    begin = begin == nullptr ? block.data : std::min(begin, block.data);
    end = std::max(end, block.data + block.bytes);
  }
  return {begin, static_cast<std::size_t>(end - begin)};
}

/// Whether the core runs with input i and output o in the same memory.
bool IsInPlace(const CollectiveRequest& request, int rank, std::size_t i, std::size_t o) {
  const auto own = static_cast<std::size_t>(rank);
  return request.inputs[i].data == request.outputs[o].data &&
         (((request.collective == Collective::kAllGather ||
            request.collective == Collective::kGather) &&
           o == own) ||
          ((request.collective == Collective::kReduceScatter ||
            request.collective == Collective::kScatter) &&
           i == own));
}

/// Whether outputs overlap inputs in a way that the core does not run in place (request.h): some
/// callers scatter into a part of the input.
bool InputsAlias(const CollectiveRequest& request, int rank) {
  switch (request.collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      break;
    default:
      return false;
  }
  if (!Overlap(Envelope(request.inputs), Envelope(request.outputs))) return false;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    for (std::size_t o = 0; o < request.outputs.size(); ++o) {
      if (IsInPlace(request, rank, i, o)) continue;
      if (Overlap(request.inputs[i], request.outputs[o])) return true;
    }
  }
  return false;
}

Blocks Cut(Block whole, std::span<const std::int64_t> numels, std::size_t element_bytes) {
  Blocks parts;
  parts.reserve(numels.size());
  std::byte* data = whole.data;
  for (const std::int64_t numel : numels) {
    parts.push_back({data, static_cast<std::size_t>(numel) * element_bytes});
    data += parts.back().bytes;
  }
  return parts;
}

std::string PerRank(std::string_view what, const at::Tensor& tensor, int ranks) {
  return std::string(what) + " has " + std::to_string(tensor.numel()) + " and there are " +
         std::to_string(ranks) + " ranks";
}

// gather and scatter: c10d wraps the one list of the root in a list, and has an empty one
// elsewhere.
std::string_view RootListName(bool is_root) {
  return is_root ? "the list of lists of the root" : "the list of lists, on a rank but the root,";
}

/// Whether torch's allocator for CPUs made it; pinned, mapped and foreign memory is freed
/// otherwise.
bool IsFromMalloc(const c10::Storage& storage) {
  static const c10::DeleterFnPtr by_malloc = c10::GetDefaultCPUAllocator()->raw_deleter();
  return by_malloc != nullptr && storage.data_ptr().get_deleter() == by_malloc;
}

}  // namespace

Status CallBuilder::AddAllGather(const Tensors& outputs, const at::Tensor& input) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(input, "input"));
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs.size(), ranks_, "the list of outputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(outputs, input, "outputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckNumel(outputs[rank_], input.numel(), "this rank's output",
                                      "it takes a copy of the input"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kAllGather, input, request));
  request.inputs = {Read(input)};
  request.outputs = WriteAll(outputs);
  return Append(std::move(request));
}

Status CallBuilder::AddAllGatherSingle(const at::Tensor& output, const at::Tensor& input) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(input, "input"));
  TIDEGATE_RETURN_IF_ERROR(CheckAlike(output, input, "output"));
  if (output.numel() != input.numel() * ranks_) {
    return CheckNumel(output, input.numel() * ranks_, "output",
                      PerRank("the input", input, ranks_));
  }
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kAllGather, input, request));
  request.inputs = {Read(input)};
  request.outputs = EqualParts(Write(output));
  return Append(std::move(request));
}

Status CallBuilder::AddReduceScatter(const at::Tensor& output, const Tensors& inputs,
                                     const c10d::ReduceOp& op) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(output, "output"));
  TIDEGATE_RETURN_IF_ERROR(CheckLength(inputs.size(), ranks_, "the list of inputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(inputs, output, "inputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckNumel(inputs[rank_], output.numel(), "this rank's input",
                                      "it is reduced into the output"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kReduceScatter, output, request));
  TIDEGATE_RETURN_IF_ERROR(SetReduction(op, output, request));
  request.inputs = ReadAll(inputs);
  request.outputs = {Write(output)};
  return Append(std::move(request));
}

Status CallBuilder::AddReduceScatterSingle(const at::Tensor& output, const at::Tensor& input,
                                           const c10d::ReduceOp& op) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(output, "output"));
  TIDEGATE_RETURN_IF_ERROR(CheckAlike(input, output, "input"));
  if (input.numel() != output.numel() * ranks_) {
    return CheckNumel(input, output.numel() * ranks_, "input",
                      PerRank("the output", output, ranks_));
  }
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kReduceScatter, output, request));
  TIDEGATE_RETURN_IF_ERROR(SetReduction(op, output, request));
  request.inputs = EqualParts(Read(input));
  request.outputs = {Write(output)};
  return Append(std::move(request));
}

Status CallBuilder::AddAllReduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  TIDEGATE_RETURN_IF_ERROR(CheckDense(tensor, "tensor"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kAllReduce, tensor, request));
  request.order = OrderOf(tensor);
  TIDEGATE_RETURN_IF_ERROR(SetReduction(op, tensor, request));
  request.outputs = {Write(tensor)};
  request.inputs = request.outputs;
  return Append(std::move(request));
}

Status CallBuilder::AddBroadcast(const at::Tensor& tensor, std::int64_t root) {
  TIDEGATE_RETURN_IF_ERROR(CheckDense(tensor, "tensor"));
  TIDEGATE_RETURN_IF_ERROR(CheckRank(root, ranks_, "root"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kBroadcast, tensor, request));
  request.order = OrderOf(tensor);
  request.root = static_cast<int>(root);
  request.outputs = {Write(tensor)};
  if (root == rank_) request.inputs = request.outputs;
  return Append(std::move(request));
}

Status CallBuilder::AddReduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                              std::int64_t root) {
  TIDEGATE_RETURN_IF_ERROR(CheckDense(tensor, "tensor"));
  TIDEGATE_RETURN_IF_ERROR(CheckRank(root, ranks_, "root"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kReduce, tensor, request));
  request.order = OrderOf(tensor);
  TIDEGATE_RETURN_IF_ERROR(SetReduction(op, tensor, request));
  request.root = static_cast<int>(root);
  request.inputs = {Write(tensor)};
  if (root == rank_) request.outputs = request.inputs;
  return Append(std::move(request));
}

Status CallBuilder::AddGather(const std::vector<Tensors>& outputs, const at::Tensor& input,
                              std::int64_t root) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(input, "input"));
  TIDEGATE_RETURN_IF_ERROR(CheckRank(root, ranks_, "root"));
  const bool is_root = root == rank_;
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs.size(), is_root ? 1 : 0, RootListName(is_root)));
  if (is_root) {
    TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs[0].size(), ranks_, "the list of outputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(outputs[0], input, "outputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckNumel(outputs[0][rank_], input.numel(), "this rank's output",
                                        "it takes a copy of the input"));
  }
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kGather, input, request));
  request.root = static_cast<int>(root);
  request.inputs = {Read(input)};
  if (is_root) request.outputs = WriteAll(outputs[0]);
  return Append(std::move(request));
}

Status CallBuilder::AddScatter(const at::Tensor& output, const std::vector<Tensors>& inputs,
                               std::int64_t root) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(output, "output"));
  TIDEGATE_RETURN_IF_ERROR(CheckRank(root, ranks_, "root"));
  const bool is_root = root == rank_;
  TIDEGATE_RETURN_IF_ERROR(CheckLength(inputs.size(), is_root ? 1 : 0, RootListName(is_root)));
  if (is_root) {
    TIDEGATE_RETURN_IF_ERROR(CheckLength(inputs[0].size(), ranks_, "the list of inputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(inputs[0], output, "inputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckNumel(inputs[0][rank_], output.numel(), "this rank's input",
                                        "it is copied to the output"));
  }
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kScatter, output, request));
  request.root = static_cast<int>(root);
  if (is_root) request.inputs = ReadAll(inputs[0]);
  request.outputs = {Write(output)};
  return Append(std::move(request));
}

Status CallBuilder::AddAllToAll(const Tensors& outputs, const Tensors& inputs) {
  TIDEGATE_RETURN_IF_ERROR(CheckLength(inputs.size(), ranks_, "the list of inputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs.size(), ranks_, "the list of outputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(inputs[0], "inputs[0]"));
  TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(inputs, inputs[0], "inputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckAllAlike(outputs, inputs[0], "outputs"));
  TIDEGATE_RETURN_IF_ERROR(CheckNumel(outputs[rank_], inputs[rank_].numel(), "this rank's output",
                                      "it takes a copy of this rank's input"));
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kAllToAll, inputs[0], request));
  request.inputs = ReadAll(inputs);
  request.outputs = WriteAll(outputs);
  return Append(std::move(request));
}

Status CallBuilder::AddAllToAllSingle(const at::Tensor& output, const at::Tensor& input,
                                      const std::vector<std::int64_t>& output_splits,
                                      const std::vector<std::int64_t>& input_splits) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(input, "input"));
  TIDEGATE_RETURN_IF_ERROR(CheckAlike(output, input, "output"));
  const Result<Numels> sent = SplitNumels(input, input_splits, ranks_, "input");
  if (!sent.ok()) return sent.status();
  const Result<Numels> received = SplitNumels(output, output_splits, ranks_, "output");
  if (!received.ok()) return received.status();
  if (sent.value()[rank_] != received.value()[rank_]) {
    return Status(StatusCode::kInvalidArgument,
                  "this rank sends itself " + std::to_string(sent.value()[rank_]) +
                      " elements of the input and takes " +
                      std::to_string(received.value()[rank_]) + " into the output");
  }
  CollectiveRequest request;
  TIDEGATE_RETURN_IF_ERROR(Begin(Collective::kAllToAll, input, request));
  request.inputs = Cut(Read(input), sent.value(), input.itemsize());
  request.outputs = Cut(Write(output), received.value(), output.itemsize());
  // Equal splits that are given say nothing of those of other ranks.
  request.even = output_splits.empty() && input_splits.empty();
  return Append(std::move(request));
}

Status CallBuilder::AddBarrier() {
  call_.requests.emplace_back().collective = Collective::kBarrier;
  return Status();
}

Status CallBuilder::Begin(Collective collective, const at::Tensor& first,
                          CollectiveRequest& request) const {
  const Result<DataType> dtype = DataTypeOf(first);
  if (!dtype.ok()) return dtype.status();
  request.collective = collective;
  request.dtype = dtype.value();
  return Status();
}

Block CallBuilder::Read(const at::Tensor& tensor) {
  call_.memory.push_back(tensor.storage());
  inputs_from_malloc_ = inputs_from_malloc_ && IsFromMalloc(tensor.storage());
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  inputs_of_one_storage_ =
      inputs_of_one_storage_ && (input_storage_ == nullptr || input_storage_ == storage);
  input_storage_ = storage;
  // Through the const pointer: asking for a writable one would copy a copy-on-write tensor.
  auto* data = const_cast<void*>(tensor.const_data_ptr());
  return {static_cast<std::byte*>(data), tensor.nbytes()};
}

Blocks CallBuilder::ReadAll(const Tensors& tensors) {
  Blocks blocks;
  blocks.reserve(tensors.size());
  call_.memory.reserve(call_.memory.size() + tensors.size());
  for (const at::Tensor& tensor : tensors) blocks.push_back(Read(tensor));
  return blocks;
}

Block CallBuilder::Write(const at::Tensor& tensor) {
  call_.memory.push_back(tensor.storage());
  call_.results.push_back(tensor);
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

Blocks CallBuilder::WriteAll(const Tensors& tensors) {
  Blocks blocks;
  blocks.reserve(tensors.size());
  call_.memory.reserve(call_.memory.size() + tensors.size());
  if (call_.results.empty()) call_.results.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) blocks.push_back(Write(tensor));
  return blocks;
}

Blocks CallBuilder::EqualParts(Block whole) const {
  const std::size_t bytes = whole.bytes / ranks_;
  Blocks parts;
  parts.reserve(ranks_);
  for (int i = 0; i < ranks_; ++i) parts.push_back({whole.data + i * bytes, bytes});
  return parts;
}

Status CallBuilder::Append(CollectiveRequest request) {
  request.copy_inputs = InputsAlias(request, rank_);
  request.input_memory = inputs_from_malloc_      ? InputMemory::kMalloc
                         : inputs_of_one_storage_ ? InputMemory::kOneAllocation
                                                  : InputMemory::kAny;
  inputs_from_malloc_ = true;
  inputs_of_one_storage_ = true;
  input_storage_ = nullptr;
  call_.requests.push_back(std::move(request));
  return Status();
}

}  // namespace tidegate
