#include "checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels.hpp"
#include "resources.hpp"

namespace kvreg {
namespace {

// No dimension is a multiple of the tile, so that the kernels' edges are run as well.
constexpr Shape kTiledShape{251, 233, 199};
constexpr Shape kTensorShape{128, 128, 64};

constexpr double kUnitRoundoff = 1.0 / (1 << 24);  // of FP32, rounding to nearest

// A fixed sequence, the same on every machine (the standard's distributions are not).
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed) {}
  std::uint32_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
  }

 private:
  std::uint64_t state_;
};

// An IEEE half, as bits for the device and as the same value for the host.
struct Half {
  std::uint16_t bits;
  double value;
};

// (-1)^sign * (1 + fraction / 1024) * 2^exponent, exponent -14 to 15: every normal half.
Half make_half(bool sign, int exponent, unsigned fraction) {
  const auto bits = (sign ? 0x8000u : 0u) | static_cast<unsigned>(exponent + 15) << 10 | fraction;
  const double magnitude = std::ldexp(1.0 + fraction / 1024.0, exponent);
  return {static_cast<std::uint16_t>(bits), sign ? -magnitude : magnitude};
}

Half half_of_integer(int value) {  // |value| <= 2048: all of them are halves
  if (value == 0) return {0, 0.0};
  const int exponent = std::ilogb(std::abs(value));
  const double fraction = std::ldexp(std::abs(value), 10 - exponent) - 1024;
  return make_half(value < 0, exponent, static_cast<unsigned>(fraction));
}

template <class T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

// Runs one product on the current device. The result's memory is filled with 0xFF first: as a float
// that is NaN, and no integer check expects it everywhere, so a kernel that wrote nothing is seen.
template <class In, class Out, class Launcher>
Status multiply(const char* kernel, Launcher launcher, Shape shape, const std::vector<In>& a,
                const std::vector<In>& b, std::vector<Out>& c) {
  Stream stream;
  DeviceArray<In> a_device;
  DeviceArray<In> b_device;
  DeviceArray<Out> c_device;
  c.resize(static_cast<std::size_t>(shape.rows) * shape.columns);
  if (auto failure = create(stream)) return failure;
  if (auto failure = allocate(a.size(), a_device)) return failure;
  if (auto failure = allocate(b.size(), b_device)) return failure;
  if (auto failure = allocate(c.size(), c_device)) return failure;
  const auto copy = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return attempt("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, stream.get()));
  };
  if (auto failure = copy(a_device.get(), a.data(), bytes_of(a), cudaMemcpyHostToDevice)) {
    return failure;
  }
  if (auto failure = copy(b_device.get(), b.data(), bytes_of(b), cudaMemcpyHostToDevice)) {
    return failure;
  }
  if (auto failure = attempt("cudaMemsetAsync", cudaMemsetAsync(c_device.get(), 0xFF, bytes_of(c),
                                                                stream.get()))) {
    return failure;
  }
  if (auto failure = attempt(kernel, launcher(shape, a_device.get(), b_device.get(), c_device.get(),
                                              stream.get()))) {
    return failure;
  }
  if (auto failure = copy(c.data(), c_device.get(), bytes_of(c), cudaMemcpyDeviceToHost)) {
    return failure;
  }
  return attempt(kernel, cudaStreamSynchronize(stream.get()));
}

Status check_integers(Check& check) {
  const Shape shape = kTiledShape;
  Sequence sequence(1);
  std::vector<std::uint32_t> a(static_cast<std::size_t>(shape.rows) * shape.depth);
  std::vector<std::uint32_t> b(static_cast<std::size_t>(shape.depth) * shape.columns);
  std::vector<std::uint32_t> c;
  std::generate(a.begin(), a.end(), [&] { return sequence.next(); });
  std::generate(b.begin(), b.end(), [&] { return sequence.next(); });
  if (auto failure =
          multiply("integer_product", kernels::launch_integer_product, shape, a, b, c)) {
    return failure;
  }
  check = {"int32-product", static_cast<long long>(c.size()), 0, 0, 0, "exact, modulo 2^32"};
  for (int row = 0; row < shape.rows; ++row) {
    for (int column = 0; column < shape.columns; ++column) {
      std::uint32_t expected = 0;
      for (int k = 0; k < shape.depth; ++k) {
        expected += a[row * shape.depth + k] * b[k * shape.columns + column];
      }
      const std::uint32_t found = c[row * shape.columns + column];
      if (found == expected) continue;
      ++check.mismatches;
      check.worst_error = std::max(check.worst_error, std::fabs(double(found) - double(expected)));
    }
  }
  return std::nullopt;
}

