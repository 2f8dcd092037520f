#include "quantise_block.h"
#include "vec_portable.h"
// after the Vec they are made of
#include "attend_impl.h"
#include "elementwise_impl.h"
#include "matmul_impl.h"
#include "packed_impl.h"

namespace edge {

extern const Kernels kPortable;
const Kernels kPortable{
    .name = "portable",
    .token_tile = Vec::token_tile,
    .matmul = matmul,
    .packed_matmul = packed_matmul,
    .quantise = quantise,
    .dequantise = dequantise,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .rotate = rotate,
    .to_f16 = to_f16,
    .to_i8 = to_i8,
    .attend = attend,
    .attend_part = attend_part,
    .join_parts = join_parts,
    .peak = peak,
    .softmax_weights = softmax_weights,
};

}  // namespace edge
