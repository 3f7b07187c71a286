/* The profiler interface of NCCL and RCCL, versions 3 to 7, as far as this plugin uses it: our own declarations of the
   same layouts. Source: NVIDIA/nccl, src/include/plugin/profiler/profiler_v3.h to profiler_v7.h (commits 56a0c22, 276b2fe,
   0e3a403, 07cbae8 and 8898068) and src/plugin/profiler.cc (031512f), read on 2026-11-28. To check again: compare the
   members and their order with these files; TestLayouts of test/nccl has the offsets.

   NCCL 2.26 loads version 3, 2.27 version 4, 2.28 and 2.29 version 5, 2.30.7 version 6, and later ones version 7: each
   takes the newest that a plugin exports. Version 7 differs between nccl/src and nccl/plugins/profiler/example (commit
   6e9d89e), but only behind the members that are read here. */
#ifndef GRAYLINK_PROFILER_API_H
#define GRAYLINK_PROFILER_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Results: only success is ever returned, as NCCL asks plugins to. */
typedef int nccl_result;
enum { NCCL_SUCCESS = 0 };

/* The logger of NCCL. Levels and subsystems are those of nccl_common.h. */
typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3, NCCL_SUBSYS_INIT = 1 };

/* Types of events, which are bits of the activation mask. */
enum {
	EVENT_GROUP = 1 << 0,
	EVENT_COLL = 1 << 1,
	EVENT_P2P = 1 << 2,
	EVENT_PROXY_OP = 1 << 3,
	EVENT_PROXY_STEP = 1 << 4,
	EVENT_PROXY_CTRL = 1 << 5,
	EVENT_KERNEL_CH = 1 << 6,
	EVENT_CE_COLL = 1 << 12, /* since version 6 */
};

/* States of events. Each one of a step marks the begin of a wait. */
enum {
	STATE_SEND_GPU_WAIT = 8,
	STATE_SEND_WAIT = 9,
	STATE_RECV_WAIT = 10,
	STATE_RECV_FLUSH_WAIT = 11,
	STATE_RECV_GPU_WAIT = 12,
	STATE_SEND_PEER_WAIT = 20, /* since version 4 */
	STATE_KERNEL_CH_STOP = 22, /* since version 4 */
};

struct proxy_op_descr {
	pid_t pid; /* of the process whose parentObj and context these are */
	uint8_t channelId;
	int peer, nSteps, chunkSize, isSend;
};

struct proxy_step_descr {
	int step;
};

struct kernel_ch_descr {
	uint8_t channelId;
	uint64_t pTimer; /* of the GPU, in nanoseconds; 0: unknown */
};

struct ce_coll_descr {
	uint64_t seqNumber; /* of a counter that all kinds of collectives by copy engines share */
	const char *func;
	void const *sendBuff;
	void *recvBuff;
	size_t count;
	int root;
	const char *datatype, *syncStrategy;
	bool intraBatchSync;
	uint32_t batchSize, numBatches, ceSeqNum;
	void *stream;
};

/* What versions 4 to 7 say of an operation. Later versions have more members behind these. */
struct coll_descr {
	uint64_t seqNumber;
	const char *func;
	void const *sendBuff;
	void *recvBuff;
	size_t count;
	int root;
	const char *datatype;
	uint8_t nChannels, nWarps;
	const char *algo, *proto;
};

struct p2p_descr {
	const char *func;
	void *buff;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t nChannels;
};

struct descr_v3 {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct {
			const char *name;
			uint64_t commHash, seqNumber;
			const char *func;
			void const *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			const char *datatype;
			uint8_t nMaxChannels, nWarps;
			const char *algo, *proto;
		} coll;
		struct {
			const char *name;
			uint64_t commHash;
			const char *func;
			void *buff;
			const char *datatype;
			size_t count;
			int peer;
		} p2p;
		struct proxy_op_descr proxyOp;
		struct proxy_step_descr proxyStep;
		struct {
			uint8_t channelId;
		} kernelCh;
	};
};

struct descr_v4 {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct coll_descr coll;
		struct p2p_descr p2p;
		struct proxy_op_descr proxyOp;
		struct proxy_step_descr proxyStep;
		struct kernel_ch_descr kernelCh;
	};
};

/* Versions 5 to 7. The union is as large as none of theirs: events are only read where NCCL has them. */
struct descr_v5 {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		struct coll_descr coll;
		struct p2p_descr p2p;
		struct proxy_op_descr proxyOp;
		struct proxy_step_descr proxyStep;
		struct kernel_ch_descr kernelCh;
		struct ce_coll_descr ceColl; /* since version 6 */
	};
};

/* What goes with a state, since version 4. */
union state_args {
	struct {
		size_t transSize; /* bytes of this step */
	} proxyStep;
	struct {
		uint64_t pTimer;
	} kernelCh;
};

struct profiler_v3 {
	const char *name;
	nccl_result (*init)(void **context, int *mask);
	nccl_result (*startEvent)(void *context, void **handle, struct descr_v3 *descr);
	nccl_result (*stopEvent)(void *handle);
	nccl_result (*recordEventState)(void *handle, int state, void *args);
	nccl_result (*finalize)(void *context);
};

struct profiler_v4 {
	const char *name;
	nccl_result (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int ranks, int rank, nccl_logger log);
	nccl_result (*startEvent)(void *context, void **handle, struct descr_v4 *descr);
	nccl_result (*stopEvent)(void *handle);
	nccl_result (*recordEventState)(void *handle, int state, union state_args *args);
	nccl_result (*finalize)(void *context);
};

/* Versions 5 to 7. */
struct profiler_v5 {
	const char *name;
	nccl_result (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks, int rank, nccl_logger log);
	nccl_result (*startEvent)(void *context, void **handle, struct descr_v5 *descr);
	nccl_result (*stopEvent)(void *handle);
	nccl_result (*recordEventState)(void *handle, int state, union state_args *args);
	nccl_result (*finalize)(void *context);
};

#endif
