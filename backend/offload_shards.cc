#include "backend/offload_shards.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "backend/gil.h"
#include "backend/offload_engine.h"
#include "backend/validate.h"
#include "common/check.h"
#include "common/hash.h"

namespace tidegate {
namespace {

using offload::CopyJob;

constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

Status Lost(std::string text) { return Status(StatusCode::kPeerLost, std::move(text)); }

void CopyAll(const std::vector<CopyJob>& jobs) {
  offload::ThreadPool& pool = OffloadEngine::OfThisProcess().pool();
  const GilRelease without_gil;
  CheckOffload(CopyInParallel(pool, jobs));
}

std::byte* BytesOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

/// What tells one optimizer's table from another's that lies where it was.
std::uint64_t MakeNonce() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1;
}

std::int64_t BlocksOf(std::int64_t count) {
  return static_cast<std::int64_t>(offload::TileSpace::BlocksIn(static_cast<std::size_t>(count)));
}

struct AllShards {
  std::mutex mutex;
  std::vector<std::weak_ptr<OffloadShards>> shards;
  std::vector<std::shared_ptr<OffloadShards>> kept;
};

AllShards& All() {
  static auto* const all = new AllShards();
  return *all;
}

}  // namespace

/// Offsets in the slice of the rank whose table it is; kNowhere: it has none.
struct OffloadShards::Entry {
  std::array<std::uint64_t, 3> states = {kNowhere, kNowhere, kNowhere};
  std::array<std::uint64_t, 3> scales = {kNowhere, kNowhere, kNowhere};
  std::uint64_t master = kNowhere;
  std::uint64_t published = kNowhere;
};

namespace {
// The nonce, in a place of its own, goes before the entries.
constexpr std::size_t kHeaderBytes = 64;
}  // namespace

std::shared_ptr<OffloadShards> OffloadShards::Make(std::shared_ptr<OffloadNode> node) {
  auto made = std::make_shared<OffloadShards>(std::move(node));
  const std::lock_guard lock(All().mutex);
  std::erase_if(All().shards, [](const auto& other) { return other.expired(); });
  All().shards.push_back(made);
  return made;
}

void OffloadShards::KeepAll() {
  const std::lock_guard lock(All().mutex);
  for (const auto& each : All().shards)
    if (auto shards = each.lock()) All().kept.push_back(std::move(shards));
}

OffloadShards::OffloadShards(std::shared_ptr<OffloadNode> node)
    : node_(std::move(node)),
      nonce_(MakeNonce()),
      blocks_(static_cast<std::size_t>(node_->ranks()), 0) {}

OffloadShards::~OffloadShards() {
  if (table_.defined()) retired_.push_back(table_);
  // Release: before any of the memory is freed and used anew. Its pair is in CheckAlive.
  for (const at::Tensor& table : retired_)
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(BytesOf(table)))
        .store(0, std::memory_order_release);
}

void OffloadShards::Plan(const std::vector<std::vector<std::int64_t>>& cuts) {
  std::vector<Row> rows = rows_;
  std::vector<std::int64_t> blocks = blocks_;
  for (const auto& parts : cuts) {
    TORCH_CHECK_VALUE(parts.size() == blocks_.size() + 1 && parts.front() == 0,
                      "cuts of a parameter are those of ", blocks_.size(), " ranks");
    Row& row = rows.emplace_back(Row{parts, nullptr});
    for (std::size_t rank = 0; rank < blocks.size(); ++rank)
      blocks[rank] += BlocksOf(CountOf(row, static_cast<int>(rank)));
  }
  const auto bytes = static_cast<std::int64_t>(kHeaderBytes + rows.size() * sizeof(Entry));
  at::Tensor table = node_->Zeros()({bytes}, {1}, at::kByte);
  const std::int64_t own = blocks[static_cast<std::size_t>(node_->rank())];
  at::Tensor sums = node_->Zeros()({2, own}, {own, 1}, at::kDouble);
  rows_ = std::move(rows);
  blocks_ = std::move(blocks);
  if (table_.defined()) retired_.push_back(std::exchange(table_, {}));
  if (sums_.defined() && sums_.numel() > 0) retired_.push_back(std::exchange(sums_, {}));
  table_ = std::move(table);
  sums_ = std::move(sums);
  std::memcpy(BytesOf(table_), &nonce_, sizeof(nonce_));
  for (std::size_t row = 0; row < rows_.size(); ++row)
    Enter(static_cast<std::int64_t>(row), rows_[row].record);
}

std::int64_t OffloadShards::CountOf(const Row& row, int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return row.cuts[at + 1] - row.cuts[at];
}

const OffloadShards::Row& OffloadShards::RowOf(const OffloadParameter& record) const {
  TIDEGATE_CHECK(record.part().has_value());
  return rows_.at(static_cast<std::size_t>(record.part()->row));
}

