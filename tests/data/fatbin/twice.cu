__global__ void twice(float *p) { p[threadIdx.x] *= 2.0f; }
