// SPDX-License-Identifier: Apache-2.0
// What calibration runs. `python -m topology.calibrate.kernels` compiles it anew with NVRTC, once for each PTX file.
//
// Work is fixed by the arguments, so that a slower chip takes longer; nothing is written that anybody reads.

extern "C" {

__device__ unsigned scramble(unsigned seed)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^ (seed << 5);
}

// Half-precision numbers around one with random mantissas: zeros would draw far less power than real data.
__device__ unsigned two_halves(unsigned seed)
{
	return (scramble(seed) & 0x03ff03ffu) | 0x38003800u;
}

#if __CUDA_ARCH__ >= 800
// Tensor cores of Ampere and later: 16x8x16 products of halves into floats, all in registers.
__global__ void compute(float *out, int rounds)
{
	unsigned seed = blockIdx.x * blockDim.x + threadIdx.x + 1u;
	unsigned a[4], b[4][2];
	float sum[4][4];

	for (int i = 0; i < 4; i++) {
		a[i] = two_halves(seed + 7919u * i);
		b[i][0] = two_halves(seed + 104729u * i);
		b[i][1] = two_halves(seed + 1299709u * i) ^ 0x80000000u;
		for (int j = 0; j < 4; j++)
			sum[i][j] = 0.0f;
	}
	for (int round = 0; round < rounds; round++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
				     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				     : "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
				     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
	}
	float all = 0.0f;
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			all += sum[i][j];
	// Never true, but the compiler cannot know: otherwise it would leave all of it out.
	if (all == 1.2345e30f)
		out[0] = all;
}
#else
// Tensor cores of Volta and Turing: 16x16x16 products. Two of them are as many operations as four of 16x8x16.
__global__ void compute(float *out, int rounds)
{
	unsigned seed = blockIdx.x * blockDim.x + threadIdx.x + 1u;
	unsigned a[8], b[8];
	float sum[2][8];

	for (int i = 0; i < 8; i++) {
		a[i] = two_halves(seed + 7919u * i);
		b[i] = two_halves(seed + 104729u * i) ^ (i % 2 ? 0x80000000u : 0u);
		sum[0][i] = sum[1][i] = 0.0f;
	}
	for (int round = 0; round < rounds; round++) {
#pragma unroll
		for (int i = 0; i < 2; i++)
			asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 "
				     "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11,%12,%13,%14,%15}, "
				     "{%16,%17,%18,%19,%20,%21,%22,%23}, {%0,%1,%2,%3,%4,%5,%6,%7};"
				     : "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3]),
				       "+f"(sum[i][4]), "+f"(sum[i][5]), "+f"(sum[i][6]), "+f"(sum[i][7])
				     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]),
				       "r"(a[7]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]),
				       "r"(b[6]), "r"(b[7]));
	}
	float all = 0.0f;
	for (int i = 0; i < 8; i++)
		all += sum[0][i] + sum[1][i];
	// Never true, as above.
	if (all == 1.2345e30f)
		out[0] = all;
}
#endif

// FP32 units: chains of multiply-adds, sixteen at a time, in registers.
__global__ void fma32(float *out, int rounds)
{
	unsigned seed = blockIdx.x * blockDim.x + threadIdx.x + 1u;
	float factor = 1.0f - (scramble(seed) & 0xffffu) * 1e-7f, add = (scramble(seed + 7919u) & 0xffffu) * 1e-7f;
	float sum[16], all = 0.0f;

	for (int i = 0; i < 16; i++)
		sum[i] = (scramble(seed + 104729u * i) & 0xffffu) * 1e-4f;
	for (int round = 0; round < rounds; round++) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			sum[i] = fmaf(sum[i], factor, add);
	}
	for (int i = 0; i < 16; i++)
		all += sum[i];
	if (all == 1.2345e30f)
		out[0] = all;
}

// Random halves of both signs between one half and one: what the other kernels and cuBLAS read.
__global__ void fill(unsigned *out, unsigned long long count)
{
	unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;

	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; i += stride)
		out[i] = (scramble(scramble((unsigned)i * 2654435761u + 1u)) & 0x83ff83ffu) | 0x38003800u;
}

// Memory: reads two streams and writes a third.
__global__ void triad(float4 *out, const float4 *one, const float4 *two, unsigned long long count)
{
	unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;

	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; i += stride) {
		float4 x = one[i], y = two[i];
		out[i] = make_float4(x.x + 3.0f * y.x, x.y + 3.0f * y.y, x.z + 3.0f * y.z, x.w + 3.0f * y.w);
	}
}

}
