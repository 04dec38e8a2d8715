// What kernels over tiles of maps share.

// How a matrix lies in shared memory: 8 x 8 elements are 128 bytes; `across` is the distance in bytes of such blocks
// along the sum, `along` that along rows or columns.
__device__ inline u64 matrix(u32 address, int across, int along) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(across >> 4) << 16 | (u64)(along >> 4) << 32;
}

struct Tile {
    int image, y, x;

    __device__ void advance(Tile by, int tiles_y, int tiles_x) {
        x += by.x, y += by.y, image += by.image;
        if (x >= tiles_x) x -= tiles_x, y++;
        if (y >= tiles_y) y -= tiles_y, image++;
    }
};

__device__ inline Tile tile_at(int number, int tiles_y, int tiles_x) {
    const int row = number / tiles_x;
    return {row / tiles_y, row % tiles_y, number % tiles_x};
}
