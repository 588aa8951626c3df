/*
 * mutant.h - switches that break the core on purpose.
 *
 * The library is always built without them.  tests/prop/explore_mutants.c
 * compiles the core again with RRFP_MUTANTS and asserts that the explorer
 * finds each fault: a check that never failed has shown nothing.
 */
#ifndef RRFP_CORE_MUTANT_H
#define RRFP_CORE_MUTANT_H

typedef enum rrfp_mutant {
    RRFP_MUTANT_NONE = 0,
    RRFP_MUTANT_INFLIGHT_UNRESERVED, /* any microbatch may take the last slots */
    RRFP_MUTANT_NEXT_UNRESERVED,     /* reserve for the oldest microbatch only */
    RRFP_MUTANT_PENDING_UNRESERVED,  /* any B may take the last pending-W slot */
    RRFP_MUTANT_PENDING_UNBOUNDED,   /* the pending-W budget is not looked at */
    RRFP_MUTANT_INPUT_FIFO,          /* an input goes to the oldest waiting microbatch */
    RRFP_MUTANT_W_FIFO,              /* W run as their B end, not in microbatch order */
    RRFP_MUTANT_SAFETY_SKIPPED,      /* overtaking does not look at the rest of the order */
    RRFP_MUTANT_COUNT
} rrfp_mutant;

#ifdef RRFP_MUTANTS
static rrfp_mutant rrfp_mutant_active;
#define RRFP_MUTANT_IS(name) (rrfp_mutant_active == (name))
#else
#define RRFP_MUTANT_IS(name) 0
#endif

#endif /* RRFP_CORE_MUTANT_H */