std::shared_ptr<OffloadParameter> OffloadShards::MakeRecord(std::int64_t row,
                                                            const at::Tensor& parameter,
                                                            offload::Master master,
                                                            offload::States states, int state_count,
                                                            bool counts_steps) {
  const Row& known = rows_.at(static_cast<std::size_t>(row));
  TORCH_CHECK_VALUE(known.cuts.back() == parameter.numel(), "a parameter of ", known.cuts.back(),
                    " elements has become one of ", parameter.numel());
  const auto rank = static_cast<std::size_t>(node_->rank());
  const OffloadPart part{
      .row = row, .first = known.cuts[rank], .count = CountOf(known, node_->rank())};
  return std::make_shared<OffloadParameter>(parameter, master, states, state_count, counts_steps,
                                            node_->Zeros(), part);
}

std::vector<std::int64_t> OffloadShards::Card() const {
  const auto offset = [this](const at::Tensor& tensor) {
    const bool somewhere = tensor.defined() && tensor.numel() > 0;
    return static_cast<std::int64_t>(somewhere ? node_->OffsetOf(tensor) : kNowhere);
  };
  return {static_cast<std::int64_t>(nonce_), offset(table_), offset(sums_), rows()};
}

void OffloadShards::SetCards(std::vector<std::vector<std::int64_t>> cards) {
  TORCH_CHECK_VALUE(cards.size() == blocks_.size(), "a card of each rank");
  cards_ = std::move(cards);
  retired_.clear();
}

OffloadShards::Entry* OffloadShards::OwnEntries() const {
  return reinterpret_cast<Entry*>(BytesOf(table_) + kHeaderBytes);
}

void OffloadShards::Enter(std::int64_t row, const std::shared_ptr<OffloadParameter>& record) {
  const auto at = static_cast<std::size_t>(row);
  Entry entry;
  const auto offset = [this](const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() > 0 ? node_->OffsetOf(tensor) : kNowhere;
  };
  if (record != nullptr) {
    for (std::size_t s = 0; s < record->states().size(); ++s) {
      entry.states[s] = offset(record->states()[s]);
      if (!record->scales().empty()) entry.scales[s] = offset(record->scales()[s]);
    }
    entry.master = offset(record->master());
    entry.published = offset(record->published());
  }
  OwnEntries()[at] = entry;
  rows_[at].record = record;
}

void OffloadShards::Register(const std::vector<std::shared_ptr<OffloadParameter>>& records) {
  for (const auto& record : records) EnterIfNew(record);
}

void OffloadShards::RegisterStep(const OffloadStep& step) {
  for (std::size_t entry = 0; entry < step.size(); ++entry) EnterIfNew(step.parameter(entry));
}

void OffloadShards::EnterIfNew(const std::shared_ptr<OffloadParameter>& record) {
  if (RowOf(*record).record != record) Enter(record->part()->row, record);
}

void OffloadShards::PutSums(const OffloadStep& step, int turn) {
  if (sums_.numel() == 0) return;
  double* sums = sums_[turn].mutable_data_ptr<double>();
  TIDEGATE_CHECK(static_cast<std::int64_t>(step.blocks().size()) <= sums_.size(1));
  for (const offload::BlockSums& block : step.blocks()) *sums++ = block.squares;
}

at::Tensor OffloadShards::TotalSums(const OffloadStep& step, int turn) const {
  std::vector<const double*> next;  // By rank.
  for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
    const auto all = static_cast<std::size_t>(blocks_[rank]);
    const auto offset = static_cast<std::uint64_t>(cards_.at(rank).at(2));
    const std::byte* const sums =
        all == 0 ? nullptr : PartAt(static_cast<int>(rank), offset, 2 * all * sizeof(double));
    next.push_back(reinterpret_cast<const double*>(sums) + static_cast<std::size_t>(turn) * all);
  }
  const at::Tensor totals = at::empty({static_cast<std::int64_t>(step.size())}, at::kDouble);
  std::vector<offload::BlockSums> blocks;
  for (std::size_t entry = 0; entry < step.size(); ++entry) {
    const Row& row = RowOf(*step.parameter(entry));
    blocks.clear();
    for (std::size_t rank = 0; rank < blocks_.size(); ++rank)
      for (std::int64_t n = BlocksOf(CountOf(row, static_cast<int>(rank))); n > 0; --n)
        blocks.push_back({.squares = *next[rank]++});
    totals.mutable_data_ptr<double>()[entry] = offload::TileSpace::SumOfBlocks(blocks);
  }
  return totals;
}

