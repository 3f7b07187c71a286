/* Drives a profiler plugin as NCCL does, and prints what the plugin should have recorded.

   host LIBRARY VERSION MODE [NUMBER]
     truth  several communicators, each with a thread that enqueues, one for proxies and one for kernels, on a clock of
            their own; records are printed as the agent should get them
     open   an operation and a transfer that stay open until a line is read
     flood  NUMBER operations, as fast as they go
     bench  NUMBER operations, with the time of a callback
     idle   asks the plugin what it wants when there is no agent

   The declarations are those of the documentation of NCCL, and not those of the plugin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef int ncclResult_t;
typedef pid_t ncclPid_t;
typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);

enum { Coll = 1 << 1, P2p = 1 << 2, ProxyOp = 1 << 3, ProxyStep = 1 << 4, KernelCh = 1 << 6, GroupApi = 1 << 8, CeColl = 1 << 12 };
enum { SendGPUWait = 8, SendWait = 9, RecvWait = 10, RecvFlushWait = 11, RecvGPUWait = 12, SendPeerWait = 20, KernelChStop = 22 };

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct { const char *name; uint64_t commHash; uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; uint8_t nMaxChannels; uint8_t nWarps; const char *algo; const char *proto; } coll;
		struct { const char *name; uint64_t commHash; const char *func; void *buff; const char *datatype; size_t count; int peer; } p2p;
		struct { pid_t pid; uint8_t channelId; int peer; int nSteps; int chunkSize; int isSend; } proxyOp;
		struct { int step; } proxyStep;
		struct { uint8_t channelId; } kernelCh;
		struct { int64_t id; void *data; } netPlugin;
	};
} descr3;

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; uint8_t nChannels; uint8_t nWarps; const char *algo; const char *proto; } coll;
		struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; } p2p;
		struct { ncclPid_t pid; uint8_t channelId; int peer; int nSteps; int chunkSize; int isSend; } proxyOp;
		struct { int step; } proxyStep;
		struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
		struct { int64_t id; void *data; } netPlugin;
	};
} descr4;

/* Version 7, in front of which versions 5 and 6 have the same members. */
typedef struct {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		struct { bool graphCaptured; int groupDepth; } groupApi;
		struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; uint8_t nChannels; uint8_t nWarps; const char *algo; const char *proto; void *parentGroup; const char *kernelVariant; bool isSymColl; uint64_t userTag; } coll;
		struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; void *parentGroup; uint64_t userTag; } p2p;
		struct { ncclPid_t pid; uint8_t channelId; int peer; int nSteps; int chunkSize; int isSend; } proxyOp;
		struct { int step; } proxyStep;
		struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
		struct { int64_t id; void *data; } netPlugin;
		struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; const char *syncStrategy; bool intraBatchSync; uint32_t batchSize; uint32_t numBatches; uint32_t ceSeqNum; void *stream; uint64_t userTag; } ceColl;
	};
} descr7;

typedef union {
	struct { size_t transSize; int steps; } proxyOp;
	struct { size_t transSize; } proxyStep;
	struct { int appendedProxyOps; } proxyCtrl;
	struct { uint64_t pTimer; } kernelCh;
} state_args;

typedef struct {
	const char *name;
	void *init; /* differs by version */
	ncclResult_t (*startEvent)(void *context, void **handle, void *descr);
	ncclResult_t (*stopEvent)(void *handle);
	ncclResult_t (*recordEventState)(void *handle, int state, state_args *args);
	ncclResult_t (*finalize)(void *context);
} profiler;

static profiler *plugin;
static int version;

#define CHECK(ok, ...) do { if (!(ok)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } } while (0)

/* The clock of the plugin is that of the thread where the thread has one. */
static _Thread_local uint64_t own_time;
static int (*real_clock)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *t)
{
	if (own_time != 0 && clock == CLOCK_MONOTONIC) {
		t->tv_sec = (time_t)(own_time / 1000000000u);
		t->tv_nsec = (long)(own_time % 1000000000u);
		return 0;
	}
	return real_clock(clock, t);
}

