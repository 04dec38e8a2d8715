// The part of a GPU that the kernels in kernels/cuda use (see hopper.cuh), on a CPU: a thread of a program is a thread
// of the process, and a thread computes its own part of a matrix product, as late as it may. Copies are done at once, or
// as late as they may with LATE_COPIES.

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short bf16;

#define __device__
#define __global__
#define __launch_bounds__(...)

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct Index { u32 x, y, z; };

static constexpr int CAPACITY = 232448;  // of compute capability 9.0
alignas(128) static unsigned char shared_memory[CAPACITY];
static thread_local Index threadIdx, blockIdx;
static Index gridDim;
static std::unique_ptr<std::barrier<>> program_barrier;

#define SHARED_MEMORY(name) unsigned char* name = shared_memory

// Work that a thread has started, in groups.
struct Pending {
    std::vector<std::function<void()>> started;
    std::deque<std::vector<std::function<void()>>> groups;

    void end_group() { groups.push_back(std::move(started)), started.clear(); }
    void finish(size_t left) {
        for (; groups.size() > left; groups.pop_front())
            for (auto& work : groups.front()) work();
    }
};
static thread_local Pending copies, products;

inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - shared_memory); }
inline void copy_16_bytes(u32 to, const void* from, bool there) {
    if (to % 16 || to + 16 > (u32)CAPACITY || (there && (uintptr_t)from % 16)) abort();
    auto copy = [=] {
        if (there) memcpy(shared_memory + to, from, 16);
        else memset(shared_memory + to, 0, 16);
    };
#ifdef LATE_COPIES
    copies.started.push_back(copy);
#else
    copy();
#endif
}
inline void copies_are_a_group() { copies.end_group(); }
template <int LEFT> void wait_for_copies() {
    static_assert(LEFT >= 0);
    copies.finish(LEFT);
}
inline void make_visible_to_tensor_cores() {}
inline void synchronise() { program_barrier->arrive_and_wait(); }
inline void start_products() {}
template <int LEFT = 0> void finish_products() {
    products.end_group();
    products.finish(LEFT);
}

inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}

inline float to_float(bf16 v) {
    u32 bits = (u32)v << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
inline bf16 to_bf16(float f) {  // to the nearest, ties to even
    u32 bits;
    memcpy(&bits, &f, 4);
    if (f != f) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline u32 positive(u32 two) {
    u32 low = two & 0xFFFF, high = two >> 16;
    return (to_float(low) > 0 ? low : 0) | (to_float(high) > 0 ? high : 0) << 16;
}
inline uint2 load(const bf16* from, int count) {
    if ((uintptr_t)from % (2 * count)) abort();
    uint2 v = {0, 0};
    memcpy(&v, from, 2 * count);
    return v;
}
inline void unpack(uint2 v, float* to) {
    bf16 values[4];
    memcpy(values, &v, 8);
    for (int i = 0; i < 4; i++) to[i] = to_float(values[i]);
}
inline void store(bf16* to, const float* v, int count) {
    if ((uintptr_t)to % (2 * count)) abort();
    for (int i = 0; i < count; i++) to[i] = to_bf16(v[i]);
}
inline float sum_of_every_fourth_lane(float v) {
    static float values[1024];
    values[threadIdx.x] = v;
    synchronise();
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += values[threadIdx.x / 32 * 32 + threadIdx.x % 4 + 4 * i];
    synchronise();
    return sum;
}
inline void atomicAdd(float* to, float v) { std::atomic_ref<float>(*to).fetch_add(v); }
inline void add_two(float* to, float first, float second) {
    if ((uintptr_t)to % 8) abort();
    atomicAdd(to, first), atomicAdd(to + 1, second);
}

// Row (or column) `line` and position `k` of a 64 x 16 (16 x COLUMNS) matrix as wgmma finds it by its descriptor; of 8 x 8
// elements those with the same line are neighbours, or TRANSPOSED, with the same k.
template <bool TRANSPOSED> float element(u64 descriptor, int line, int k) {
    u32 start = (descriptor & 0x3FFF) << 4, across = (descriptor >> 16 & 0x3FFF) << 4, along = (descriptor >> 32 & 0x3FFF) << 4;
    u32 outer = TRANSPOSED ? k % 8 : line % 8, inner = TRANSPOSED ? line % 8 : k % 8;
    u32 place = start + line / 8 * along + k / 8 * across + outer * 16 + inner * 2;
    if (place + 2 > (u32)CAPACITY) abort();
    bf16 v;
    memcpy(&v, shared_memory + place, 2);
    return to_float(v);
}
template <bool TRANSPOSED, int N> void start_product(float (&total)[N], u64 a, u64 b, int add) {
    float* totals = total;
    products.started.push_back([=] {
        int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
        for (int i = 0; i < N; i++) {
            int r = row + (i & 2 ? 8 : 0), column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
            float sum = add ? totals[i] : 0;
            for (int k = 0; k < 16; k++) sum += element<TRANSPOSED>(a, r, k) * element<TRANSPOSED>(b, column, k);
            totals[i] = sum;
        }
    });
}
template <int N> void multiply(float (&total)[N], u64 a, u64 b, int add) { start_product<false>(total, a, b, add); }
template <int N> void multiply_transposed(float (&total)[N], u64 a, u64 b) { start_product<true>(total, a, b, true); }

// Runs a kernel on a grid, program after program.
template <typename Kernel> void run_grid(int x, int y, int z, int threads, Kernel kernel) {
    gridDim = {(u32)x, (u32)y, (u32)z};
    for (u32 block = 0; block < (u32)(x * y * z); block++) {
        memset(shared_memory, 0xFF, CAPACITY);  // NaN: what nothing has written must not be used
        program_barrier = std::make_unique<std::barrier<>>(threads);
        std::vector<std::thread> all;
        for (int t = 0; t < threads; t++)
            all.emplace_back([=] {
                threadIdx = {(u32)t, 0, 0};
                blockIdx = {block % x, block / x % y, block / (x * y)};
                kernel();
            });
        for (auto& thread : all) thread.join();
    }
}
