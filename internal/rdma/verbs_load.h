#ifndef GRAYLINK_VERBS_LOAD_H
#define GRAYLINK_VERBS_LOAD_H

/* These are included by verbs.h. What they declare is defined elsewhere, so it must not be hidden. */
#include <errno.h>
#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* verbs_load.c defines the functions that verbs.h declares. Where it lacks one that is used, the link fails, because the
   linker does not look for a hidden symbol in shared libraries. */
#pragma GCC visibility push(hidden)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#endif
