// A convolution of bfloat16 maps (groups, batch, height, width, channels) for tensor cores of compute capability 9.0,
// fused with bias, ReLU, gate and residual: relu?((gate > 0 ? conv(relu?(x)) + bias : 0) + residual).
//
// A program computes TILE_Y x TILE_X pixels and COLUMNS output channels. It copies the tile's input and the pixels
// around it (the halo) to shared memory once, split into planes of 8 channels: there a pixel is 16 bytes, so a tap of
// the kernel is the same matrix at another address, and no element is read nine times. Products over channels and taps
// go 16 at a time, as pairs of planes. Copies of the next slice of channels, or of the next tile, run beside them.
//
// A product takes as long with 16 columns as with 64. So where channels are few, a row of the matrix stands for PX
// neighbouring pixels, with zeros in the weights, and planes hold every PX-th pixel. Rows of a product are 8 x 8 such
// pieces.
//
// Maps of less than 8 x 8 pixels are computed for IMAGES = 8 at once: pieces are images, and the rows of a product are 8
// neighbours in the map, line after line with one zero between lines.
//
// Constants come from cuda_convolution.py: IN, OUT, TAPS, TILE_Y, TILE_X, PX, IMAGES, COLUMNS, SLICE (channels copied at once),
// STAGES (copies in flight + 1), WARPGROUPS, RESIDENT (all weights stay in shared memory), PLANE (the distance of
// planes), AT_ONCE (programs of a multiprocessor), what is fused (BIAS, RELU_IN, RELU_OUT, GATE, RESIDUAL, SUMS), and for each of the PRODUCTS of a slice where
// its first half STARTS and the distance to the second (DISTANCES); distances in units of 16 bytes. And `multiply`.

constexpr int PAD = TAPS / 2;
constexpr int THREADS = 128 * WARPGROUPS;
constexpr int HALO_Y = TILE_Y + 2 * PAD, HALO_X = TILE_X + 2 * PAD;
constexpr int HALO_PIECES = (HALO_X + PX - 1) / PX;  // of a row, in a plane
constexpr int PLANES = SLICE / 8;  // times PX
constexpr int SLICES = IN / SLICE;
constexpr bool SMALL = IMAGES > 1;
constexpr int PITCH = SMALL ? TILE_X + 1 : 0, AROUND = 8 + 2 * PAD * (PITCH + 1);  // positions of a line; of 8 neighbours
constexpr int PATCHES_X = SMALL ? 1 : TILE_X / (8 * PX);
constexpr int PATCHES = SMALL ? 1 : TILE_Y / 8 * PATCHES_X / WARPGROUPS;  // per warp group
constexpr int N = PX * COLUMNS;  // of a product
constexpr bool PREFETCH = PATCHES * N <= 128;  // of gate and residual, while registers suffice
constexpr int WEIGHT_BYTES = PRODUCTS * 2 * N * 16;  // of a slice
constexpr int RESIDENT_BYTES = RESIDENT ? SLICES * WEIGHT_BYTES : 0;
constexpr int INPUT_BYTES = PLANES * PX * PLANE * 16;
constexpr int STAGE_BYTES = INPUT_BYTES + (RESIDENT ? 0 : WEIGHT_BYTES);

__device__ inline void copy_weights(u32 to, const bf16* weight, int bytes) {
    for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16) copy_16_bytes(to + i, (const char*)weight + i, true);
}

// A thread copies one plane of every COPY_STRIDE-th pixel of a halo.
constexpr int COPY_STRIDE = THREADS / PLANES;
constexpr int HALO = SMALL ? AROUND * IMAGES : HALO_Y * HALO_X;
constexpr int COPIES = (HALO + COPY_STRIDE - 1) / COPY_STRIDE;
constexpr int UNROLLED = COPIES <= 6 ? COPIES : 4;
constexpr int LINE = SMALL ? AROUND : HALO_X;

// Calls work(plane, line, place in the line, byte in shared memory); small maps have a line per image.
template <typename Work> __device__ inline void for_own_pixels(Work work) {
    const int plane = threadIdx.x % PLANES, first = threadIdx.x / PLANES;
    if (first >= COPY_STRIDE) return;
    int y = first / LINE, xx = first % LINE;
    #pragma unroll UNROLLED
    for (int i = 0; i < COPIES; i++) {
        const int piece = SMALL ? plane * PLANE + xx * IMAGES + y
                                : (plane * PX + xx % PX) * PLANE + y * HALO_PIECES + xx / PX;
        if (i < COPIES - 1 || first + i * COPY_STRIDE < HALO) work(plane, y, xx, piece * 16);
        y += COPY_STRIDE / LINE, xx += COPY_STRIDE % LINE;
        if (xx >= LINE) y++, xx -= LINE;
    }
}

