/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM dwell_idle

#if !defined(DWELL_IDLE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define DWELL_IDLE_TRACE_H

#include <linux/tracepoint.h>

/*
 * An episode has ended. @idle is from its begin until the CPU ran again, with
 * the wakeup latency if it halted; @window how long it was to poll; @busy how
 * long the CPU worked before; @halted whether the window ran out.
 */
TRACE_EVENT(dwell_idle_episode,

	TP_PROTO(u64 idle, u64 window, u64 busy, bool halted),

	TP_ARGS(idle, window, busy, halted),

	TP_STRUCT__entry(
		__field(u64, idle_ns)
		__field(u64, window_ns)
		__field(u64, busy_ns)
		__field(u8, halted)
	),

	TP_fast_assign(
		__entry->idle_ns = idle;
		__entry->window_ns = window;
		__entry->busy_ns = busy;
		__entry->halted = halted;
	),

	TP_printk("idle_ns=%llu window_ns=%llu busy_ns=%llu halted=%u",
		  __entry->idle_ns, __entry->window_ns, __entry->busy_ns,
		  __entry->halted)
);

#endif /* DWELL_IDLE_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
