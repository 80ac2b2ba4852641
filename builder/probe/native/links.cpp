#include "links.hpp"

#include "kernels.hpp"
#include "resources.hpp"

namespace kvreg {
namespace {

// Access of one device to another's memory, for as long as the object lives. What was enabled by
// other code of the process (the context is shared with it) stays as it was.
class PeerAccess {
 public:
  PeerAccess() = default;
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;
  ~PeerAccess() {
    if (!mine_) return;
    DeviceScope scope;
    if (!scope.enter(device_)) (void)cudaDeviceDisablePeerAccess(peer_);
  }

  Status enable(int device, int peer) {
    DeviceScope scope;
    if (auto failure = scope.enter(device)) return failure;
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      return std::nullopt;
    }
    if (auto failure = attempt("cudaDeviceEnablePeerAccess", status)) return failure;
    device_ = device;
    peer_ = peer;
    mine_ = true;
    return std::nullopt;
  }

  bool mine() const { return mine_; }

 private:
  bool mine_ = false;
  int device_ = 0;
  int peer_ = 0;
};

Status read_attribute(cudaDeviceP2PAttr attribute, int source, int target, int& value) {
  return attempt("cudaDeviceGetP2PAttribute",
                 cudaDeviceGetP2PAttribute(&value, attribute, source, target));
}

}  // namespace

Status read_link(int source, int target, Link& link) {
  int forth = 0;
  int back = 0;
  if (auto failure = attempt("cudaDeviceCanAccessPeer",
                             cudaDeviceCanAccessPeer(&forth, source, target))) {
    return failure;
  }
  if (auto failure =
          attempt("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&back, target, source))) {
    return failure;
  }
  int atomics = 0;
  if (auto failure = read_attribute(cudaDevP2PAttrPerformanceRank, source, target,
                                    link.performance_rank)) {
    return failure;
  }
  if (auto failure =
          read_attribute(cudaDevP2PAttrNativeAtomicSupported, source, target, atomics)) {
    return failure;
  }
  link.peer_access = forth != 0 && back != 0;
  link.native_atomics = atomics != 0;
  if (!link.peer_access) return std::nullopt;
  // The runtime tells who enabled an access only when one tries.
  PeerAccess forth_access;
  PeerAccess back_access;
  if (auto failure = forth_access.enable(source, target)) return failure;
  if (auto failure = back_access.enable(target, source)) return failure;
  link.already_enabled = !forth_access.mine() || !back_access.mine();
  return std::nullopt;
}

Status copy_between(int source, int target, bool peer, std::size_t bytes, int repetitions,
                    Copies& copies) {
  const std::size_t words = bytes / sizeof(std::uint32_t);
  const std::uint32_t seed = 0x11A50000u + static_cast<std::uint32_t>(source * 256 + target * 2) +
                             (peer ? 1u : 0u);
  PeerAccess forth;
  PeerAccess back;
  if (peer) {
    if (auto failure = forth.enable(source, target)) return failure;
    if (auto failure = back.enable(target, source)) return failure;
  }
  DeviceScope scope;
  if (auto failure = scope.enter(target)) return failure;
  Stream target_stream;
  DeviceArray<std::uint32_t> to;
  if (auto failure = create(target_stream)) return failure;
  if (auto failure = allocate(words, to)) return failure;
  if (auto failure = attempt("cudaMemsetAsync",
                             cudaMemsetAsync(to.get(), 0, bytes, target_stream.get()))) {
    return failure;
  }
  if (auto failure = attempt("cudaMemsetAsync", cudaStreamSynchronize(target_stream.get()))) {
    return failure;
  }

  if (auto failure = scope.enter(source)) return failure;
  Stream source_stream;
  DeviceArray<std::uint32_t> from;
  if (auto failure = create(source_stream)) return failure;
  if (auto failure = allocate(words, from)) return failure;
  if (auto failure =
          attempt("fill", kernels::launch_fill(from.get(), words, seed, source_stream.get()))) {
    return failure;
  }
  const auto copy = [&](cudaStream_t on) {
    return attempt("cudaMemcpyPeerAsync",
                   cudaMemcpyPeerAsync(to.get(), target, from.get(), source, bytes, on));
  };
  if (auto failure = time_copies(copy, source_stream.get(), repetitions, copies.milliseconds)) {
    return failure;
  }

  if (auto failure = scope.enter(target)) return failure;
  return count_differences(to.get(), words, seed, target_stream.get(), copies.differing_words);
}

}  // namespace kvreg