static uint64_t real_time(void)
{
	struct timespec t;
	real_clock(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Allocations while armed, of any thread. */
static _Atomic int armed, allocations;
#ifdef COUNT_ALLOCATIONS
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { allocations += armed; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { allocations += armed; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { allocations += armed; return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { allocations += armed; return __libc_memalign(a, n); }
#endif

static void quiet(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	(void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

static void *init(uint64_t hash, const char *name, int ranks, int rank, int *mask)
{
	void *context = (void *)1;
	*mask = -1;
	ncclResult_t r;
	if (version == 3)
		r = ((ncclResult_t(*)(void **, int *))plugin->init)(&context, mask);
	else if (version == 4)
		r = ((ncclResult_t(*)(void **, int *, const char *, uint64_t, int, int, int, ncclDebugLogger_t))plugin->init)(&context, mask, name, hash, 2, ranks, rank, quiet);
	else
		r = ((ncclResult_t(*)(void **, uint64_t, int *, const char *, int, int, int, ncclDebugLogger_t))plugin->init)(&context, hash, mask, name, 2, ranks, rank, quiet);
	CHECK(r == 0, "init failed: %d", r);
	return context;
}

/* start calls startEvent with a descriptor of the version, in which what the version does not have is garbage. */
static void *start(void *context, descr7 *d)
{
	void *handle = (void *)1;
	descr3 d3;
	descr4 d4;
	void *arg = d;
	if (version == 4) {
		memset(&d4, 0xa5, sizeof d4);
		d4.type = (uint8_t)d->type, d4.parentObj = d->parentObj, d4.rank = d->rank;
		memcpy(&d4.coll, &d->coll, sizeof d4 - offsetof(descr4, coll));
		arg = &d4;
	} else if (version == 3) {
		memset(&d3, 0xa5, sizeof d3);
		d3.type = (uint8_t)d->type, d3.parentObj = d->parentObj, d3.rank = d->rank;
		arg = &d3;
		if (d->type == ProxyOp)
			memcpy(&d3.proxyOp, &d->proxyOp, sizeof d3.proxyOp);
		else if (d->type == ProxyStep)
			d3.proxyStep.step = d->proxyStep.step;
		else if (d->type == KernelCh)
			d3.kernelCh.channelId = d->kernelCh.channelId;
		else
			CHECK(0, "start_v3 starts operations");
	}
	CHECK(plugin->startEvent(context, &handle, arg) == 0, "startEvent failed");
	return handle;
}

/* What a communicator is, and what its threads have to do. */
enum { COMMS = 3, OPS = 240, CHANNELS = 2, NSTEPS = 5, RANKS = 8, LINES = OPS * 6 };
struct line { char text[512]; };
struct comm {
	void *context;
	char name[32];
	uint64_t hash;
	int rank, ops, enqueued, proxied;
	void *handle[OPS];
	int p2p[OPS], p2p_peer[OPS];
	uint64_t seq[OPS];
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct line lines[3][LINES];
	int n[3];
} comms[COMMS];

static const char *kinds[] = {"AllReduce", "AllGather", "Broadcast"};

static void *start_coll(struct comm *c, const char *func, uint64_t seq, size_t count)
{
	void *handle = (void *)1;
	if (version == 3) {
		descr3 d = {.type = Coll, .rank = c->rank};
		d.coll.name = c->name, d.coll.commHash = c->hash, d.coll.seqNumber = seq, d.coll.func = func, d.coll.count = count, d.coll.datatype = "ncclFloat32";
		d.coll.root = 3, d.coll.nMaxChannels = CHANNELS, d.coll.algo = "RING", d.coll.proto = "SIMPLE";
		plugin->startEvent(c->context, &handle, &d);
		return handle;
	}
	descr7 d = {.type = Coll, .rank = c->rank};
	d.coll.seqNumber = seq, d.coll.func = func, d.coll.count = count, d.coll.datatype = "ncclFloat32", d.coll.root = 3;
	d.coll.nChannels = CHANNELS, d.coll.algo = "RING", d.coll.proto = "SIMPLE";
	return start(c->context, &d);
}

static void *start_p2p(struct comm *c, const char *func, int peer, size_t count)
{
	void *handle = (void *)1;
	if (version == 3) {
		descr3 d = {.type = P2p, .rank = c->rank};
		d.p2p.name = c->name, d.p2p.commHash = c->hash, d.p2p.func = func, d.p2p.count = count, d.p2p.datatype = "ncclInt8", d.p2p.peer = peer;
		plugin->startEvent(c->context, &handle, &d);
		return handle;
	}
	descr7 d = {.type = P2p, .rank = c->rank};
	d.p2p.func = func, d.p2p.count = count, d.p2p.datatype = "ncclInt8", d.p2p.peer = peer, d.p2p.nChannels = CHANNELS;
	return start(c->context, &d);
}

static void *start_kernel(struct comm *c, void *op, int channel, uint64_t gpu)
{
	descr7 d = {.type = KernelCh, .parentObj = op};
	d.kernelCh.channelId = (uint8_t)channel, d.kernelCh.pTimer = gpu;
	return start(c->context, &d);
}

static void stop_kernel(void *handle, uint64_t gpu)
{
	state_args a = {.kernelCh = {.pTimer = gpu}};
	if (version > 3)
		plugin->recordEventState(handle, KernelChStop, &a);
	plugin->stopEvent(handle);
}

static void *start_proxy(struct comm *c, void *op, int send, int channel, pid_t pid)
{
	descr7 d = {.type = ProxyOp, .parentObj = op, .rank = c->rank};
	d.proxyOp.pid = pid, d.proxyOp.channelId = (uint8_t)channel, d.proxyOp.isSend = send, d.proxyOp.nSteps = NSTEPS, d.proxyOp.chunkSize = 1 << 20;
	d.proxyOp.peer = (c->rank + (send ? 1 : RANKS - 1)) % RANKS;
	return start(pid == getpid() ? c->context : (void *)0x10, &d);
}

static void *start_step(struct comm *c, void *proxy, int step)
{
	descr7 d = {.type = ProxyStep, .parentObj = proxy, .rank = c->rank};
	d.proxyStep.step = step;
	return start(c->context, &d);
}

static void state(void *step, int to, size_t bytes)
{
	state_args a = {.proxyStep = {.transSize = bytes}};
	plugin->recordEventState(step, to, &a);
}

static const char *kind_of(struct comm *c, int i)
{
	return c->p2p[i] == 1 ? "Send" : c->p2p[i] == 2 ? "Recv" : kinds[i % 3];
}

/* enqueue is the thread of the program: it starts operations and goes on. */
static void *enqueue(void *arg)
{
	struct comm *c = arg;
	uint64_t seqs[3] = {0}, p2ps[2] = {0};
	own_time = real_time() + 1;
	for (int i = 0; i < c->ops; i++) {
		own_time += 1000;
		if (i % 8 == 7) {
			c->p2p[i] = 1 + i / 8 % 2;
			c->seq[i] = p2ps[c->p2p[i] - 1]++;
			c->p2p_peer[i] = (c->rank + 3) % RANKS;
			c->handle[i] = start_p2p(c, kind_of(c, i), c->p2p_peer[i], (size_t)1000 + (size_t)i);
		} else {
			c->seq[i] = seqs[i % 3]++;
			c->handle[i] = start_coll(c, kinds[i % 3], c->seq[i], (size_t)1 << 20);
			if (version >= 6) {
				descr7 d = {.type = CeColl, .rank = c->rank};
				d.ceColl.seqNumber = (uint64_t)i, d.ceColl.func = "AllGather", d.ceColl.count = 1;
				plugin->stopEvent(start(c->context, &d));
			}
		}
		CHECK(c->handle[i] != NULL, "no handle for operation %d", i);
		pthread_mutex_lock(&c->lock);
		c->enqueued = i + 1;
		pthread_cond_broadcast(&c->more);
		pthread_mutex_unlock(&c->lock);
		own_time += 500;
		plugin->stopEvent(c->handle[i]);
	}
	return NULL;
}

static void wait_for(struct comm *c, int *count, int i)
{
	pthread_mutex_lock(&c->lock);
	while (*count <= i)
		pthread_cond_wait(&c->more, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

/* send_steps drives the steps of a sender two at a time, so that they overlap, and adds up what each waits. */
static void send_steps(struct comm *c, void *proxy, int i, uint64_t *gpu, uint64_t *peer, uint64_t *wire, uint64_t *bytes)
{
	*gpu = *peer = *wire = *bytes = 0;
	void *step[2];
	uint64_t at[2];
	for (int s = 0; s < NSTEPS; s += 2) {
		int n = s + 1 < NSTEPS ? 2 : 1;
		for (int k = 0; k < n; k++) {
			step[k] = start_step(c, proxy, s + k);
			own_time += 7;
			at[k] = own_time;
			state(step[k], SendGPUWait, 0);
		}
		for (int k = 0; k < n; k++) {
			own_time += 100 + (uint64_t)i;
			*gpu += own_time - at[k];
			at[k] = own_time;
			if (version > 3) {
				state(step[k], SendPeerWait, 0);
				own_time += 20;
				state(step[k], SendPeerWait, 0); /* repeated, as NCCL does */
			}
			own_time += 3 * (uint64_t)s;
			*peer += own_time - at[k];
			at[k] = own_time;
			state(step[k], SendWait, 4096);
			*bytes += 4096;
		}
		for (int k = 0; k < n; k++) {
			own_time += 900;
			*wire += own_time - at[k];
			plugin->stopEvent(step[k]);
		}
	}
}

static void recv_steps(struct comm *c, void *proxy, int i, uint64_t *gpu, uint64_t *flush, uint64_t *wire, uint64_t *bytes)
{
	*gpu = *flush = *wire = *bytes = 0;
	for (int s = 0; s < NSTEPS; s++) {
		void *step = start_step(c, proxy, s);
		own_time += 5;
		state(step, RecvWait, 0);
		own_time += 700 + (uint64_t)i;
		*wire += 700 + (uint64_t)i;
		state(step, RecvFlushWait, 2048);
		*bytes += 2048;
		own_time += 11;
		*flush += 11;
		state(step, RecvGPUWait, 0);
		own_time += 30;
		*gpu += 30;
		plugin->stopEvent(step);
	}
}

/* print_head begins the line of a record that the agent should get. */
static int print_head(struct comm *c, char *to, const char *kind, int i)
{
	return sprintf(to, "{\"kind\":\"%s\",\"comm\":\"0x%lx\",\"rank\":%d,\"n_ranks\":%d,\"seq\":%lu,\"op\":\"%s\"", kind, c->hash, c->rank, RANKS, c->seq[i], kind_of(c, i));
}

/* proxy is the proxy thread. Kernels run when it has begun with an operation. */
static void *proxy(void *arg)
{
	struct comm *c = arg;
	own_time = real_time() + 1;
	for (int i = 0; i < c->ops; i++) {
		wait_for(c, &c->enqueued, i);
		void *p[4];
		uint64_t began[4], a, b, w, bytes;
		for (int k = 0; k < 4; k++) {
			own_time += 13;
			began[k] = own_time;
			p[k] = start_proxy(c, c->handle[i], k % 2, k / 2, getpid());
			CHECK(p[k] != NULL, "no handle for a proxy operation");
		}
		CHECK(start_proxy(c, (void *)0x10, 1, 0, getpid() + 1) == NULL, "a proxy operation of another process has a handle");
		CHECK(start_step(c, NULL, 0) == NULL, "a step without a proxy operation has a handle");
		pthread_mutex_lock(&c->lock);
		c->proxied = i + 1;
		pthread_cond_broadcast(&c->more);
		pthread_mutex_unlock(&c->lock);
		for (int k = 0; k < 4; k++) {
			if (k % 2)
				send_steps(c, p[k], i, &a, &b, &w, &bytes);
			else
				recv_steps(c, p[k], i, &a, &b, &w, &bytes);
			own_time += 17;
			plugin->stopEvent(p[k]);
			plugin->stopEvent(p[k]); /* stale by now */
			char *to = c->lines[0][c->n[0]++].text;
			to += print_head(c, to, "edge", i);
			to += sprintf(to, ",\"peer\":%d,\"direction\":\"%s\",\"channel\":%d,\"start_ns\":0,\"end_ns\":%lu,\"wire_ns\":%lu", (c->rank + (k % 2 ? 1 : RANKS - 1)) % RANKS, k % 2 ? "send" : "recv", k / 2, own_time - began[k], w);
			if (version > 3)
				to += sprintf(to, ",\"bytes\":%lu", bytes);
			if (version > 3 || k % 2 == 0)
				to += sprintf(to, ",\"gpu_wait_ns\":%lu", a);
			if (k % 2 == 0)
				to += sprintf(to, ",\"flush_ns\":%lu", b);
			else if (version > 3)
				to += sprintf(to, ",\"peer_wait_ns\":%lu", b);
			sprintf(to, ",\"state\":\"completed\"}");
		}
	}
	return NULL;
}

/* kernels is the thread that reports what the GPU did. The GPU times all operations but each fifth. */
static void *kernels(void *arg)
{
	struct comm *c = arg;
	own_time = real_time() + 1;
	for (int i = 0; i < c->ops; i++) {
		wait_for(c, &c->proxied, i);
		void *k[CHANNELS];
		uint64_t began[CHANNELS], gpu = i % 5 == 4 ? 0 : 1000000, longest = 0, first = own_time + 100;
		int timed = gpu != 0 && version > 3;
		for (int ch = 0; ch < CHANNELS; ch++) {
			own_time += 100;
			began[ch] = own_time;
			k[ch] = start_kernel(c, c->handle[i], ch, gpu);
			CHECK(k[ch] != NULL, "no handle for a kernel");
		}
		for (int ch = 0; ch < CHANNELS; ch++) {
			own_time += 2000 + 10 * (uint64_t)i;
			uint64_t took = timed ? 5000 + (uint64_t)(ch * i) : own_time - began[ch];
			longest = took > longest ? took : longest;
			stop_kernel(k[ch], gpu + took);
		}
		char *to = c->lines[1][c->n[1]++].text;
		to += print_head(c, to, "op", i);
		if (c->p2p[i])
			to += sprintf(to, ",\"bytes\":%d,\"peer\":%d", 1000 + i, c->p2p_peer[i]);
		else
			to += sprintf(to, ",\"algo\":\"RING\",\"proto\":\"SIMPLE\",\"bytes\":%d", 4 << 20);
		if (!c->p2p[i] && i % 3 == 2)
			to += sprintf(to, ",\"root\":3");
		sprintf(to, ",\"start_ns\":0,\"end_ns\":%lu,\"exec_ns\":%lu,\"timing\":\"%s\",\"state\":\"completed\"}", own_time - first, longest, timed ? "kernel_gpu" : "kernel_cpu");
	}
	return NULL;
}

static void wait_for_line(const char *say)
{
	char line[16];
	printf("%s\n", say);
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin) != NULL, "no line on standard input");
}

static void make_comms(int n, int ops)
{
	for (int i = 0; i < n; i++) {
		struct comm *c = &comms[i];
		int mask;
		c->hash = 0xabc0 + (uint64_t)i, c->rank = 2 + i, c->ops = ops;
		snprintf(c->name, sizeof c->name, "group \"%d\"", i);
		pthread_mutex_init(&c->lock, NULL);
		pthread_cond_init(&c->more, NULL);
		c->context = init(c->hash, c->name, RANKS, c->rank, &mask);
		CHECK(c->context != NULL, "no context");
		CHECK((mask & ~CeColl) == (Coll | P2p | KernelCh | ProxyOp | ProxyStep) && !(mask & CeColl) == (version < 6), "mask %#x", (unsigned)mask);
		descr7 d = {.type = GroupApi};
		CHECK(version < 5 || start(c->context, &d) == NULL, "an event without a use has a handle");
		CHECK(plugin->stopEvent(NULL) == 0, "stopEvent of nothing failed");
	}
}

static void truth(void)
{
	pthread_t t[COMMS][3];
	make_comms(COMMS, OPS);
	for (int i = 0; i < COMMS; i++) {
		pthread_create(&t[i][0], NULL, enqueue, &comms[i]);
		pthread_create(&t[i][1], NULL, proxy, &comms[i]);
		pthread_create(&t[i][2], NULL, kernels, &comms[i]);
	}
	for (int i = 0; i < COMMS; i++)
		for (int k = 0; k < 3; k++)
			pthread_join(t[i][k], NULL);
	for (int i = 0; i < COMMS; i++)
		for (int k = 0; k < 3; k++)
			for (int j = 0; j < comms[i].n[k]; j++)
				puts(comms[i].lines[k][j].text);
	wait_for_line("done");
	for (int i = 0; i < COMMS; i++)
		plugin->finalize(comms[i].context);
	void *late = comms[0].handle[OPS - 1];
	plugin->stopEvent(late); /* of an operation that is over, after the end */
	CHECK(start_kernel(&comms[0], late, 0, 0) == NULL, "an operation that is over has kernels");
}

/* leave_open leaves an operation and a transfer open until a line comes, and one that was only enqueued for good. */
static void leave_open(void)
{
	make_comms(1, 1);
	struct comm *c = &comms[0];
	void *op = start_coll(c, "AllReduce", 0, 64), *never = start_coll(c, "AllReduce", 1, 64);
	plugin->stopEvent(op);
	plugin->stopEvent(never);
	void *p = start_proxy(c, op, 1, 1, getpid()), *k[CHANNELS], *step = start_step(c, p, 0);
	for (int i = 0; i < CHANNELS; i++)
		k[i] = start_kernel(c, op, i, 1000);
	state(step, SendGPUWait, 0);
	state(step, SendPeerWait, 0);
	wait_for_line("open");
	state(step, SendWait, 64);
	plugin->stopEvent(step);
	plugin->stopEvent(p);
	for (int i = 0; i < CHANNELS; i++)
		stop_kernel(k[i], 2000);
	wait_for_line("over");
	plugin->finalize(c->context);
}

/* step_once is one step of a sender, and five callbacks. */
static void step_once(struct comm *c, void *p, int i)
{
	void *s = start_step(c, p, i);
	state(s, SendGPUWait, 0);
	state(s, SendPeerWait, 0);
	state(s, SendWait, 4096);
	plugin->stopEvent(s);
}

/* run_ops runs operations by one thread, and returns the number of callbacks. */
static long run_ops(struct comm *c, long n)
{
	long calls = 0;
	for (long i = 0; i < n; i++) {
		void *op = start_coll(c, "AllReduce", (uint64_t)i, 1 << 20), *p[2], *k[CHANNELS];
		for (int j = 0; j < 2; j++)
			p[j] = start_proxy(c, op, 1, j, getpid());
		for (int j = 0; j < CHANNELS; j++)
			k[j] = start_kernel(c, op, j, 1000);
		plugin->stopEvent(op);
		for (int s = 0; s < NSTEPS; s++)
			for (int j = 0; j < 2; j++)
				step_once(c, p[j], s);
		for (int j = 0; j < 2; j++)
			plugin->stopEvent(p[j]);
		for (int j = 0; j < CHANNELS; j++)
			stop_kernel(k[j], 9000);
		calls += 2 + 2 * 2 + 2 * NSTEPS * 5 + 3 * CHANNELS;
	}
	return calls;
}

static void flood(long n)
{
	make_comms(1, 1);
	run_ops(&comms[0], n);
	wait_for_line("flooded");
	plugin->finalize(comms[0].context);
}

static void bench(long n)
{
	make_comms(1, 1);
	run_ops(&comms[0], 100);
	armed = 1;
	long calls = 0;
	uint64_t took = 0;
	for (long i = 0; i < n; i += 100) {
		uint64_t began = real_time();
		calls += run_ops(&comms[0], 100);
		took += real_time() - began;
		struct timespec t = {.tv_nsec = 12000000};
		nanosleep(&t, NULL); /* a job computes as well: the writer keeps up */
	}
	armed = 0;
	printf("{\"calls\":%ld,\"ns_per_call\":%.1f,\"allocations\":%d}\n", calls, (double)took / (double)calls, (int)allocations);
	wait_for_line("benched");
	plugin->finalize(comms[0].context);
}

static void idle(void)
{
	int mask;
	void *context = init(1, "", RANKS, 0, &mask);
	CHECK(context == NULL && mask == 0, "without an agent there is a context %p or a mask %#x", context, (unsigned)mask);
	struct comm *c = &comms[0];
	CHECK(start_coll(c, "AllReduce", 0, 1) == NULL, "an operation has a handle without an agent");
	plugin->finalize(context);
}

int main(int argc, char **argv)
{
	real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	CHECK(argc >= 4 && real_clock != NULL, "usage: host LIBRARY VERSION MODE [NUMBER]");
	version = atoi(argv[2]);
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(library != NULL, "%s", dlerror());
	char symbol[32];
	snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
	plugin = dlsym(library, symbol);
	CHECK(plugin != NULL, "%s", dlerror());
	long n = argc > 4 ? atol(argv[4]) : 0;
	if (strcmp(argv[3], "truth") == 0)
		truth();
	else if (strcmp(argv[3], "open") == 0)
		leave_open();
	else if (strcmp(argv[3], "flood") == 0)
		flood(n);
	else if (strcmp(argv[3], "bench") == 0)
		bench(n);
	else
		idle();
	CHECK(dlclose(library) == 0, "%s", dlerror()); /* as NCCL does */
	return 0;
}