// Compares with the host's sums in double precision. An element may be off by `slack` times the sum
// of its products' magnitudes; slack 0 asks for equality.
void compare_floats(Shape shape, const std::vector<double>& a, const std::vector<double>& b,
                    const std::vector<float>& c, double slack, Check& check) {
  check.elements = static_cast<long long>(c.size());
  for (int row = 0; row < shape.rows; ++row) {
    for (int column = 0; column < shape.columns; ++column) {
      double expected = 0;
      double magnitude = 0;
      for (int k = 0; k < shape.depth; ++k) {
        const double product = a[row * shape.depth + k] * b[k * shape.columns + column];
        expected += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(double(c[row * shape.columns + column]) - expected);
      const double bound = slack * magnitude;
      if (!(error <= bound)) ++check.mismatches;  // also when the error is NaN
      // A NaN or an infinity has no place in JSON: the largest finite value stands for it.
      const double reported = std::isfinite(error) ? error : std::numeric_limits<double>::max();
      check.worst_error = std::max(check.worst_error, reported);
      if (bound > 0) {
        const double ratio = std::isfinite(error) ? error / bound : reported;
        check.worst_ratio = std::max(check.worst_ratio, ratio);
      }
    }
  }
}

Status check_floats(Check& check) {
  const Shape shape = kTiledShape;
  Sequence sequence(2);
  std::vector<float> a(static_cast<std::size_t>(shape.rows) * shape.depth);
  std::vector<float> b(static_cast<std::size_t>(shape.depth) * shape.columns);
  std::vector<float> c;
  // 24 random bits in [-1, 1): exact in FP32.
  const auto next = [&] { return float(int(sequence.next() >> 8) - (1 << 23)) / (1 << 23); };
  std::generate(a.begin(), a.end(), next);
  std::generate(b.begin(), b.end(), next);
  if (auto failure = multiply("float_product", kernels::launch_float_product, shape, a, b, c)) {
    return failure;
  }
  check.name = "fp32-product";
  check.tolerance = "depth * 2^-24 / (1 - depth * 2^-24) * sum |a * b|: the bound of any order of "
                    "rounded sums";
  const double n = shape.depth * kUnitRoundoff;
  compare_floats(shape, {a.begin(), a.end()}, {b.begin(), b.end()}, c, n / (1 - n), check);
  return std::nullopt;
}

template <class Next>
Status check_tensor(Next next, double slack, Check& check) {
  const Shape shape = kTensorShape;
  std::vector<std::uint16_t> a_bits, b_bits;
  std::vector<double> a, b;
  std::vector<float> c;
  const auto draw = [&](int count, std::vector<std::uint16_t>& bits, std::vector<double>& values) {
    for (int i = 0; i < count; ++i) {
      const Half half = next();
      bits.push_back(half.bits);
      values.push_back(half.value);
    }
  };
  draw(shape.rows * shape.depth, a_bits, a);
  draw(shape.depth * shape.columns, b_bits, b);
  if (auto failure =
          multiply("tensor_product", kernels::launch_tensor_product, shape, a_bits, b_bits, c)) {
    return failure;
  }
  compare_floats(shape, a, b, c, slack, check);
  return std::nullopt;
}

Status check_tensor_exact(Check& check) {
  Sequence sequence(3);
  check.name = "fp16-mma-integers";
  check.tolerance = "exact: integers from -16 to 16, every sum below 2^24";
  return check_tensor([&] { return half_of_integer(int(sequence.next() % 33) - 16); }, 0, check);
}

Status check_tensor_rounded(Check& check) {
  Sequence sequence(4);
  const auto next = [&] {
    const std::uint32_t bits = sequence.next();
    return make_half(bits & 1, -int(bits >> 1 & 7), bits >> 4 & 1023);
  };
  check.name = "fp16-mma-rounded";
  // Tensor cores align the addends of a step to the largest one and may cut what lies below its
  // last bit, once for each addend and once for the sum: ten cuts of 2^-23 in a step of eight
  // products, six in a step of four. Two cuts a product cover both; a wrong element exceeds that by
  // far.
  check.tolerance = "2 * depth * 2^-23 * sum |a * b|: two cut last bits a product";
  return check_tensor(next, 2.0 * kTensorShape.depth * 2 * kUnitRoundoff, check);
}

}  // namespace

Status run_checks(int device, std::vector<Check>& checks) {
  DeviceScope scope;
  if (auto failure = scope.enter(device)) return failure;
  for (const auto run : {check_integers, check_floats, check_tensor_exact, check_tensor_rounded}) {
    Check check;
    if (auto failure = run(check)) return failure;
    checks.push_back(std::move(check));
  }
  return std::nullopt;
}

}  // namespace kvreg
