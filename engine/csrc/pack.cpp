#include "pack.h"

#include <cstring>

namespace edge {
namespace {

constexpr uint8_t kBias = 128;

// Where one block of the 16 rows lies in its tile.
struct Place {
    size_t lines, scales;
};

Place place_of(DType packed, uint32_t cols, uint32_t block) {
    if (packed == DType::q4_1x16) return {block * kQ4Tile, block * kQ4Tile + 4 * kLineBytes};
    const size_t pair = block / 2 * kQ8Pair, half = block % 2;
    const bool single = half == 0 && block + 1 == cols / kBlockWeights;
    return {pair + half * kQ8Half, pair + (single ? kQ8Half : 2 * kQ8Half) + half * 2 * kTileRows};
}

uint8_t nibble(const uint8_t* block, uint32_t weight) {
    const uint8_t byte = block[4 + weight % 16];
    return weight < 16 ? byte & 15 : byte >> 4;
}

void pack_block(DType type, const uint8_t* block, uint32_t r, uint8_t* lines, uint8_t* scales) {
    std::memcpy(scales + 2 * r, block, 2);
    if (type == DType::q4_1) {
        std::memcpy(scales + 2 * (kTileRows + r), block + 2, 2);
        for (uint32_t k = 0; k < kBlockWeights; k += 8)
            for (uint32_t i = 0; i < 4; ++i)
                lines[k / 8 * kLineBytes + 4 * r + i] =
                    static_cast<uint8_t>(nibble(block, k + i) | nibble(block, k + 4 + i) << 4);
        return;
    }
    for (uint32_t k = 0; k < kBlockWeights; ++k)
        lines[k / 4 * kLineBytes + 4 * r + k % 4] = static_cast<uint8_t>(block[2 + k] + kBias);
}

}  // namespace

DType packed_type(DType dtype) {
    return dtype == DType::q4_1 ? DType::q4_1x16 : dtype == DType::q8_0 ? DType::q8_0x16 : dtype;
}

void pack(const Matrix& from, uint8_t* out) {
    const DType packed = packed_type(from.dtype);
    const uint32_t blocks = from.cols / kBlockWeights;
    std::memset(out, 0, matrix_bytes(packed, from.rows, from.cols));
    for (uint32_t row = 0; row < from.rows; ++row) {
        const uint8_t* block = from.data + row * row_bytes(from.dtype, from.cols);
        uint8_t* tile = out + row / kTileRows * tile_bytes(packed, from.cols);
        for (uint32_t b = 0; b < blocks; ++b, block += block_bytes(from.dtype)) {
            const Place at = place_of(packed, from.cols, b);
            pack_block(from.dtype, block, row % kTileRows, tile + at.lines, tile + at.scales);
        }
    }
}

void unpack_block(const Matrix& from, uint32_t row, uint32_t block, uint8_t* out) {
    const uint8_t* tile = from.data + row / kTileRows * tile_bytes(from.dtype, from.cols);
    const Place at = place_of(from.dtype, from.cols, block);
    const uint32_t r = row % kTileRows;
    const uint8_t* lines = tile + at.lines + 4 * r;
    std::memcpy(out, tile + at.scales + 2 * r, 2);
    if (from.dtype == DType::q8_0x16) {
        for (uint32_t k = 0; k < kBlockWeights; ++k)
            out[2 + k] = static_cast<uint8_t>(lines[k / 4 * kLineBytes + k % 4] - kBias);
        return;
    }
    std::memcpy(out + 2, tile + at.scales + 2 * (kTileRows + r), 2);
    // Weight k stands in line k / 8, high where k % 8 >= 4; byte j of a block takes weight j low, weight 16 + j high.
    for (uint32_t j = 0; j < 16; ++j) {
        const uint8_t first = lines[j / 8 * kLineBytes + j % 4], second = lines[(j / 8 + 2) * kLineBytes + j % 4];
        const uint32_t shift = j % 8 / 4 * 4;
        out[4 + j] = static_cast<uint8_t>((first >> shift & 15) | (second >> shift & 15) << 4);
    }
}

}  // namespace edge