void OffloadShards::Fetch(const OffloadStep& step) {
  std::vector<CopyJob> jobs;
  for (std::size_t entry = 0; entry < step.size(); ++entry) {
    const OffloadParameter& record = *step.parameter(entry);
    const Row& row = RowOf(record);
    std::byte* const to = BytesOf(record.parameter());
    const std::size_t size = record.parameter().element_size();
    for (int rank = 0; rank < node_->ranks(); ++rank) {
      const auto bytes = static_cast<std::size_t>(CountOf(row, rank)) * size;
      if (bytes == 0 || rank == node_->rank()) continue;
      const auto first = static_cast<std::size_t>(row.cuts[static_cast<std::size_t>(rank)]);
      jobs.push_back({to + first * size,
                      PartAt(rank, EntryOf(rank, record.part()->row).published, bytes), bytes});
    }
  }
  CopyAll(jobs);
}

const std::byte* OffloadShards::PartAt(int rank, std::uint64_t offset, std::size_t bytes) const {
  if (offset == kNowhere)
    CheckOffload(
        Lost("rank " + std::to_string(rank) + " has no such states; was its optimizer changed?"));
  return node_->At(rank, offset, bytes);
}

const OffloadShards::Entry& OffloadShards::EntryOf(int rank, std::int64_t row) const {
  const std::vector<std::int64_t>& card = cards_.at(static_cast<std::size_t>(rank));
  if (row >= card.at(3))
    CheckOffload(Lost("rank " + std::to_string(rank) + " has no parameter " + std::to_string(row) +
                      " yet; step first"));
  const std::size_t offset = static_cast<std::uint64_t>(card.at(1)) + kHeaderBytes +
                             static_cast<std::size_t>(row) * sizeof(Entry);
  return *reinterpret_cast<const Entry*>(node_->At(rank, offset, sizeof(Entry)));
}

void OffloadShards::CheckAlive(int rank) const {
  const std::vector<std::int64_t>& card = cards_.at(static_cast<std::size_t>(rank));
  auto* const nonce = const_cast<std::uint64_t*>(reinterpret_cast<const std::uint64_t*>(
      PartAt(rank, static_cast<std::uint64_t>(card.at(1)), sizeof(std::uint64_t))));
  if (std::atomic_ref(*nonce).load(std::memory_order_acquire) !=
      static_cast<std::uint64_t>(card.at(0)))
    CheckOffload(
        Lost("rank " + std::to_string(rank) +
             " has dropped its optimizer, and its part of the states with it; keep the optimizer "
             "until the states are read (a barrier of the group after state_dict())"));
}

std::vector<std::int64_t> OffloadShards::StridesOf(std::int64_t row) const {
  const Row& known = rows_.at(static_cast<std::size_t>(row));
  if (known.record == nullptr) return {};
  return known.record->parameter().strides().vec();
}

std::uint64_t OffloadShards::OrdersOf(const OffloadStep& step) const {
  std::uint64_t hash = kHashSeed;
  for (std::size_t entry = 0; entry < step.size(); ++entry)
    hash = MixHash(hash, OrderOf(step.parameter(entry)->parameter()));
  return hash;
}

void OffloadShards::Gather(std::int64_t row, OffloadParameter& whole) const {
  if (cards_.empty()) CheckOffload(Lost("the ranks have not stepped yet"));
  const Row& known = rows_.at(static_cast<std::size_t>(row));
  std::vector<CopyJob> jobs;
  const auto add = [&](int rank, const at::Tensor& to, std::uint64_t from, std::int64_t unit) {
    if (!to.defined()) return;
    const std::int64_t first = known.cuts[static_cast<std::size_t>(rank)] / unit;
    const std::int64_t count = (CountOf(known, rank) + unit - 1) / unit;
    const std::size_t size = to.element_size();
    const std::size_t bytes = static_cast<std::size_t>(count) * size;
    jobs.push_back(
        {BytesOf(to) + static_cast<std::size_t>(first) * size, PartAt(rank, from, bytes), bytes});
  };
  for (int rank = 0; rank < node_->ranks(); ++rank) {
    if (CountOf(known, rank) == 0) continue;
    CheckAlive(rank);
    const Entry& entry = EntryOf(rank, row);
    for (std::size_t s = 0; s < whole.states().size(); ++s) {
      add(rank, whole.states()[s], entry.states[s], 1);
      if (!whole.scales().empty())
        add(rank, whole.scales()[s], entry.scales[s],
            static_cast<std::int64_t>(offload::kScaleBlock));
    }
    add(rank, whole.master(), entry.master, 1);
  }
  CopyAll(jobs);
  std::atomic_thread_fence(std::memory_order_acquire);
  for (int rank = 0; rank < node_->ranks(); ++rank)
    if (CountOf(known, rank) > 0) CheckAlive(rank);
}

}  // namespace tidegate
