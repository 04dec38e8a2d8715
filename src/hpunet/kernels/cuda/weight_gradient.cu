// The gradient of a 3×3 convolution's weights, from bfloat16 maps (groups, batch, height, width, channels), for tensor
// cores of compute capability 9.0: out[tap, a, b] += sum over pixels p of A[p, a] · B[p + the tap's shift, b].
//
// A program takes A_BLOCK channels of A, B_BLOCK of B, and tile after tile of TILE_Y x TILE_X pixels of A. It copies
// the tile, and that of B with the pixels around it, to shared memory once, as rows of planes of 8 channels. There 8
// neighbouring pixels are 128 bytes, which is how tensor cores find a matrix whose sum goes over pixels, and a column of
// taps is the same matrix of B 16 bytes on. Each warp group has a column of taps, or one has all three. Sums stay in
// registers until the last tile.
//
// The rows of a product are 64 channels of A, its columns the channels of B in the row of pixels above, the same, and
// below. Where A has few channels, the rows are those of ROWS rows of pixels and the columns those of ROWS + 2: of their
// products, those at most one row apart are used. This takes fewer products than one for each of the ROWS rows.
//
// For maps of less than 8 x 8 pixels, IMAGES = 8 lie side by side, pixel by pixel.
//
// Constants come from cuda_weight_gradient.py: A_CHANNELS, B_CHANNELS, A_BLOCK, B_BLOCK, ROWS, TILE_Y, TILE_X, IMAGES, A_PITCH and
// B_PITCH (the distance of planes, in pixels), STAGES (tiles in shared memory), WARPGROUPS, AT_ONCE (programs of a multiprocessor),
// RELU_A and RELU_B, and MIRRORED (the tap's shift is backwards). And `multiply_transposed`.

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int SHIFTS = 3 / WARPGROUPS;  // columns of taps of a warp group
constexpr int A_LINE = TILE_X * IMAGES, B_LINE = (TILE_X + 2) * IMAGES;  // pixels
constexpr int A_ROW = A_BLOCK / 8 * A_PITCH, B_ROW = B_BLOCK / 8 * B_PITCH;  // distance of rows, in pixels of a plane
constexpr int A_BYTES = TILE_Y * A_ROW * 16, B_BYTES = (TILE_Y + 2) * B_ROW * 16;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr bool PAIRED = A_LINE % 16 != 0;  // a product sums over 8 pixels of a row and 8 of the row ROWS further
constexpr int AT_A_TIME = PAIRED ? 8 : 16, STEP_ROWS = PAIRED ? 2 * ROWS : ROWS;
constexpr int N = (ROWS + 2) * B_BLOCK;  // columns of a product
constexpr int SUM_PITCH = N + 1;
constexpr int SUM_BYTES = ROWS > 1 ? 3 * 64 * SUM_PITCH * 4 : 0;

// Calls work(plane, row, place in the row, byte in shared memory) for a thread's share of a tile.
template <int HEIGHT, int LINE, int PLANES, int PITCH, typename Work> __device__ inline void for_own_pieces(Work work) {
    constexpr int STRIDE = THREADS / PLANES, TURNS = (HEIGHT * LINE + STRIDE - 1) / STRIDE;
    constexpr int UNROLLED = TURNS <= 6 ? TURNS : 4;
    const int plane = threadIdx.x % PLANES, first = threadIdx.x / PLANES;
    if (first >= STRIDE) return;
    int y = first / LINE, place = first % LINE;
    #pragma unroll UNROLLED
    for (int i = 0; i < TURNS; i++) {
        if (i < TURNS - 1 || first + i * STRIDE < HEIGHT * LINE)
            work(plane, y, place, ((y * PLANES + plane) * PITCH + place) * 16);
        y += STRIDE / LINE, place += STRIDE % LINE;
        if (place >= LINE) y++, place -= LINE;
    }
}

template <int AROUND, int CHANNELS, int BLOCK, int PITCH>
__device__ inline void copy_tile(u32 to, const bf16* map, int channel, Tile tile, int images, int height, int width) {
    for_own_pieces<TILE_Y + 2 * AROUND, (TILE_X + 2 * AROUND) * IMAGES, BLOCK / 8, PITCH>([=](int plane, int row, int place, int byte) {
        const int image = tile.image * IMAGES + place % IMAGES;
        const int y = tile.y * TILE_Y - AROUND + row, x = tile.x * TILE_X - AROUND + place / IMAGES;
        const bool inside = (u32)y < (u32)height && (u32)x < (u32)width && (IMAGES == 1 || image < images)
            && (CHANNELS % BLOCK == 0 || channel + plane * 8 < CHANNELS);
        const int from = inside ? ((image * height + y) * width + x) * CHANNELS + channel + plane * 8 : 0;
        copy_16_bytes(to + byte, map + from, inside);
    });
}