__device__ inline void copy_input(u32 to, const bf16* x, Tile tile, int images, int height, int width) {
    for_own_pixels([=](int plane, int line, int place, int byte) {
        int image, y, xx;
        if (SMALL) {
            const int position = tile.y * 8 + place;
            image = tile.image * IMAGES + line, y = position / PITCH - PAD, xx = position % PITCH - PAD;
        } else {
            image = tile.image, y = tile.y * TILE_Y - PAD + line, xx = tile.x * TILE_X - PAD + place;
        }
        const bool inside = (u32)y < (u32)height && (u32)xx < (u32)width && (!SMALL || image < images);
        copy_16_bytes(to + byte, x + (inside ? ((image * height + y) * width + xx) * IN + plane * 8 : 0), inside);
    });
}

// A thread sees what it copied itself without a barrier.
__device__ inline void relu_input_in_place(unsigned char* input) {
    for_own_pixels([=](int, int, int, int byte) {
        uint4* at = (uint4*)(input + byte);
        const uint4 v = *at;
        *at = {positive(v.x), positive(v.y), positive(v.z), positive(v.w)};
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) convolve(
    const bf16* __restrict__ x, const bf16* __restrict__ weight, const float* __restrict__ bias,
    bf16* __restrict__ out, const bf16* __restrict__ gate, const bf16* __restrict__ residual,
    float* __restrict__ sums, int images, int height, int width)
{
    SHARED_MEMORY(shared);
    const u32 base = shared_address(shared);
    const u32 stages = base + RESIDENT_BYTES;
    const int group = blockIdx.z, column = blockIdx.y * COLUMNS;
    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int tiles_y = SMALL ? ((TILE_Y - 1) * PITCH + TILE_X + 7) / 8 : (height + TILE_Y - 1) / TILE_Y;
    const int tiles_x = SMALL ? 1 : (width + TILE_X - 1) / TILE_X;
    const int tiles = (images + IMAGES - 1) / IMAGES * tiles_y * tiles_x, pixels = images * height * width;
    x += (i64)group * pixels * IN;
    weight += (i64)(group * gridDim.y + blockIdx.y) * SLICES * (WEIGHT_BYTES / 2);
    const i64 first_out = (i64)group * pixels * OUT + column;
    out += first_out, gate += first_out, residual += first_out;
    const int own_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const Tile first_tile = tile_at(blockIdx.x, tiles_y, tiles_x), stride = tile_at(gridDim.x, tiles_y, tiles_x);

    Tile copied = first_tile;  // the next one to be copied
    int copied_steps = 0, copied_slice = 0, copied_stage = 0;
    auto copy_step = [&]() {
        if (copied_steps++ < own_tiles * SLICES) {
            const u32 to = stages + copied_stage * STAGE_BYTES;
            copy_input(to, x + copied_slice * SLICE, copied, images, height, width);
            if (!RESIDENT) copy_weights(to + INPUT_BYTES, weight + copied_slice * (WEIGHT_BYTES / 2), WEIGHT_BYTES);
            copied_stage = copied_stage == STAGES - 1 ? 0 : copied_stage + 1;
            copied_slice = copied_slice == SLICES - 1 ? 0 : copied_slice + 1;
            if (copied_slice == 0) copied.advance(stride, tiles_y, tiles_x);
        }
        copies_are_a_group();
    };
    // Weights are written by kernels that let none start early, so they are there before other inputs.
    if (RESIDENT) copy_weights(base, weight, RESIDENT_BYTES);
    wait_for_earlier_kernels();
    for (int step = 0; step < STAGES - 1; step++) copy_step();

    // A product leaves rows 16·warp + lane / 4 (and 8 on) in a thread: a piece of each of two rows of the patch; and of
    // every 16 columns four, which by the order of the weights are the channels 4·(lane % 4) and on, of 8 columns two.
    constexpr int FOURS = N / 16, REST = N % 16 / 8;
    float total[PATCHES][N / 2], own_sums[FOURS * 4 + REST * 2];
    for (int i = 0; i < FOURS * 4 + REST * 2; i++) own_sums[i] = 0;
    Tile tile = first_tile;
    int stage = 0;
    for (int t = 0; t < own_tiles; t++, tile.advance(stride, tiles_y, tiles_x)) {
        int places[2 * PATCHES];  // of this thread's pieces in the maps, or -1
        uint2 gates[2 * PATCHES][FOURS + REST], residuals[2 * PATCHES][FOURS + REST];
        #pragma unroll
        for (int i = 0; i < 2 * PATCHES; i++) {
            const int patch = warpgroup * PATCHES + i / 2, row = warp * 2 + i % 2, piece = lane / 4;
            int image = tile.image, y = tile.y * TILE_Y + patch / PATCHES_X * 8 + row;
            int xx = tile.x * TILE_X + (patch % PATCHES_X * 8 + piece) * PX;
            if (SMALL) {
                const int position = tile.y * 8 + row;
                image = image * IMAGES + piece, y = position / PITCH, xx = position % PITCH;
            }
            const bool inside = y < height && xx < width && (!SMALL || image < images);
            places[i] = inside ? ((image * height + y) * width + xx) * OUT : -1;
            if (PREFETCH && places[i] >= 0)
                #pragma unroll
                for (int m = 0; m < FOURS + REST; m++) {
                    const int count = m < FOURS ? 4 : 2, channel = m * 16 + lane % 4 * count;
                    if (GATE) gates[i][m] = load(gate + places[i] + channel, count);
                    if (RESIDUAL) residuals[i][m] = load(residual + places[i] + channel, count);
                }
        }
        for (int slice = 0; slice < SLICES; slice++) {
            wait_for_copies<STAGES - 2>();
            if (RELU_IN) relu_input_in_place(shared + RESIDENT_BYTES + stage * STAGE_BYTES);
            make_visible_to_tensor_cores();
            synchronise();
            copy_step();

            const u32 input = stages + stage * STAGE_BYTES;
            const u32 weights = RESIDENT ? base + slice * WEIGHT_BYTES : input + INPUT_BYTES;
            if (t == own_tiles - 1 && slice == SLICES - 1) let_next_kernel_start();
            start_products();
            #pragma unroll
            for (int p = 0; p < PRODUCTS; p++) {
                const u64 b = matrix(weights + p * 2 * N * 16, N * 16, 128);
                #pragma unroll
                for (int i = 0; i < PATCHES; i++) {
                    const int patch = warpgroup * PATCHES + i;
                    const int corner = patch / PATCHES_X * 8 * HALO_PIECES + patch % PATCHES_X * 8;
                    const u64 a = matrix(input + (corner + STARTS[p]) * 16, DISTANCES[p] * 16, (SMALL ? IMAGES : HALO_PIECES) * 16);
                    multiply(total[i], a, b, slice > 0 || p > 0);
                }
            }
            finish_products();
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        #pragma unroll
        for (int m = 0; m < FOURS + REST; m++) {
            const int count = m < FOURS ? 4 : 2, channel = m * 16 + lane % 4 * count;
            float b[4] = {0, 0, 0, 0};
            if (BIAS)
                for (int k = 0; k < count; k++) b[k] = bias[group * OUT + column + channel % COLUMNS + k];
            #pragma unroll
            for (int i = 0; i < 2 * PATCHES; i++) {
                if (places[i] < 0) continue;
                const int place = places[i] + channel;
                float v[4], other[4];
                for (int k = 0; k < count; k++) v[k] = total[i / 2][(2 * m + k / 2) * 4 + i % 2 * 2 + k % 2] + b[k];
                if (GATE) {
                    unpack(PREFETCH ? gates[i][m] : load(gate + place, count), other);
                    for (int k = 0; k < count; k++) v[k] = other[k] > 0 ? v[k] : 0;
                }
                if (RESIDUAL) {
                    unpack(PREFETCH ? residuals[i][m] : load(residual + place, count), other);
                    for (int k = 0; k < count; k++) v[k] += other[k];
                }
                if (RELU_OUT)
                    for (int k = 0; k < count; k++) v[k] = v[k] < 0 ? 0 : v[k];
                if (SUMS)
                    for (int k = 0; k < count; k++) own_sums[m * 4 + k] += v[k];
                store(out + place, v, count);
            }
        }
    }
    if (!SUMS) return;
    synchronise();  // the copies' memory is free
    float* of_warps = (float*)shared;
    #pragma unroll
    for (int m = 0; m < FOURS + REST; m++)
        #pragma unroll
        for (int k = 0; k < (m < FOURS ? 4 : 2); k++) {
            const float sum = sum_of_every_fourth_lane(own_sums[m * 4 + k]);
            const int channel = m * 16 + lane % 4 * (m < FOURS ? 4 : 2) + k;
            if (lane < 4) of_warps[threadIdx.x / 32 * N + channel] = sum;
        }
    synchronise();
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < 4 * WARPGROUPS * PX; w++) sum += of_warps[w * COLUMNS + i];
        atomicAdd(sums + group * OUT + column + i, sum);
    }
}
