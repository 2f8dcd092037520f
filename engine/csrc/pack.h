// GGUF's blocks to the tiles of tensor.h, and a block back.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace edge {

// The packed type for a GGUF type; the type itself where there is none.
DType packed_type(DType dtype);

// out: matrix_bytes(packed_type(from.dtype), ...) bytes. Rows beyond the last are zero.
void pack(const Matrix& from, uint8_t* out);

// Block `block` of row `row` as GGUF has it, block_bytes(from.dtype) bytes.
void unpack_block(const Matrix& from, uint32_t row, uint32_t block, uint8_t* out);

}  // namespace edge
