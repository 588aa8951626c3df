/*
 * ledger.c - a budget that can always finish what it began.
 *
 * Microbatches are customers of a bank, served to the end in microbatch order.
 * Let held(k) be what microbatch k holds now and need(k) what its F's that have
 * not started will take.  The state is *safe* when
 *
 *      free + held(0) + ... + held(k-1)  >=  need(k)        for every k,
 *
 * for then microbatch 0 can be finished, all it held is free again, then 1, and
 * so on; above all the oldest microbatch with anything left (older ones hold
 * nothing) can always start its next F.  Reserving for the oldest alone is not
 * enough: with V > 1 it gives its slots back one by one, others take them, and
 * the next oldest finds too few.
 *
 * Ends of tasks keep the state safe.  The start of F(c,m) leaves the sums of
 * every k >= m as they were and lowers those of k < m by its cost, so it is
 * admitted when every k < m has that much to spare: when m does not lie beyond
 * the first k that has not, the *barrier*.  The left side grows with k, so of
 * all microbatches that still have to start F's from chunk c on, only the
 * smallest can be that k: V of them to look at.
 */
#include "core/mutant.h"
#include "core/stage_internal.h"

/* Fenwick tree over microbatches, 1-based: O(log M) change and prefix sum. */
static void tree_add(uint64_t *tree, uint32_t microbatches, uint32_t microbatch, uint64_t delta)
{
    for (uint32_t i = microbatch + 1; i <= microbatches; i += i & (~i + 1)) {
        tree[i - 1] += delta; /* a decrease wraps around and is exact */
    }
}

static uint64_t tree_before(const uint64_t *tree, uint32_t microbatch)
{
    uint64_t sum = 0;
    for (uint32_t i = microbatch; i > 0; i &= i - 1) {
        sum += tree[i - 1];
    }
    return sum;
}

void rrfp_ledger_take(rrfp_ledger *ledger, uint32_t microbatches, uint32_t chunk,
                      uint32_t microbatch)
{
    *ledger->used += ledger->start[chunk];
    if (ledger->tree != NULL) {
        tree_add(ledger->tree, microbatches, microbatch, ledger->start[chunk]);
    }
}

void rrfp_ledger_give(rrfp_ledger *ledger, uint32_t microbatches, uint32_t microbatch,
                      uint64_t amount)
{
    *ledger->used -= amount;
    if (ledger->tree != NULL) {
        tree_add(ledger->tree, microbatches, microbatch, UINT64_C(0) - amount);
    }
}

/*
 * Which microbatches may start their F on `chunk`: false for none, else those up
 * to *barrier, which is only ever lowered.
 */
bool rrfp_ledger_admits(const rrfp_ledger *ledger, const rrfp_shape *shape, const uint32_t *next_f,
                        uint32_t chunk, uint32_t *barrier)
{
    uint64_t cost = ledger->start[chunk];
    uint64_t spare = ledger->capacity - *ledger->used;
    if (!ledger->limited) {
        return true;
    }
    if (spare < cost) { /* only while older microbatches hold something */
        return false;
    }
    if (spare - cost >= ledger->need[0] || RRFP_MUTANT_IS(RRFP_MUTANT_INFLIGHT_UNRESERVED)) {
        return true;
    }
    for (uint32_t c = shape->chunks; c-- > 0;) { /* next_f falls with c: smallest first */
        uint32_t k = next_f[c];
        if (k >= *barrier || k >= shape->microbatches) {
            return true;
        }
        uint64_t held = tree_before(ledger->tree, k);
        if (RRFP_MUTANT_IS(RRFP_MUTANT_NEXT_UNRESERVED) && held > 0) {
            continue;
        }
        if (spare + held - cost < ledger->need[c]) {
            *barrier = k;
            return true;
        }
    }
    return true;
}
