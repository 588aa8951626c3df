/*
 * team.c - one OpenMP team per calling thread.
 */
#include "kernels/team.h"

#include <omp.h>

#include "kernels/kernels.h"

static _Thread_local int team_size = 1;

void rrfp_kernels_thread_init(int threads)
{
    team_size = threads > 1 ? threads : 1;
    /* The count is a property of the calling thread in OpenMP, not of the process. */
    omp_set_num_threads(team_size);
    rrfp_gemm_thread_init(team_size);
}

int rrfp_team_size(void)
{
    return team_size;
}

static void run_parallel(size_t count, size_t grain, rrfp_team_body body, void *context,
                         int members)
{
    size_t units = (count + grain - 1) / grain;
#pragma omp parallel for schedule(static) num_threads(members)
    for (int member = 0; member < members; member++) {
        size_t begin = units * (size_t)member / (size_t)members * grain;
        size_t end = units * ((size_t)member + 1) / (size_t)members * grain;
        if (end > count)
            end = count;
        if (begin < end)
            body(context, begin, end);
    }
}

void rrfp_team_for(size_t count, size_t grain, rrfp_team_body body, void *context)
{
    if (count == 0)
        return;
    if (team_size == 1 || count <= grain)
        body(context, 0, count);
    else
        run_parallel(count, grain, body, context, team_size);
}
