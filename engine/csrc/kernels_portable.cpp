#include "vec_portable.h"
// after the Vec they are made of
#include "attend_impl.h"
#include "elementwise_impl.h"
#include "matmul_impl.h"

namespace edge {

extern const Kernels kPortable;
const Kernels kPortable{"portable", matmul, dequantise, rms_norm, silu_mul, to_f16, attend, peak, softmax_weights};

}  // namespace edge
