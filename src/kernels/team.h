/*
 * team.h - the OpenMP team of the calling thread; private to src/kernels.
 *
 * A loop body is a function over a half-open range.  With a team of one it is
 * called directly and no OpenMP region is entered, so thread checkers that do
 * not know the OpenMP runtime see plain threads only.
 */
#ifndef RRFP_KERNELS_TEAM_H
#define RRFP_KERNELS_TEAM_H

#include <stddef.h>

typedef void (*rrfp_team_body)(void *context, size_t begin, size_t end);

/* Threads in the calling thread's team; 1 until rrfp_kernels_thread_init. */
int rrfp_team_size(void);

/*
 * Covers [0, count) with calls of body, one per team member, cut at multiples
 * of `grain`.  Bodies must write disjoint results per element, so that the cut
 * does not show in them.
 */
void rrfp_team_for(size_t count, size_t grain, rrfp_team_body body, void *context);

/* Tells the GEMM library about the calling thread's team (gemm.c). */
void rrfp_gemm_thread_init(int threads);

#endif /* RRFP_KERNELS_TEAM_H */
