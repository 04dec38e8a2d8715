// What the kernels here need of a GPU of compute capability 9.0. (tests/kernels/emulation.h has the same for a CPU.)

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short bf16;  // its bits

#define SHARED_MEMORY(name) extern __shared__ __align__(128) unsigned char name[]

__device__ inline u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Copies beside other work, to shared memory; zeros if the source is not there.
__device__ inline void copy_16_bytes(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copies_are_a_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ inline void make_visible_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void synchronise() { __syncthreads(); }

__device__ inline void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products given so far are a group; waits until at most LEFT groups are not done.
template <int LEFT = 0> __device__ inline void finish_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Two bfloat16 in 32 bits.
__device__ inline u32 positive(u32 two) {
    u32 positive_two;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(positive_two) : "r"(two), "r"(0));
    return positive_two;
}
__device__ inline float low(u32 two) { return __uint_as_float(two << 16); }
__device__ inline float high(u32 two) { return __uint_as_float(two & 0xFFFF0000u); }
__device__ inline u32 pack(float low, float high) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

// Two or four numbers.
__device__ inline uint2 load(const bf16* from, int count) {
    if (count == 2) return {*(const u32*)from, 0};
    return *(const uint2*)from;
}
__device__ inline void unpack(uint2 v, float* to) {
    to[0] = low(v.x), to[1] = high(v.x), to[2] = low(v.y), to[3] = high(v.y);
}
__device__ inline void store(bf16* to, const float* v, int count) {
    if (count == 2) *(u32*)to = pack(v[0], v[1]);
    else *(uint2*)to = {pack(v[0], v[1]), pack(v[2], v[3])};
}

__device__ inline float sum_of_every_fourth_lane(float v) {
    for (int distance = 4; distance < 32; distance *= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, distance);
    return v;
}

__device__ inline void add_two(float* to, float first, float second) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
}

// The next kernel may start now; what earlier ones have written is there after the wait.
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
