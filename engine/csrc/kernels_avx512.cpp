#include "vec_avx512.h"
// after the Vec they are made of
#include "attend_impl.h"
#include "elementwise_impl.h"
#include "matmul_impl.h"

namespace edge {

extern const Kernels kAvx512;
const Kernels kAvx512{"avx512", matmul, dequantise, rms_norm, silu_mul, to_f16, attend, peak, softmax_weights};

}  // namespace edge
