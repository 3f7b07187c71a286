/* The offsets of what the plugin reads, on machines with 64 bits, as the headers of NCCL have them (profiler_api.h). */
#include "profiler_api.h"

#define AT(type, member, offset) _Static_assert(offsetof(struct type, member) == offset, #type "." #member)

AT(descr_v3, parentObj, 8); AT(descr_v3, rank, 16); AT(descr_v3, coll.name, 24); AT(descr_v3, coll.commHash, 32); AT(descr_v3, coll.seqNumber, 40);
AT(descr_v3, coll.func, 48); AT(descr_v3, coll.count, 72); AT(descr_v3, coll.root, 80); AT(descr_v3, coll.datatype, 88); AT(descr_v3, coll.nMaxChannels, 96);
AT(descr_v3, coll.algo, 104); AT(descr_v3, coll.proto, 112); AT(descr_v3, p2p.commHash, 32); AT(descr_v3, p2p.func, 40); AT(descr_v3, p2p.datatype, 56);
AT(descr_v3, p2p.count, 64); AT(descr_v3, p2p.peer, 72); AT(descr_v3, proxyOp.isSend, 44); AT(descr_v3, kernelCh.channelId, 24);

AT(descr_v4, parentObj, 8); AT(descr_v4, rank, 16); AT(descr_v4, coll.seqNumber, 24); AT(descr_v4, coll.func, 32); AT(descr_v4, coll.count, 56);
AT(descr_v4, coll.root, 64); AT(descr_v4, coll.datatype, 72); AT(descr_v4, coll.nChannels, 80); AT(descr_v4, coll.algo, 88); AT(descr_v4, coll.proto, 96);
AT(descr_v4, p2p.func, 24); AT(descr_v4, p2p.datatype, 40); AT(descr_v4, p2p.count, 48); AT(descr_v4, p2p.peer, 56); AT(descr_v4, p2p.nChannels, 60);

AT(descr_v5, parentObj, 8); AT(descr_v5, rank, 16); AT(descr_v5, coll.seqNumber, 24); AT(descr_v5, coll.func, 32); AT(descr_v5, coll.count, 56);
AT(descr_v5, coll.root, 64); AT(descr_v5, coll.datatype, 72); AT(descr_v5, coll.nChannels, 80); AT(descr_v5, coll.algo, 88); AT(descr_v5, coll.proto, 96);
AT(descr_v5, p2p.peer, 56); AT(descr_v5, p2p.nChannels, 60); AT(descr_v5, proxyOp.pid, 24); AT(descr_v5, proxyOp.channelId, 28); AT(descr_v5, proxyOp.peer, 32);
AT(descr_v5, proxyOp.nSteps, 36); AT(descr_v5, proxyOp.chunkSize, 40); AT(descr_v5, proxyOp.isSend, 44); AT(descr_v5, proxyStep.step, 24);
AT(descr_v5, kernelCh.channelId, 24); AT(descr_v5, kernelCh.pTimer, 32); AT(descr_v5, ceColl.seqNumber, 24); AT(descr_v5, ceColl.func, 32);
AT(descr_v5, ceColl.ceSeqNum, 100); AT(descr_v5, ceColl.stream, 104);
