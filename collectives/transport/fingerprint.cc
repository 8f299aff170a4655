#include "collectives/transport/transport.h"

namespace tidegate {

bool Matches(const Fingerprint& a, const Fingerprint& b) {
  return a.sequence == b.sequence && a.elements == b.elements && a.layout == b.layout &&
         a.plan == b.plan && a.collective == b.collective && a.dtype == b.dtype &&
         a.reduce_op == b.reduce_op && a.refused == b.refused && a.root == b.root;
}

std::string Describe(const Fingerprint& fingerprint) {
  std::string text(NameOf(fingerprint.collective));
  if (fingerprint.collective != Collective::kBarrier) {
    text += '(';
    if (fingerprint.reduce_op != ReduceOp::kNone)
      text += std::string(NameOf(fingerprint.reduce_op)) + ", ";
    text += NameOf(fingerprint.dtype);
    if (fingerprint.elements != 0)
      text += ", " + std::to_string(fingerprint.elements) + " elements";
    if (fingerprint.root >= 0) text += ", root " + std::to_string(fingerprint.root);
    text += ')';
  }
  return text + " seq " + std::to_string(fingerprint.sequence);
}

}  // namespace tidegate
