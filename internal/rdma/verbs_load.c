//go:build rdma && linux

#define _GNU_SOURCE /* dlvsym */

#include "verbs_load.h"

#include "verbs_rdma.h"

#include <dlfcn.h>
#include <stdio.h>

/* These names are macros in verbs.h, over functions of the same names. */
#undef ibv_query_port
#undef ibv_reg_mr

/* The functions of libibverbs.so.1 that are used, with the version in which they have their present form. Each is F of
   version, result, name, parameters and arguments, or V if it has no result. */
#define FUNCTIONS(F, V)                                                                                                                        \
	F("IBVERBS_1.1", struct ibv_device **, ibv_get_device_list, (int *n), (n))                                                             \
	V("IBVERBS_1.1", ibv_free_device_list, (struct ibv_device **list), (list))                                                             \
	F("IBVERBS_1.1", const char *, ibv_get_device_name, (struct ibv_device *device), (device))                                             \
	F("IBVERBS_1.1", struct ibv_context *, ibv_open_device, (struct ibv_device *device), (device))                                         \
	F("IBVERBS_1.1", int, ibv_close_device, (struct ibv_context *context), (context))                                                      \
	F("IBVERBS_1.1", int, ibv_get_async_event, (struct ibv_context *context, struct ibv_async_event *event), (context, event))             \
	V("IBVERBS_1.1", ibv_ack_async_event, (struct ibv_async_event *event), (event))                                                        \
	F("IBVERBS_1.1", int, ibv_query_device, (struct ibv_context *context, struct ibv_device_attr *attr), (context, attr))                  \
	F("IBVERBS_1.1", int, ibv_query_port, (struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr), (context, port, attr)) \
	F("IBVERBS_1.1", int, ibv_query_pkey, (struct ibv_context *context, uint8_t port, int index, __be16 *pkey), (context, port, index, pkey)) \
	F("IBVERBS_1.11", ssize_t, _ibv_query_gid_table,                                                                                       \
	  (struct ibv_context *context, struct ibv_gid_entry *entries, size_t most, uint32_t flags, size_t size), (context, entries, most, flags, size)) \
	F("IBVERBS_1.1", struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *context), (context))                                              \
	F("IBVERBS_1.1", int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd))                                                                       \
	F("IBVERBS_1.1", struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *addr, size_t length, int access), (pd, addr, length, access))  \
	F("IBVERBS_1.1", int, ibv_dereg_mr, (struct ibv_mr *mr), (mr))                                                                         \
	F("IBVERBS_1.0", struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *context), (context))                         \
	F("IBVERBS_1.0", int, ibv_destroy_comp_channel, (struct ibv_comp_channel *channel), (channel))                                         \
	F("IBVERBS_1.1", struct ibv_cq *, ibv_create_cq,                                                                                       \
	  (struct ibv_context *context, int n, void *own, struct ibv_comp_channel *channel, int vector), (context, n, own, channel, vector))   \
	F("IBVERBS_1.1", int, ibv_destroy_cq, (struct ibv_cq *cq), (cq))                                                                       \
	F("IBVERBS_1.1", int, ibv_get_cq_event, (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own), (channel, cq, own))        \
	V("IBVERBS_1.1", ibv_ack_cq_events, (struct ibv_cq *cq, unsigned int n), (cq, n))                                                      \
	F("IBVERBS_1.1", struct ibv_qp *, ibv_create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), (pd, attr))                       \
	F("IBVERBS_1.1", int, ibv_modify_qp, (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), (qp, attr, mask))                        \
	F("IBVERBS_1.1", int, ibv_query_qp, (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init), (qp, attr, mask, init)) \
	F("IBVERBS_1.1", int, ibv_destroy_qp, (struct ibv_qp *qp), (qp))                                                                       \
	F("IBVERBS_1.1", struct ibv_ah *, ibv_create_ah, (struct ibv_pd *pd, struct ibv_ah_attr *attr), (pd, attr))                            \
	F("IBVERBS_1.1", int, ibv_destroy_ah, (struct ibv_ah *ah), (ah))

/* The functions as the library has them. */
static struct {
#define F(version, result, name, parameters, arguments) result(*name) parameters;
#define V(version, name, parameters, arguments) void(*name) parameters;
	FUNCTIONS(F, V)
#undef F
#undef V
} library;

/* The functions as verbs.h declares them. Each calls that of the library, which has to be loaded. */
#define F(version, result, name, parameters, arguments) \
	result name parameters { return library.name arguments; }
#define V(version, name, parameters, arguments) \
	void name parameters { library.name arguments; }
FUNCTIONS(F, V)
#undef F
#undef V

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static int loaded;

static int load(char *why, int size)
{
	void *at = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!at) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	const char *missing = NULL;
#define F(version, result, name, parameters, arguments)       \
	if (!(library.name = dlvsym(at, #name, version))) \
		missing = #name "@" version;
#define V(version, name, parameters, arguments) F(version, void, name, parameters, arguments)
	FUNCTIONS(F, V)
#undef F
#undef V
	if (missing) {
		snprintf(why, size, "libibverbs.so.1 has no %s; rdma-core 32 or later is needed", missing);
		dlclose(at);
		return -1;
	}
	return 0;
}

/* gl_load loads libibverbs.so.1 if it is not loaded. It returns 0, or -1 with the reason in why. It may be called again
   after an error, and by any thread. */
int gl_load(char *why, int size)
{
	pthread_mutex_lock(&loading);
	int e = loaded ? 0 : load(why, size);
	loaded = !e;
	pthread_mutex_unlock(&loading);
	return e;
}
