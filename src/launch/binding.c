/* binding.c - see binding.h. */
#include "launch/binding.h"

#ifdef RRFP_HAVE_HWLOC

#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rrfp_binding_name(void)
{
    static char text[32];
    unsigned version = hwloc_get_api_version();
    snprintf(text, sizeof text, "hwloc %u.%u", version >> 16, version >> 8 & 255u);
    return text;
}

static rrfp_status refused(const char *what, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_IO, "hwloc cannot %s: %s; leave --cpu-bind out", what,
                          strerror(errno));
}

/* The share's processors; freed by the caller. */
static rrfp_status find_share(hwloc_topology_t topology, uint32_t share, uint32_t shares,
                              hwloc_cpuset_t *set, rrfp_error *error)
{
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    hwloc_cpuset_t *sets = calloc(shares, sizeof(hwloc_cpuset_t));
    if (sets == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u shares", shares);
    }
    if (hwloc_distrib(topology, &root, 1, sets, shares, INT_MAX, 0) != 0) {
        free(sets);
        return refused("divide the processors", error);
    }
    *set = sets[share];
    for (uint32_t i = 0; i < shares; i++) {
        if (i != share) {
            hwloc_bitmap_free(sets[i]);
        }
    }
    free(sets);
    return RRFP_OK;
}

static rrfp_status bind(hwloc_topology_t topology, uint32_t share, uint32_t shares, bool launched,
                        rrfp_error *error)
{
    hwloc_cpuset_t mine = hwloc_bitmap_alloc();
    rrfp_status status = RRFP_OK;
    if (mine == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for a set of processors");
    }
    if (hwloc_topology_load(topology) != 0) {
        status = refused("read the machine", error);
    } else if (hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_THREAD) != 0) {
        status = refused("read the processors of a thread", error);
    } else if (hwloc_bitmap_isincluded(hwloc_get_root_obj(topology)->cpuset, mine) || !launched) {
        hwloc_cpuset_t set = NULL;
        if (hwloc_topology_restrict(topology, mine, 0) != 0) { /* to what taskset leaves, say */
            status = refused("look at the allowed processors alone", error);
        } else {
            status = find_share(topology, share, shares, &set, error);
        }
        if (status == RRFP_OK && hwloc_set_cpubind(topology, set, HWLOC_CPUBIND_THREAD) != 0) {
            status = refused("bind a thread", error);
        }
        hwloc_bitmap_free(set);
    }
    hwloc_bitmap_free(mine);
    return status;
}

rrfp_status rrfp_bind_thread(uint32_t share, uint32_t shares, bool launched, rrfp_error *error)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) {
        return refused("start", error);
    }
    rrfp_status status = bind(topology, share, shares, launched, error);
    hwloc_topology_destroy(topology);
    return status;
}

#else

#include <stddef.h>

const char *rrfp_binding_name(void)
{
    return NULL;
}

rrfp_status rrfp_bind_thread(uint32_t share, uint32_t shares, bool launched, rrfp_error *error)
{
    (void)share;
    (void)shares;
    (void)launched;
    return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                          "--cpu-bind needs hwloc, which this build lacks: install libhwloc-dev "
                          "and build again");
}

#endif