// A thread sees what it copied itself without a barrier.
template <int AROUND, int BLOCK, int PITCH> __device__ inline void relu_in_place(unsigned char* tile) {
    for_own_pieces<TILE_Y + 2 * AROUND, (TILE_X + 2 * AROUND) * IMAGES, BLOCK / 8, PITCH>([=](int, int, int, int byte) {
        uint4* at = (uint4*)(tile + byte);
        const uint4 v = *at;
        *at = {positive(v.x), positive(v.y), positive(v.z), positive(v.w)};
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) weight_gradient(
    const bf16* __restrict__ a_map, const bf16* __restrict__ b_map, float* __restrict__ out, int images, int height,
    int width, int out_group, int out_tap, int out_a, int out_b)
{
    SHARED_MEMORY(shared);
    const u32 base = shared_address(shared);
    constexpr int A_BLOCKS = (A_CHANNELS + A_BLOCK - 1) / A_BLOCK;
    const int first_a = blockIdx.y % A_BLOCKS * A_BLOCK, first_b = blockIdx.y / A_BLOCKS * B_BLOCK;
    const int first_shift = threadIdx.x / 128 * SHIFTS, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int tiles_y = (height + TILE_Y - 1) / TILE_Y, tiles_x = (width + TILE_X - 1) / TILE_X;
    const int tiles = (images + IMAGES - 1) / IMAGES * tiles_y * tiles_x, pixels = images * height * width;
    a_map += (i64)blockIdx.z * pixels * A_CHANNELS;
    b_map += (i64)blockIdx.z * pixels * B_CHANNELS;
    out += (i64)blockIdx.z * out_group;
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const Tile stride = tile_at(gridDim.x, tiles_y, tiles_x);

    Tile copied = tile_at(blockIdx.x, tiles_y, tiles_x);  // the next one to be copied
    int num_copied = 0, copied_stage = 0;
    auto copy_next_tile = [&]() {
        if (num_copied++ < own_tiles) {
            const u32 to = base + copied_stage * STAGE_BYTES;
            copy_tile<0, A_CHANNELS, A_BLOCK, A_PITCH>(to, a_map, first_a, copied, images, height, width);
            copy_tile<1, B_CHANNELS, B_BLOCK, B_PITCH>(to + A_BYTES, b_map, first_b, copied, images, height, width);
            copied_stage = copied_stage == STAGES - 1 ? 0 : copied_stage + 1;
            copied.advance(stride, tiles_y, tiles_x);
        }
        copies_are_a_group();
    };
    wait_for_earlier_kernels();
    for (int i = 0; i < STAGES - 2; i++) copy_next_tile();

    float total[SHIFTS][N / 2];
    #pragma unroll
    for (int s = 0; s < SHIFTS; s++)
        #pragma unroll
        for (int i = 0; i < N / 2; i++) total[s][i] = 0;
    int stage = 0;
    for (int t = 0; t < own_tiles; t++) {
        wait_for_copies<STAGES - 3>();
        if (RELU_A) relu_in_place<0, A_BLOCK, A_PITCH>(shared + stage * STAGE_BYTES);
        if (RELU_B) relu_in_place<1, B_BLOCK, B_PITCH>(shared + stage * STAGE_BYTES + A_BYTES);
        make_visible_to_tensor_cores();
        synchronise();
        start_products();
        const u32 a_tile = base + stage * STAGE_BYTES, b_tile = a_tile + A_BYTES;
        #pragma unroll 1
        for (int y = 0; y < TILE_Y; y += STEP_ROWS)
            #pragma unroll
            for (int x = 0; x < A_LINE; x += AT_A_TIME) {
                const u64 a = matrix(a_tile + (y * A_ROW + x) * 16, PAIRED ? ROWS * A_ROW * 16 : 128, A_PITCH * 16);
                #pragma unroll
                for (int s = 0; s < SHIFTS; s++) {
                    const u32 shifted = b_tile + (y * B_ROW + x + (first_shift + s) * IMAGES) * 16;
                    multiply_transposed(total[s], a, matrix(shifted, PAIRED ? ROWS * B_ROW * 16 : 128, B_PITCH * 16));
                }
            }
        copy_next_tile();  // where the tile before the last one was: its products are done in all warp groups
        finish_products<1>();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    finish_products();

    // A product leaves rows 16·warp + lane / 4 (and 8 on) in a thread, and of 8 columns 2·(lane % 4) and the next.
    float* sums = (float*)shared;
    if (ROWS > 1) synchronise();  // the copies' memory is free
    #pragma unroll
    for (int s = 0; s < SHIFTS; s++)
        #pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int shift = first_shift + s, row = warp * 16 + lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
            const float one = total[s][2 * i], other = total[s][2 * i + 1];
            if (ROWS > 1) {
                float* at = sums + (shift * 64 + row) * SUM_PITCH + column;
                at[0] = one, at[1] = other;
                continue;
            }
            const int line = column / B_BLOCK, a = first_a + row, b = first_b + column % B_BLOCK;
            if (row >= A_BLOCK || a >= A_CHANNELS || b >= B_CHANNELS) continue;
            const int tap = MIRRORED ? 8 - line * 3 - shift : line * 3 + shift;
            float* at = out + tap * out_tap + a * out_a + b * out_b;
            if (out_b == 1) add_two(at, one, other);
            else atomicAdd(at, one), atomicAdd(at + out_b, other);
        }
    if (ROWS == 1) return;
    synchronise();
    const bool along_a = out_a == 1;
    for (int i = threadIdx.x; i < 9 * A_BLOCK * B_BLOCK; i += THREADS) {
        const int shifts = i / (A_BLOCK * B_BLOCK), rest = i % (A_BLOCK * B_BLOCK);
        const int a = along_a ? rest % A_BLOCK : rest / B_BLOCK, b = along_a ? rest / A_BLOCK : rest % B_BLOCK;
        if (first_a + a >= A_CHANNELS || first_b + b >= B_CHANNELS) continue;
        float sum = 0;
        #pragma unroll
        for (int row = 0; row < ROWS; row++)
            sum += sums[(shifts % 3 * 64 + row * A_BLOCK + a) * SUM_PITCH + (row + shifts / 3) * B_BLOCK + b];
        atomicAdd(out + (MIRRORED ? 8 - shifts : shifts) * out_tap + (first_a + a) * out_a + (first_b + b) * out_b, sum);
    }
}
